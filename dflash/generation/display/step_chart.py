"""Chart of decoding steps: a square for each accepted, bonus, injected or rejected token."""

from collections.abc import Sequence
from html import escape

from dflash.decode.step import Step
from dflash.generation.display.origins import kinds
from dflash.generation.display.palette import COLORS

MAX_STEPS = 400
"""Maximum number of steps drawn in one chart."""

SIZE = 8
"""Pixels from one square to the next."""


def strip(steps: Sequence[Step], pieces: Sequence[str]) -> str:
    """Draw one column for each step that produced or drafted tokens."""
    columns = [(_title(i, step, piece), kinds(step)) for i, (step, piece) in enumerate(zip(steps, pieces, strict=True))]
    columns = [column for column in columns if column[1]]
    shown = columns[:MAX_STEPS]
    if not shown:
        return ""
    height = SIZE * max(len(found) for _, found in shown)
    drawn = (
        f"<g><title>{escape(title)}</title>{_squares(x * SIZE, height, found)}</g>" for x, (title, found) in enumerate(shown)
    )
    svg = f'<svg width="{SIZE * len(shown)}" height="{height}" role="img">{"".join(drawn)}</svg>'
    more = f"<div>the first {MAX_STEPS} of {len(columns)} steps</div>" if len(columns) > MAX_STEPS else ""
    return f'<div class="chart">{svg}</div>{more}'


def _squares(x: int, height: int, found: Sequence[str]) -> str:
    return "".join(_square(x, height - (y + 1) * SIZE, kind) for y, kind in enumerate(found))


def _square(x: int, y: int, kind: str) -> str:
    """Draw one square; that of a rejected draft token is hollow."""
    if kind == "rejected":
        where = f'x="{x}.5" y="{y}.5" width="{SIZE - 2}" height="{SIZE - 2}"'
        return f'<rect {where} fill="none" stroke="{COLORS[kind]}"/>'
    return f'<rect x="{x}" y="{y}" width="{SIZE - 1}" height="{SIZE - 1}" fill="{COLORS[kind]}"/>'


def _title(index: int, step: Step, piece: str) -> str:
    seconds = step.propose + step.forward + step.verify + step.commit
    parts = [f"step {index}: {len(step.tokens)} tokens, {seconds * 1e3:.1f} ms: {piece!r}"]
    if step.drafted:
        parts.append(f"{step.accepted} of {step.drafted} draft tokens accepted" + (f", by {step.by}" if step.by else ""))
    return "; ".join([*parts, *([step.note] if step.note else [])])
