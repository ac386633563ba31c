"""Tool calls of Qwen2.5: those of Hermes, and the JSON in code fences that Qwen2.5-Coder writes in their place."""

from dflash.generation.parsers.calls.hermes import OPENING, QWEN, JSONCalls, shows_objects
from dflash.generation.parsers.calls.untagged_calls import OPENINGS, UntaggedReader
from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import CallReader
from dflash.generation.parsers.registry import register


@register("tool", "qwen2.5")
class FencedCalls(JSONCalls):
    """Calls in ``<tool_call>`` tags, or as JSON objects at the end of the message; see `UntaggedReader` for the rule."""

    line_openings = OPENINGS

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template is that of Qwen2.5, which shows Hermes calls and names its maker."""
        return shows_objects(source) and QWEN in source

    def reader(self, sink: EventSink, opened: str = OPENING, *, in_reasoning: bool = False) -> CallReader:
        """Return a reader for the next call."""
        if opened in OPENINGS:
            return UntaggedReader(self._tools, sink)
        return super().reader(sink, opened, in_reasoning=in_reasoning)
