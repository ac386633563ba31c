"""Bodies of ``/v1/chat/completions``."""

from collections.abc import Mapping
from typing import Any

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.serve.openai.completion_request import MAX_LOGPROBS
from dflash.serve.parsing.constraints import parse_grammar
from dflash.serve.parsing.fields import Fields, shown
from dflash.serve.parsing.options import parse_options
from dflash.serve.parsing.template_kwargs import parse_template_kwargs
from dflash.serve.parsing.unsupported import refuse_unsupported
from dflash.serve.requests import ChatRequest


def parse_chat(body: object) -> ChatRequest:
    """Read a chat body.

    Returns
    -------
    ChatRequest
        Messages and tools are the client's objects, unchanged; tools that are not functions are left out.

    Raises
    ------
    FieldError
        If a field is missing, of the wrong kind or out of range.
    """
    fields = Fields(body)
    refuse_unsupported(fields)
    messages = list(fields.objects("messages", required=True))
    if not messages:
        raise fields.error("messages", "must hold at least one message")
    for message in messages:
        _check_message(message)
    tools = [tool for tool in fields.objects("tools") if _is_function(tool)]
    logprobs = None
    if fields.flag("logprobs"):
        logprobs = fields.integer("top_logprobs", 0, MAX_LOGPROBS, 0)
    elif fields.any("top_logprobs"):
        raise fields.error("top_logprobs", "needs logprobs to be true")
    effort = fields.any("reasoning_effort")
    name = "max_completion_tokens" if fields.any("max_completion_tokens") is not None else "max_tokens"
    return ChatRequest(
        options=parse_options(fields, fields.integer(name, 1, MAX_TOKENS), logprobs),
        messages=tuple(message.values for message in messages),
        tools=tuple(tool.values for tool in tools),
        grammar=parse_grammar(fields, _tool_choice(fields, tools)),
        template_kwargs=parse_template_kwargs(fields, {"enable_thinking": False} if effort == "none" else {}),
        parallel_tool_calls=fields.flag("parallel_tool_calls", True),
        steps=bool((extension := fields.object("dflash")) and extension.flag("steps")),
    )


def _check_message(message: Fields) -> None:
    message.text("role", required=True)
    content = message.any("content")
    if isinstance(content, list):
        for part in message.objects("content"):
            _check_part(part)
    elif content is not None and not isinstance(content, str):
        raise message.error("content", f"must be a string or an array of parts, got {shown(content)}")
    for call in message.objects("tool_calls"):
        function = call.object("function")
        if function is None:
            raise call.error("function", "is required")
        function.text("name", required=True)
        arguments = function.any("arguments")
        if arguments is not None and not isinstance(arguments, str | dict):
            raise function.error("arguments", f"must be a string that holds JSON, got {shown(arguments)}")


def _check_part(part: Fields) -> None:
    kind = part.text("type", required=True)
    if kind == "tool_reference":
        part.text("tool_name", required=True)
    elif kind == "text":
        part.text("text", required=True)
    else:
        raise part.error("type", f"only text can be read, got {shown(kind)}")


def _is_function(tool: Fields) -> bool:
    """Check a tool; return False for one of another kind, such as ``web_search``, which the server can't offer."""
    if tool.text("type", "function") != "function":
        return False
    function = tool.object("function")
    if function is None:
        raise tool.error("function", "is required")
    function.text("name", required=True)
    return True


def _tool_choice(fields: Fields, tools: list[Fields]) -> str | Mapping[str, Any] | None:
    choice = fields.any("tool_choice")
    if choice is None or isinstance(choice, str):
        wanted = fields.choice("tool_choice", ("none", "auto", "required"))
        if wanted == "required" and not tools:
            raise fields.error("tool_choice", "is 'required', but tools holds none")
        return wanted
    function = Fields(choice, "tool_choice").object("function")
    if function is None:
        raise fields.error("tool_choice", f"must name a function, got {shown(choice)}")
    name = function.text("name", required=True)
    if name not in [tool.values["function"]["name"] for tool in tools]:
        raise fields.error("tool_choice", f"names {shown(name)}, which is not among the tools")
    return choice
