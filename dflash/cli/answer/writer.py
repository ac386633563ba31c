"""Writer of an answer whose reasoning, text and tool calls arrive as events."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from dflash.cli.answer.origin_runs import OriginRuns, Run, write_legend
from dflash.cli.answer.pen import Pen
from dflash.cli.terminal import has_colors
from dflash.generation.parsers.events import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Event, ReasoningDelta

if TYPE_CHECKING:
    from dflash.generation.completion import Delta
    from dflash.model.text.tokenizer import Tokenizer

BEGIN, END = "(reasoning)", "(end of reasoning)"
CUT = "(the output ended inside the reasoning)"


class AnswerWriter:
    """Writes the parts of an answer to a stream, without the tags of the model's format.

    Line breaks between the parts are this class's own; those inside a part are the model's.
    """

    def __init__(self, file: TextIO, reasoning: str, tokenizer: "Tokenizer | None" = None) -> None:
        self._pen = Pen(file)
        self._live = has_colors(file)
        self._reasoning = reasoning
        self._origins = None if tokenizer is None else OriginRuns(tokenizer)
        self._part = ""
        self._n_breaks = 0
        self._hidden = ""

    def write(self, delta: "Delta") -> None:
        """Write what a step has added."""
        if self._origins is not None:
            self._origins.push(delta.step)
        for event in delta.events:
            self._event(event)

    def finish(self) -> None:
        """End the answer and its line; write the legend."""
        if self._origins is not None:
            part = self._part if self._part in ("reasoning", "call") else "content"
            self._add(part, self._origins.rest())
        match self._part:
            case "reasoning":
                self._end_reasoning(CUT)
            case "call":
                self._pen.write(" (not finished)\n")
            case "content":
                self._pen.lift()
                self._pen.write("\n" * max(self._n_breaks, 1))
        if self._origins is not None:
            write_legend(self._origins.counts, self._pen)

    def _event(self, event: Event) -> None:
        match event:
            case ReasoningDelta():
                self._add("reasoning", self._runs(event.text))
            case ContentDelta():
                self._add("content", self._runs(event.text))
            case CallStart():
                self._begin("call")
                self._pen.write("tool call: ", dim=True)
                self._pen.write(f"{event.name} ")
            case ArgumentsDelta():
                self._add("call", self._runs(event.text))
            case CallEnd():
                self._pen.lift()
                self._pen.write("\n")
                self._part = "ended call"

    def _runs(self, text: str) -> Iterable[Run]:
        return [Run(text)] if self._origins is None else self._origins.take(text)

    def _add(self, part: str, runs: Iterable[Run]) -> None:
        """Write text of a part. Line breaks at its end wait for more text, those at its start are left out."""
        for text, origin in runs:
            body = text if part == self._part or not self._part else text.lstrip("\n")
            if not body:
                continue
            if part != self._part:
                self._begin(part)
            shown = body.rstrip("\n")
            if shown:
                self._show("\n" * self._n_breaks + shown, origin)
                self._n_breaks = 0
            self._n_breaks += len(body) - len(shown)

    def _show(self, text: str, origin: str) -> None:
        if self._part != "reasoning" or self._reasoning == "dim":
            body = text.lstrip("\n")
            self._pen.write_breaks(len(text) - len(body))
            self._pen.write(body, origin, dim=self._part == "reasoning")
        elif self._reasoning == "fold":
            before, self._hidden = self._folded(), self._hidden + text
            if self._live and self._folded() != before:
                self._pen.rewrite(self._folded())

    def _begin(self, part: str) -> None:
        """End the current part and begin another."""
        self._pen.lift()
        if self._part == "reasoning":
            self._end_reasoning(END)
        elif self._part == "content":
            self._pen.write("\n" * min(max(self._n_breaks, 1), 2))
        self._n_breaks, self._part = 0, part
        if part == "reasoning" and self._reasoning == "dim":
            self._pen.write(f"{BEGIN}\n", dim=True)

    def _end_reasoning(self, last: str) -> None:
        self._pen.lift()
        if self._reasoning == "dim":
            self._pen.write(f"\n{last}\n", dim=True)
        elif self._reasoning == "fold":
            self._pen.rewrite(f"{self._folded()}\n")
        if last == CUT and self._reasoning != "dim":
            self._pen.write(f"{last}\n", dim=True)
        elif last == END and self._reasoning != "hide":
            self._pen.write("\n")

    def _folded(self) -> str:
        n = len(self._hidden.split())
        return f"(reasoning, {n:,} word{'s' * (n != 1)})"
