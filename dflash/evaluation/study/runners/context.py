"""Text before a prompt, for measurements at longer contexts."""

from typing import Any, NamedTuple, cast

from dflash.errors import RequestError
from dflash.generation.prompts import Prompt


class FillerText(NamedTuple):
    """Ordinary code and prose of a number of tokens.

    text: their text; encoded again it may have some tokens more or less.
    """

    token_ids: list[int]
    text: str


def repeated(token_ids: list[int], n: int) -> list[int]:
    """Return the first `n` tokens of a text that repeats itself."""
    return (token_ids * -(-n // len(token_ids)))[:n]


def with_context(prompt: Prompt, filler: FillerText) -> Prompt:
    """Return a prompt after a filler; in messages it begins the first one of the user."""
    if not filler.token_ids:
        return prompt
    text = filler.text + "\n\n"
    if isinstance(prompt, str):
        return text + prompt
    parts: list[Any] = list(prompt)
    if parts and isinstance(parts[0], int):
        return [*filler.token_ids, *parts]
    for i, message in enumerate(parts):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            return cast("Prompt", [*parts[:i], {**message, "content": text + message["content"]}, *parts[i + 1 :]])
    raise RequestError("study: context needs prompts that are text, ids, or messages with a text of the user")
