"""Small random models whose layers differ, in all that differs between files of one architecture."""

import numpy as np
import random_model
from model_definition import logits

from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile

GEMMA = {
    "block_count": 4, "context_length": 512, "embedding_length": 256, "feed_forward_length": 256,
    "attention.head_count": 16, "attention.head_count_kv": np.array([4, 2, 4, 2], np.int32),
    "attention.key_length": 32, "attention.key_length_swa": 16, "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "attention.sliding_window": 20,
    "attention.sliding_window_pattern": np.array([True, False, True, False]), "final_logit_softcapping": 5.0,
    "embedding_length_per_layer_input": 64,
}  # fmt: skip
LAGUNA = {
    "block_count": 3, "context_length": 512, "embedding_length": 256, "feed_forward_length": 512,
    "attention.head_count": np.array([4, 8, 6], np.int32), "attention.head_count_kv": 2, "attention.key_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 20, "attention.sliding_window_pattern": 2,
    "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "rope.dimension_count": 32, "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128, "rope.scaling.yarn_attn_factor": 1.2,
    "leading_dense_block_count": 1, "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 256,
    "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5,
    "expert_shared_feed_forward_length": 256,
}  # fmt: skip
KEYS = {"gemma4": GEMMA, "laguna": LAGUNA}
SHARED = {"attention.shared_kv_layers": 2, "feed_forward_length": np.array([256, 256, 512, 512], np.int32)}
EXPERTS = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 256}
PLAIN = {"embedding_length_per_layer_input": 0, "final_logit_softcapping": 0.0}
LARGE = {"attention.key_length": 512, "attention.key_length_swa": 256, "attention.head_count": 4}
VARIANTS = {
    "shared keys": ("gemma4", SHARED, ("attn_v.weight",)),
    "no embeddings of layers": ("gemma4", PLAIN, ("attn_v.weight",)),
    "keys as values": ("gemma4", SHARED | PLAIN, ()),
    "scaled layers": ("gemma4", {}, ("layer_output_scale.weight",)),
    "large heads": ("gemma4", LARGE, ()),
    "experts": ("gemma4", EXPERTS, ()),
    "fused experts": ("gemma4", EXPERTS | PLAIN, ("ffn_gate_up_exps.weight",)),
    "sigmoid routing": ("laguna", {}, ()),
    "no windows": ("laguna", {"attention.sliding_window": 0}, ()),
}
"""Architecture, keys that differ, and optional or fused tensors that the file has."""
TOKENS = np.random.default_rng(1).integers(0, 300, 70).astype(np.int32)


def opened(path, architecture, changes=(), fused=(), kind="Q8_0"):
    """Write a variant and open it."""
    random_model.write(path, architecture, 320, KEYS[architecture] | dict(changes), kind, fused)
    file = GGUFFile.open(path)
    return file, Config.from_gguf(file.metadata, file.tensors)


def without_ties(file, config, kv="f32"):
    """Tokens and their logits by the definition. No expert is selected so near a tie that rounding to float16 decides.

    Where it does, the logits of that token and of all later ones differ, as they should.
    """
    for seed in range(1000):
        tokens, margins = np.random.default_rng(seed).integers(0, 300, 32).astype(np.int32), []
        want = logits(file, config, tokens, kv=kv, margins=margins)
        if min(margins, default=1) > 0.01:
            return tokens, want
    raise AssertionError("every text has a tie")
