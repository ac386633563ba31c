"""Which launches a pass is made of.

Those of decode passes give a row the same bits whatever its company; those of prefill passes are for many rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from dflash.kernels.attention import cuda as attention
from dflash.kernels.delta import cuda as delta
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.linear import cuda as linear
from dflash.kernels.linear import cuda_prefill
from dflash.kernels.linear.cuda_prefill import INNER_SCALE
from dflash.kernels.moe import Experts
from dflash.kernels.moe import cuda as moe
from dflash.kernels.moe import cuda_prefill as moe_prefill
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.norm.split import SplitNorm, carried
from dflash.model.config import Config
from dflash.model.cuda.weights import DeviceWeights

_ROWS = 32
"""Weights are filled up to a multiple of this many rows as float16."""

Op = Callable[[int], None]
Norm = RmsNorm | SplitNorm


class Ops:
    """Makes the launches of a pass; all layers share its scratch.

    Parameters
    ----------
    config : Config
    batch : DeviceBatch
        What the launches will read about their rows.
    prefill : bool
        Whether all its spans are whole; if not, none is, and it has at most 64 rows.
    empty : callable, optional
        Makes the scratch of attention, which lasts as long as a pass, if it is to lie somewhere else.

    Attributes
    ----------
    scratch : list of array
        Of prompts, on the device; what it holds lasts no longer than a layer.
    sequences : int
        How many sequences decode launches are laid out for; more take longer than they need to.
    splits_norms : bool
        Whether the launches around a norm carry it: those of experts have theirs inside.
    """

    def __init__(
        self, config: Config, batch: DeviceBatch, *, prefill: bool, empty: Callable[[int], Any] = device.empty
    ) -> None:
        self.batch, self.prefill = batch, prefill
        self.sequences = batch.max_sequences
        self.splits_norms = not prefill and not config.experts
        self._launch: Any = linear.PackedLinear
        self.scratch: list[Any] = []
        if prefill:
            scratch = cuda_prefill.Scratch(scratch_bytes(config, batch.max_rows, batch.max_sequences))
            self._launch = partial(cuda_prefill.PrefillLaunch, scratch=scratch)
            self.scratch.append(scratch.halves)
        self._attention = attention.Workspace(empty)
        self._moe: Any = None
        if prefill and any(config.recurrent):
            sizes = batch.max_rows, *_delta_sizes(config)
            self._delta = delta.Scratch(*sizes, sequences=batch.max_sequences, memory=scratch.halves)

    def norm(self, space: SimpleNamespace, gain: Any, eps: float, *, first: bool) -> Norm:
        """Of the stream, for what reads `normed`; for the first of a pass nothing in front of it does a part."""
        if self.splits_norms and not first:
            return SplitNorm(space.stream, gain, eps, half=space.normed, squares=space.squares)
        return RmsNorm(space.stream, gain, eps, half=space.normed)

    def linear(self, x: Any, weights: Sequence[PackedWeight], outs: Sequence[Any], *, before: Norm | None = None) -> Op:
        """``out = x @ W.T`` for each weight, of tokens that come from the norm `before`."""
        return self._launch(x, weights, outs, **carried(before=before))

    def add(self, x: Any, weight: PackedWeight, stream: Any, *, behind: Norm | None, scale: float = 1.0) -> Op:
        """``stream += x @ W.T * scale``, which the norm `behind` reads."""
        return self._launch(x, [weight], [stream], add=True, scale=scale, **carried(behind=behind))

    def gate_up(self, x: Any, weights: Sequence[PackedWeight], out: Any, *, before: Norm | None) -> Op:
        """``out = silu(x @ gate.T) * (x @ up.T)``, times `INNER_SCALE`."""
        return self._launch(x, weights, [out], gated=True, **carried(before=before))

    def down(self, x: Any, weight: PackedWeight, stream: Any, *, behind: Norm | None) -> Op:
        """``stream += x @ W.T``, over `INNER_SCALE`."""
        return self.add(x, weight, stream, behind=behind, scale=1 / INNER_SCALE)

    def delta(self, space: SimpleNamespace, weights: DeviceWeights, memory: tuple[Any, Any], eps: float) -> Op:
        """Convolution, delta rule and gated norm."""
        inputs = delta.Inputs(space.mixed, space.gate, space.alpha, space.beta, space.heads)
        vectors = (weights.vector(name) for name in ("ssm_a", "ssm_dt.bias", "ssm_norm.weight"))
        gains = delta.Weights(weights.taps("ssm_conv1d.weight"), *vectors, eps)
        if self.prefill:
            return delta.Prompt(inputs, gains, self.batch, *memory, self._delta)
        step = delta.Step(inputs, gains, self.batch, *memory)
        return lambda n: step(n, n_sequences=min(n, self.sequences))

    def attention(self, q: Any, cache: tuple[Any, Any], out: Any, gate: Any) -> Op:
        """Attention over a paged cache."""
        if self.prefill:
            return attention.Prefill(q, *cache, self.batch, out, gate=gate)
        return attention.Attend(q, *cache, self.batch, out, gate=gate, workspace=self._attention)

    def experts(self, stream: Any, gain: Any, weights: Experts, eps: float) -> Op:
        """Norm and experts, added to the stream."""
        scratch, experts = (moe_prefill.PrefillScratch, moe_prefill.PrefillMoe) if self.prefill else (moe.Scratch, moe.Moe)
        if self._moe is None:
            self._moe = scratch(self.batch.max_rows, weights)
            self.scratch += [self._moe.product] if self.prefill else []
        return experts(stream, gain, weights, self.batch.counts, self._moe, eps=eps)


def scratch_bytes(config: Config, rows: int, sequences: int) -> int:
    """Bytes that layers of prompts of so many rows and texts need for a while.

    Weights are unpacked there, those of the largest launch if they are not too many; between these the delta rule has it.
    """
    values = config.delta_value_heads * config.delta_size
    linear = 2 * config.delta_key_heads * config.delta_size + 2 * values + 2 * config.delta_value_heads
    head = config.heads * config.head_size
    full = 2 * (head + config.kv_heads * config.head_size)
    tall = max(linear, full, 2 * max(config.ffn, config.shared_ffn), 256) + 4 * _ROWS
    narrow = max(values, head, config.ffn, config.shared_ffn)
    largest = 2 * max(tall * config.width, max(config.width + 4 * _ROWS, 256) * narrow)
    of_delta = delta.scratch_bytes(rows, *_delta_sizes(config), sequences=sequences) if any(config.recurrent) else 0
    return max(min(cuda_prefill.SCRATCH_BYTES, largest), of_delta)


def _delta_sizes(config: Config) -> tuple[int, int, int, int]:
    return config.delta_key_heads, config.delta_value_heads, config.delta_size, config.delta_size
