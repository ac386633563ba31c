"""Recoveries over token ids. A file of this folder that registers a name needs no import elsewhere."""

from importlib import import_module
from pkgutil import iter_modules

from dflash.decode.registry.recoveries import RECOVERIES
from dflash.decode.registry.word_table import load_entry_points


@RECOVERIES.source
def import_all() -> None:
    """Import every file of this folder, and what other distributions offer."""
    for module in iter_modules(__path__):
        import_module(f".{module.name}", __name__)
    load_entry_points("dflash.recoveries")
