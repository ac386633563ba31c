"""Result of a load of agents: tables, a plot, a record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.cli.terminal import table
from dflash.evaluation.traces.goodput import Goodput
from dflash.evaluation.traces.measures import FULL, measured
from dflash.evaluation.traces.run import TraceLimits, TraceRun
from dflash.evaluation.traces.trace_file import AgentTrace
from dflash.generation.display import theme
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class TraceReport:
    """Runs of the same traces with several numbers of clients. `print` writes tables; times are medians where not said."""

    runs: list[TraceRun]
    traces: Sequence[AgentTrace]
    limits: TraceLimits
    target: str
    about: JsonObject
    goodput: Goodput = Goodput({})  # noqa: RUF009

    @property
    def shape_run(self) -> list[str]:
        """Reasons for which no run is a full one of these traces, each a few words; empty for a full run."""
        limits, shortest = self.limits, min(run.seconds for run in self.runs)
        reasons = {
            f"lengths divided by {limits.scale}": limits.scale != 1,
            f"pauses times {limits.think_scale:g}": limits.think_scale != 1,
            f"pauses of at most {limits.think_max} s": limits.think_max is not None,
            f"at most {limits.turns} turns": limits.turns is not None,
            f"{shortest:,.0f} s of at least {FULL:g}": shortest < FULL,
        }
        return [reason for reason, holds in reasons.items() if holds]

    @property
    def failures(self) -> list[str]:
        """One sentence for each request that failed."""
        return [f"{one.session}, turn {one.turn + 1}: {one.error}" for run in self.runs for one in run.requests if one.error]

    @property
    def remarks(self) -> list[str]:
        """Sentences about what limits the meaning of the numbers."""
        caches = [measured(run)["cache"] for run in self.runs]
        found = {
            f"shape run: {', '.join(self.shape_run)}": bool(self.shape_run),
            "the server does not report tokens from its cache": None in caches,
            "the server sends text without token ids: answers stand in later prompts as this text encoded anew": not all(
                run.is_exact for run in self.runs
            ),
            "first prompts were in the cache: the server has seen them before; use another seed": any(
                cache and cache["first"] for cache in caches
            ),
            f"{sum(run.n_left_out for run in self.runs)} sessions ended early, at the maximum context": any(
                run.n_left_out for run in self.runs
            ),
        }
        return [remark for remark, holds in found.items() if holds]

    def plot(self) -> "Figure":
        """Plot the output tokens per second of all clients against the tokens per second of one user."""
        points = sorted(
            (each for each in map(measured, self.runs) if each["interactivity"]), key=lambda each: each["clients"]
        )
        with theme.figure(f"{'shape run' if self.shape_run else 'agents'}: {self.target:.60}", 5, 3.6) as figure:
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

    def as_dict(self) -> JsonObject:
        """JSON values only: settings, environment, numbers, and a row for each request."""
        return {
            "target": self.target,
            "shape_run": self.shape_run,
            "limits": self.limits.as_dict(),
            "traces": [trace.name for trace in self.traces],
            **self.about,
            "remarks": self.remarks,
            "failures": self.failures,
            "runs": [
                {**measured(run, self.goodput), "rows": [sent.as_dict() for sent in run.requests]} for run in self.runs
            ],
        }

    def __repr__(self) -> str:
        numbers = [measured(run, self.goodput) for run in self.runs]
        rows = [_head(self.goodput), *map(_row, numbers)]
        turns = [_TURN_HEAD, *(row for each in numbers for row in _turn_rows(each))]
        tables = [table(each, right=range(len(each[0]))) for each in (rows, turns)]
        remarks = self.remarks + [f"!!! {failure}" for failure in self.failures[:_MAX_SHOWN]]
        if len(self.failures) > _MAX_SHOWN:
            remarks.append(f"!!! {len(self.failures) - _MAX_SHOWN} more failures")
        return "\n\n".join([self.target, *tables, *remarks])


_MAX_SHOWN = 5
"""Failures that are printed; the record has all."""

_HEAD = [
    *("clients", "requests", "tokens/s", "tokens/s of a user", "first token, median / p99, ms"),
    *("gap, median / p99 / longest, ms", "cached of reusable", "after answer / in prompt / nothing"),
    "after a whole answer",
]
_TURN_HEAD = ["clients", "turns", "requests", "prompt tokens", "read tokens", "first token, median / p99, ms"]


def _head(goodput: Goodput) -> list[str]:
    return [*_HEAD, f"good ({goodput})"] if goodput.limits else _HEAD


def _row(numbers: JsonObject) -> list[str]:
    cache, user = numbers["cache"], numbers["interactivity"]
    of = f"{cache['cached'] / max(cache['reusable'], 1):.1%}" if cache else ""
    kinds = " / ".join(f"{cache[kind]}" for kind in ("answer", "prompt", "nothing")) if cache else ""
    row = [
        f"{numbers['clients']}",
        f"{numbers['requests']:,}",
        f"{numbers['output_tokens_per_second']:,.1f}",
        "" if user is None else f"{user:,.1f}",
        _ms(numbers["first_token"], "median", "p99"),
        _ms(numbers["gap"], "median", "p99", "longest"),
        of,
        kinds,
        f"{cache['answer_found']} of {cache['answer_fits']}" if cache else "",
    ]
    return [*row, f"{numbers['goodput']['share']:.0%}"] if "goodput" in numbers else row


def _turn_rows(numbers: JsonObject) -> Iterator[list[str]]:
    for row in numbers["by_turn"]:
        if row["requests"]:
            read = "" if row["read_tokens"] is None else f"{row['read_tokens']:,.0f}"
            counts = f"{numbers['clients']}", row["turns"], f"{row['requests']:,}", f"{row['prompt_tokens']:,.0f}", read
            yield [*counts, _ms(row["first_token"], "median", "p99")]


def _ms(seconds: dict[str, float] | None, *names: str) -> str:
    return " / ".join(f"{1e3 * seconds[name]:,.0f}" for name in names) if seconds else ""
