"""Bodies of ``/v1/chat/completions``."""

from dataclasses import replace

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.generation.messages.chat_message import chat_message
from dflash.generation.messages.chat_prompt import PromptEnding, can_continue
from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonMapping
from dflash.serve.parsing.constraints import parse_grammar
from dflash.serve.parsing.options import parse_options
from dflash.serve.parsing.template_kwargs import parse_template_kwargs
from dflash.serve.request_fields.row import CHAT
from dflash.serve.request_fields.table import known_fields, read
from dflash.serve.requests import ChatRequest


def parse_chat(body: object) -> ChatRequest:
    """Read a chat body.

    Returns: messages and tools are the client's objects, unchanged unless a template would not know their form, see
        `chat_message`; tools that are not functions are left out.
    """
    fields = known_fields(body, CHAT)
    messages = list(fields.objects("messages", required=True))
    if not messages:
        raise fields.error("messages", "must hold at least one message")
    read_messages = tuple(map(chat_message, messages))
    tools = [tool for tool in fields.objects("tools") if _is_function(tool)]
    logprobs = None
    if read(fields, CHAT, "logprobs"):
        logprobs = read(fields, CHAT, "top_logprobs") or 0
    elif fields.any("top_logprobs"):
        raise fields.error("top_logprobs", "needs logprobs to be true")
    name = "max_completion_tokens" if fields.any("max_completion_tokens") is not None else "max_tokens"
    thinks, fields, included = read_reasoning(fields)
    ending = _ending(fields, read_messages[-1])
    return ChatRequest(
        options=replace(
            parse_options(fields, CHAT, read(fields, CHAT, name), logprobs=logprobs), include_reasoning=included
        ),
        messages=read_messages,
        tools=tuple(tool.values for tool in tools),
        grammar=parse_grammar(fields, _tool_choice(fields, tools)),
        template_kwargs=parse_template_kwargs(fields, {} if thinks is None else {"enable_thinking": thinks}),
        parallel_tool_calls=read(fields, CHAT, "parallel_tool_calls"),
        ending=ending,
        echo_message=_echo(fields, ending),
    )


_PREFIX_MARKS = ("prefix", "partial")
"""Fields of a last message that ask for its continuation in the APIs of DeepSeek, Mistral and Moonshot."""


def _ending(fields: Fields, last: JsonMapping) -> PromptEnding:
    has_mark = any(last.get(name) is True for name in _PREFIX_MARKS) and can_continue(last)
    if not (has_mark or read(fields, CHAT, "continue_final_message")):
        return PromptEnding.NEW_TURN if read(fields, CHAT, "add_generation_prompt") else PromptEnding.NOTHING
    if fields.any("add_generation_prompt"):
        raise fields.error("continue_final_message", "can't be combined with add_generation_prompt: true")
    if not can_continue(last):
        raise fields.error("continue_final_message", "needs a last message of the assistant that has text and no tool calls")
    return PromptEnding.CONTINUED


def _echo(fields: Fields, ending: PromptEnding) -> bool:
    echo: bool = read(fields, CHAT, "echo")
    if echo and ending is not PromptEnding.CONTINUED:
        raise fields.error("echo", "needs continue_final_message: no other message is repeated")
    return echo


def _is_function(tool: Fields) -> bool:
    """Check a tool; return False for one of another kind, such as ``web_search``, which the server can't offer."""
    if tool.text("type", "function") != "function":
        return False
    function = tool.object("function")
    if function is None:
        raise tool.error("function", "is required")
    function.text("name", required=True)
    return True


def _tool_choice(fields: Fields, tools: list[Fields]) -> str | JsonMapping | None:
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


def read_reasoning(fields: Fields) -> tuple[bool | None, Fields, bool]:
    """Read ``reasoning_effort``, ``reasoning`` (OpenRouter), ``thinking`` (DeepSeek) and ``include_reasoning`` (vLLM).

    Returns: true if the model shall think, False if not, None if the body does not say.
    Returns: the same fields, with the budget of ``reasoning.max_tokens`` as ``thinking_token_budget``.
    Returns: true if the answer shall hold the reasoning.
    """
    thinks, included = None, read(fields, CHAT, "include_reasoning")
    reasoning, thinking = fields.object("reasoning"), fields.object("thinking")
    if thinking is not None:
        kind = thinking.text("type", required=True)
        if kind not in ("enabled", "disabled", "adaptive", "auto"):
            raise thinking.error("type", f"must be enabled, disabled, adaptive or auto, got {shown(kind)}")
        thinks = {"enabled": True, "disabled": False}.get(kind)
        fields = fields.filled({"thinking_token_budget": thinking.integer("budget_tokens", 0, MAX_TOKENS)})
    if reasoning is not None:
        if reasoning.any("enabled") is not None:
            thinks = reasoning.flag("enabled")
        thinks = False if reasoning.any("effort") == "none" else thinks
        included = included and not reasoning.flag("exclude")
        fields = fields.filled({"thinking_token_budget": reasoning.integer("max_tokens", 0, MAX_TOKENS)})
    return False if fields.any("reasoning_effort") == "none" else thinks, fields, included
