"""Text in place of blocks that no chat template knows: server tools and their results, documents, images."""

import json
from collections.abc import Iterator, Mapping

from dflash.generation.messages.fields import Fields, shown

_SKIPPED = ("type", "id", "tool_use_id", "status", "signature", "file_id", "cache_control", "citations", "container_id")
"""Fields of a block that say nothing to the model."""

_CALLS = ("server_tool_use", "mcp_tool_use", "web_search_call", "file_search_call", "code_interpreter_call", "mcp_call")


_NOTES = {
    "image": ("image", "image_url", "input_image", "computer_screenshot"),
    "audio": ("input_audio", "audio_url"),
    "video": ("video_url",),
    "file": ("file", "input_file"),
}
_NOTE_OF = {kind: f"[{note}]" for note, kinds in _NOTES.items() for kind in kinds}
"""Notes in place of blocks that hold no text."""


def written(block: Fields, *, strict: bool = False) -> str:
    """Return the text of a block for the prompt."""
    kind = block.text("type", required=True)
    if kind in _NOTE_OF:
        return _NOTE_OF[kind]
    if kind in _CALLS:
        name = block.any("name") or kind.removesuffix("_call")
        return f"[{name}: {'; '.join(_texts(block.values, skipped=('name', 'server_name', 'server_label')))}]"
    if kind == "document":
        return _document(block, strict=strict)
    texts = list(_texts(block.values))
    return f"[{kind}]" if not texts else "\n".join(texts)


def _document(block: Fields, *, strict: bool) -> str:
    source = block.object("source")
    if source is None:
        raise block.error("source", "is required")
    kind = source.text("type", required=True)
    head = [text for name in ("title", "context") if (text := block.text(name))]
    if kind == "text":
        return "\n".join([*head, source.text("data", required=True)])
    if kind == "content":
        return "\n".join([*head, *_texts(source.any("content"))])
    if strict:
        raise source.error("type", f"{shown(kind)} can't be read: this model takes text only; send a document of type text")
    return "\n".join([*head, "[document]"])


def _texts(value: object, *, skipped: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the texts and numbers inside a value, in their order; those of images and encrypted ones are left out."""
    if isinstance(value, str):
        yield from (value,) if value else ()
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        if value.get("type") in _NOTE_OF:
            yield _NOTE_OF[value["type"]]
            return
        if isinstance(value.get("data"), str):  # a source
            yield value["data"] if value.get("type") == "text" else f"[{value.get('media_type') or 'data'}]"
            return
        if isinstance(value.get("input"), Mapping):
            yield json.dumps(value["input"], ensure_ascii=False)
        for name, item in value.items():
            if (
                name in (*_SKIPPED, *skipped)
                or name.startswith("encrypted")
                or (name == "input" and isinstance(item, Mapping))
            ):
                continue
            if name == "return_code" or (name == "is_error" and item):
                yield f"{name}: {item}"
            else:
                yield from _texts(item)
