"""Result of comparing strategies: a table, a plot, numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import cycle, groupby
from typing import TYPE_CHECKING, Any

from dflash.cli.terminal import table
from dflash.distribution import needed
from dflash.errors import RequestError, did_you_mean
from dflash.evaluation.row import PARTS, Row
from dflash.evaluation.tables import KINDS, by_category, check_kind
from dflash.generation.display import framed, position_bars, theme
from dflash.generation.display.palette import COLORS
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    categories : list of str
        Category of each prompt, empty if it has none.
    """

    rows: list[Row]
    prompts: list[str]
    max_tokens: int
    sampling: dict[str, Any]
    model: str
    categories: list[str] = field(default_factory=list)

    @property
    def same_text(self) -> bool:
        """True if every strategy gave the same output as the first one in every round."""
        return not any(row.differs for row in self.rows)

    def speed_up(self, row: Row) -> float:
        """Return the rate of a row over that of the first strategy."""
        return row.rate / self.rows[0].rate if self.rows[0].rate else 0.0

    def plot(self) -> "Figure":
        """Plot tokens per second, and the acceptance rate by draft position."""
        title = f"{len(self.prompts)} prompts, at most {self.max_tokens} tokens each"
        with theme.figure(title, 8, 1.4 + 0.4 * max(len(self.rows), 4)) as figure:
            left, right = figure.subplots(1, 2)
            names, rates = [row.name for row in self.rows], [row.rate for row in self.rows]
            lines = {"ecolor": theme.INK}
            bars = left.barh(
                names, rates, xerr=[row.deviation for row in self.rows], color=COLORS["accepted"], error_kw=lines
            )
            left.bar_label(bars, [f"{self.speed_up(row):.2f}×" for row in self.rows], padding=3)
            left.invert_yaxis()
            left.margins(x=0.18)
            left.set_title("speed", fontsize="medium")
            left.set_xlabel(f"tokens per second (× {self.rows[0].name})")
            drafting = [row for row in self.rows if row.acceptance_by_position]
            for row, color, marker in zip(drafting, cycle(theme.SERIES), cycle("osD^vPX")):
                by_position = row.acceptance_by_position
                style = {"color": color, "marker": marker, "fillstyle": "none"}
                right.plot(range(1, len(by_position) + 1), by_position, **style, label=row.name)
            right.set_title("acceptance", fontsize="medium")
            right.set_ylim(0, 1.05)
            right.set_xlabel("draft position")
            right.xaxis.get_major_locator().set_params(integer=True)
            right.set_ylabel("acceptance rate")
            if right.lines:
                right.legend()
        return figure

    def as_dict(self) -> JsonObject:
        """JSON values only."""
        return {
            "model": self.model,
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "sampling": self.sampling,
            "same_text": self.same_text,
            "strategies": [{**row.as_dict(), "speed_up": self.speed_up(row)} for row in self.rows],
            "categories": list(by_category(self.rows, self.prompts, self.categories)),
        }

    def to_pandas(self, rows: str = "strategies") -> Any:
        """Return a pandas DataFrame.

        Parameters
        ----------
        rows : str
            ``"strategies"``: one row for each, indexed by name. ``"requests"``: one for each request, in the order of
            strategies, rounds and prompts. ``"steps"``: one for each step that produced tokens. ``"categories"``: one for
            each category of prompts and strategy. Columns are those of `dflash.evaluation.tables`; durations are in seconds.

        Raises
        ------
        RequestError
            If there are no such rows.
        DFlashError
            If pandas is not installed.
        """
        check_kind(rows)
        with needed("to_pandas()", "pandas"):
            import pandas

        if rows == "strategies":
            found = [{**row, **row.pop("shares")} for row in self.as_dict()["strategies"]]
            return pandas.DataFrame(found).set_index("name")
        return pandas.DataFrame(list(KINDS[rows](self.rows, self.prompts, self.categories)))

    def __getitem__(self, name: str) -> Row:
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            near = did_you_mean(str(name), rows)
            raise RequestError(f"comparison: has no strategy {name!r:.80}{near}; it has {', '.join(rows)}")
        return rows[name]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        lines = [table(self._cells(), right=range(1, len(_HEAD)))]
        if len(set(self.categories)) > 1:
            head = ["tokens per step", *(row.name for row in self.rows)]
            lines.append(table([head, *self._by_category()], right=range(1, len(head))))
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

    def _by_category(self) -> Iterator[list[str]]:
        """Yield a line for each category: its name, and the tokens per step of each strategy."""
        found = by_category(self.rows, self.prompts, self.categories)
        for category, of_category in groupby(found, key=lambda one: one["category"]):
            yield [category or "(none)", *(f"{one['tokens_per_step']:.2f}" for one in of_category)]

    def _row(self, row: Row) -> list[str]:
        deviation = f" ± {row.deviation:.1f}" if len(row.rounds) > 1 else ""
        drafts = (
            ("", "", "") if row.acceptance is None else (f"{row.drafted:,}", f"{row.accepted:,}", f"{row.acceptance:.0%}")
        )
        shares = [f"{row.shares[part]:.0%}" for part in PARTS]
        text = "same" if not row.differs else f"{len(row.differs)} DIFFER"
        text = text if all(map(row.is_judged, row.generations)) else row.strategy.verifier.guarantee
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
