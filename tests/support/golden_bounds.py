"""How far results of the golden models on a CPU may be from the recorded ones."""

from functools import cache

import numpy as np
from golden import path_of, recorded
from model_definition import logits as definition

from dflash.kernels.formats import FORMATS
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile

LOGITS, LOGITS_RMS = 5e-4, 5e-5
INTERMEDIATE, STATE = 2e-4, 5e-5


class Allowed:
    """How far results of a model on a CPU may be from the recorded ones.

    That is the tolerance of float32, and what rounding of tokens to 16 bits alone changes: the difference between the
    definition with rounding and without. Later layers round other values than the definition does, so errors agree in size
    only: RMS errors within a tenth, the largest ones of a part within a factor of 1.5.
    """

    def __init__(self, name):
        want, self._changes = recorded(name), {}
        kind = FORMATS.get(name.rpartition("-")[2])
        if not kind or not kind.integers:
            return
        texts = {"": want["tokens"], "prompt.": want["tokens"][: int(want["n_prompt"])]}
        texts |= {"short.": want["short.tokens"]} if "short.tokens" in want.files else {}
        with GGUFFile.open(path_of(name)) as file:
            config = Config.from_gguf(file.metadata, file.tensors)
            for text, tokens in texts.items():
                exact, rounded = {}, {}
                exact["logits"] = definition(file, config, tokens, trace=exact)
                rounded["logits"] = definition(file, config, tokens, trace=rounded, rounding=True)
                self._changes |= {text + part: (rounded[part] - value, value) for part, value in exact.items()}

    def largest(self, part, tolerance):
        """Of a part by its name in the trace of a text: ``"logits"``, ``"short.logits"``, ``"prompt.layer0.out"``."""
        return tolerance + (1.5 * np.abs(self._changes[part][0]).max() if self._changes else 0)

    def rms(self, n):
        """RMS error over RMS of the logits of the last tokens."""
        change, value = (rows[-n:] for rows in self._changes.get("logits", (np.zeros(1), np.ones(1))))
        return LOGITS_RMS + np.sqrt(np.mean(change**2) / np.mean(value**2))


@cache
def allowed(name):
    return Allowed(name)
