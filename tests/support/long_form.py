"""Whether tests run in their long form: DFLASH_LONG=1 tries more types, texts, seeds and prompts."""

import os

LONG = os.environ.get("DFLASH_LONG") == "1"
