"""Launches of a pass on one GPU of a tensor split: each computes columns, then an exchange gathers those of all GPUs."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from dflash.kernels.arrays import GpuArray
from dflash.kernels.attention import cuda as attention
from dflash.kernels.delta.cuda import Inputs, MixerWeights
from dflash.kernels.exchange.cuda import ColumnExchange, SentColumns, Signals
from dflash.kernels.exchange.flags_in_data import DataLinks
from dflash.kernels.exchange.signals import PeerLink, PeerLinks
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.norm.split import SplitNorm, carried
from dflash.model.config import Config
from dflash.model.cuda.ops import Norm, Op, Ops
from dflash.model.cuda.workspace import SINGLE
from dflash.model.split.shards import Columns, Shard, value_groups

_ROOMY = 200 << 10
"""Bytes of shared memory of a block above which the norm of linear attention is part of its launch for all row counts."""


class ShardPlace(NamedTuple):
    """One GPU of a tensor split.

    signals, links: counters of exchanges that are launches, and of those inside other launches.
    """

    config: Config
    shard: Shard
    signals: Signals
    links: Signals
    spaces: Sequence[SimpleNamespace]


class ShardNorm(SplitNorm):
    """A `SplitNorm` of whole rows, of which the multiply before it prepares only the GPU's own columns.

    spaces: for each GPU ``stream``, ``normed``, ``squares``, and those of its columns as ``own``.
    """

    def __init__(self, spaces: Sequence[SimpleNamespace], rank: int, gain: GpuArray, eps: float, columns: slice) -> None:
        space = spaces[rank]
        super().__init__(space.stream, gain, eps, half=space.normed, squares=space.squares)
        own, self.spaces = space.own, spaces
        self.own = SplitNorm(own.stream, gain[columns], eps, half=own.normed, squares=own.squares)


class Gathered:
    """A launch, and the exchange of its results if that is a launch of its own.

    exchange: none if the launch sends its results itself.
    """

    def __init__(self, launch: Any, exchange: ColumnExchange | None, columns: slice) -> None:
        self.launch, self._exchange, self._columns = launch, exchange, columns

    def __call__(self, n: int, *, kept: GpuArray = None) -> None:
        """Launch for `n` rows; with `kept` the GPU's columns of the stream are also written there."""
        if kept is None:
            self.launch(n)
        else:
            self.launch(n, kept=kept[:, self._columns])
        if self._exchange is not None:
            self._exchange(n)


