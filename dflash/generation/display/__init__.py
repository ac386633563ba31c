"""Display of a generation: HTML for notebooks, a summary line for terminals, a plot."""

from dflash.generation.display.figure import plot
from dflash.generation.display.page import as_html, framed, position_bars
from dflash.generation.display.summary import summary

__all__ = ["as_html", "framed", "plot", "position_bars", "summary"]
