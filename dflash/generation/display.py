"""Display of a generation: HTML for notebooks, a summary line for terminals, a plot."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from dflash.generation.step_chart import COLORS, strip
from dflash.generation.view import GenerationView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAMPLED, _ACCEPTED = COLORS["bonus"], COLORS["accepted"]


def summary(generation: GenerationView) -> str:
    """Return one line of token counts and rates, then one line for each intervention and warning."""
    usage, timings = generation.usage, generation.timings
    parts = [
        f"{usage.prompt_tokens} prompt tokens at {timings.prompt_rate:,.0f}/s",
        f"{usage.completion_tokens} tokens at {timings.decode_rate:,.1f}/s",
        f"first after {timings.first_token * 1e3:,.0f} ms",
    ]
    if generation.acceptance is not None:
        parts.append(
            f"{generation.tokens_per_step:.2f} tokens per step, {generation.acceptance:.0%} of draft tokens accepted"
        )
    if generation.draft_vocab_steps:
        parts.append(f"draft vocabulary {_draft_vocabulary(generation)}")
    lines = [", ".join([*parts, generation.finish_reason]), *map(str, generation.interventions)]
    return "\n".join([*lines, *(f"warning: {each}" for each in generation.warnings)])


def as_html(generation: GenerationView) -> str:
    """Return the text, the step chart and a table of statistics as HTML.

    Parameters
    ----------
    generation : GenerationView

    Returns
    -------
    str
        HTML in which all model output is escaped.
    """
    text = f'<div style="white-space:pre-wrap;max-width:60em">{escape(generation.text)}</div>'
    cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in _table(generation))
    return f"<div>{text}{strip(generation.steps, generation.pieces)}<table>{cells}</table></div>"


def position_bars(shares: Sequence[float]) -> str:
    """Draw the acceptance rate at each draft position as a row of SVG bars."""
    bars = "".join(
        f'<g><title>position {i + 1}: {share:.0%}</title><rect x="{6 * i}" y="0" width="5" height="20" fill="#eee"/>'
        f'<rect x="{6 * i}" y="{20 - round(20 * share)}" width="5" height="{round(20 * share)}" fill="{_ACCEPTED}"/></g>'
        for i, share in enumerate(shares)
    )
    return f'<svg width="{6 * len(shares)}" height="20" role="img">{bars}</svg>' if shares else ""


def plot(generation: GenerationView) -> "Figure":
    """Plot the tokens of each step, split into sampled and accepted draft tokens, above its milliseconds.

    Parameters
    ----------
    generation : GenerationView

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib import pyplot

    steps = [step for step in generation.steps if step.tokens]
    numbers = range(1, len(steps) + 1)
    accepted = [step.accepted for step in steps]
    sampled = [len(step.tokens) - step.accepted for step in steps]
    figure = pyplot.figure(figsize=(8, 3.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.bar(numbers, sampled, color=_SAMPLED, label="sampled")
    above.bar(numbers, accepted, bottom=sampled, color=_ACCEPTED, label="accepted draft tokens")
    above.set_ylabel("tokens")
    above.margins(y=0.4)
    above.yaxis.get_major_locator().set_params(integer=True)
    above.legend(frameon=False, ncols=2)
    times = [[getattr(step, part) * 1e3 for step in steps] for part in ("propose", "forward", "verify", "commit")]
    below.stackplot(numbers, times, labels=("propose", "forward", "verify", "commit"))
    below.set_ylabel("ms")
    below.set_xlabel("step")
    below.legend(frameon=False, ncols=4)
    pyplot.close(figure)  # a notebook displays the returned figure; an open one would be displayed twice
    return figure


def _draft_vocabulary(generation: GenerationView) -> str:
    return " and ".join(f"{n:,} tokens in {steps:,} steps" for n, steps in generation.draft_vocab_steps.items())


def _table(generation: GenerationView) -> list[tuple[str, str]]:
    """Return the rows of the table: plain-text name, value as HTML."""
    usage, timings = generation.usage, generation.timings
    rows = [
        ("prompt", f"{usage.prompt_tokens} tokens, {timings.prompt_rate:,.0f}/s"),
        ("output", f"{usage.completion_tokens} tokens, {timings.decode_rate:,.1f}/s"),
        ("first token", f"{timings.first_token * 1e3:,.0f} ms"),
        ("tokens per step", f"{generation.tokens_per_step:.2f}"),
    ]
    if generation.acceptance is not None:
        by_position = generation.acceptance_by_position
        rows.append(("acceptance rate", f"{generation.acceptance:.0%}"))
        rows.append(("by position", f"{position_bars(by_position)} {' '.join(f'{share:.0%}' for share in by_position[:8])}"))
    if generation.draft_vocab_steps:
        rows.append(("draft vocabulary", _draft_vocabulary(generation)))
    rows += [
        ("strategy", escape(repr(generation.strategy))),
        ("finish", escape(generation.finish_reason)),
        ("seed", str(generation.seed)),
    ]
    rows += [("intervention", escape(f"step {one.step}, {one}")) for one in generation.interventions]
    return rows + [("warning", f'<b style="color:#b00">{escape(each)}</b>') for each in generation.warnings]
