"""Plots of a study."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from dflash.evaluation.study.record import Record
from dflash.evaluation.tables import Values
from dflash.generation.display import theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(records: Sequence[Record], rows: Sequence[Values]) -> "Figure":
    """Plot acceptance by position, tokens a step, and speed-up by batch, of records and the rows of their table."""
    smallest = min(row["batch"] for row in rows), min(row["context"] for row in rows)
    lines = dict.fromkeys((row["strategy"], row["temperature"]) for row in rows)
    styles = dict(zip(lines, cycle(zip(theme.SERIES, "osD^vPX", strict=True)), strict=False))
    with theme.figure(records[0]["setup"]["model"]["files"][0], 10, 2.8) as figure:
        positions, steps, speeds = figure.subplots(1, 3)
        for record in records:
            cell, measures = record["cell"], record["measures"]
            if (cell["batch"], cell["context"]) != smallest or not measures["first_rejected"]:
                continue
            color, marker = styles[cell["strategy"], cell["temperature"]]
            label = f"{cell['strategy']}, T {cell['temperature']:g}"
            rates = measures["acceptance_by_position"]
            positions.plot(range(1, len(rates) + 1), rates, color=color, marker=marker, fillstyle="none", label=label)
            counts = measures["tokens_a_step"]
            sizes = range(1, max(map(int, counts)) + 1)
            shares = [counts.get(str(n), 0) / sum(counts.values()) for n in sizes]
            steps.plot(sizes, shares, color=color, marker=marker, fillstyle="none")
        for (name, temperature), (color, marker) in styles.items():
            key = name, temperature, smallest[1]
            own = [row for row in rows if (row["strategy"], row["temperature"], row["context"]) == key]
            speeds.plot([row["batch"] for row in own], [row["speed_up"] for row in own], color=color, marker=marker)
        for axes in (positions, steps):
            axes.xaxis.get_major_locator().set_params(integer=True)
        positions.set(title="acceptance, given all before", xlabel="draft position", ylim=(0, 1.05))
        steps.set(title="tokens a step", xlabel="tokens", ylabel="share of steps")
        speeds.set(title="speed-up", xlabel="batch")
        speeds.axhline(1, color=theme.INK, linewidth=0.8)
        speeds.set_xticks(sorted({row["batch"] for row in rows}))
        if positions.lines:
            figure.legend(loc="outside right upper", fontsize="small")
    return figure
