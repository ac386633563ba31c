"""Entries of ``/v1/models``: the usable context under each name that clients look for."""

from collections.abc import Sequence
from datetime import UTC, datetime

from dflash.json_types import JsonObject
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.admin.model_facts import ModelFacts
from dflash.serve.http_errors import Problem


def model_entry(name: str, created: int, context: int, tokenizer: Tokenizer, facts: ModelFacts | None = None) -> JsonObject:
    """Return the entry of a model: fields of OpenAI, Anthropic, vLLM, OpenRouter and llama.cpp together."""
    meta: JsonObject = {"n_ctx_train": context, "n_ctx": context, "n_vocab": tokenizer.n_vocab}
    if facts is not None:
        meta |= {
            "n_embd": facts.width,
            "n_params": facts.parameters,
            "size": facts.n_bytes,
            "architecture": facts.architecture,
            "quantization": facts.quantization,
            "fingerprint": facts.fingerprint,
        }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "dflash",
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "max_model_len": context,
        "context_length": context,
        "max_input_tokens": context,
        "meta": meta,
    }


def check_model(name: str, names: Sequence[str]) -> None:
    """Raise a Problem with status 404 if `name` is not among the names of the model."""
    if name not in names:
        message = f"there is no model {name[:100]!r}, this server has {', '.join(names)}"
        raise Problem(404, message, param="model", code="model_not_found")


def model_list(entries: Sequence[JsonObject]) -> JsonObject:
    """Return the body of ``/v1/models``; it is OpenAI's list and Anthropic's page at the same time."""
    return {
        "object": "list",
        "data": list(entries),
        "first_id": entries[0]["id"],
        "last_id": entries[-1]["id"],
        "has_more": False,
    }
