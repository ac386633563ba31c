"""Chart of decoding steps: a coloured square for each accepted, sampled, injected or rejected token."""

from collections.abc import Sequence
from html import escape

from dflash.decode.metrics import accepted_nodes
from dflash.decode.session import Step

MAX_STEPS = 400
"""Maximum number of steps drawn in one chart."""

SIZE = 8
"""Pixels from one square to the next."""

COLORS = {
    "accepted": "#7cb47c",
    "bonus": "#6c8ebf",
    "corrected": "#d9a441",
    "injected": "#b07cc6",
    "rejected": "#d9d9d9",
}
"""Kinds of squares and their colours, in the order of the legend."""

MEANING = {
    "accepted": "accepted draft token",
    "bonus": "bonus token, or sampled without a draft",
    "corrected": "sampled in place of a rejected draft token",
    "injected": "injected by a recovery",
    "rejected": "rejected draft token",
}


def kinds(step: Step) -> list[str]:
    """Classify the tokens of a step.

    Parameters
    ----------
    step : Step

    Returns
    -------
    list of str
        A key of `COLORS` for each token; then ``"rejected"`` for each further position that had draft tokens.
    """
    nodes = accepted_nodes(step)
    found = ["injected"] * step.injected + ["accepted"] * len(nodes)
    beside = step.draft.children(nodes[-1] if nodes else -1)
    found += ["corrected" if beside else "bonus"] * (len(step.tokens) - len(found))
    return found + ["rejected"] * (step.draft.depth - len(found))


def strip(steps: Sequence[Step], pieces: Sequence[str]) -> str:
    """Draw one column for each step that produced or drafted tokens.

    Parameters
    ----------
    steps : sequence of Step
    pieces : sequence of str
        Text that each step added.

    Returns
    -------
    str
        SVG and a legend as HTML; empty if there is nothing to draw.
    """
    pairs = [(step, piece, kinds(step)) for step, piece in zip(steps, pieces, strict=True)]
    pairs = [pair for pair in pairs if pair[2]]
    shown = pairs[:MAX_STEPS]
    if not shown:
        return ""
    height = SIZE * max(len(found) for *_, found in shown)
    columns = (
        f"<g><title>{escape(_title(step, piece))}</title>{_squares(x * SIZE, height, found)}</g>"
        for x, (step, piece, found) in enumerate(shown)
    )
    svg = f'<svg width="{SIZE * len(shown)}" height="{height}" role="img">{"".join(columns)}</svg>'
    more = f"<div>the first {MAX_STEPS} of {len(pairs)} steps</div>" if len(pairs) > MAX_STEPS else ""
    seen = {kind for *_, found in shown for kind in found}
    return f'<div style="overflow-x:auto;margin:6px 0">{svg}</div>{more}{_legend(seen) if len(seen) > 1 else ""}'


def _squares(x: int, height: int, found: Sequence[str]) -> str:
    return "".join(
        f'<rect x="{x}" y="{height - (y + 1) * SIZE}" width="{SIZE - 1}" height="{SIZE - 1}" fill="{COLORS[kind]}"/>'
        for y, kind in enumerate(found)
    )


def _title(step: Step, piece: str) -> str:
    parts = [
        f"{len(step.tokens)} tokens, {(step.propose + step.forward + step.verify + step.commit) * 1e3:.1f} ms: {piece!r}"
    ]
    if step.drafted:
        parts.append(f"{step.accepted} of {step.drafted} draft tokens accepted" + (f", by {step.by}" if step.by else ""))
    return "; ".join([*parts, *([step.note] if step.note else [])])


def _legend(seen: set[str]) -> str:
    parts = (f'<span style="color:{COLORS[kind]}">&#9632;</span> {MEANING[kind]}' for kind in COLORS if kind in seen)
    return f'<div style="font-size:smaller">{" &nbsp; ".join(parts)}</div>'
