"""Result of a study: records with tables and plots."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.distribution import needed
from dflash.errors import RequestError
from dflash.evaluation.study import record as records
from dflash.evaluation.study import tables
from dflash.evaluation.tables import Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """Records of a study. A notebook displays its table; `print` writes it.

    Parameters
    ----------
    records : list of dict
        One record for each cell; see `dflash.evaluation.study.record`.
    """

    records: list[records.Record]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Study":
        """Read the records of a folder, or of a file."""
        return cls(records.read_all(Path(path)))

    def rows(self) -> list[Values]:
        """Return one row for each cell: its axes, acceptance length with interval, speed-up and Omega.

        ``speed_up`` is the rate of a sequence over that of the first strategy in an equal cell, and Omega is
        ``acceptance_length / speed_up - 1``: the cost of drafting and of the additional rows, in plain steps.
        """
        return list(self._rows())

    def _rows(self) -> Iterator[Values]:
        first: dict[tuple[Any, ...], float] = {}
        for record in self.records:
            cell, measures = record["cell"], record["measures"]
            rate = measures["tokens_per_second"]
            base = first.setdefault(tuple(cell[axis] for axis in tables.AXES[1:]), rate)
            speed_up = rate / base if base else 0.0
            yield {
                **{axis: cell[axis] for axis in tables.AXES},
                "guarantee": cell["guarantee"] if cell["temperature"] or cell["guarantee"] == "synthetic" else "same",
                "replayed": "replayed" in record,
                "requests": measures["requests"],
                "acceptance_length": measures["acceptance_length"],
                "low": measures["interval"][0],
                "high": measures["interval"][1],
                "tokens_per_second": rate,
                "speed_up": speed_up,
                "omega": measures["acceptance_length"] / speed_up - 1 if speed_up else 0.0,
                **{f"{part}_ms": seconds * 1e3 for part, seconds in measures["seconds_a_step"].items()},
            }

    def table(self, kind: str = "markdown") -> Any:
        """Return the rows as a table.

        Parameters
        ----------
        kind : str
            ``"markdown"``, ``"latex"`` (booktabs), ``"csv"`` (all columns), or ``"pandas"`` (a DataFrame).

        Raises
        ------
        RequestError
            If there is no such kind.
        DFlashError
            If pandas is not installed.
        """
        if kind == "pandas":
            with needed('table("pandas")', "pandas"):
                import pandas

            return pandas.DataFrame(self.rows())
        if kind not in tables.KINDS:
            raise RequestError(f"table: kind must be {', '.join(tables.KINDS)} or pandas, got {kind!r:.40}")
        return tables.KINDS[kind](self.rows())

    def plot(self, *kinds: str) -> "Figure":
        """Plot the study, one line for each strategy and temperature; all values are those of the shortest context.

        Parameters
        ----------
        *kinds : str
            ``"positions"`` (acceptance at each draft position, given that all before were accepted), ``"steps"`` (shares of
            steps by their tokens), ``"speed_up"`` (by batch), ``"pareto"`` (tokens a second of one sequence and of all, by
            batch; the grey band joins the cells that no other one exceeds in both). All four if none is named. The first
            two are of the smallest batch.

        Raises
        ------
        RequestError
            If there is no such kind.
        """
        from dflash.evaluation.study.plot import plot

        return plot(self.records, self.rows(), kinds)

    def __repr__(self) -> str:
        warnings = dict.fromkeys(record["cell"]["warning"] for record in self.records)
        if any("replayed" in record for record in self.records):
            warnings["replayed cells have recorded acceptance and the prices of a few measured steps"] = None
        return "\n\n".join([self.table(), *(f"!!! {warning}" for warning in warnings if warning)])

    def _repr_markdown_(self) -> str:
        return repr(self)
