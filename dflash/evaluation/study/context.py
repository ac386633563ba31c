"""Text before a prompt, for measurements at longer contexts."""

from typing import TYPE_CHECKING, Any, cast

from dflash.errors import RequestError
from dflash.evaluation.traces.filler import ordinary_text
from dflash.generation.prompts import Prompt

if TYPE_CHECKING:
    from dflash.lm import LM


def with_context(lm: "LM", prompt: Prompt, n: int) -> Prompt:
    """Return a prompt after about `n` tokens of code and prose; in messages they begin the first one of the user.

    Raises RequestError if no message can hold them.
    """
    if not n:
        return prompt
    ids = lm.tokenizer.encode(ordinary_text(), special=False)
    ids = (ids * -(-n // len(ids)))[:n]
    text = lm.tokenizer.decode(ids) + "\n\n"
    if isinstance(prompt, str):
        return text + prompt
    parts: list[Any] = list(prompt)
    if parts and isinstance(parts[0], int):
        return [*ids, *parts]
    for i, message in enumerate(parts):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            return cast("Prompt", [*parts[:i], {**message, "content": text + message["content"]}, *parts[i + 1 :]])
    raise RequestError("study: context needs prompts that are text, ids, or messages with a text of the user")
