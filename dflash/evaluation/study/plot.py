"""Plots of a study."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from dflash.errors import RequestError, did_you_mean
from dflash.evaluation.study.record import Record
from dflash.evaluation.tables import Values
from dflash.generation.display import theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Line = tuple[str, float]
"""A strategy and a temperature."""


class _Lines(NamedTuple):
    """Values to plot: of all batches, at the shortest context."""

    records: Mapping[Line, Record]
    rows: Mapping[Line, Sequence[Values]]
    styles: Mapping[Line, Values]

    @classmethod
    def of(cls, records: Sequence[Record], rows: Sequence[Values]) -> "_Lines":
        batch, context = min(row["batch"] for row in rows), min(row["context"] for row in rows)
        lines = dict.fromkeys((row["strategy"], row["temperature"]) for row in rows)
        names, temperatures = (dict.fromkeys(values) for values in zip(*lines, strict=True))
        looks = dict(zip(names, cycle(zip(theme.SERIES, "osD^vPX", strict=True)), strict=False))
        dashes = dict(zip(temperatures, cycle(("-", "--", ":", "-.")), strict=False))
        return cls(
            {
                (record["cell"]["strategy"], record["cell"]["temperature"]): record
                for record in records
                if (record["cell"]["batch"], record["cell"]["context"]) == (batch, context)
                and record["measures"]["first_rejected"]
            },
            {
                line: [row for row in rows if (row["strategy"], row["temperature"], row["context"]) == (*line, context)]
                for line in lines
            },
            {line: _style(looks[line[0]], dashes[line[1]]) for line in lines},
        )


def _style(look: tuple[str, str], dashes: str) -> Values:
    return {"color": look[0], "marker": look[1], "linestyle": dashes, "fillstyle": "none", "linewidth": 1.2}


def _whole(axis: "Axis") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _positions(axes: "Axes", shown: _Lines) -> None:
    for line, record in shown.records.items():
        rates = record["measures"]["acceptance_by_position"]
        axes.plot(range(1, len(rates) + 1), rates, **shown.styles[line])
    _whole(axes.xaxis)
    axes.set(title="acceptance, given all before", xlabel="draft position", ylim=(0, 1.05))


def _steps(axes: "Axes", shown: _Lines) -> None:
    for line, record in shown.records.items():
        counts = record["measures"]["tokens_a_step"]
        sizes = range(1, max(map(int, counts)) + 1)
        shares = [counts.get(str(n), 0) / sum(counts.values()) for n in sizes]
        axes.plot(sizes, shares, **shown.styles[line])
    _whole(axes.xaxis)
    axes.set(title="tokens a step", xlabel="tokens", ylabel="share of steps", ylim=(0, None))


def _speed_up(axes: "Axes", shown: _Lines) -> None:
    for line, rows in shown.rows.items():
        axes.plot([row["batch"] for row in rows], [row["speed_up"] for row in rows], **shown.styles[line])
    batches = sorted({row["batch"] for rows in shown.rows.values() for row in rows})
    if batches[-1] > 8 * batches[0]:
        axes.set_xscale("log", base=2)
    axes.axhline(1, color=theme.INK, linewidth=0.8)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set(title="speed-up", xlabel="batch")


def _pareto(axes: "Axes", shown: _Lines) -> None:
    points = {line: [(row["tokens_per_second"], throughput(row)) for row in rows] for line, rows in shown.rows.items()}
    best = list(frontier(point for own in points.values() for point in own))
    axes.plot(*zip(*best, strict=True), color=theme.INK, linewidth=5, alpha=0.15, solid_joinstyle="round")
    for line, own in points.items():
        axes.plot(*zip(*own, strict=True), **shown.styles[line])
        for point, row in zip(own, shown.rows[line], strict=True):
            if point in best:
                axes.annotate(str(row["batch"]), point, xytext=(4, 4), textcoords="offset points", fontsize="small")
    axes.set(title="speed of one and of all, by batch", xlabel="tokens/s of a sequence", ylabel="tokens/s of all")
    axes.set(xlim=(0, None), ylim=(0, 1.1 * best[-1][1]))


def throughput(row: Values) -> float:
    """Return the tokens a second of all sequences of a batch together."""
    together: float = row["batch"] * row["tokens_per_second"]
    return together


def frontier(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the points that no other one exceeds in one value without being below in the other, by falling first value."""
    highest = float("-inf")
    for point in sorted(points, reverse=True):
        if point[1] > highest:
            yield point
            highest = point[1]


KINDS: dict[str, Callable[["Axes", _Lines], None]] = {
    "positions": _positions,
    "steps": _steps,
    "speed_up": _speed_up,
    "pareto": _pareto,
}


def plot(records: Sequence[Record], rows: Sequence[Values], kinds: Sequence[str]) -> "Figure":
    """Plot some of `KINDS`, or all, of records and the rows of their table."""
    for kind in kinds:
        if kind not in KINDS:
            raise RequestError(f"plot: there are {', '.join(KINDS)}, got {kind!r:.40}{did_you_mean(kind, KINDS)}")
    chosen, shown = [KINDS[kind] for kind in kinds or KINDS], _Lines.of(records, rows)
    height = -(-len(chosen) // 2)
    with theme.figure(records[0]["setup"]["model"]["files"][0], 8.5 if len(chosen) > 1 else 5.5, 2.7 * height) as figure:
        grid = figure.subplots(height, min(len(chosen), 2), squeeze=False).ravel()
        for draw, axes in zip(chosen, grid, strict=False):
            draw(axes, shown)
        for axes in grid[len(chosen) :]:
            axes.remove()
        labels = [f"{name}, T {temperature:g}" for name, temperature in shown.styles]
        handles = [figure.axes[0].plot([], [], **style)[0] for style in shown.styles.values()]
        figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    return figure
