"""Forms in which models write tool calls, as grammars need them; the chat template chooses the form."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from dflash.errors import RequestError
from dflash.generation.grammar.lark import quoted
from dflash.generation.parsers.calls import hermes, mistral
from dflash.generation.parsers.registry import matching
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

TokenOf = Callable[[str], str]
"""Returns the expression of a token by its text."""


@dataclass(frozen=True)
class CallForm:
    """Text around the arguments of calls, as expressions of Lark.

    opened: token that opens the first call; empty if the message begins with it.
    before, after: ``before(name, token_of)`` and ``after(token_of)`` return what stands around the arguments of a function;
        unused if the arguments are tags.
    first, last: what stands before the first call, after its token, and after the last call.
    between: ``between(token_of)`` returns what stands between two calls; None if an output has one call only.
    """

    opened: str
    before: Callable[[str, TokenOf], str] = lambda _, __: ""
    after: Callable[[TokenOf], str] = lambda _: ""
    first: str = ""
    last: str = ""
    between: Callable[[TokenOf], str] | None = None
    tags: bool = False

    def calls(self, token_of: TokenOf, *, single: bool = False) -> str:
        """Return the expression of calls after the first token: one or more, or a single one."""
        more = f"({self.between(token_of)} call)*" if self.between is not None and not single else ""
        return f"{self.first} call {more} {self.last}"


def _object(name: str, key: str) -> str:
    return quoted(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": ')


def _named(name: str, token_of: TokenOf) -> str:
    return f"{quoted(name)} {token_of(mistral.ARGUMENTS)}"


def _identified(name: str, token_of: TokenOf) -> str:
    return f"{quoted(name)} ({token_of(mistral.CALL_ID)} {_ID})? {token_of(mistral.ARGUMENTS)}"


_ID = "/[A-Za-z0-9]{9}/"
_TAGGED = CallForm(
    hermes.OPENING,
    lambda name, _: f'"\\n" {_object(name, "arguments")}',
    lambda token_of: f'"}}\\n" {token_of(hermes.CLOSING)}',
    between=lambda token_of: f'"\\n" {token_of(hermes.OPENING)}',
)
_XML = CallForm(hermes.OPENING, between=_TAGGED.between, tags=True)
_BARE = CallForm("", lambda name, _: _object(name, "parameters"), lambda _: '"}"')
_LISTED = CallForm(
    mistral.OPENING,
    lambda name, _: _object(name, "arguments"),
    lambda _: f'(", \\"id\\": \\"" {_ID} "\\"")? "}}"',
    first="/ ?\\[/",
    last='"]"',
    between=lambda _: '", "',
)
_ARGUMENTS = CallForm(mistral.OPENING, _named, between=lambda token_of: token_of(mistral.OPENING))
_WITH_IDS = CallForm(mistral.OPENING, _identified, between=_ARGUMENTS.between)
_FENCED = CallForm(
    "",
    lambda name, _: quoted(f'```json\n{{\n  "name": {json.dumps(name, ensure_ascii=False)},\n  "arguments": '),
    lambda _: quoted("\n}\n```"),
    between=lambda _: quoted("\n"),
)
"""Form of calls of Qwen2.5 in outputs without free text. Its Coder models write this on their own, and end it; after
``<tool_call>`` they go on calling."""
_FORMS = {"hermes": _TAGGED, "qwen2.5": _TAGGED, "qwen3-coder": _XML, "llama3": _BARE, "mistral": _LISTED}


def call_form(template: ChatTemplate | None, *, bound: bool = False) -> CallForm:
    """Return the form that a chat template shows to the model, or that of outputs which a grammar binds from their start."""
    source = "" if template is None else template.source
    name = matching("tool", source) or ""
    form = _FENCED if bound and name == "qwen2.5" else _FORMS.get(name)
    if form is None:
        known = "<tool_call> (with XML or JSON inside), [TOOL_CALLS], or as Llama 3 does"
        raise RequestError(f"tool_choice: the chat template does not show tool calls with {known}")
    if form is _LISTED and mistral.ARGUMENTS in source:
        return _WITH_IDS if mistral.CALL_ID in source else _ARGUMENTS
    return form


def call_token(tokenizer: Tokenizer, text: str) -> int:
    """Return the token of a form."""
    token = tokenizer.id_of(text)
    if token is None:
        raise RequestError(f"tool_choice: the vocabulary has no token {text}")
    return token
