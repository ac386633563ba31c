"""The output of a response, put together from parser events."""

from collections.abc import Iterator, Mapping

from dflash.generation.parsers.events import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Event, ReasoningDelta
from dflash.json_types import JsonObject
from dflash.serve.responses.output_items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    CallItem,
    CustomCallItem,
    MessageItem,
    OpenItem,
    Payload,
    ReasoningItem,
)
from dflash.serve.responses.tools import Tool


class Output:
    """Items of one completion in the order in which the model wrote them.

    White space that stands alone, as between two calls, makes no item.
    """

    def __init__(self, suffix: str, tools: Mapping[str, Tool], encrypted: str | None = None) -> None:
        self.items: list[JsonObject] = []
        self._suffix, self._tools, self._encrypted = suffix, tools, encrypted
        self._open: OpenItem | None = None
        self._blank: list[str] = []

    def read(self, event: Event) -> Iterator[Payload]:
        """Yield the events of the API for an event of the parser."""
        number = len(self.items) + (self._open is not None)
        match event:
            case ReasoningDelta():
                if not isinstance(self._open, ReasoningItem):
                    yield from self._start(ReasoningItem(number, self._suffix, encrypted=self._encrypted))
                yield from self._add(event.text)
            case ContentDelta() if isinstance(self._open, MessageItem):
                yield from self._add(event.text)
            case ContentDelta():
                self._blank.append(event.text)
                if not event.text.isspace():
                    yield from self._message(number)
            case CallStart():
                tool = self._tools.get(event.name, Tool(event.name))
                item = CustomCallItem if tool.is_custom else CallItem
                yield from self._start(item(number, self._suffix, event, tool))
            case ArgumentsDelta():
                yield from self._add(event.text)
            case CallEnd():
                yield from self._end(COMPLETED)

    def finish(self, *, cut: bool) -> Iterator[Payload]:
        """Yield the events at the end of the completion. A call that is still open is always incomplete."""
        is_call = isinstance(self._open, CallItem)
        if self._open is None and not self.items:
            yield from self._message(0)
        yield from self._end(INCOMPLETE if cut or is_call else COMPLETED)

    def _message(self, number: int) -> Iterator[Payload]:
        """Start a message with the white space that was held back."""
        text = "".join(self._blank)
        yield from self._start(MessageItem(number, self._suffix))
        yield from self._add(text)

    def _start(self, item: OpenItem) -> Iterator[Payload]:
        yield from self._end(COMPLETED)
        self._open, self._blank = item, []
        yield "response.output_item.added", {"output_index": len(self.items), "item": item.item(IN_PROGRESS)}
        yield from item.opening()

    def _add(self, text: str) -> Iterator[Payload]:
        if self._open is not None:
            yield from self._open.add(text)

    def _end(self, status: str) -> Iterator[Payload]:
        if self._open is None:
            return
        yield from self._open.closing(status)
        done = self._open.item(status)
        yield "response.output_item.done", {"output_index": len(self.items), "item": done}
        self.items.append(done)
        self._open = None
