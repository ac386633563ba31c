"""Configuration of a model: sizes and kinds of layers, from the metadata of its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from dflash.errors import FormatError, RequestError, Unsupported
from dflash.kernels.delta.memory import DeltaMemory, GroupedDeltaMemory
from dflash.kernels.ragged import PENDING
from dflash.model.config_sizes import (
    MAX_BLOCKS,
    MAX_EXPERTS,
    MAX_WIDTH,
    RopeScaling,
    attention_sizes,
    delta_sizes,
    expert_sizes,
    ffn_size,
    recurrent_blocks,
    refuse_other_mathematics,
)
from dflash.model.gguf.architectures import ARCHITECTURES, Architecture
from dflash.model.gguf.header import Value
from dflash.model.gguf.keys import Keys
from dflash.model.gguf.part import TensorInfo
from dflash.model.layer_sizes import LayerSizes, Rotary, layer_sizes


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes and settings of a model.

    architecture: one of `ARCHITECTURES`.
    n_layers: number of trunk layers; blocks with this index and above are MTP blocks.
    n_vocab: rows of the embedding, which may include padding rows that are no tokens.
    context: longest sequence that the model was trained for, in tokens.
    ffn: inner size of the feed forward; 0 with experts. Here and for heads, the largest of any layer where layers differ.
    heads, kv_heads, head_size: query heads, KV heads and head size of the attention layers.
    n_rot: dimensions of a head with rotary embedding, counted from the first.
    rope_sections: rotation pairs for time, height, width and extra positions; empty if the model has none.
    rope_scaling: context extension of the rotary embedding; None in most files.
    recurrent: for each trunk layer, whether it is linear attention.
    delta_key_heads, delta_value_heads, delta_size: heads of linear attention, and the size of both keys and values; 0
        without linear attention.
    conv_width: taps of the convolution of a linear layer.
    experts, experts_used: number of experts, and of experts used per token; 0 without experts.
    expert_ffn, shared_ffn: inner sizes of an expert and of the shared expert; 0 without one.
    layers: sizes of each trunk layer; empty if all layers of a kind have the same.
    window_rotation: rotary embedding of layers with a window; None if there are none.
    logit_cap: bound of the logits, see `dflash.kernels.soft_cap`; 0 for none.
    per_layer: elements of a token's embedding for one layer; 0 without such embeddings.
    expert_scale: sum of the shares of a token's experts.
    suppressed: tokens of the file that the model never chooses: their logits are minus infinity.
    pending: most pending rows of a sequence, for which each slot has memory in every linear layer. Not in the file, but a
        setting of loading, as is the next.
    prefill: type of the products of prompts on a GPU, one of `dflash.model.loading.settings.PREFILL_TYPES`.
    """

    architecture: str
    n_layers: int
    n_mtp: int
    width: int
    n_vocab: int
    context: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    norm_eps: float
    rope_base: float
    n_rot: int
    rope_sections: tuple[int, ...]
    rope_scaling: RopeScaling | None
    recurrent: tuple[bool, ...]
    delta_key_heads: int
    delta_value_heads: int
    delta_size: int
    conv_width: int
    experts: int
    experts_used: int
    expert_ffn: int
    shared_ffn: int
    tied: bool
    layers: tuple[LayerSizes, ...] = ()
    window_rotation: Rotary | None = None
    logit_cap: float = 0.0
    per_layer: int = 0
    expert_scale: float = 1.0
    suppressed: tuple[int, ...] = ()
    pending: int = PENDING
    prefill: str = "f16"

    @property
    def kv_shapes(self) -> dict[int, tuple[int, int]]:
        """KV heads and head size of each attention layer that has keys and values of its own, by layer."""
        full = [i for i, recurrent in enumerate(self.recurrent) if not recurrent]
        if not self.layers:
            return dict.fromkeys(full, (self.kv_heads, self.head_size))
        sized = ((i, self.layers[i]) for i in full)
        return {i: (layer.kv_heads, layer.head_size) for i, layer in sized if layer.source == i}

    @property
    def n_blocks(self) -> int:
        """Number of trunk layers and MTP blocks."""
        return self.n_layers + self.n_mtp

    @property
    def blocks(self) -> Architecture:
        """Tensors of the blocks, and what they imply."""
        return ARCHITECTURES[self.architecture].of_file(experts=self.experts > 0)

    @property
    def delta_memory(self) -> type[DeltaMemory]:
        """Class of the recurrent state of a linear layer, which knows the key head of each value head."""
        return GroupedDeltaMemory if self.blocks.grouped else DeltaMemory

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Value], tensors: Mapping[str, TensorInfo], *, pending: int = PENDING) -> Self:
        """Read the configuration of a model."""
        check_pending(pending)
        name = _architecture(metadata)
        keys = Keys(metadata, name)
        architecture = ARCHITECTURES[name].of_file(experts=keys.integer("expert_count", 0, low=0, high=MAX_EXPERTS) > 0)
        refuse_other_mathematics(keys, architecture)
        n_blocks = keys.integer("block_count", high=MAX_BLOCKS)
        n_layers = n_blocks - keys.integer("nextn_predict_layers", 0, low=0, high=n_blocks - 1)
        recurrent = recurrent_blocks(keys, architecture, n_blocks, n_layers)
        return cls(
            architecture=name,
            n_layers=n_layers,
            n_mtp=sum(any(name.startswith(f"blk.{i}.") for name in tensors) for i in range(n_layers, n_blocks)),
            width=keys.integer("embedding_length", high=MAX_WIDTH),
            n_vocab=_vocabulary(metadata, tensors),
            context=keys.integer("context_length"),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon", low=0, high=1),
            recurrent=recurrent[:n_layers],
            tied="output.weight" not in tensors,
            suppressed=_suppressed(metadata, tensors) if architecture.layered else (),
            pending=pending,
            **delta_sizes(keys, architecture),
            **expert_sizes(keys, architecture),
            **(
                layer_sizes(keys, architecture, n_blocks, tensors)
                if architecture.layered
                else attention_sizes(keys, architecture, recurrent) | ffn_size(keys, architecture, n_blocks)
            ),
        )


def check_pending(pending: int) -> None:
    """Raise a `RequestError` if sequences can't have this many pending rows."""
    if not 1 <= pending <= PENDING:
        raise RequestError(f"pending is {pending}, must be 1 to {PENDING}")


def _architecture(metadata: Mapping[str, Value]) -> str:
    architecture = Keys(metadata, "general").text("architecture")
    if "dflash" in architecture:
        raise Unsupported("the file is a draft model: load its target, and name the draft in the strategy")
    if architecture not in ARCHITECTURES:
        raise Unsupported(f"architecture {architecture[:40]!r}: supported are {', '.join(ARCHITECTURES)}")
    return architecture


def _suppressed(metadata: Mapping[str, Value], tensors: Mapping[str, TensorInfo]) -> tuple[int, ...]:
    high = _vocabulary(metadata, tensors) - 1
    return Keys(metadata, "tokenizer").integers("ggml.suppress_tokens", (), high=high)


def _vocabulary(metadata: Mapping[str, Value], tensors: Mapping[str, TensorInfo]) -> int:
    if "token_embd.weight" not in tensors:
        raise FormatError("tensor 'token_embd.weight' is missing")
    rows = tensors["token_embd.weight"].shape[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > rows:
        raise FormatError(f"tensor 'token_embd.weight' has {rows} rows, must have one for each of {len(tokens)} tokens")
    return rows
