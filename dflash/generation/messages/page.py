"""The page of blocks and items: ``python -m dflash.generation.messages.page > docs/request-blocks.md`` writes it."""

import sys

from dflash.generation.messages.row import CHAT, MESSAGES, RESPONSES, BlockRow
from dflash.generation.messages.table import ROWS

_HEAD = """# Blocks and items

Every type of content block, part and item that OpenAI's and Anthropic's APIs have, and what becomes of it in the prompt. The
table stands in `dflash/generation/messages/`; this page and the tests are made from it.

* **read**: it is a part of a message in its own form. **written as text**: its texts stand in the prompt where it stood.
* **left out**: the model does not see it, for the reason given. **refused**: 400, in these words.
* An unknown type is left out among items, and written as text in answers and results: what a program or another server wrote
  comes with every later request, so a refusal would end the session for good. In messages of the user it is refused by name.
* An image in a tool's result becomes `[image]`, for the same reason; in a message of the user it is refused, so that nobody
  gets an answer about an image that was not seen.
"""

_TITLES = {MESSAGES: "Messages", CHAT: "Chat completions", RESPONSES: "Responses"}


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(_part(api) for api in _TITLES)])


def _part(api: str) -> str:
    rows = [_line(row) for row in ROWS if row.api == api]
    return "\n".join([f"## {_TITLES[api]}\n", "| type | in | here | |", "| --- | --- | --- | --- |", *rows, ""])


def _line(row: BlockRow) -> str:
    return f"| `{row.kind}` | {', '.join(row.places)} | {row.treatment.value} | {row.text} |"


if __name__ == "__main__":
    sys.stdout.write(page())
