"""How a generation looks: HTML for notebooks, a line for terminals, a plot."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from dflash.generation.result import Generation
from dflash.generation.step_chart import COLORS, strip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OWN, _GUESSED = COLORS["bonus"], COLORS["accepted"]


def summary(generation: Generation) -> str:
    """Say in one line how fast it went; a line more for each intervention and warning."""
    usage, timings = generation.usage, generation.timings
    parts = [
        f"{usage.prompt_tokens} prompt tokens at {timings.prompt_rate:,.0f}/s",
        f"{usage.completion_tokens} tokens at {timings.decode_rate:,.1f}/s",
        f"first after {timings.first_token * 1e3:,.0f} ms",
    ]
    if generation.acceptance is not None:
        parts.append(f"{generation.tokens_per_step:.2f} tokens a step, {generation.acceptance:.0%} of the guesses right")
    if generation.draft_vocab_steps:
        parts.append(f"guesses from {_guessed_from(generation)}")
    words = [", ".join([*parts, generation.finish_reason]), *map(str, generation.interventions)]
    return "\n".join([*words, *(f"warning: {each}" for each in generation.warnings)])


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
    cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in _table(generation))
    return f"<div>{text}{strip(generation.steps, generation.pieces)}<table>{cells}</table></div>"


def position_bars(shares: Sequence[float]) -> str:
    """Draw the acceptance at each position as a row of small bars, SVG."""
    bars = "".join(
        f'<g><title>position {i + 1}: {share:.0%}</title><rect x="{6 * i}" y="0" width="5" height="20" fill="#eee"/>'
        f'<rect x="{6 * i}" y="{20 - round(20 * share)}" width="5" height="{round(20 * share)}" fill="{_GUESSED}"/></g>'
        for i, share in enumerate(shares)
    )
    return f'<svg width="{6 * len(shares)}" height="20" role="img">{bars}</svg>' if shares else ""


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


def _guessed_from(generation: Generation) -> str:
    return " and ".join(f"{n:,} tokens in {steps:,} steps" for n, steps in generation.draft_vocab_steps.items())


def _table(generation: Generation) -> list[tuple[str, str]]:
    """Names and HTML."""
    usage, timings = generation.usage, generation.timings
    rows = [
        ("prompt", f"{usage.prompt_tokens} tokens, {timings.prompt_rate:,.0f}/s"),
        ("answer", f"{usage.completion_tokens} tokens, {timings.decode_rate:,.1f}/s"),
        ("first token", f"{timings.first_token * 1e3:,.0f} ms"),
        ("tokens a step", f"{generation.tokens_per_step:.2f}"),
    ]
    if generation.acceptance is not None:
        by_position = generation.acceptance_by_position
        rows.append(("guesses right", f"{generation.acceptance:.0%}"))
        rows.append(("by position", f"{position_bars(by_position)} {' '.join(f'{share:.0%}' for share in by_position[:8])}"))
    if generation.draft_vocab_steps:
        rows.append(("guesses from", _guessed_from(generation)))
    rows += [
        ("strategy", escape(repr(generation.strategy))),
        ("finish", escape(generation.finish_reason)),
        ("seed", str(generation.seed)),
    ]
    rows += [("intervention", escape(f"step {one.step}, {one}")) for one in generation.interventions]
    return rows + [("warning", f'<b style="color:#b00">{escape(each)}</b>') for each in generation.warnings]
