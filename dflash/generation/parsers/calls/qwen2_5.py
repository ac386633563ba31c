"""Tool calls of Qwen2.5: those of Hermes, and the JSON in code fences that Qwen2.5-Coder writes in their place."""

import re

from dflash.generation.parsers.calls.hermes import OPENING, QWEN, JSONCalls, shows_objects
from dflash.generation.parsers.calls.json_object import ObjectForm, ObjectReader
from dflash.generation.parsers.calls.untagged_calls import FENCE, OPENINGS, TOOLS, UntaggedReader
from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import CallReader, ToolFormat
from dflash.generation.parsers.registry import register
from dflash.generation.parsers.tags import SPACE

FENCED = FENCE + "json"
_FORM = ObjectForm(FENCED, SPACE)
_SHOWN = re.compile(TOOLS + r'(?:\\n|\n)\{"name"')


class BoundFences(ToolFormat):
    """Calls in code fences where no free text may stand: they are passed on while they are written."""

    line_openings = (FENCED,)
    closing = FENCE

    @staticmethod
    def matches(source: str) -> bool:  # noqa: ARG004
        """Return False: `FencedCalls` is the format of the templates."""
        return False

    def reader(self, sink: EventSink, opened: str = FENCED, *, in_reasoning: bool = False) -> CallReader:  # noqa: ARG002
        """Return a reader for the next call."""
        return ObjectReader(_FORM, self._tools, sink)


@register("tool", "qwen2.5")
class FencedCalls(JSONCalls):
    """Calls in ``<tool_call>`` tags, or as JSON objects at the end of the message; see `UntaggedReader` for the rule."""

    line_openings = OPENINGS
    bound = BoundFences

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template is that of Qwen2.5, or shows calls in ``<tools>`` tags.

        The former shows calls as Hermes and names its maker; users give the latter to Qwen2.5-Coder.
        """
        return (shows_objects(source) and QWEN in source) or _SHOWN.search(source) is not None

    def reader(self, sink: EventSink, opened: str = OPENING, *, in_reasoning: bool = False) -> CallReader:
        """Return a reader for the next call."""
        if opened in OPENINGS:
            return UntaggedReader(self._tools, sink)
        return super().reader(sink, opened, in_reasoning=in_reasoning)