class ShardOps(Ops):
    """Makes the launches of a pass on one GPU of a tensor split. batch and the rest: see `Ops`."""

    def __init__(
        self,
        place: ShardPlace,
        part: Config,
        batch: DeviceBatch,
        *,
        prefill: bool,
        empty: Callable[[int], Any] = device.empty,
        n_scratch: int | None = None,
        unpacked_bytes: int = 0,
    ) -> None:
        super().__init__(part, batch, prefill=prefill, empty=empty, n_scratch=n_scratch, unpacked_bytes=unpacked_bytes)
        self.reads_early = False  # other GPUs may write what this one's experts would clear
        self._place, self._space = place, place.spaces[place.shard.rank]
        config, shard = place.config, place.shard
        self._columns = shard.columns(config.width).ranges[0]
        # where no launch of its own is needed, a kernel sends its results itself
        fused = self.splits_norms and capabilities().has_clusters and capabilities().block_shared > _ROOMY
        self.links: PeerLinks | DataLinks | None = PeerLinks(shard.rank, place.links) if fused else None
        self._own = _own_columns(place, self._space)
        self._exchanges = {name: self._exchange(name) for name in self._own if name not in ("normed", "squares")}
        if self.splits_norms and not fused:
            self._exchanges["norm"] = self._exchange("normed", "squares")

    def norm(self, space: SimpleNamespace, gain: GpuArray, eps: float, *, first: bool) -> Norm:
        """See `Ops.norm`."""
        if self.splits_norms and not first:
            return ShardNorm(self._norm_spaces(), self._place.shard.rank, gain, eps, self._columns)
        return RmsNorm(space.stream, gain, eps, half=space.normed)

    def multiply(
        self,
        x: GpuArray,
        weights: Sequence[PackedWeight],
        outs: Sequence[GpuArray],
        *,
        input_norm: Norm | None = None,
        output_norm: Norm | None = None,
        early: bool = False,  # noqa: ARG002
        **kind: Any,
    ) -> Any:
        """Return a launch as `Ops.multiply`: of sums and inner activations the GPU's columns, and what gathers them."""
        own, after = (output_norm.own, output_norm.spaces) if isinstance(output_norm, ShardNorm) else (None, None)
        reads = (input_norm.half, input_norm.squares) if isinstance(input_norm, ShardNorm) else (x,)
        make = partial(self._launch, reads[0], weights, **kind, **carried(input_norm=input_norm, output_norm=own))
        if kind.get("gated"):
            assert outs[0] is self._space.inner, "the only array of inner activations"
            link = self._link("inner", reads=reads)
            return self._gathered("inner", make([self._space.own.inner], **link), link)
        if not kind.get("add"):
            return make(outs, **(self._link(reads=reads) if isinstance(input_norm, ShardNorm) else {}))
        link = self._link(*(("normed", "squares") if own else ()), reads=reads, spaces=after)
        exchange = None if own and link else self._exchanges["norm" if own else "stream"]
        return Gathered(make([outs[0][:, self._columns]], **link), exchange, self._columns)

    def delta(
        self,
        inputs: Inputs,
        weights: MixerWeights,
        memory: tuple[GpuArray, GpuArray],
        *,
        layer: int,
        link: PeerLink | None = None,  # noqa: ARG002
    ) -> Op:
        """Return a launch for the GPU's heads; see `Ops.delta`."""
        links = self._link("heads")
        launch = super().delta(inputs._replace(out=self._space.own.heads), weights, memory, layer=layer, **links)
        return self._gathered("heads", launch, links)

    def attention(self, q: GpuArray, cache: tuple[GpuArray, GpuArray], out: GpuArray, gate: GpuArray) -> Op:
        """Return a launch for the GPU's heads; see `Ops.attention`."""
        assert out is self._space.attended, "the only array of attended heads"
        own = self._space.own.attended
        if self.prefill:
            return self._gathered("attended", super().attention(q, cache, own, gate), {})
        link = self._link("attended") if cache[0].dtype != SINGLE else {}
        about = {"workspace": self._attention, "whole_heads": self._place.config.kv_heads, **link}
        return self._gathered("attended", attention.Attend(q, *cache, self.batch, own, gate=gate, **about), link)

    def _gathered(self, name: str, launch: Any, link: dict[str, Any]) -> Gathered:
        return Gathered(launch, None if link else self._exchanges[name], self._columns)

    def _norm_spaces(self) -> Sequence[SimpleNamespace]:
        """Return for each GPU the arrays of the next norm."""
        return self._place.spaces

    def _link(
        self, *names: str, reads: Sequence[GpuArray] = (), spaces: Sequence[SimpleNamespace] | None = None
    ) -> dict[str, Any]:
        """Return the link of a launch, as keyword argument; none without links."""
        if self.links is None:
            return {}
        whole = [[getattr(space, name) for space in spaces or self._place.spaces] for name in names]
        firsts = [self._own[name].first for name in names]
        targets = [[array[:, first:] for array in arrays] for first, arrays in zip(firsts, whole, strict=True)]
        return {"link": self.links.link(*targets, reads=reads)}

    def _exchange(self, *names: str) -> ColumnExchange:
        place, rank = self._place, self._place.shard.rank
        pieces = []
        for name in names:
            source = getattr(self._space.own, name)
            targets = [getattr(space, name) for space in place.spaces]
            if name in ("stream", "inner"):
                targets[rank] = None  # computed in place
            pieces.append(SentColumns(source, targets, self._own[name].ranges))
        return ColumnExchange(rank, place.signals, pieces)


def _own_columns(place: ShardPlace, space: SimpleNamespace) -> dict[str, Columns]:
    """Return the columns of each gathered array that a GPU computes."""
    config, shard = place.config, place.shard
    own = {name: shard.columns(getattr(space, name).shape[1]) for name in ("stream", "normed", "squares", "attended")}
    if config.ffn:
        own["inner"] = shard.columns(config.ffn)
    if any(config.recurrent):
        groups = value_groups(config)
        own["heads"] = shard.columns(config.delta_value_heads * config.delta_size, groups=groups)
    return own
