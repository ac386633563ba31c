"""Launches of a pass on one GPU of a tensor split: each computes columns, then an exchange gathers those of all GPUs."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from dflash.kernels.attention import cuda as attention
from dflash.kernels.exchange.cuda import ColumnExchange, Piece, Signals
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.norm.split import SplitNorm, carried
from dflash.model.config import Config
from dflash.model.cuda.ops import Norm, Op, Ops
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.split.shards import Columns, Shard


class ShardPlace(NamedTuple):
    """One GPU of a tensor split.

    Parameters
    ----------
    config : Config
        Sizes of the whole model.
    shard : Shard
    signals : Signals
    spaces : sequence of SimpleNamespace
        Arrays of the pass on each GPU; see `shard_space`.
    """

    config: Config
    shard: Shard
    signals: Signals
    spaces: Sequence[SimpleNamespace]


class ShardNorm(SplitNorm):
    """A `SplitNorm` of whole rows, of which the multiply before it prepares only the GPU's own columns.

    Attributes
    ----------
    own : SplitNorm
        Norm of the GPU's columns.
    """

    def __init__(self, space: SimpleNamespace, gain: Any, eps: float, columns: slice) -> None:
        super().__init__(space.stream, gain, eps, half=space.normed, squares=space.squares)
        own = space.own
        self.own = SplitNorm(own.stream, gain[columns], eps, half=own.normed, squares=own.squares)


class Gathered:
    """A launch, and the exchange of its results.

    Parameters
    ----------
    launch : callable
    exchange : ColumnExchange
    columns : slice
        Columns of the residual stream that the launch computes.
    """

    def __init__(self, launch: Any, exchange: ColumnExchange, columns: slice) -> None:
        self.launch, self._exchange, self._columns = launch, exchange, columns

    def __call__(self, n: int, *, kept: Any = None) -> None:
        """Launch for `n` rows; with `kept` the GPU's columns of the stream are also written there."""
        if kept is None:
            self.launch(n)
        else:
            self.launch(n, kept=kept[:, self._columns])
        self._exchange(n)


class ShardOps(Ops):
    """Makes the launches of a pass on one GPU of a tensor split.

    Parameters
    ----------
    place : ShardPlace
    part : Config
        Sizes of the GPU's part.
    batch, prefill, empty, n_scratch
        See `Ops`.
    """

    def __init__(
        self,
        place: ShardPlace,
        part: Config,
        batch: DeviceBatch,
        *,
        prefill: bool,
        empty: Callable[[int], Any] = device.empty,
        n_scratch: int | None = None,
    ) -> None:
        super().__init__(part, batch, prefill=prefill, empty=empty, n_scratch=n_scratch)
        self._place, self._space = place, place.spaces[place.shard.rank]
        config, shard = place.config, place.shard
        self._columns = shard.columns(config.width).ranges[0]
        self._exchanges = {"stream": self._exchange(("stream", shard.columns(config.width)))}
        if self.splits_norms:
            norm = ("normed", shard.columns(config.width)), ("squares", shard.columns(self._space.squares.shape[1]))
            self._exchanges["norm"] = self._exchange(*norm)
        widths = {"attended": (config.heads * config.head_size, 1), "inner": (config.ffn, 1)}
        if any(config.recurrent):
            groups = config.delta_value_heads // config.delta_key_heads
            widths["heads"] = config.delta_value_heads * config.delta_size, groups
        for name, (width, groups) in widths.items():
            if width:
                self._exchanges[name] = self._exchange((name, shard.columns(width, groups=groups)))

    def norm(self, space: SimpleNamespace, gain: Any, eps: float, *, first: bool) -> Norm:
        """See `Ops.norm`."""
        if self.splits_norms and not first:
            return ShardNorm(space, gain, eps, self._columns)
        return RmsNorm(space.stream, gain, eps, half=space.normed)

    def add(self, x: Any, weight: PackedWeight, stream: Any, *, behind: Norm | None, scale: float = 1.0) -> Any:
        """Return a launch that adds to the GPU's columns of the stream, and gathers what the next launch reads."""
        own = behind.own if isinstance(behind, ShardNorm) else None
        launch = self._launch(x, [weight], [stream[:, self._columns]], add=True, scale=scale, **carried(behind=own))
        return Gathered(launch, self._exchanges["norm" if own else "stream"], self._columns)

    def gate_up(self, x: Any, weights: Sequence[PackedWeight], out: Any, *, before: Norm | None) -> Any:
        """Return a launch of the GPU's columns of the inner activation; see `Ops.gate_up`."""
        assert out is self._space.inner, "the only array of inner activations"
        return self._gathered("inner", super().gate_up(x, weights, self._space.own.inner, before=before))

    def delta(self, space: SimpleNamespace, weights: DeviceWeights, memory: tuple[Any, Any], eps: float) -> Op:
        """Return a launch for the GPU's heads; see `Ops.delta`."""
        own = SimpleNamespace(**{**vars(space), "heads": space.own.heads})
        return self._gathered("heads", super().delta(own, weights, memory, eps))

    def attention(self, q: Any, cache: tuple[Any, Any], out: Any, gate: Any) -> Op:
        """Return a launch for the GPU's heads; see `Ops.attention`."""
        assert out is self._space.attended, "the only array of attended heads"
        own = self._space.own.attended
        if self.prefill:
            return self._gathered("attended", super().attention(q, cache, own, gate))
        about: dict[str, Any] = {"workspace": self._attention, "whole_heads": self._place.config.kv_heads}
        return self._gathered("attended", attention.Attend(q, *cache, self.batch, own, gate=gate, **about))

    def _gathered(self, name: str, launch: Any) -> Gathered:
        return Gathered(launch, self._exchanges[name], self._columns)

    def _exchange(self, *arrays: tuple[str, Columns]) -> ColumnExchange:
        place, rank = self._place, self._place.shard.rank
        pieces = []
        for name, columns in arrays:
            source = getattr(self._space.own, name)
            targets = [getattr(space, name) for space in place.spaces]
            if name in ("stream", "inner"):
                targets[rank] = None  # computed in place
            pieces.append(Piece(source, targets, columns.ranges))
        return ColumnExchange(rank, place.signals, pieces)
