"""Figures that hold on light and dark pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dflash.distribution import needed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#787878"
"""Colour of text, axes and lines; its contrast is above 4 with white and with #111."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#c0609a", "#b07d00", "#3a86c8", "#8a6fd1")
"""Colours of series: the first three of Okabe and Ito 2008 for colour-blind readers, then similar ones; contrast above 3."""

DPI = 120

_RULES: Any = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "none",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}


@contextmanager
def figure(title: str, width: float, height: float) -> "Iterator[Figure]":
    """Make a figure with a title and a transparent background, in inches; its axes are added inside the ``with``."""
    with needed("plot()", "plots"):
        from matplotlib import pyplot

    with pyplot.rc_context(_RULES):
        made = pyplot.figure(figsize=(width, height), dpi=DPI, layout="constrained")
        made.suptitle(title, fontsize="medium")
        yield made
    pyplot.close(made)  # a notebook displays the returned figure; an open one would be displayed twice
