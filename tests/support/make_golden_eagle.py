"""Write the golden data of EAGLE-3 heads: logits of the reference module of speculators for heads with random weights.

Run as ``python tests/support/make_golden_eagle.py`` with torch, transformers and speculators installed; the file has their
versions. The weights are those of `eagle_heads`, made from a seed, so that only logits are stored. The module computes in
float32 on a CPU. It drafts by rows: row i reads token i + 1 with the features of position i, and its later steps see the
keys of the rows up to i and its own. Draft tokens of the last row are fed back to it as the tokens that follow.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from eagle_heads import CASES, features, settings, tensors
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel

FILE = Path(__file__).parent.parent / "data" / "golden" / "eagle3.npz"
TOKENS, DRAFTED, EVERY = 20, 4, 6
"""Tokens of a text, draft tokens after it, and distance of the rows whose logits are stored."""


def module(config, weights):
    """The reference module with these weights."""
    made = Eagle3SpeculatorConfig(**config)
    made.transformer_layer_config._attn_implementation = "eager"
    head = Eagle3DraftModel(made).eval()
    missing, unexpected = head.load_state_dict({name: torch.tensor(value) for name, value in weights.items()}, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("verifier") for name in missing), missing
    return head


def logits_of(head, tokens, given, steps):
    """Logits (steps, T, V) of a text (T + 1,) with the features (T, F) before its tokens."""
    found = []
    hook = head.lm_head.register_forward_hook(lambda _, __, out: found.append(out[0].numpy().copy()))
    document = torch.zeros(1, len(given), dtype=torch.long)
    head(torch.tensor(given)[None], torch.tensor(tokens[1:])[None], document, ttt_steps=steps)
    hook.remove()
    return np.stack(found)


def results(name, seed):
    """Recorded arrays of one head."""
    config = settings(**CASES[name])
    weights = tensors(config, seed)
    head = module(config, weights)
    ids = np.arange(config["draft_vocab_size"]) + weights.get("d2t", 0)
    tokens = np.random.default_rng(seed).integers(0, 480, TOKENS + 1)
    given, n = features(TOKENS + DRAFTED, seed), TOKENS - 1
    drafted = []
    for step in range(DRAFTED):
        # features after the text are read by rows that the last row does not see
        text = np.concatenate([tokens, drafted, np.zeros(DRAFTED - step)]).astype(np.int64)
        logits = logits_of(head, text, given, DRAFTED)
        drafted.append(ids[logits[step, n].argmax()])
    margins = [np.diff(np.sort(row)[-2:])[0] for row in logits[:, n]]
    print(name, "drafts", drafted, "margins", np.round(margins, 3))
    return {
        "tokens": tokens.astype(np.int32),
        "logits": logits[0, :TOKENS:EVERY].astype(np.float32),
        "chain": np.array(drafted, np.int32),
        "chain_logits": logits[:, n].astype(np.float32),
    }


if __name__ == "__main__":
    found = {"made_with": np.array([f"{name} {version(name)}" for name in ("speculators", "transformers", "torch")])}
    with torch.no_grad():
        for seed, name in enumerate(CASES):
            found |= {f"{name}/{key}": value for key, value in results(name, seed).items()}
    np.savez_compressed(FILE, **found)
    print(FILE, FILE.stat().st_size, "bytes")
