"""Recoveries over token ids. A file of this folder that registers a name needs no import elsewhere."""

from dflash.decode.registry.recoveries import RECOVERIES

import_all = RECOVERIES.files_of(__name__)
