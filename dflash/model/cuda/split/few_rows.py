"""Decode passes of few rows on one GPU of a tensor split: no signals, readers see in the data that it has arrived."""

from collections.abc import Sequence
from types import SimpleNamespace

from dflash.kernels.exchange.flags_in_data import DataLinks, clear
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.norm.split import sums
from dflash.model.config import Config
from dflash.model.cuda.split.shard_ops import ShardOps, ShardPlace
from dflash.model.cuda.workspace import HALF, SINGLE
from dflash.model.split.shards import Shard

FEW_ROWS = 8
"""Most rows of such a pass: the multiplies of up to 8 tokens, which poll all of them. 0 for none."""

_GATHERED = "heads", "attended", "inner"
_TURNS = 2  # arrays of norms, used in turn: between two uses of an array there must be three other exchanges


def few_rows_space(config: Config, space: SimpleNamespace, shard: Shard) -> SimpleNamespace:
    """Return the arrays of passes of few rows: first rows of those of all passes, and gathered arrays of their own."""
    first = slice(FEW_ROWS)
    some = SimpleNamespace(**{name: v[first] for name, v in vars(space).items() if getattr(v, "ndim", 0) == 2})
    own = {name: array[first] for name, array in vars(space.own).items()}
    for name in _GATHERED:
        if hasattr(space, name):
            setattr(some, name, device.empty(FEW_ROWS, getattr(space, name).shape[1], dtype=HALF))
    own["inner"] = some.inner[:, shard.columns(config.ffn).ranges[0]]
    some.own, some.n_rows, some.of_layers = SimpleNamespace(**own), FEW_ROWS, {}
    some.turns = [
        SimpleNamespace(
            stream=some.stream,
            normed=device.empty(FEW_ROWS, config.width, dtype=HALF),
            squares=device.empty(FEW_ROWS, sums(config.width), dtype=SINGLE),
            own=some.own,
        )
        for _ in range(_TURNS)
    ]
    clear_gathered(some)
    return some


def clear_gathered(space: SimpleNamespace) -> None:
    """Clear the gathered arrays of a `few_rows_space`."""
    of_norms = [array for turn in space.turns for array in (turn.normed, turn.squares)]
    clear([getattr(space, name) for name in _GATHERED if hasattr(space, name)] + of_norms)


class FewRowsOps(ShardOps):
    """Makes the launches of a pass of at most `FEW_ROWS` rows; the parameters are those of `ShardOps`.

    many: ops of the passes of more rows, whose scratch memory is used.
    """

    def __init__(self, place: ShardPlace, part: Config, batch: DeviceBatch, many: ShardOps) -> None:
        super().__init__(place, part, batch.first_rows(FEW_ROWS), prefill=False)
        self._attention, self._norms = many._attention, 0
        self.links: DataLinks = DataLinks(place.shard.rank, place.shard.of, batch.counts)

    @staticmethod
    def fit(config: Config, ops: ShardOps, kv: str) -> bool:
        """Return whether a model can use them: its kernels send their results themselves, all layers are dense."""
        return bool(FEW_ROWS) and ops.links is not None and not config.experts and kv != "f32"

    def _norm_spaces(self) -> Sequence[SimpleNamespace]:
        self._norms += 1
        return [space.turns[self._norms % _TURNS] for space in self._place.spaces]
