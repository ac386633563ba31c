"""Plot of a replay."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.evaluation.replay.replies import TurnReplies
from dflash.generation.display import theme
from dflash.generation.display.palette import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(turns: Sequence[TurnReplies]) -> "Figure":
    """Plot the milliseconds to the first token, and the prompt tokens with those from the cache, over the turns."""
    numbered = [(i, turn) for i, turn in enumerate(turns, 1) if turn.cold and turn.warm]
    at, whole = [i for i, _ in numbered], [turn for _, turn in numbered]
    with theme.figure("replay without and with the prefix cache", 8, 3.2) as figure:
        left, right = figure.subplots(1, 2)
        for kind, color in (("cold", COLORS["rejected"]), ("warm", COLORS["accepted"])):
            left.plot(at, [1e3 * (turn.median(kind, "first_token") or 0) for turn in whole], "o-", color=color, label=kind)
        left.set_title("time to the first token", fontsize="medium")
        left.set_ylabel("first token, ms")
        cached = [turn.warm[0].cached_tokens for turn in whole]
        rest = [turn.warm[0].prompt_tokens - n for turn, n in zip(whole, cached, strict=True)]
        right.bar(at, cached, color=COLORS["accepted"], label="from the cache")
        right.bar(at, rest, bottom=cached, color=COLORS["rejected"], label="prefilled")
        right.set_title("prompt", fontsize="medium")
        right.set_ylabel("prompt tokens")
        for axes in (left, right):
            axes.set_ylim(bottom=0)
            axes.set_xlabel("turn")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend()
    return figure
