"""Tool calls as JSON objects without tags, as Llama 3 writes them: ``{"name": ..., "parameters": {...}}``."""

from dflash.generation.parsers.calls.json_object import ObjectForm, ObjectReader
from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import CallReader, ToolFormat
from dflash.generation.parsers.registry import register
from dflash.generation.parsers.tags import SPACE

TAG, SEPARATOR = "<|python_tag|>", ";"
_ONLY = "type", "name", "parameters", "arguments"
_FORMS = {
    TAG: ObjectForm(TAG, SPACE),
    "{": ObjectForm(only=_ONLY, is_block=False),
    SEPARATOR: ObjectForm(SPACE, SEPARATOR, SPACE, only=_ONLY, is_block=False),
}


@register("tool", "llama3")
class BareCalls(ToolFormat):
    """Calls as JSON objects with ``name`` and ``parameters`` (or ``arguments``), further ones after a semicolon.

    A message that begins with such an object is a call if its function is offered. After ``<|python_tag|>``, every object
    with a name is one.
    """

    openings = reasoning_openings = (TAG,)
    first_openings = ("{",)
    separator = SEPARATOR
    tokens = (TAG,)

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template writes such calls."""
        return "<|start_header_id|>" in source and '"parameters"' in source and "<tool_call>" not in source

    def reader(self, sink: EventSink, opened: str, *, in_reasoning: bool = False) -> CallReader:
        """Return a reader for the next call."""
        return ObjectReader(_FORMS[opened], self._tools, sink, in_reasoning=in_reasoning)
