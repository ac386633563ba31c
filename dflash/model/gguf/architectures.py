"""The architectures that dflash runs as targets, and the tensors in the blocks of each.

A table maps the name of a tensor within its block to its NumPy shape, written in axis names: ``"KV H"`` is a matrix of KV
rows and H columns. `dflash.model.gguf.tensor_check` assigns a size to each axis name.
"""

from typing import NamedTuple

Shapes = dict[str, str]

NONE: Shapes = {}
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
ATTENTION: Shapes = {
    "attn_norm.weight": "H",
    "attn_q.weight": "Q H",
    "attn_k.weight": "KV H",
    "attn_v.weight": "KV H",
    "attn_output.weight": "H Q",
}
FULL: Shapes = ATTENTION | {"attn_q_norm.weight": "HEAD", "attn_k_norm.weight": "HEAD"}
BIASES: Shapes = {"attn_q.bias": "Q", "attn_k.bias": "KV", "attn_v.bias": "KV"}
"""Added to the projections of attention."""
GATED: Shapes = FULL | {"attn_q.weight": "2Q H"}
DENSE: Shapes = {"ffn_gate.weight": "F H", "ffn_up.weight": "F H", "ffn_down.weight": "H F"}
ROUTED: Shapes = {
    "ffn_gate_inp.weight": "E H",
    "ffn_gate_exps.weight": "E FE H",
    "ffn_up_exps.weight": "E FE H",
    "ffn_down_exps.weight": "E H FE",
}
UNROUTED: Shapes = {"ffn_gate_shexp.weight": "FS H", "ffn_up_shexp.weight": "FS H", "ffn_down_shexp.weight": "H FS"}
"""A shared expert whose output is added as it is."""
SHARED: Shapes = {"ffn_gate_inp_shexp.weight": "H"} | UNROUTED
BIASED: Shapes = ROUTED | {"exp_probs_b.bias": "E"}
"""Experts that are selected by the sigmoids of their logits and a bias."""
FFN_OUTPUT_NORM: Shapes = {"post_ffw_norm.weight": "H"}
KEYS_AND_VALUES = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
"""Tensors that a layer lacks if it reads the keys and values of another one."""
BESIDE: Shapes = ROUTED | {
    "ffn_gate_inp.scale": "H",
    "ffn_down_exps.scale": "E",
    "pre_ffw_norm_2.weight": "H",
    "post_ffw_norm_1.weight": "H",
    "post_ffw_norm_2.weight": "H",
}
"""Experts beside the dense feed forward of a block."""
PER_LAYER: Shapes = {"inp_gate.weight": "P H", "proj.weight": "H P", "post_norm.weight": "H"}
"""Tensors that add the layer's part of a token's embedding for all layers."""
PER_LAYER_OUTSIDE: Shapes = {
    "per_layer_token_embd.weight": "V LP",
    "per_layer_model_proj.weight": "LP H",
    "per_layer_proj_norm.weight": "P",
}
MTP: Shapes = {"nextn.eh_proj.weight": "H 2H", "nextn.enorm.weight": "H", "nextn.hnorm.weight": "H"}
MTP_OPTIONAL: Shapes = {
    "nextn.shared_head_norm.weight": "H",
    "nextn.embed_tokens.weight": "V H",
    "nextn.shared_head_head.weight": "V H",
}


class Fused(NamedTuple):
    """A tensor that files hold in place of several.

    runs: rows that belong to one key head of linear attention, from the top: the axis name of their number, and the index in
        `parts` of the tensor that they belong to. The tensor has these rows for each key head in turn; a part has all of its
        first rows, then all of its second rows. Empty if the rows of the parts stand one after the other.
    """

    name: str
    shape: str
    parts: tuple[str, ...]
    runs: tuple[tuple[str, int], ...] = ()


_FUSED_EXPERTS = Fused("ffn_gate_up_exps.weight", "E 2FE H", ("ffn_gate_exps.weight", "ffn_up_exps.weight"))
_QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")

ALIASES = {"ssm_dt": "ssm_dt.bias"}
"""Tensor names that some converters write, and the usual name of each."""


