"""Plot of interactivity against throughput."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.generation.display import theme
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(numbers: Sequence[JsonObject], target: str, shape_run: Sequence[str]) -> "Figure":
    """Plot the output tokens per second of all clients against those of one user, a point for each number of clients."""
    points = sorted((each for each in numbers if each["interactivity"]), key=lambda each: each["clients"])
    with theme.figure(f"{'shape run' if shape_run else 'agents'}: {target:.60}", 5, 3.6) as figure:
        axes = figure.subplots()
        users = [each["interactivity"] for each in points]
        together = [each["output_tokens_per_second"] for each in points]
        axes.plot(users, together, "o-", color=theme.SERIES[0])
        for each, x, y in zip(points, users, together, strict=True):
            axes.annotate(f"{each['clients']}", (x, y), textcoords="offset points", xytext=(5, 5))
        axes.margins(0.15)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens/s of a user (median); numbers are clients")
        axes.set_ylabel("tokens/s together")
    return figure
