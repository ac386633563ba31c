"""The form in which a model writes tool calls, recognized from its chat template."""

from enum import Enum

from dflash.errors import RequestError
from dflash.generation.recovery.special_tokens import CALL
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer


class CallForm(Enum):
    """Forms of a call between ``<tool_call>`` and ``</tool_call>``."""

    XML = "xml"
    """``<function=NAME>`` and a ``<parameter=KEY>`` for each argument (Qwen3-Coder, Qwen3.5)."""

    JSON = "json"
    """An object with ``name`` and ``arguments`` (Hermes, Qwen2.5, Qwen3)."""


def call_form(template: ChatTemplate | None) -> CallForm:
    """Return the form that a chat template shows to the model.

    Raises
    ------
    RequestError
        If the template shows none of the known forms.
    """
    source = "" if template is None else template.source
    if CALL[0] in source:
        if "<function=" in source:
            return CallForm.XML
        if "arguments" in source:
            return CallForm.JSON
    raise RequestError("tool_choice: the chat template does not show tool calls as <tool_call> with XML or JSON inside")


def call_tokens(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the tokens that open and close a call.

    Raises
    ------
    RequestError
        If the vocabulary has no such tokens.
    """
    opened, closed = map(tokenizer.id_of, CALL)
    if opened is None or closed is None:
        raise RequestError(f"tool_choice: the vocabulary has no tokens {CALL[0]} and {CALL[1]}")
    return opened, closed
