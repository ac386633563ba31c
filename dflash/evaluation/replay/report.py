"""Result of a replay: a table, a plot, numbers, failures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.cli.terminal import table
from dflash.decode.drafting.drafter import Strategy
from dflash.evaluation.replay.replies import TurnReplies
from dflash.generation.display import theme
from dflash.generation.display.palette import COLORS
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Replay:
    """Measurements of the turns of a session. `print` writes a table; its times are medians over the rounds."""

    turns: list[TurnReplies]
    strategy: Strategy
    max_tokens: int
    sampling: dict[str, Any]
    model: str

    @property
    def failures(self) -> list[str]:
        """One sentence for each failure: errors, empty answers, warm outputs that differ from the cold ones."""
        return [f"{turn.name}: {failure}" for turn in self.turns for failure in turn.failures()]

    def plot(self) -> "Figure":
        """Plot the milliseconds to the first token, and the prompt tokens with those from the cache, over the turns."""
        numbered = [(i, turn) for i, turn in enumerate(self.turns, 1) if turn.cold and turn.warm]
        at, whole = [i for i, _ in numbered], [turn for _, turn in numbered]
        with theme.figure("replay without and with the prefix cache", 8, 3.2) as figure:
            left, right = figure.subplots(1, 2)
            for kind, color in (("cold", COLORS["rejected"]), ("warm", COLORS["accepted"])):
                left.plot(
                    at, [1e3 * (turn.median(kind, "first_token") or 0) for turn in whole], "o-", color=color, label=kind
                )
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

    def as_dict(self) -> JsonObject:
        """JSON values only."""
        return {
            "model": self.model,
            "strategy": repr(self.strategy),
            "max_tokens": self.max_tokens,
            "sampling": self.sampling,
            "failures": self.failures,
            "turns": [
                {"name": turn.name, **{kind: [one._asdict() for one in getattr(turn, kind)] for kind in ("cold", "warm")}}
                for turn in self.turns
            ],
        }

    def __repr__(self) -> str:
        rows = [_HEAD, *map(_row, self.turns), *self._sums()]
        shown = table(rows, right=[i for i, name in enumerate(_HEAD) if i and name not in ("finish", "text")])
        return "\n\n".join([shown, *(f"!!! {failure}" for failure in self.failures)])

    def _sums(self) -> Iterator[list[str]]:
        whole = [turn for turn in self.turns if turn.cold and turn.warm]
        if len(whole) < 2:
            return
        tokens = (f"{sum(getattr(turn.warm[0], name) for turn in whole):,}" for name in ("prompt_tokens", "cached_tokens"))
        first = [sum(turn.median(kind, "first_token") or 0 for turn in whole) for kind in ("cold", "warm")]
        wall = [sum(turn.median(kind, "seconds") or 0 for turn in whole) for kind in ("cold", "warm")]
        n = f"{sum(len(turn.warm[0].tokens) for turn in whole):,}"
        yield ["all", *tokens, *_times(first), f"{first[1] / first[0]:.0%}", *_times(wall), n, "", "", ""]


_HEAD = [
    *("turn", "prompt", "cached", "first token cold, ms", "warm, ms", "warm / cold", "all cold, ms", "warm, ms"),
    *("output", "tokens per step", "finish", "text"),
]


def _row(turn: TurnReplies) -> list[str]:
    reply = next(iter([*turn.warm, *turn.cold]), None)
    text = ", ".join(
        word
        for word, holds in (
            ("ERROR", turn.errors),
            ("EMPTY", any(one.empty for one in (*turn.cold, *turn.warm))),
            ("DIFFERS", any("differs" in failure for failure in turn.failures())),
        )
        if holds
    )
    if reply is None:
        return [turn.name, *[""] * (len(_HEAD) - 2), text]
    first = [turn.median(kind, "first_token") for kind in ("cold", "warm")]
    wall = [turn.median(kind, "seconds") for kind in ("cold", "warm")]
    share = f"{first[1] / first[0]:.0%}" if first[0] and first[1] is not None else ""
    tokens = f"{reply.prompt_tokens:,}", f"{reply.cached_tokens:,}"
    output = f"{len(reply.tokens)}", f"{reply.tokens_per_step:.2f}", reply.finish_reason
    return [turn.name, *tokens, *_times(first), share, *_times(wall), *output, text or "same"]


def _times(seconds: Sequence[float | None]) -> list[str]:
    return ["" if one is None else f"{one * 1e3:,.1f}" for one in seconds]
