"""The architectures that dflash runs as targets, and the tensors in the blocks of each.

A table maps the name of a tensor within its block to its NumPy shape, written in axis names: ``"KV H"`` is a matrix of KV
rows and H columns. `dflash.model.gguf.tensor_check` assigns a size to each axis name.
"""

from typing import NamedTuple

Shapes = dict[str, str]

OUTSIDE: Shapes = {"token_embd.weight": "V H", "output_norm.weight": "H"}
HEAD: Shapes = {"output.weight": "V H"}
"""Absent where the embedding is also the LM head."""

LINEAR: Shapes = {
    "attn_norm.weight": "H",
    "attn_qkv.weight": "CONV H",
    "attn_gate.weight": "Z H",
    "ssm_alpha.weight": "HV H",
    "ssm_beta.weight": "HV H",
    "ssm_a": "HV",
    "ssm_dt.bias": "HV",
    "ssm_conv1d.weight": "CONV K",
    "ssm_norm.weight": "D",
    "ssm_out.weight": "H Z",
}
FULL: Shapes = {
    "attn_norm.weight": "H",
    "attn_q.weight": "Q H",
    "attn_k.weight": "KV H",
    "attn_v.weight": "KV H",
    "attn_q_norm.weight": "HEAD",
    "attn_k_norm.weight": "HEAD",
    "attn_output.weight": "H Q",
}
GATED: Shapes = FULL | {"attn_q.weight": "2Q H"}
DENSE: Shapes = {"ffn_gate.weight": "F H", "ffn_up.weight": "F H", "ffn_down.weight": "H F"}
EXPERTS: Shapes = {
    "ffn_gate_inp.weight": "E H",
    "ffn_gate_exps.weight": "E FE H",
    "ffn_up_exps.weight": "E FE H",
    "ffn_down_exps.weight": "E H FE",
    "ffn_gate_inp_shexp.weight": "H",
    "ffn_gate_shexp.weight": "FS H",
    "ffn_up_shexp.weight": "FS H",
    "ffn_down_shexp.weight": "H FS",
}
MTP: Shapes = {"nextn.eh_proj.weight": "H 2H", "nextn.enorm.weight": "H", "nextn.hnorm.weight": "H"}
MTP_OPTIONAL: Shapes = {
    "nextn.shared_head_norm.weight": "H",
    "nextn.embed_tokens.weight": "V H",
    "nextn.shared_head_head.weight": "V H",
}


class Fused(NamedTuple):
    """A tensor that some files hold in place of several, with the rows of these one after the other."""

    name: str
    shape: str
    parts: tuple[str, ...]


_FUSED_EXPERTS = Fused("ffn_gate_up_exps.weight", "E 2FE H", ("ffn_gate_exps.weight", "ffn_up_exps.weight"))
_QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")

ALIASES = {"ssm_dt": "ssm_dt.bias"}
"""Tensor names that some converters write, and the usual name of each."""


class Architecture(NamedTuple):
    """Tensors of an architecture.

    Parameters
    ----------
    linear : dict or None
        Mixer of a linear-attention block; None if every block is full attention.
    full : dict
        Mixer of a full-attention block.
    ffn : dict
        Feed forward of every block, including the norm before it.
    experts : bool
        Whether the feed forward has experts.
    fused : tuple of Fused
        Fused tensors that may replace those of a full-attention mixer or of a feed forward.
    """

    linear: Shapes | None
    full: Shapes
    ffn: Shapes
    experts: bool
    fused: tuple[Fused, ...]


_POST_NORM: Shapes = {"post_attention_norm.weight": "H"}

ARCHITECTURES = {
    "qwen35": Architecture(
        linear=LINEAR,
        full=GATED,
        ffn=_POST_NORM | DENSE,
        experts=False,
        fused=(Fused("attn_qkv.weight", "2Q+2KV H", _QKV),),
    ),
    "qwen35moe": Architecture(
        linear=LINEAR,
        full=GATED,
        ffn=_POST_NORM | EXPERTS,
        experts=True,
        fused=(Fused("attn_qkv.weight", "2Q+2KV H", _QKV), _FUSED_EXPERTS),
    ),
    "qwen3": Architecture(
        linear=None,
        full=FULL,
        ffn={"ffn_norm.weight": "H"} | DENSE,
        experts=False,
        fused=(Fused("attn_qkv.weight", "Q+2KV H", _QKV),),
    ),
}
