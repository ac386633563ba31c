"""The grammars of a request."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.decode.grammar.after import AfterToken
from dflash.decode.grammar.matcher import Grammar
from dflash.errors import RequestError
from dflash.generation.grammar.call_form import CallForm, call_form, call_tokens
from dflash.generation.grammar.functions import Function, functions_of
from dflash.generation.grammar.gbnf import is_gbnf
from dflash.generation.grammar.guidance import GuidanceGrammar, GuidanceVocabulary, regex_source
from dflash.generation.grammar.json_calls import json_body
from dflash.generation.grammar.lark import json_rule
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.grammar.reasoning import Reasoning, reasoning_after
from dflash.generation.grammar.xml_calls import xml_body
from dflash.generation.recovery.special_tokens import CALL
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

_LEAD = "/\\n{0,2}/ "
"""Line breaks that templates put after reasoning."""


def grammars(
    params: GrammarParams,
    prompts: Sequence[tuple[Sequence[int], bool]],
    tokenizer: Tokenizer,
    template: ChatTemplate | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[Grammar | None]:
    """Compile the grammars of a request's outputs.

    Parameters
    ----------
    prompts : sequence of (sequence of int, bool)
        Token ids of each prompt, and True if the chat template made them.
    template : ChatTemplate, optional
        Chat template of the model; it shows the form of tool calls.
    tools : sequence of mapping
        The offered tools in OpenAI's format.

    Returns
    -------
    list of Grammar or None
        One for each prompt, with the reasoning that its output may begin with. None if nothing is constrained.

    Raises
    ------
    RequestError
        If a schema, an expression or a tool is not valid, too large, or can't be enforced; one sentence says why.
    """
    compiled: dict[bool, _Built | None] = {}
    found: list[Grammar | None] = []
    for ids, is_chat in prompts:
        reasoning = reasoning_after(ids, tokenizer, template if is_chat else None)
        lead = reasoning is not None
        if lead not in compiled:
            compiled[lead] = _build(params, tokenizer, template, tools, lead=lead)
        found.append(_after(reasoning, compiled[lead], tokenizer, has_tools=bool(tools) and params.tool_choice != "none"))
    return found


class _Built(NamedTuple):
    """A grammar after reasoning.

    Parameters
    ----------
    grammar : Grammar
        The grammar.
    calls : bool
        It may begin with a tool call.
    is_needed : bool
        The output may not be empty. Otherwise it is free up to the first call.
    """

    grammar: Grammar
    calls: bool = False
    is_needed: bool = True


def _after(reasoning: Reasoning | None, built: _Built | None, tokenizer: Tokenizer, *, has_tools: bool) -> Grammar | None:
    """Return a grammar of reasoning and what follows. No end token, and no call that can't follow, stands in reasoning."""
    if built is None or reasoning is None:
        return built and built.grammar
    opened = tokenizer.id_of(CALL[0])
    if not built.is_needed:
        return reasoning.before(built.grammar, call=opened)
    excluded = [*tokenizer.eos_ids, *([opened] if has_tools and not built.calls and opened is not None else [])]
    legal = np.full(GuidanceVocabulary.of(tokenizer).n_words, 2**32 - 1, np.uint32)
    for token in excluded:
        legal[token // 32] &= ~np.uint32(1 << token % 32)
    return reasoning.before(built.grammar, call=opened if built.calls else None, legal=legal)


def _build(
    params: GrammarParams,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    tools: Sequence[Mapping[str, Any]],
    *,
    lead: bool,
) -> _Built | None:
    """Compile the grammar after reasoning, if there is any: with `lead`, line breaks may come first."""
    start = f"start: {_LEAD if lead else ''}"
    if params.must_call:
        return _Built(_must_call(start, params, tokenizer, template, tools), calls=True)
    if params.regex is not None:
        return _Built(GuidanceGrammar(GuidanceVocabulary.of(tokenizer), regex_source(params.regex), "regex"))
    for name in ("lark", "grammar"):
        if (source := getattr(params, name)) is not None:
            return _Built(GuidanceGrammar(GuidanceVocabulary.of(tokenizer), source, name, gbnf=is_gbnf(source)))
    callable_ = functions_of(tools) if tools and params.tool_choice != "none" else []
    if params.schema is not None:
        return _Built(_json(start, params, tokenizer, template, callable_), calls=bool(callable_))
    if not any(function.strict for function in callable_):
        return None
    opened, closed = call_tokens(tokenizer)
    rules = ["start: call", *_call(callable_, closed, call_form(template))]
    grammar = AfterToken(_compiled(rules, tokenizer, "tools"), opened, repeats=True)
    return _Built(grammar, calls=True, is_needed=False)


def _must_call(
    start: str,
    params: GrammarParams,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    tools: Sequence[Mapping[str, Any]],
) -> Grammar:
    functions = functions_of(tools)
    if params.function is not None:
        functions = [function for function in functions if function.name == params.function]
        if not functions:
            raise RequestError(f"tool_choice: names {params.function!r:.60}, which is not among the tools")
    if not functions:
        raise RequestError(f"tool_choice: is {params.tool_choice!r}, but tools holds none")
    opened, closed = call_tokens(tokenizer)
    calls = f"calls: <[{opened}]> call" + ("" if params.function else f' ("\\n" <[{opened}]> call)*')
    rules = [f"{start}calls", calls, *_call(functions, closed, call_form(template))]
    return _compiled(rules, tokenizer, "tools")


def _json(
    start: str, params: GrammarParams, tokenizer: Tokenizer, template: ChatTemplate | None, functions: Sequence[Function]
) -> Grammar:
    rules = [f"{start}value", f"value: {json_rule(params.schema)}"]
    if functions:  # the model may call a tool instead
        opened, closed = call_tokens(tokenizer)
        rules[0] = f"{start}(value | calls)"
        rules += [f'calls: <[{opened}]> call ("\\n" <[{opened}]> call)*', *_call(functions, closed, call_form(template))]
    return _compiled(rules, tokenizer, "response_format")


def _call(functions: Sequence[Function], closed: int, form: CallForm) -> list[str]:
    """Return the rules of ``call``: what follows ``<tool_call>``, up to and including ``</tool_call>``."""
    return [f"call: body <[{closed}]>", *(xml_body if form is CallForm.XML else json_body)(functions, lenient=True)]


def _compiled(rules: Sequence[str], tokenizer: Tokenizer, name: str) -> GuidanceGrammar:
    return GuidanceGrammar(GuidanceVocabulary.of(tokenizer), "\n".join(("%llguidance {}", *rules)), name)
