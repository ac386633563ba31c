"""Content blocks of a response, whole and as events of a stream."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby

from dflash.generation.parsers import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Event, ReasoningDelta
from dflash.json_types import JsonMapping, JsonObject

SIGNATURE = "ZGZsYXNo"
"""Signature of every thinking block, "dflash" in base64. Clients want one and send it back; it is not checked."""

UNPARSED = "__unparsedToolInput"
"""Key of an input that is no JSON object. Claude Code puts the same key into its messages for such an input."""

Block = JsonObject


def content_blocks(events: Iterable[Event]) -> list[Block]:
    """Return the content of a response that is not streamed.

    Returns: blocks in the order in which the model wrote them. Text and thinking of white space alone have no block. The
        input of a call that was cut off, or is no JSON object, is ``{"__unparsedToolInput": {"raw": TEXT, "len":
        CHARACTERS}}`` with the text as written: an empty input would be another call than the one that the model began.
    """
    return [block for _, run in groupby(events, _block_key) if (block := _block(list(run))) is not None]


def _block_key(event: Event) -> type | int:
    return event.index if isinstance(event, CallStart | ArgumentsDelta | CallEnd) else type(event)


def _block(run: list[Event]) -> Block | None:
    text = "".join(event.text for event in run if isinstance(event, ArgumentsDelta | ContentDelta | ReasoningDelta))
    match run[0]:
        case CallStart(id=identifier, name=name):
            return {"type": "tool_use", "id": identifier, "name": name, "input": _input(text)}
        case ReasoningDelta() if text.strip():
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        case ContentDelta() if text.strip():
            return {"type": "text", "text": text}
    return None


def _input(text: str) -> JsonMapping:
    """Return the input of a call; JSON that no response can hold, as NaN or half a surrogate pair, counts as unparsed."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED: {"raw": text, "len": len(text)}}


class BlockStream:
    """Events of the content blocks of one streamed response.

    At most one block is open. A block of text or thinking is opened by its first character that is not white space; white
    space before it is held back, and dropped if the block never opens.
    """

    def __init__(self) -> None:
        self._n_opened = 0
        self._kind: type | None = None
        self._is_open = False
        self._blank = ""

    def push(self, events: Iterable[Event]) -> Iterator[JsonObject]:
        """Yield the events of a stream for more events of the completion."""
        for event in events:
            match event:
                case CallStart(id=identifier, name=name):
                    yield from self.end()
                    yield self._open(event, {"type": "tool_use", "id": identifier, "name": name, "input": {}})
                case ArgumentsDelta(text=text):
                    yield self._delta("input_json_delta", partial_json=text)
                case CallEnd():
                    yield from self.end()
                case ReasoningDelta(text=text):
                    yield from self._write(event, text, {"type": "thinking", "thinking": "", "signature": ""})
                case ContentDelta(text=text):
                    yield from self._write(event, text, {"type": "text", "text": ""})

    def end(self) -> Iterator[JsonObject]:
        """Yield the events that close the open block, if there is one. Arguments that were cut off stay unclosed."""
        if self._is_open:
            if self._kind is ReasoningDelta:
                yield self._delta("signature_delta", signature=SIGNATURE)
            yield {"type": "content_block_stop", "index": self._n_opened - 1}
        self._kind, self._is_open, self._blank = None, False, ""

    def _write(self, event: Event, text: str, block: Block) -> Iterator[JsonObject]:
        if self._kind is not type(event):
            yield from self.end()
            self._kind = type(event)
        if not self._is_open:
            text = self._blank + text
            if not text.strip():
                self._blank = text
                return
            yield self._open(event, block)
        if text:
            kind = block["type"]
            yield self._delta(f"{kind}_delta", **{kind: text})

    def _open(self, event: Event, block: Block) -> JsonObject:
        self._kind, self._is_open, self._n_opened = type(event), True, self._n_opened + 1
        return {"type": "content_block_start", "index": self._n_opened - 1, "content_block": block}

    def _delta(self, kind: str, **value: str) -> JsonObject:
        return {"type": "content_block_delta", "index": self._n_opened - 1, "delta": {"type": kind, **value}}
