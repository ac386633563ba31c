"""Configuration of a draft model: sizes, block, target layers and windows, from any kind of file."""

from dataclasses import dataclass

from dflash.errors import FormatError, Unsupported
from dflash.kernels.block_attention import ROWS
from dflash.model.config_sizes import RopeScaling

KINDS = ("dflash", "dflash2", "dspark")

MAX_TAPS = 64
_LANES = 16


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Sizes and settings of a draft model.

    kind: one of `KINDS`.
    width, ffn: width of the residual stream, equal to the target's, and inner size of the feed forward.
    n_layers, heads, kv_heads, head_size: rotary embedding applies to whole heads, with element i paired with element ``i +
        head_size / 2``.
    n_vocab: vocabulary size of the target; 0 if the file does not give it.
    block: rows of a block, the anchor (the last token of the text) included.
    target_layer_ids: layers of the target, counted from 0, whose outputs the draft model reads.
    windows: for each layer, number of positions that a row attends to, itself included; 0 for all.
    causal: for each layer, whether a row of the block attends only to itself and earlier rows of the block.
    conv_width, conv_group: taps of the convolutions of DFlash 2, and number of columns that share dynamic taps; else 0.
    selector_rank, selector_top: rank of the codebooks of DFlash 2, and number of candidates that its selector scores; else
        0.
    markov_rank: rank of DSpark's correction by the previous token; else 0.
    from_anchor: whether row 0 drafts, too. If so, row i predicts the position after its own, else its own position.
    has_confidence: whether there is a head that estimates the probability that each draft token is accepted.
    logit_scale, logit_cap: factor on logits, and bound of the soft cap ``cap * tanh(logit / cap)`` applied after it; 0 is no
        cap.
    embed_scale: factor on the embeddings of a block.
    """

    kind: str
    width: int
    ffn: int
    n_layers: int
    heads: int
    kv_heads: int
    head_size: int
    n_vocab: int
    norm_eps: float
    rope_base: float
    rope_scaling: RopeScaling | None
    block: int
    mask: int
    target_layer_ids: tuple[int, ...]
    windows: tuple[int, ...]
    causal: tuple[bool, ...]
    conv_width: int = 0
    conv_group: int = 0
    selector_rank: int = 0
    selector_top: int = 0
    markov_rank: int = 0
    from_anchor: bool = False
    has_confidence: bool = False
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    embed_scale: float = 1.0

    @property
    def lead(self) -> int:
        """Rows of a block before the first draft row: 0 or 1."""
        return 0 if self.from_anchor else 1

    @property
    def max_draft(self) -> int:
        """Most positions that one pass can draft."""
        return self.block - self.lead

    @property
    def n_rot(self) -> int:
        """Dimensions of a head with rotary embedding: all."""
        return self.head_size

    def __post_init__(self) -> None:
        """Raise if sizes contradict each other or are not supported by the kernels."""
        if self.heads % self.kv_heads:
            raise FormatError(f"draft: {self.heads} heads are no multiple of {self.kv_heads} KV heads")
        ranks = ("selector_rank", self.selector_rank), ("markov_rank", self.markov_rank)
        for what, size in (("heads of", self.head_size), ("width", self.width), ("feed forward of", self.ffn), *ranks):
            if size % _LANES:
                raise Unsupported(f"draft: {what} {size}, must be a multiple of {_LANES}")
        if not 1 + self.lead <= self.block <= ROWS:
            raise Unsupported(f"draft: blocks of {self.block} rows, must be {1 + self.lead} to {ROWS}")
        if (
            len(set(self.target_layer_ids)) != len(self.target_layer_ids)
            or not 1 <= len(self.target_layer_ids) <= MAX_TAPS
            or min(self.target_layer_ids) < 0
        ):
            raise FormatError(
                f"draft: reads the target's layers {self.target_layer_ids}, must be 1 to {MAX_TAPS} different ones"
            )
        if self.conv_group and self.width % self.conv_group:
            raise FormatError(f"draft: convolutions in groups of {self.conv_group} columns do not divide {self.width}")


def default_target_layer_ids(n_layers: int, n_target_layers: int) -> tuple[int, ...]:
    """Return the target layers that a draft model reads by default.

    Evenly spaced from 1 to ``n_target_layers - 3``, ties to even; the middle one for a draft of one layer.
    """
    if n_layers == 1:
        return (n_target_layers // 2,)
    step = (n_target_layers - 4) / (n_layers - 1)
    return tuple(round(1 + i * step) for i in range(n_layers))
