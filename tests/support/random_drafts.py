"""Random draft models for the demo, and states of a draft that have read a text."""

from itertools import pairwise

import numpy as np
from drafts import write_gguf
from golden import chain

from dflash.model.batch import Span
from dflash.model.draft.files.names import expected

SETTINGS = {"ffn": 256, "n_layers": 2, "heads": 4, "kv_heads": 2, "head_size": 64, "block": 8, "target_layer_ids": (1, 3, 5)}
SETTINGS |= {"n_vocab": 16384, "width": 512, "mask": 16377, "windows": (64, 64), "causal": (False, False)}


def random_draft(path, config, n_head=16384):
    """Write a draft for the demo, with a head of its own if that is for fewer tokens; its weights."""
    rng, weights = np.random.default_rng(1), {}
    for name, shape in expected(config, config.n_vocab, n_head).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif name.endswith("conv_base"):
            values = 0.3 * values + np.array([1, 0], np.float32)[None, :, None]
        elif len(shape) == 2:
            values /= np.float32(np.sqrt(shape[1]))
        weights[name] = values
    weights["d2t"] = np.sort(rng.permutation(config.n_vocab)[:n_head]).astype(np.int64)
    own = {"output.weight", "d2t"} if n_head < config.n_vocab else set()
    for name in {"token_embd.weight", "output.weight", "d2t"} - own:
        del weights[name]
    write_gguf(path, config, weights)
    return weights


def read(model, draft, ids, cuts=(), features=None):
    """A state that has read a text in parts."""
    return read_by_all(model, [draft], ids, cuts, features)[0]


def read_by_all(model, drafts, ids, cuts=(), features=None):
    """A state of each draft; all have read the same text of the same target in parts."""
    states, target = [draft.state() for draft in drafts], model.state()
    taps = drafts[0].config.target_layer_ids
    for start, stop in pairwise([0, *cuts, len(ids)]):
        tokens = np.array(ids[start:stop], np.int32)
        span = Span(target, tokens, chain(len(tokens)), prefill=True, logits=False)
        out = model.forward([span], capture=taps)
        for draft, state in zip(drafts, states, strict=True):
            draft.read(state, out.captured, slice(0, len(tokens)))
        if features is not None:
            features.append(np.concatenate([out.captured[tap].get() for tap in taps], axis=1))
    target.close()
    return states
