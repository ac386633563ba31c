"""The grammars of a request."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dflash.decode.grammar.after import AfterToken
from dflash.decode.grammar.matcher import Grammar
from dflash.errors import RequestError
from dflash.generation.grammar.bounds.schemas import check_references
from dflash.generation.grammar.call_form import CallForm, call_form, call_token
from dflash.generation.grammar.functions import Function, functions_of, is_strict
from dflash.generation.grammar.gbnf import is_gbnf
from dflash.generation.grammar.guidance import GuidanceGrammar, GuidanceVocabulary, regex_source
from dflash.generation.grammar.json_calls import json_body
from dflash.generation.grammar.lark import json_rule, without_forcing
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.grammar.reasoning import Reasoning, reasoning_after
from dflash.generation.grammar.schema.plain import PlainSchemas
from dflash.generation.grammar.schema.policy import Notes, Policy
from dflash.generation.grammar.xml_calls import xml_body
from dflash.generation.parsers.calls import hermes
from dflash.generation.recovery.special_tokens import CALL, THINK
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

_LEAD = "/\\n{0,2}/ "
"""Line breaks that templates put after reasoning."""

_NO_OBJECT = r"/[ \t\r\n]*[^{ \t\r\n](?s:.*)/"
"""Text of an output that does not begin with an object, which would be a call without a tag."""

_RESULT = "<tool_response>", "</tool_response>"
"""Tags around the result of a call."""

_POSITION = re.compile(r"(?<=: )at [0-9]+\([0-9]+\): (?:failed to compile JSON schema: )?")
"""Position in a grammar that the client has not written."""


def grammars(
    params: GrammarParams,
    prompts: Sequence[tuple[Sequence[int], bool]],
    tokenizer: Tokenizer,
    template: ChatTemplate | None = None,
    tools: Sequence[JsonMapping] = (),
    *,
    notes: Notes | None = None,
) -> list[Grammar | None]:
    """Compile the grammars of a request's outputs.

    prompts: token ids of each prompt, and True if the chat template made them.
    Returns: one for each prompt, with the reasoning that its output may begin with. None if nothing is constrained.
    """
    builder = _Builder(params, tokenizer, template, tools, Notes() if notes is None else notes)
    compiled: dict[bool, _Built | None] = {}
    found: list[Grammar | None] = []
    for ids, is_chat in prompts:
        reasoning = reasoning_after(ids, tokenizer, template if is_chat else None)
        lead = reasoning is not None
        if lead not in compiled:
            compiled[lead] = builder.build(lead=lead)
        found.append(builder.after(reasoning, compiled[lead]))
    return found


class _Built(NamedTuple):
    """A grammar after reasoning. is_needed: the output may not be empty. Otherwise it is free up to the first call."""

    grammar: Grammar
    calls: bool = False
    is_needed: bool = True


class _Builder:
    def __init__(
        self,
        params: GrammarParams,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        tools: Sequence[JsonMapping],
        notes: Notes,
    ) -> None:
        self._params, self._tokenizer, self._template, self._notes = params, tokenizer, template, notes
        self._tools = tools if tools and params.tool_choice != "none" else ()

    def after(self, reasoning: Reasoning | None, built: _Built | None) -> Grammar | None:
        """Return a grammar of reasoning and what follows. In reasoning stand no end token and no call that can't follow."""
        if built is None or reasoning is None:
            return built and built.grammar
        opened = self._opened
        if not built.is_needed:
            return reasoning.before(built.grammar, call=opened)
        may_call = built.calls or not self._tools or opened is None
        legal = np.full(GuidanceVocabulary.of(self._tokenizer).n_words, 2**32 - 1, np.uint32)
        for token in (*self._tokenizer.eos_ids, *(() if may_call else (opened,))):
            legal[token // 32] &= ~np.uint32(1 << token % 32)
        return reasoning.before(built.grammar, call=opened if built.calls else None, legal=legal)

    def build(self, *, lead: bool) -> _Built | None:
        """Compile the grammar after reasoning, if there is any: with `lead`, line breaks may come first."""
        params, vocabulary = self._params, GuidanceVocabulary.of
        start = f"start: {_LEAD if lead else ''}"
        if params.must_call:
            return _Built(self._must_call(start), calls=True)
        if params.regex is not None:
            return _Built(GuidanceGrammar(vocabulary(self._tokenizer), regex_source(params.regex), params.name_of("regex")))
        for name in ("lark", "grammar"):
            if (source := getattr(params, name)) is not None:
                gbnf = is_gbnf(source)
                source = source if gbnf else without_forcing(source)
                return _Built(GuidanceGrammar(vocabulary(self._tokenizer), source, params.name_of(name), gbnf=gbnf))
        if params.schema is not None:
            return _Built(self._json(start), calls=bool(self._tools))
        if not any(is_strict(tool) for tool in self._tools):
            return None
        return _Built(self._strict(functions_of(self._tools)), calls=True, is_needed=False)

    @property
    def _form(self) -> CallForm:
        return call_form(self._template, bound=self._params.is_bound)

    @property
    def _opened(self) -> int | None:
        """Token that opens a call of the template's form; None if there is none."""
        try:
            return self._tokenizer.id_of(self._form.opened) if self._form.opened else None
        except RequestError:
            return None

    def _token(self, text: str) -> str:
        """Return the expression of a token of the form; the empty text is no token."""
        return f"<[{call_token(self._tokenizer, text)}]>" if text else ""

    def _strict(self, functions: Sequence[Function]) -> Grammar:
        """Return the grammar of an output of free text and calls, of which all are bound."""
        form = self._form
        if form.opened:
            grammar = self._calls(f"start: {form.calls(self._token, single=not form.last)}", functions)
            return AfterToken(grammar, call_token(self._tokenizer, form.opened), repeats=True)
        return self._calls(f"start: ({_NO_OBJECT} | {form.calls(self._token)})?", functions)

    def _must_call(self, start: str) -> Grammar:
        params, functions = self._params, functions_of(self._tools)
        if params.function is not None:
            functions = [function for function in functions if function.name == params.function]
            if not functions:
                raise RequestError(f"tool_choice: names {params.function!r:.60}, which is not among the tools")
        if not functions:
            raise RequestError(f"tool_choice: is {params.tool_choice!r}, but tools holds none")
        form, single = self._form, params.function is not None
        return self._calls(f"{start}{self._token(form.opened)} {form.calls(self._token, single=single)}", functions)

    def _json(self, start: str) -> Grammar:
        """Compile the grammar of an answer. The model may call a tool instead."""
        params, name = self._params, self._params.name_of("response_format")
        try:
            check_references(params.schema)
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from None
        policy = Policy(name, strict=params.is_strict, notes=self._notes)
        plain = PlainSchemas(params.schema, policy)
        value = f"value: {json_rule(plain.with_shared(plain.reduced(params.schema, '')))}"
        if not self._tools:
            return self._compiled([f"{start}value", value], name)
        form = self._form
        rules = [f"{start}(value | calls)", f"calls: {self._token(form.opened)} {form.calls(self._token)}"]
        functions = functions_of(self._tools)
        calls = self._call_rules(functions)
        self._compiled([f"{start}value", value], name)  # so that an error names the right field
        return self._compiled([*rules, value, *calls], "tools")

    def _call_rules(self, functions: Sequence[Function]) -> list[str]:
        """Return the rules of ``call``: its text with the tag that closes it, without the one that opens it."""
        form = self._form
        try:
            if form.tags:
                body = xml_body(functions, self._notes, *self._tags_in_text)
                return [f"call: body {self._token(hermes.CLOSING)}", *body]
            return [f"call: body {form.after(self._token)}", *json_body(functions, self._notes, form, self._token)]
        except RecursionError:
            raise RequestError("tools: parts of a schema refer to each other through too many others in a row") from None

    @property
    def _tags_in_text(self) -> tuple[list[int], int | None]:
        """Tokens of tags that a text of a call may hold: those that the detokenizer writes."""
        found = [self._tokenizer.id_of(tag) for tag in (*THINK, *CALL, *_RESULT)]
        shown = [token for token in found if token is not None and not self._tokenizer.is_special(token)]
        end = call_token(self._tokenizer, hermes.CLOSING)
        return [token for token in shown if token != end], end if end in shown else None

    def _calls(self, start: str, functions: Sequence[Function]) -> GuidanceGrammar:
        """Compile a grammar of calls. An error names the function that causes it."""
        try:
            return self._compiled([start, *self._call_rules(functions)], "tools")
        except RequestError:
            for function in functions if len(functions) > 1 else ():
                self._compiled(["start: call", *self._call_rules([function])], f"tools: {function.name}")
            if len(functions) == 1:
                self._compiled(["start: call", *self._call_rules(functions)], f"tools: {functions[0].name}")
            raise

    def _compiled(self, rules: Sequence[str], name: str) -> GuidanceGrammar:
        source = "\n".join(("%llguidance {}", *rules))
        try:
            return GuidanceGrammar(GuidanceVocabulary.of(self._tokenizer), source, name, is_generated=True)
        except RequestError as error:
            raise RequestError(_POSITION.sub("", str(error))) from None