class Architecture(NamedTuple):
    """Tensors of an architecture, which say what its blocks have.

    linear: mixer of a linear-attention block; None if every block is full attention.
    full: mixer of a full-attention block.
    ffn: feed forward of every block; the first tensor is the norm before it.
    fused: fused tensors that may replace those of a full-attention mixer or of a feed forward.
    sections: whether the rotary embedding has sections for the positions of images, which the file must give.
    grouped: whether value heads of linear attention that share a key head are neighbours; else key heads take turns.
    outside: tensors outside the blocks besides those of every model.
    optional: tensors that a file may lack, in a block or outside.
    layered: whether layers differ in heads, window and feed forward, see `dflash.model.layer_sizes`.
    unscaled: whether scores of attention are not divided by the root of the head size, and values are normed like keys.
    gelu: whether the feed forward has GELU in place of SiLU.
    scaled_embedding: whether embeddings are multiplied by the root of their width.
    beside: tensors of a block whose file has experts beside the dense feed forward.
    window_period: period of the layers where the file names a window but not its layers: the first layer of a period sees
        all tokens, the others have the window. 0 where the file must name them.
    interleaved: whether neighbouring rows of the query and key projections form a pair of the rotary embedding.
    routed: feed forward of every block in a file with experts, in place of `ffn`; empty where that does not depend on the
        file.
    """

    linear: Shapes | None
    full: Shapes
    ffn: Shapes
    fused: tuple[Fused, ...]
    sections: bool = False
    grouped: bool = False
    outside: Shapes = NONE
    optional: Shapes = NONE
    layered: bool = False
    unscaled: bool = False
    gelu: bool = False
    scaled_embedding: bool = False
    beside: Shapes = NONE
    window_period: int = 0
    interleaved: bool = False
    routed: Shapes = NONE

    def of_file(self, *, experts: bool) -> "Architecture":
        """Return the architecture of a file with or without experts."""
        return self._replace(ffn=self.routed) if experts and self.routed else self

    @property
    def gated(self) -> bool:
        """True if the query projection of full attention also makes a gate for each head."""
        return self.full["attn_q.weight"] == GATED["attn_q.weight"]

    @property
    def ffn_norm(self) -> str:
        """Name of the norm before the feed forward."""
        return next(iter(self.ffn))

    @property
    def head_gate(self) -> bool:
        """True if the output of attention is multiplied by the softplus of a gate."""
        return "attn_gate.weight" in self.full

    @property
    def normed_outputs(self) -> bool:
        """True if the outputs of mixer and feed forward have a norm of their own before they are added."""
        return FFN_OUTPUT_NORM.keys() <= self.ffn.keys()

    @property
    def experts(self) -> bool:
        """True if the feed forward has experts."""
        return ROUTED.keys() <= self.ffn.keys()

    @property
    def shared(self) -> bool:
        """True if one expert is used by every token, besides those that a router selects."""
        return UNROUTED.keys() <= self.ffn.keys()

    @property
    def sigmoid(self) -> bool:
        """True if experts are selected by a sigmoid and a bias."""
        return BIASED.keys() <= self.ffn.keys()


_BETA_ALPHA = Fused("ssm_ba.weight", "2HV H", ("ssm_beta.weight", "ssm_alpha.weight"), (("R", 0), ("R", 1)))
_QKVZ = Fused(
    "ssm_in.weight", "CONV+Z H", ("attn_qkv.weight", "attn_gate.weight"), (("D", 0), ("D", 0), ("RD", 0), ("RD", 1))
)
"""Projections of linear attention as checkpoints have them; files of early converters still hold `ssm_in`."""

_POST_NORM: Shapes = {"post_attention_norm.weight": "H"}
"""Norm after attention: of the sum with the residual stream in `qwen35`, of the mixer's output in `gemma4`."""
_FFN_NORM: Shapes = {"ffn_norm.weight": "H"}
_ROPE_FACTORS: Shapes = {"rope_freqs.weight": "HEAD/2"}
"""Divide the frequencies of the rotary embedding."""

ARCHITECTURES = {
    "qwen35": Architecture(
        linear=LINEAR, full=GATED, ffn=_POST_NORM | DENSE, fused=(Fused("attn_qkv.weight", "2Q+2KV H", _QKV),), sections=True
    ),
    "qwen35moe": Architecture(
        linear=LINEAR,
        full=GATED,
        ffn=_POST_NORM | ROUTED | SHARED,
        fused=(Fused("attn_qkv.weight", "2Q+2KV H", _QKV), _FUSED_EXPERTS),
        sections=True,
    ),
    "qwen3": Architecture(linear=None, full=FULL, ffn=_FFN_NORM | DENSE, fused=(Fused("attn_qkv.weight", "Q+2KV H", _QKV),)),
    "qwen3moe": Architecture(
        linear=None, full=FULL, ffn=_FFN_NORM | ROUTED, fused=(Fused("attn_qkv.weight", "Q+2KV H", _QKV), _FUSED_EXPERTS)
    ),
    "qwen2": Architecture(linear=None, full=ATTENTION | BIASES, ffn=_FFN_NORM | DENSE, fused=()),
    "llama": Architecture(
        linear=None,
        full=ATTENTION,
        ffn=_FFN_NORM | DENSE,
        routed=_FFN_NORM | ROUTED,
        fused=(_FUSED_EXPERTS,),
        outside=_ROPE_FACTORS,
        optional=_ROPE_FACTORS,
        interleaved=True,
    ),
    "qwen3next": Architecture(
        linear=LINEAR,
        full=GATED,
        ffn=_POST_NORM | ROUTED | SHARED,
        fused=(Fused("attn_qkv.weight", "2Q+2KV H", _QKV), _FUSED_EXPERTS, _BETA_ALPHA, _QKVZ),
        grouped=True,
    ),
    "gemma4": Architecture(
        linear=None,
        full=FULL | _POST_NORM,
        ffn=_FFN_NORM | DENSE | FFN_OUTPUT_NORM,
        beside=BESIDE,
        fused=(_FUSED_EXPERTS,),
        outside=_ROPE_FACTORS,
        optional={"attn_v.weight": "KV H", "layer_output_scale.weight": "1"},
        layered=True,
        unscaled=True,
        gelu=True,
        scaled_embedding=True,
    ),
    "laguna": Architecture(
        linear=None,
        full=FULL | {"attn_gate.weight": "GATE H"},
        ffn=_FFN_NORM | BIASED | UNROUTED,
        fused=(_FUSED_EXPERTS,),
        layered=True,
        window_period=4,
    ),
}
