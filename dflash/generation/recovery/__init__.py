"""Recoveries that need a tokenizer or a chat template.

A file of this folder that registers a name needs no import elsewhere.
"""

from importlib import import_module
from pkgutil import iter_modules

from dflash.decode.registry.recoveries import RECOVERIES


@RECOVERIES.source
def import_all() -> None:
    """Import every file of this folder."""
    for module in iter_modules(__path__):
        import_module(f".{module.name}", __name__)
