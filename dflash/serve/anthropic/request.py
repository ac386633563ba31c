"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from collections.abc import Sequence

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.messages.chat_prompt import PromptEnding, can_continue
from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.anthropic.conversation import conversation
from dflash.serve.parsing.constraints import grammar_params
from dflash.serve.parsing.options import parse_options
from dflash.serve.parsing.template_kwargs import parse_template_kwargs
from dflash.serve.request_fields.row import MESSAGES
from dflash.serve.request_fields.table import known_fields, read
from dflash.serve.requests import ChatRequest, Options

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def function_tools(fields: Fields) -> tuple[JsonObject, ...]:
    """Convert the tools of a body.

    Returns: functions in OpenAI's chat format. Tools of a type other than ``custom``, such as ``web_search_20250305``, are
        left out: they run on Anthropic's servers or have no schema. Tools with ``defer_loading`` keep that mark.
    """
    return tuple(_function(tool) for tool in fields.objects("tools") if tool.text("type", "custom") == "custom")


def deferred_tool(tool: Fields) -> JsonObject:
    """Convert a tool that is defined in a message: it stands in the prompt where the message refers to it."""
    return {**_function(tool), "defer_loading": True}


def _function(tool: Fields) -> JsonObject:
    function: JsonObject = {"name": tool.text("name", required=True)}
    description, schema = tool.text("description"), tool.object("input_schema")
    if description is not None:
        function["description"] = description
    if schema is not None:
        function["parameters"] = schema.values
    if tool.flag("strict"):
        function["strict"] = True
    deferred = {"defer_loading": True} if tool.flag("defer_loading") else {}
    return {"type": "function", "function": function, **deferred}


def tool_choice(fields: Fields, tools: Sequence[JsonMapping]) -> tuple[str | JsonObject | None, bool]:
    """Convert the field ``tool_choice``.

    Returns: tool choice in OpenAI's chat format; None if the body has none.
    Returns: true if several calls in one answer are allowed.
    """
    choice = fields.object("tool_choice")
    if choice is None:
        return None, True
    kind, parallel = choice.text("type", required=True), not choice.flag("disable_parallel_tool_use")
    if kind == "tool":
        name = choice.text("name", required=True)
        if name not in [tool["function"]["name"] for tool in tools]:
            raise choice.error("name", f"{shown(name)} is not among the tools that this server can offer")
        return {"type": "function", "function": {"name": name}}, parallel
    if kind not in _CHOICES:
        raise choice.error("type", f"must be one of {', '.join(_CHOICES)}, tool, got {shown(kind)}")
    if kind == "any" and not tools:
        raise choice.error("type", "is 'any', but tools holds none that this server can offer")
    return _CHOICES[kind], parallel


_THINKING = ("enabled", "adaptive", "disabled")


def parse_messages(body: object, *, keep_billing_header: bool = False, counting: bool = False) -> ChatRequest:
    """Read a body of the Messages API.

    ``metadata``, ``cache_control``, ``output_config.effort`` and unknown fields are ignored. The fields of dflash have the
    names that they have in chat completions: ``strategy``, ``recover``, ``seed``, ``min_p``, ``chat_template_kwargs``.
    """
    fields = known_fields(body, MESSAGES)
    messages = conversation(fields, keep_billing_header=keep_billing_header)
    tools = (*function_tools(fields), *map(deferred_tool, messages.definitions))
    choice, parallel = tool_choice(fields, tools)
    thinks, budget = _thinking(fields)
    is_continued = not thinks and can_continue(messages.messages[-1])
    return ChatRequest(
        options=_options(fields, budget, counting=counting),
        messages=tuple(messages.messages),
        tools=tools,
        grammar=_grammar(fields, choice),
        template_kwargs=_template_kwargs(fields, thinks),
        parallel_tool_calls=parallel,
        ending=PromptEnding.CONTINUED if is_continued else PromptEnding.NEW_TURN,
    )


def _options(fields: Fields, budget: int | None, *, counting: bool) -> Options:
    max_tokens = read(fields, MESSAGES, "max_tokens")
    if max_tokens is None and not counting:
        raise fields.error("max_tokens", "Field required")  # in Anthropic's words
    limited = fields.filled({"thinking_token_budget": budget})
    return parse_options(limited, MESSAGES, max_tokens, stops="stop_sequences")


def _thinking(fields: Fields) -> tuple[bool, int | None]:
    """Return True if the model may think, and its budget of tokens, if there is one."""
    thinking = fields.object("thinking")
    if thinking is None:
        return False, None
    kind = thinking.text("type", required=True)
    if kind not in _THINKING:
        raise thinking.error("type", f"must be one of {', '.join(_THINKING)}, got {shown(kind)}")
    return kind != "disabled", thinking.integer("budget_tokens", 0, MAX_TOKENS) if kind == "enabled" else None


def _template_kwargs(fields: Fields, thinks: bool) -> JsonMapping | None:
    found = {"enable_thinking": thinks, **({"preserve_thinking": True} if _keeps_thinking(fields) else {})}
    return parse_template_kwargs(fields, found)


def _keeps_thinking(fields: Fields) -> bool:
    """Return True if the client asks to keep the thinking of all turns, as Claude Code does."""
    management = fields.object("context_management")
    edits = management.objects("edits") if management else ()
    return any(edit.text("type", "").startswith("clear_thinking") and edit.any("keep") == "all" for edit in edits)


def _grammar(fields: Fields, choice: str | JsonMapping | None) -> GrammarParams:
    """Read the constraints; ``output_format`` is an older name of ``output_config.format``."""
    config = fields.object("output_config")
    holder, name = (config, "format") if config and config.any("format") is not None else (fields, "output_format")
    wanted = holder.object(name)
    if wanted is None:
        return GrammarParams(tool_choice=choice)
    if wanted.text("type", required=True) != "json_schema":
        raise wanted.error("type", f"must be json_schema, got {shown(wanted.any('type'))}")
    schema = wanted.any("schema", required=True)
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    return grammar_params(response_format=form, tool_choice=choice, names={"response_format": holder.name(name)})
