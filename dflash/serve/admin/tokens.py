"""Bodies of ``/tokenize``, ``/detokenize`` and ``/apply-template``, and their results."""

from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonObject
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.spelled_tokens import MARK
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.limits import Limits
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.preparing.prompts import prompt_text


def tokenize(body: object, tokenizer: Tokenizer, template: ChatTemplate | None, limits: Limits) -> JsonObject:
    """Convert text or messages to token ids.

    body: ``{"content": TEXT}`` with ``add_special``, ``parse_special`` and ``with_pieces``, as in llama.cpp; or ``{"prompt":
        TEXT}`` or ``{"messages": [...]}`` with ``add_special_tokens`` and ``return_token_strs``, as in vLLM.
    Returns: ``tokens``, ``count`` and ``max_model_len``. With pieces, a token is an object with ``id`` and ``piece``, a
        string or an array of bytes if the piece is part of a character.
    """
    fields = Fields(body)
    given = [name for name in ("content", "prompt", "messages") if fields.any(name) is not None]
    if len(given) != 1:
        raise fields.error(
            given[1] if given else "content", "give exactly one of content (text), prompt (text) and messages (array)"
        )
    special = fields.flag("parse_special", True)
    if given == ["messages"]:
        text, add_bos = _rendered(body, template), fields.flag("add_special_tokens", False)
    elif given == ["prompt"]:
        text, add_bos = fields.text("prompt"), fields.flag("add_special_tokens", True)
    else:
        text, add_bos = fields.text("content"), fields.flag("add_special", False)
    with_pieces, with_strings = fields.flag("with_pieces"), fields.flag("return_token_strs")
    marked = given == ["messages"]
    ids = tokenizer.encode(text, special=special, marked=marked, max_tokens=limits.prompt_tokens)
    if not add_bos:
        ids = tokenizer.without_added_bos(ids, text)
    tokens = [{"id": token, "piece": _piece(token, tokenizer)} for token in ids] if with_pieces else ids
    result: JsonObject = {"tokens": tokens, "count": len(ids), "max_model_len": limits.context}
    if with_strings:
        result["token_strs"] = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
    return result


def detokenize(body: object, tokenizer: Tokenizer) -> dict[str, str]:
    """Convert ``{"tokens": [...]}`` to text, under llama.cpp's and vLLM's names."""
    fields = Fields(body)
    tokens = fields.list("tokens", required=True) or []
    for index, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < tokenizer.n_vocab:
            raise fields.error(f"tokens[{index}]", f"must be an id from 0 to {tokenizer.n_vocab - 1}, got {shown(token)}")
    text = tokenizer.decode(tokens)
    return {"content": text, "prompt": text}


def apply_template(body: object, template: ChatTemplate | None) -> dict[str, str]:
    """Render ``{"messages": [...], "tools": [...], "chat_template_kwargs": {...}}`` as the prompt of a chat request."""
    return {"prompt": _rendered(body, template).replace(MARK, "")}


def _rendered(body: object, template: ChatTemplate | None) -> str:
    return prompt_text(parse_chat(body), template)


def _piece(token: int, tokenizer: Tokenizer) -> str | list[int]:
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
