"""Events of a parsed completion, and their collection."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """New text of the visible message."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Start of a tool call, sent when the name of an offered function is complete.

    index: number of the call in the completion, from 0.
    id: identifier, unique among all completions.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """New JSON text of the arguments of call `index`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """End of call `index`, which the model has closed. A call that the run cuts has no end."""

    index: int


Event = ContentDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd


def add_events(events: list[Event], more: Iterable[Event]) -> None:
    """Append events; text that continues the last one is joined with it, so that a step has few events."""
    for event in more:
        if isinstance(event, CallStart | CallEnd) or not events or not _continues(events[-1], event):
            events.append(event)
        else:
            events[-1] = replace(event, text=events[-1].text + event.text)  # type: ignore[union-attr]  # of one class


def _continues(last: Event, event: Event) -> bool:
    return type(last) is type(event) and getattr(last, "index", 0) == getattr(event, "index", 0)


class EventSink:
    """Collects events and joins neighbouring deltas of one kind.

    id_prefix: beginning of the identifiers of all calls; the number of the call follows.
    """

    def __init__(self, id_prefix: str) -> None:
        self._id_prefix = id_prefix
        self._n_calls = 0
        self._events: list[Event] = []
        self._kind: type | None = None
        self._texts: list[str] = []

    def content(self, text: str) -> None:
        """Add text of the message."""
        self._add(ContentDelta, text)

    def reasoning(self, text: str) -> None:
        """Add text of the reasoning."""
        self._add(ReasoningDelta, text)

    def start(self, name: str) -> None:
        """Start the next call."""
        self._join()
        self._events.append(CallStart(self._n_calls, f"{self._id_prefix}{self._n_calls}", name))
        self._n_calls += 1

    def arguments(self, text: str) -> None:
        """Add JSON text to the arguments of the call that was started last."""
        self._add(ArgumentsDelta, text)

    def end(self) -> None:
        """End the call that was started last."""
        self._join()
        self._events.append(CallEnd(self._n_calls - 1))

    def take(self) -> list[Event]:
        """Return the events since the last call of this method."""
        self._join()
        events, self._events = self._events, []
        return events

    def _add(self, kind: type, text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._join()
            self._kind = kind
        self._texts.append(text)

    def _join(self) -> None:
        if not self._texts:
            return
        text = "".join(self._texts)
        assert self._kind is not None, "set with the first text"
        self._events.append(ArgumentsDelta(self._n_calls - 1, text) if self._kind is ArgumentsDelta else self._kind(text))
        self._texts.clear()
