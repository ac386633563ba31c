"""Tool calls as JSON objects, as Hermes and Qwen3 write them: ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``."""

from dflash.generation.parsers.calls.json_object import ObjectForm, ObjectReader
from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import CallReader, ToolFormat
from dflash.generation.parsers.registry import register
from dflash.generation.parsers.tags import SPACE

OPENING, CLOSING = "<tool_call>", "</tool_call>"
QWEN = "created by Alibaba Cloud"
"""Words of the system prompt in the chat templates of Qwen2.5."""
FORM = ObjectForm(OPENING, SPACE, closing=CLOSING)


@register("tool", "hermes")
class JSONCalls(ToolFormat):
    """Calls as JSON objects in ``<tool_call>`` tags. The arguments are passed on as written."""

    openings = reasoning_openings = (OPENING,)
    closings = (CLOSING,)
    closing = CLOSING
    tokens = (OPENING, CLOSING)

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template writes such calls and is not that of Qwen2.5."""
        return shows_objects(source) and QWEN not in source

    def reader(self, sink: EventSink, opened: str = OPENING, *, in_reasoning: bool = False) -> CallReader:  # noqa: ARG002
        """Return a reader for the next call."""
        return ObjectReader(FORM, self._tools, sink, in_reasoning=in_reasoning)


def shows_objects(source: str) -> bool:
    """Return True if the source of a chat template shows calls as JSON objects in ``<tool_call>`` tags."""
    return OPENING in source and "arguments" in source and "<function=" not in source
