"""Steps as a strip of coloured squares: what was guessed, what was right, what the model had to say itself."""

from collections.abc import Sequence
from html import escape

from dflash.decode.metrics import accepted_nodes
from dflash.decode.session import Step

MAX_STEPS = 400
"""Steps that a strip shows."""

SIZE = 8

COLORS = {
    "accepted": "#7cb47c",
    "bonus": "#6c8ebf",
    "corrected": "#d9a441",
    "injected": "#b07cc6",
    "rejected": "#d9d9d9",
}
"""What a square can be; the order of the legend."""

MEANING = {
    "accepted": "guessed right",
    "bonus": "picked where nothing was guessed",
    "corrected": "picked in place of a wrong guess",
    "injected": "put there by a recovery",
    "rejected": "guessed in vain",
}


def kinds(step: Step) -> list[str]:
    """Tell the tokens of a step apart.

    Parameters
    ----------
    step : Step

    Returns
    -------
    list of str
        A key of `COLORS` for each of its tokens; then ``"rejected"`` for each position beyond them that had guesses.
    """
    nodes = accepted_nodes(step)
    found = ["injected"] * step.injected + ["accepted"] * len(nodes)
    beside = step.draft.children(nodes[-1] if nodes else -1)
    found += ["corrected" if beside else "bonus"] * (len(step.tokens) - len(found))
    return found + ["rejected"] * (step.draft.depth - len(found))


def strip(steps: Sequence[Step], pieces: Sequence[str]) -> str:
    """Draw a column for each step that wrote or guessed.

    Parameters
    ----------
    steps : sequence of Step
    pieces : sequence of str
        The text that each made certain.

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
    words = [
        f"{len(step.tokens)} tokens, {(step.propose + step.forward + step.verify + step.commit) * 1e3:.1f} ms: {piece!r}"
    ]
    if step.drafted:
        words.append(f"{step.accepted} of {step.drafted} guesses right" + (f", by {step.by}" if step.by else ""))
    return "; ".join([*words, *([step.note] if step.note else [])])


def _legend(seen: set[str]) -> str:
    parts = (f'<span style="color:{COLORS[kind]}">&#9632;</span> {MEANING[kind]}' for kind in COLORS if kind in seen)
    return f'<div style="font-size:smaller">{" &nbsp; ".join(parts)}</div>'
