"""Drafters. Importing this package registers the name of each, in the order in which messages list them.

A new file of this folder that registers a name needs no import here.
"""

# ruff: noqa: I001
from importlib import import_module
from pkgutil import iter_modules

from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafters.dflash import DFlash, DSpark
from dflash.decode.drafters.ddtree import DDTree
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.eagle import Eagle3
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafters.suffix import SuffixDecoding
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.registry import DRAFTERS
from dflash.decode.registry.word_table import load_entry_points

__all__ = [
    "MTP",
    "Adaptive",
    "DDTree",
    "DFlash",
    "DSpark",
    "DraftModel",
    "Eagle3",
    "FirstOf",
    "Plain",
    "PromptLookup",
    "Strategy",
    "SuffixDecoding",
]


@DRAFTERS.source
def import_all() -> None:
    """Import every file of this folder, and what other distributions offer."""
    for module in iter_modules(__path__):
        import_module(f".{module.name}", __name__)
    load_entry_points("dflash.drafters")
