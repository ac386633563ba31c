"""Plot of the tokens and the milliseconds of each step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.step import Step
from dflash.generation.display import theme
from dflash.generation.display.palette import COLORS
from dflash.generation.record import GenerationRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS = {"propose": "#3a86c8", "forward": "#0072b2", "verify": "#b07d00", "commit": "#808080"}
"""Parts of a step and their colours; contrast of at least 3 with white and with #111."""

_STYLES = {
    "injected": {"color": COLORS["injected"], "hatch": "//"},
    "accepted draft": {"color": COLORS["accepted"]},
    "bonus": {"color": COLORS["bonus"]},
    "rejected": {"color": "none", "edgecolor": COLORS["rejected"], "hatch": "..."},
}
_LEGEND = {"ncols": 4, "fontsize": "small", "loc": "lower left", "bbox_to_anchor": (0, 1)}


def plot(generation: GenerationRecord) -> "Figure":
    """Plot the bonus tokens, accepted and rejected draft tokens of each step, above its milliseconds."""
    steps = [step for step in generation.steps if step.tokens] or [Step([])]
    numbers = range(1, len(steps) + 1)
    title = f"{len(generation.tokens)} tokens in {len(steps)} steps"
    with theme.figure(title, 8, 3.8) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        base = np.zeros(len(steps))
        for kind, counts in _counts(steps).items():
            above.bar(numbers, counts, bottom=base, label=f"{kind} tokens", **_STYLES[kind])
            base = base + counts
        if any(step.drafted for step in steps):
            rejected = [step.accepted - step.drafted for step in steps]
            above.bar(numbers, rejected, label="rejected draft tokens", **_STYLES["rejected"])
            above.axhline(0, color=theme.INK, linewidth=0.8)
        above.set_ylabel("tokens")
        above.yaxis.get_major_locator().set_params(integer=True)
        above.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
        above.legend(**_LEGEND)
        edges, base = np.arange(len(steps) + 1) + 0.5, np.zeros(len(steps))
        for part, color in _PARTS.items():
            top = base + [getattr(step, part) * 1e3 for step in steps]
            below.stairs(top, edges, baseline=base, fill=True, color=color, label=part)
            base = top
        below.set_ylabel("ms")
        below.set_xlabel("step")
        below.legend(**_LEGEND)
    return figure


def _counts(steps: Sequence[Step]) -> dict[str, list[int]]:
    """Return the tokens of each step by origin, without draft and injected tokens if there are none."""
    counts = {
        "injected": [step.injected for step in steps],
        "accepted draft": [step.accepted for step in steps],
        "bonus": [len(step.tokens) - step.accepted - step.injected for step in steps],
    }
    return {kind: found for kind, found in counts.items() if any(found) or kind == "bonus"}
