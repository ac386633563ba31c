"""How a generation looks: HTML for notebooks, a line for terminals, a plot."""

from html import escape
from typing import TYPE_CHECKING

from dflash.generation import Generation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELLS = 400
"""Steps that the strip shows."""

_OWN, _GUESSED = "#6c8ebf", "#7cb47c"
_SIZE = 8


def summary(generation: Generation) -> str:
    """Say in one line how fast it went."""
    usage, timings = generation.usage, generation.timings
    parts = [
        f"{usage.prompt_tokens} prompt tokens at {timings.prompt_rate:,.0f}/s",
        f"{usage.completion_tokens} tokens at {timings.decode_rate:,.1f}/s",
        f"first after {timings.first_token * 1e3:,.0f} ms",
    ]
    if generation.acceptance is not None:
        parts.append(f"{generation.tokens_per_step:.2f} tokens a step, {generation.acceptance:.0%} of the guesses right")
    return ", ".join([*parts, generation.finish_reason])


def as_html(generation: Generation) -> str:
    """Write the text, a strip of steps and a small table as HTML.

    Parameters
    ----------
    generation : Generation

    Returns
    -------
    str
        Everything that the model wrote is escaped.
    """
    text = f'<div style="white-space:pre-wrap;max-width:60em">{escape(generation.text)}</div>'
    cells = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in _table(generation))
    return f"<div>{text}{_strip(generation)}<table>{cells}</table></div>"


def plot(generation: Generation) -> "Figure":
    """Draw the tokens of each step, guessed ones apart, over the milliseconds it took.

    Parameters
    ----------
    generation : Generation

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib import pyplot

    steps = [step for step in generation.steps if step.tokens]
    numbers = range(1, len(steps) + 1)
    accepted = [step.accepted for step in steps]
    own = [len(step.tokens) - step.accepted for step in steps]
    figure = pyplot.figure(figsize=(8, 3.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.bar(numbers, own, color=_OWN, label="picked")
    above.bar(numbers, accepted, bottom=own, color=_GUESSED, label="guessed before")
    above.set_ylabel("tokens")
    above.margins(y=0.4)
    above.yaxis.get_major_locator().set_params(integer=True)
    above.legend(frameon=False, ncols=2)
    times = [[getattr(step, part) * 1e3 for step in steps] for part in ("propose", "forward", "verify", "commit")]
    below.stackplot(numbers, times, labels=("propose", "forward", "verify", "commit"))
    below.set_ylabel("ms")
    below.set_xlabel("step")
    below.legend(frameon=False, ncols=4)
    pyplot.close(figure)  # a notebook shows what the cell returns, and would show an open figure once more
    return figure


def _table(generation: Generation) -> list[tuple[str, str]]:
    usage, timings = generation.usage, generation.timings
    rows = [
        ("prompt", f"{usage.prompt_tokens} tokens, {timings.prompt_rate:,.0f}/s"),
        ("answer", f"{usage.completion_tokens} tokens, {timings.decode_rate:,.1f}/s"),
        ("first token", f"{timings.first_token * 1e3:,.0f} ms"),
        ("tokens a step", f"{generation.tokens_per_step:.2f}"),
        ("strategy", repr(generation.strategy)),
        ("finish", generation.finish_reason),
        ("seed", str(generation.seed)),
    ]
    if generation.acceptance is not None:
        rows.insert(4, ("guesses right", f"{generation.acceptance:.0%}"))
    return rows


def _strip(generation: Generation) -> str:
    """An SVG column of squares for each step: what it picked, and above that what had been guessed."""
    pairs = [pair for pair in zip(generation.steps, generation.pieces, strict=True) if pair[0].tokens]
    shown = pairs[:MAX_CELLS]
    if not shown:
        return ""
    height = _SIZE * max(len(step.tokens) for step, _ in shown)
    columns = []
    for x, (step, piece) in enumerate(shown):
        own = len(step.tokens) - step.accepted
        title = escape(f"{len(step.tokens)} tokens, {step.forward * 1e3:.1f} ms: {piece!r}")
        squares = (
            f'<rect x="{x * _SIZE}" y="{height - (y + 1) * _SIZE}" width="{_SIZE - 1}" height="{_SIZE - 1}" '
            f'fill="{_OWN if y < own else _GUESSED}"/>'
            for y in range(len(step.tokens))
        )
        columns.append(f"<g><title>{title}</title>{''.join(squares)}</g>")
    svg = f'<svg width="{_SIZE * len(shown)}" height="{height}" role="img">{"".join(columns)}</svg>'
    more = f"<div>the first {MAX_CELLS} of {len(pairs)} steps</div>" if len(pairs) > MAX_CELLS else ""
    return f'<div style="overflow-x:auto;margin:6px 0">{svg}</div>{more}'
