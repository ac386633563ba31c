"""HTML of a generation for notebooks, with a chart of its decoding steps."""

from collections.abc import Sequence
from html import escape

from dflash.decode.step import Step
from dflash.generation.display.origins import kinds
from dflash.generation.display.palette import COLORS, STYLE
from dflash.generation.display.shaded_text import shaded
from dflash.generation.display.summary import draft_vocabulary
from dflash.generation.record import GenerationRecord

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


def as_html(generation: GenerationRecord) -> str:
    """Return the text with the origin of each token, the step chart and tables of statistics as HTML."""
    text = shaded(generation.text, generation.steps, generation.vocabulary)
    chart = strip(generation.steps, generation.pieces)
    numbers = "".join(
        f'<tr><th>{name}</th><td class="n">{value}</td><td>{unit}</td></tr>' for name, value, unit in _numbers(generation)
    )
    facts = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in _facts(generation))
    tables = f'<div class="facts"><table>{numbers}</table><table>{facts}</table></div>'
    return framed(f"{text}{chart}{tables}")


def framed(content: str) -> str:
    """Return HTML content with the style sheet of `dflash.generation.display.palette`."""
    return f'<div class="dflash"><style>{STYLE}</style>{content}</div>'


def position_bars(shares: Sequence[float]) -> str:
    """Draw the acceptance rate at each draft position as a row of SVG bars."""
    fill = COLORS["accepted"]
    bars = "".join(
        f"<g><title>position {i + 1}: {share:.0%}</title>"
        f'<rect x="{6 * i}" y="0" width="5" height="20" fill="{fill}" fill-opacity=".2"/>'
        f'<rect x="{6 * i}" y="{20 - round(20 * share)}" width="5" height="{round(20 * share)}" fill="{fill}"/></g>'
        for i, share in enumerate(shares)
    )
    return f'<svg width="{6 * len(shares)}" height="20" role="img">{bars}</svg>' if shares else ""


def _numbers(generation: GenerationRecord) -> list[tuple[str, str, str]]:
    """Return the rows of the table of numbers: name, value, unit."""
    usage, timings = generation.usage, generation.timings
    rows = [
        ("prompt", f"{usage.prompt_tokens:,}", "tokens"),
        ("prefill", f"{timings.prompt_rate:,.1f}", "tok/s"),
        ("first token", f"{timings.first_token * 1e3:,.1f}", "ms"),
        ("output", f"{usage.completion_tokens:,}", "tokens"),
        ("decode", f"{timings.decode_rate:,.1f}", "tok/s"),
        ("decode steps", f"{sum(bool(step.tokens) for step in generation.steps):,}", ""),
        ("tokens per step", f"{generation.tokens_per_step:.2f}", ""),
    ]
    if generation.acceptance is not None:
        drafted = sum(step.drafted for step in generation.steps)
        accepted = sum(step.accepted for step in generation.steps)
        rows += [
            ("draft tokens", f"{drafted:,}", ""),
            ("accepted", f"{accepted:,}", ""),
            ("rejected", f"{drafted - accepted:,}", ""),
            ("acceptance rate", f"{generation.acceptance:.1%}", ""),
        ]
    return rows


def _facts(generation: GenerationRecord) -> list[tuple[str, str]]:
    """Return the rows of the table of texts: plain-text name, value as HTML."""
    rows = [
        ("strategy", escape(repr(generation.strategy))),
        ("finish", escape(generation.finish_reason)),
        ("seed", str(generation.seed)),
    ]
    if generation.acceptance is not None:
        rates = generation.acceptance_by_position
        words = [f"{rate:.0%}" for rate in rates[:8]] + ["\u2026"] * (len(rates) > 8)
        rows.append(("acceptance rate by position", f"{position_bars(rates)} {' '.join(words)}"))
    if generation.draft_vocab_steps:
        rows.append(("draft vocabulary", draft_vocabulary(generation)))
    rows += [("intervention", escape(f"step {one.step}, {one}")) for one in generation.interventions]
    return rows + [("warning", f'<span class="warning">{escape(each)}</span>') for each in generation.warnings]
