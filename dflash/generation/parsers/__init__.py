"""Parsers of model output: reasoning, content and tool calls. Each format has a file and registers itself there."""

from dflash.generation.parsers.events import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Event, ReasoningDelta
from dflash.generation.parsers.hermes import JSONCalls
from dflash.generation.parsers.output_format import OutputFormat
from dflash.generation.parsers.output_parser import OutputParser
from dflash.generation.parsers.parsed_output import ParsedOutput, ToolCall
from dflash.generation.parsers.qwen3 import ThinkTags
from dflash.generation.parsers.qwen3_coder import FunctionTags

__all__ = [
    "ArgumentsDelta",
    "CallEnd",
    "CallStart",
    "ContentDelta",
    "Event",
    "FunctionTags",
    "JSONCalls",
    "OutputFormat",
    "OutputParser",
    "ParsedOutput",
    "ReasoningDelta",
    "ThinkTags",
    "ToolCall",
]
