"""Drafters. Importing this package registers the name of each, in the order in which messages list them.

A new file of this folder that registers a name needs no import here.
"""

# ruff: noqa: I001
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafters.dflash import DFlash, DSpark
from dflash.decode.drafters.ddtree import DDTree
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.registry import DRAFTERS

__all__ = ["MTP", "Adaptive", "DDTree", "DFlash", "DSpark", "DraftModel", "FirstOf", "Plain", "PromptLookup", "Strategy"]

import_all = DRAFTERS.files_of(__name__)
