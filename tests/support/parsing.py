"""Parsers fed with texts in parts, and tools to offer to them."""

from dflash.generation.parsers import ArgumentsDelta, ContentDelta, OutputFormat, ParsedOutput, ReasoningDelta
from dflash.model.text.chat_template import ChatTemplate

XML, JSON, QWEN, LLAMA, MISTRAL = "qwen3-coder", "hermes", "qwen2.5", "llama3", "mistral"
OPENED, CLOSED = "<|im_start|>assistant\n<think>\n", "<think>\n\n</think>\n\n"


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [
    tool("get_weather", city={"type": "string"}, days={"type": "integer"}),
    tool("write", path={"type": "string"}, content={"type": "string"}, options={"type": "object"}),
    tool("get_time"),
]


def parser(tools=TOOLS, *, calls=XML, reasoning="qwen3", prompt=CLOSED, offered_only=False, bound=False):
    made = OutputFormat.of(
        ChatTemplate("", tokens={}), tools, reasoning=reasoning, tool=calls, offered_only=offered_only, bound=bound
    )
    return made.parser(prompt)


def events(parts, *args, cut=False, **settings):
    """Events of a text in parts, neighbouring deltas joined, without identifiers."""
    one = parser(*args, **settings)
    found = [event for part in parts for event in one.push(part)] + one.finish(cut=cut)
    joined = []
    for event in found:
        fields = (type(event).__name__, getattr(event, "index", None), getattr(event, "name", None))
        text = event.text if isinstance(event, ContentDelta | ReasoningDelta | ArgumentsDelta) else ""
        if text and joined and joined[-1][0] == fields:
            joined[-1][1] += text
        else:
            joined.append([fields, text])
    return joined


def parsed(text, *args, cut=False, **settings):
    """Parts of a text that arrives at once."""
    one = parser(*args, **settings)
    return ParsedOutput.of([*one.push(text), *one.finish(cut=cut)])


def calls_of(output):
    return [(call.name, call.arguments) for call in output.tool_calls]


def call(name, *, opening="<tool_call>\n", closing="\n</tool_call>", **values):
    """A call as the XML format writes it; values are texts."""
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"{opening}<function={name}>\n{body}</function>{closing}"
