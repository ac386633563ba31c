"""Result of comparing strategies: a table, a plot, numbers."""

import statistics
from dataclasses import dataclass, field
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any

from dflash.cli.terminal import table
from dflash.decode import metrics as acceptance
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.session import Step
from dflash.distribution import needed
from dflash.generation.display import framed, position_bars
from dflash.generation.display.palette import COLORS
from dflash.generation.result import Generation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("draft", "forward", "verify", "host")
"""Parts of a step: drafting, the forward of the target, verification, and all other host work of the loop."""

_LINE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours of the strategies, from the palette for colour-blind readers of Okabe and Ito 2008."""


@dataclass(eq=False)
class Row:
    """Measurements of one strategy.

    Parameters
    ----------
    name : str
    strategy : Strategy
    generations : list of Generation
        All results, round by round.
    rounds : list of (int, float)
        For each round, summed over its prompts: output tokens after the first step, and seconds for them.
    differs : list of (str, int)
        Names of prompts whose output differs from the first strategy's, with the index of the first differing token.
    """

    name: str
    strategy: Strategy
    generations: list[Generation] = field(default_factory=list)
    rounds: list[tuple[int, float]] = field(default_factory=list)
    differs: list[tuple[str, int]] = field(default_factory=list)

    def add(self, round_: int, generation: Generation) -> None:
        """Add the result of one request."""
        if len(self.rounds) == round_:
            self.rounds.append((0, 0.0))
        n, seconds = self.rounds[round_]
        self.rounds[round_] = (n + sum(len(step.tokens) for step in _timed(generation)), seconds + generation.timings.decode)
        self.generations.append(generation)

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each round; 0 if every request ended in its first step."""
        return [n / seconds if seconds else 0.0 for n, seconds in self.rounds]

    @property
    def rate(self) -> float:
        """Mean of `rates`, tokens per second."""
        return statistics.mean(self.rates)

    @property
    def deviation(self) -> float:
        """Standard deviation of `rates`; 0 for one round."""
        return statistics.stdev(self.rates) if len(self.rounds) > 1 else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per step that produced tokens, over all requests."""
        n_steps = sum(bool(step.tokens) for one in self.generations for step in one.steps)
        return sum(len(one.tokens) for one in self.generations) / n_steps if n_steps else 0.0

    @property
    def drafted(self) -> int:
        """Number of draft tokens of all requests."""
        return sum(step.drafted for one in self.generations for step in one.steps)

    @property
    def accepted(self) -> int:
        """Number of accepted draft tokens of all requests; the others were rejected."""
        return sum(step.accepted for one in self.generations for step in one.steps)

    @property
    def acceptance(self) -> float | None:
        """Acceptance rate: accepted draft tokens over all draft tokens; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Acceptance rate at each draft position; see `dflash.decode.metrics.counted`."""
        return acceptance.shares(acceptance.counted(step for one in self.generations for step in one.steps))

    @property
    def shares(self) -> dict[str, float]:
        """Share of the measured time of each of `PARTS`."""
        total = sum(seconds for _, seconds in self.rounds)
        steps = [step for one in self.generations for step in _timed(one)]
        known = [sum(getattr(step, part) for step in steps) for part in ("propose", "forward", "verify")]
        parts = [*known, max(total - sum(known), 0.0)]
        return {name: part / total if total else 0.0 for name, part in zip(PARTS, parts, strict=True)}

    @property
    def first_token(self) -> float:
        """Median seconds to the first token."""
        return statistics.median(one.timings.first_token for one in self.generations)

    def as_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "name": self.name,
            "strategy": repr(self.strategy),
            "tokens_per_second": self.rate,
            "deviation": self.deviation,
            "rounds": self.rates,
            "tokens_per_step": self.tokens_per_step,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance": self.acceptance,
            "acceptance_by_position": self.acceptance_by_position,
            "shares": self.shares,
            "first_token_seconds": self.first_token,
            "same_text": not self.differs,
            "differs": [{"prompt": prompt, "token": token} for prompt, token in self.differs],
            "warnings": sorted({each for one in self.generations for each in one.warnings}),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Measurements of several strategies on the same prompts. A notebook displays it as HTML; `print` writes a table.

    Parameters
    ----------
    rows : list of Row
        One row per strategy; the first is the baseline. ``comparison["name"]`` returns a row.
    prompts : list of str
        Names of the prompts.
    max_tokens : int
        Maximum number of output tokens of each request.
    sampling : dict
        Sampling settings given for all requests.
    model : str
        Description of the model.
    """

    rows: list[Row]
    prompts: list[str]
    max_tokens: int
    sampling: dict[str, Any]
    model: str

    @property
    def same_text(self) -> bool:
        """True if every strategy gave the same output as the first one in every round."""
        return not any(row.differs for row in self.rows)

    def speed_up(self, row: Row) -> float:
        """Return the rate of a row over that of the first strategy."""
        return row.rate / self.rows[0].rate if self.rows[0].rate else 0.0

    def plot(self) -> "Figure":
        """Plot tokens per second, and the acceptance rate by draft position."""
        with needed("plot()", "plots"):
            from matplotlib import pyplot

        figure = pyplot.figure(figsize=(8, 1.2 + 0.4 * max(len(self.rows), 4)), dpi=75, layout="constrained")
        left, right = figure.subplots(1, 2)
        names = [row.name for row in self.rows]
        bars = left.barh(
            names, [row.rate for row in self.rows], xerr=[row.deviation for row in self.rows], color=COLORS["accepted"]
        )
        left.bar_label(bars, [f"{self.speed_up(row):.2f}×" for row in self.rows], padding=3)
        left.invert_yaxis()
        left.margins(x=0.18)
        left.set_xlabel(f"tokens per second (× {self.rows[0].name})")
        drafting = [row for row in self.rows if row.acceptance_by_position]
        for row, color, marker in zip(drafting, cycle(_LINE_COLORS), cycle("osD^vPX")):
            by_position = row.acceptance_by_position
            style = {"color": color, "marker": marker, "fillstyle": "none"}
            right.plot(range(1, len(by_position) + 1), by_position, **style, label=row.name)
        right.set_ylim(0, 1.05)
        right.set_xlabel("draft position")
        right.xaxis.get_major_locator().set_params(integer=True)
        right.set_ylabel("acceptance rate")
        if right.lines:
            right.legend(frameon=False)
        pyplot.close(figure)  # a notebook displays the returned figure; an open one would be displayed twice
        return figure

    def as_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "model": self.model,
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "sampling": self.sampling,
            "same_text": self.same_text,
            "strategies": [{**row.as_dict(), "speed_up": self.speed_up(row)} for row in self.rows],
        }

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per strategy. Needs pandas."""
        with needed("to_pandas()", "pandas"):
            import pandas

        rows = [{**row, **row.pop("shares")} for row in self.as_dict()["strategies"]]
        return pandas.DataFrame(rows).set_index("name")

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def __repr__(self) -> str:
        lines = [table(self._cells(), right=range(1, len(_HEAD)))]
        return "\n\n".join([*lines, *(f"!!! {problem}" for problem in self._problems())])

    def _repr_html_(self) -> str:
        head = "".join(f'<th class="n">{name}</th>' for name in _HEAD[1:])
        lines = f"<tr><th>{_HEAD[0]}</th>{head}<th>acceptance rate by position</th></tr>"
        for row, (name, *cells) in zip(self.rows, self._cells()[1:], strict=True):
            numbers = "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells)
            lines += f"<tr><td>{escape(name)}</td>{numbers}<td>{position_bars(row.acceptance_by_position)}</td></tr>"
        problems = "".join(f'<div class="warning">{escape(problem)}</div>' for problem in self._problems())
        return framed(f'{problems}<div class="chart"><table>{lines}</table></div>')

    def _cells(self) -> list[list[str]]:
        return [list(_HEAD), *(self._row(row) for row in self.rows)]

    def _row(self, row: Row) -> list[str]:
        deviation = f" ± {row.deviation:.1f}" if len(row.rounds) > 1 else ""
        drafts = (
            ("", "", "") if row.acceptance is None else (f"{row.drafted:,}", f"{row.accepted:,}", f"{row.acceptance:.0%}")
        )
        shares = [f"{row.shares[part]:.0%}" for part in PARTS]
        text = "same" if not row.differs else f"{len(row.differs)} DIFFER"
        rate = f"{row.rate:,.1f}{deviation}", f"{self.speed_up(row):.2f}"
        return [row.name, *rate, f"{row.tokens_per_step:.2f}", *drafts, *shares, f"{row.first_token * 1e3:,.0f}", text]

    def _problems(self) -> list[str]:
        found = []
        for row in self.rows:
            places = ", ".join(f"{prompt} from token {token}" for prompt, token in row.differs[:5])
            more = ", ..." if len(row.differs) > 5 else ""
            if row.differs:
                found.append(f"{row.name}: OUTPUT DIFFERS from {self.rows[0].name}: {places}{more}")
            found += [f"{row.name}: {each}" for each in row.as_dict()["warnings"]]
        return found


_HEAD = (
    *("strategy", "tokens/s", "×", "tokens per step", "draft tokens", "accepted", "acceptance rate"),
    *(*PARTS, "first token, ms", "text"),
)


def _timed(generation: Generation) -> list[Step]:
    """Return the steps after the first one that produced tokens: those that `Timings.decode` spans."""
    wrote = next((i for i, step in enumerate(generation.steps) if step.tokens), len(generation.steps))
    return generation.steps[wrote + 1 :]
