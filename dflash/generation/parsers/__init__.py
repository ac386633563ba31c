"""Parsers of model output: reasoning, content and tool calls. Each format has a file and registers itself there."""

from dflash.generation.parsers.calls.hermes import JSONCalls
from dflash.generation.parsers.calls.llama3 import BareCalls
from dflash.generation.parsers.calls.mistral import ToolCalls
from dflash.generation.parsers.calls.qwen2_5 import FencedCalls
from dflash.generation.parsers.calls.qwen3_coder import FunctionTags
from dflash.generation.parsers.events import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Event, ReasoningDelta
from dflash.generation.parsers.output_format import OutputFormat
from dflash.generation.parsers.output_parser import OutputParser
from dflash.generation.parsers.parsed_output import ParsedOutput, ToolCall
from dflash.generation.parsers.qwen3 import ThinkTags

__all__ = [
    "ArgumentsDelta",
    "BareCalls",
    "CallEnd",
    "CallStart",
    "ContentDelta",
    "Event",
    "FencedCalls",
    "FunctionTags",
    "JSONCalls",
    "OutputFormat",
    "OutputParser",
    "ParsedOutput",
    "ReasoningDelta",
    "ThinkTags",
    "ToolCall",
    "ToolCalls",
]
