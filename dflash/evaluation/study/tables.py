"""Tables of a study as text."""

import csv
import io
from collections.abc import Callable, Sequence

from dflash.cli.terminal import table
from dflash.evaluation.tables import Values

AXES = ("strategy", "temperature", "batch", "context")

_HEAD = (*AXES, "acceptance length", "tokens/s", "×", "Omega", "draft", "forward", "verify", "host, ms", "output")

Rows = Sequence[Values]


def _cells(row: Values) -> list[str]:
    length = f"{row['acceptance_length']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
    speed = f"{row['tokens_per_second']:,.1f}", f"{row['speed_up']:.2f}", f"{row['omega']:.2f}"
    parts = (f"{row[f'{part}_ms']:.2f}" for part in ("draft", "forward", "verify", "host"))
    axes = row["strategy"], f"{row['temperature']:g}", str(row["batch"]), f"{row['context']:,}"
    return [*axes, length, *speed, *parts, row["guarantee"] + ", replayed" * row["replayed"]]


def markdown(rows: Rows) -> str:
    """Return a Markdown table."""
    return table([_HEAD, *map(_cells, rows)], right=range(1, len(_HEAD) - 1))


def latex(rows: Rows) -> str:
    """Return a LaTeX table; it needs the package booktabs."""
    head = " & ".join(_escaped(name) for name in _HEAD)
    body = [" & ".join(map(_escaped, _cells(row))) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(_HEAD) - 2)}l}}"
    return "\n".join([begin, r"\toprule", head + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])


def comma_separated(rows: Rows) -> str:
    """Return all columns as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def _escaped(text: str) -> str:
    for letter in "\\&%$#_{}":
        text = text.replace(letter, r"\textbackslash{}" if letter == "\\" else f"\\{letter}")
    return text.replace("×", r"$\times$").replace("Omega", r"$\Omega$")


KINDS: dict[str, Callable[[Rows], str]] = {"markdown": markdown, "latex": latex, "csv": comma_separated}
