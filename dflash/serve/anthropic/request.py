"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.messages.chat_prompt import PromptEnding, can_continue
from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonMapping
from dflash.serve.anthropic.conversation import conversation
from dflash.serve.anthropic.tools import deferred_tool, function_tools, tool_choice
from dflash.serve.parsing.constraints import grammar_params
from dflash.serve.parsing.options import parse_options
from dflash.serve.parsing.template_kwargs import parse_template_kwargs
from dflash.serve.request_fields.row import MESSAGES
from dflash.serve.request_fields.table import known_fields, read
from dflash.serve.requests import ChatRequest, Options

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
