"""Configuration of an EAGLE-3 head."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from dflash.errors import FormatError, Unsupported
from dflash.model.config import Config
from dflash.model.config_sizes import RopeScaling
from dflash.model.runnable import LANES, MAX_GROUP, MAX_HEAD_SIZE


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Sizes and settings of an EAGLE-3 head.

    width, target_width: width of the head's and of the target's residual stream, nearly always the same.
    ffn, heads, kv_heads, head_size: inner size of the feed forward, query heads, KV heads, head size.
    head_norms: whether queries and keys are normed, as in Qwen3.
    n_rot, rope_base, rope_scaling: rotary embedding of the first `n_rot` elements of a head.
    n_vocab: vocabulary size of the target; 0 if the file does not give it.
    target_layer_ids: layers of the target, counted from 0, whose outputs the head reads, from low to high. Empty if the file
        does not list them; `fitted` then has the usual ones.
    feature_norm: norm of the features before ``fc``: none, one of all together, or one of each layer's.
    normed_residual: whether the residual stream begins with the normed hidden state instead of the plain one.
    normed_output: whether the next position reads the output of the last norm instead of its input, as in EAGLE-3.1.
    """

    width: int
    target_width: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    head_norms: bool
    n_rot: int
    rope_base: float
    rope_scaling: RopeScaling | None
    n_vocab: int
    norm_eps: float
    target_layer_ids: tuple[int, ...]
    feature_norm: Literal["none", "whole", "layers"] = "none"
    normed_residual: bool = False
    normed_output: bool = False

    def __post_init__(self) -> None:
        """Raise if sizes contradict each other."""
        if self.heads % self.kv_heads:
            raise FormatError(f"EAGLE-3 head: {self.heads} heads are no multiple of {self.kv_heads} KV heads")
        if len(set(self.target_layer_ids)) < len(self.target_layer_ids):
            raise FormatError(f"EAGLE-3 head: reads the target's layers {self.target_layer_ids}, must be different ones")

    def fitted(self, n_layers: int, n_vocab: int) -> Self:
        """Return the configuration for a target of `n_layers` layers and `n_vocab` tokens."""
        ids = self.target_layer_ids or (1, n_layers // 2 - 1, n_layers - 4)
        if min(ids) < 0 or max(ids) >= n_layers or len(set(ids)) < len(ids):
            raise Unsupported(
                f"the EAGLE-3 head reads layers {', '.join(map(str, ids))}, this model has layers 0 to {n_layers - 1}"
            )
        return replace(self, target_layer_ids=ids, n_vocab=n_vocab)

    def refuse_sizes(self, device: str) -> None:
        """Raise `Unsupported` if the kernels of a device do not run the sizes."""
        sizes = {"width": self.width, "feed forward": self.ffn, "head size": self.head_size}
        for what, size in sizes.items():
            if size % LANES:
                raise Unsupported(f"EAGLE-3 head: {what} {size}, must be a multiple of {LANES}")
        if self.head_size > MAX_HEAD_SIZE[device]:
            raise Unsupported(f"EAGLE-3 head: head size {self.head_size}, must be at most {MAX_HEAD_SIZE[device]}")
        if device == "cuda" and self.heads > MAX_GROUP * self.kv_heads:
            raise Unsupported(
                f"EAGLE-3 head: {self.heads} heads, must be at most {MAX_GROUP} times the {self.kv_heads} KV heads"
            )

    def block(self, context: int) -> Config:
        """Return the sizes of the head's layer as those of a model of one layer."""
        return Config(
            architecture="qwen3" if self.head_norms else "llama",
            n_layers=1,
            n_mtp=0,
            width=self.width,
            n_vocab=self.n_vocab,
            context=context,
            ffn=self.ffn,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            norm_eps=self.norm_eps,
            rope_base=self.rope_base,
            n_rot=self.n_rot,
            rope_sections=(),
            rope_scaling=self.rope_scaling,
            recurrent=(False,),
            delta_key_heads=0,
            delta_value_heads=0,
            delta_size=0,
            conv_width=0,
            experts=0,
            experts_used=0,
            expert_ffn=0,
            shared_ffn=0,
            tied=False,
        )
