"""Bodies of ``/props`` and ``/slots``: settings of the server, and its running sequences without their text."""

from collections.abc import Mapping
from dataclasses import asdict
from time import perf_counter
from typing import Any

from dflash.decode.drafting.drafter import Nothing, Strategy
from dflash.decode.session import Session
from dflash.distribution import release
from dflash.generation.engine_thread import EngineThread
from dflash.json_types import JsonObject
from dflash.model.describe import describe
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.admin.model_facts import ModelFacts

_SAMPLING = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": None,
}
"""Sampling of requests on a server without defaults."""


def props(
    *,
    name: str,
    context: int,
    engine_thread: EngineThread,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    strategy: Strategy,
    sampling: Mapping[str, Any],
    facts: ModelFacts | None,
) -> JsonObject:
    """Return the settings of a server, under llama.cpp's names. No value holds a path."""
    body: JsonObject = {
        "default_generation_settings": {"n_ctx": context, "params": {**_SAMPLING, **sampling}},
        "total_slots": engine_thread.engine.max_active,
        "model_alias": name,
        "n_ctx": context,
        "strategy": strategy_name(strategy),
        "chat_template": "" if template is None else template.source,
        "bos_token": tokenizer.special_texts().get("bos_token", ""),
        "eos_token": tokenizer.special_texts().get("eos_token", ""),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"dflash {release()}",
        "fixed_drafts": engine_thread.engine.draft_budget is None,
    }
    if facts is not None:
        body |= {"model_path": facts.file, "fingerprint": facts.fingerprint, "device": facts.device, "kv": facts.kv}
        body |= {"model": asdict(facts), "processor": describe(facts.device)}
    return body


def slots(engine_thread: EngineThread, context: int) -> list[JsonObject]:
    """Return one object for each running sequence, the oldest first: lengths, times and strategy, never text."""
    running = [session for session in engine_thread.sessions if session.state is not None]
    return [_slot(number, session, context) for number, session in enumerate(running)]


def strategy_name(strategy: Strategy) -> str:
    """Return the names of drafter, shape and recoveries. Settings are left out, since they may hold paths."""
    parts = (strategy.drafter, strategy.shape, *strategy.recoveries)
    return " ".join("plain" if isinstance(part, Nothing) else type(part).__name__ for part in parts if part is not None)


def _slot(number: int, session: Session, context: int) -> JsonObject:
    n_tokens, now = session.n_tokens, perf_counter()
    return {
        "id": number,
        "is_processing": True,
        "state": "decode" if session.n_prefilled >= session.n_prompt - 1 else "prefill",
        "n_ctx": context,
        "n_prompt_tokens": session.n_prompt,
        "n_prompt_tokens_processed": min(session.n_prefilled, session.n_prompt),
        "n_prompt_tokens_cached": session.n_cached,
        "n_decoded": n_tokens,
        "n_tokens": session.n_prompt + n_tokens,
        "n_drafted": session.n_drafted,
        "n_accepted": session.n_accepted,
        "strategy": strategy_name(session.strategy),
        "n_preempted": session.n_preempted,
        "seconds": round(now - (session.started_at or now), 3),
    }
