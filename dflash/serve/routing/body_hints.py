"""Reading of route hints from the body of a request, without a tokenizer."""

import json
from collections.abc import Mapping
from typing import Any

from dflash.errors import DFlashError
from dflash.generation.messages.deferred_tools import top_tools
from dflash.serve.anthropic.dialect import MessagesDialect
from dflash.serve.dialect import ServerDialect
from dflash.serve.http_errors import Problem
from dflash.serve.openai.dialects import ChatCompletions, Completions
from dflash.serve.parsing.body import parse_json
from dflash.serve.parsing.session_id import session_id
from dflash.serve.requests import ChatRequest, CompletionRequest
from dflash.serve.responses.dialect import ResponsesDialect
from dflash.serve.routing.hints import BLOCK, RouteHints, blocks_of

DIALECTS: dict[str, ServerDialect[Any]] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/completions": Completions(),
    "/v1/messages": MessagesDialect(),
    "/v1/responses": ResponsesDialect(),
}
"""Dialects of the paths whose requests have a prompt."""


def hints_of(path: str, body: bytes, headers: Mapping[str, str] | None = None, *, block: int = BLOCK) -> RouteHints:
    """Read the hints of a request. A body that the server would refuse, or another path, gives none.

    block: bytes of a block.

    The prompt is taken in the order in which chat templates render it: tools, then messages. The parser of the API drops
    what is not part of it, such as cache markers, which move between turns.
    """
    if path not in DIALECTS:
        return RouteHints()
    try:
        fields = parse_json(body)
    except Problem:
        return RouteHints()
    previous = fields.get("previous_response_id") if isinstance(fields, dict) else None
    return RouteHints(*blocks_of(prompt_of(path, fields), block), session_id(fields, headers), previous)


def prompt_of(path: str, fields: object) -> bytes:
    """Return a text whose beginnings agree as far as those of the rendered prompt. A refused body gives an empty one."""
    try:
        request = DIALECTS[path].parse(fields, {})
    except (DFlashError, Problem):
        return b""
    return _rendered(request)


def _rendered(request: ChatRequest | CompletionRequest) -> bytes:
    if isinstance(request, CompletionRequest):
        parts: list[Any] = list(request.prompts[:1])
    else:
        parts = [*top_tools(request.tools), *request.messages]
    return "".join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts).encode()
