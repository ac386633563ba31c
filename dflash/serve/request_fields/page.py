"""The page of request fields: ``python -m dflash.serve.request_fields.page > docs/request-fields.md`` writes it."""

import json
import sys
from collections.abc import Iterable

from dflash.serve.request_fields import anthropic, elsewhere, llama_cpp, openai, shared, vllm
from dflash.serve.request_fields.row import ALL, FieldRow, Outcome

_HEAD = """# Request fields

Every field of a body that OpenAI, Anthropic, vLLM, SGLang, llama.cpp, LM Studio, Ollama or OpenRouter know, and what becomes
of it here. The table stands in `dflash/serve/request_fields/`; this page and the tests are made from it. Fields without a
row are ignored.

* **done**: it acts. **mapped**: it is another name of a field. **ignored**: it changes nothing here, for the reason given.
* **refused**: it would change the output and can't: 400, and the message names the field and the alternative. Values that
  ask for nothing, such as null, pass.
"""

_PARTS = (
    ("Shared fields", shared.ROWS),
    ("OpenAI", openai.ROWS),
    ("Anthropic", anthropic.ROWS),
    ("vLLM and SGLang", vllm.ROWS),
    ("llama.cpp, LM Studio, Ollama, OpenRouter, text-generation-webui", llama_cpp.ROWS),
    ("Fields of one API that are sent to another", elsewhere.ROWS),
)


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(_part(title, rows) for title, rows in _PARTS)])


def _part(title: str, rows: Iterable[FieldRow]) -> str:
    lines = [f"## {title}\n", "| field | of | here | |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *map(_line, rows), ""])


def _line(row: FieldRow) -> str:
    apis = "all" if row.apis == ALL else ", ".join(row.apis)
    text = f"`{row.to}`; {row.text}" if row.outcome is Outcome.MAPPED else row.text
    if row.kind is not None:
        text += f" ({row.kind.words})"
    if row.needs:
        text += f"; with `{'`, `'.join(row.needs)}`"
    example = json.dumps(row.example, ensure_ascii=False)
    shown = f"`{row.name}: {example}`" if len(example) <= 24 else f"`{row.name}`"
    return f"| {shown} | {apis} | {row.outcome.value} | {text} |".replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(page())
