"""Numbers of a run, computed from its requests."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dflash.evaluation.traces.goodput import Goodput
from dflash.evaluation.traces.run import TraceRun
from dflash.evaluation.traces.sent import SentRequest
from dflash.json_types import JsonObject

TURNS = (1, 2, 5, 10, 20)
"""First turns of the groups of the table by turn."""

FULL = 900.0
"""Seconds that a run must take for a published result, as AgentX has it; a shorter one is a shape run."""


def measured(run: TraceRun, goodput: Goodput | None = None) -> JsonObject:
    """Return the numbers of a run as JSON values; durations are in seconds.

    Throughput is that of all clients together over the whole run, pauses included. Interactivity is the median over the
    requests of the tokens per second that one user sees after the first token.
    """
    good = [sent for sent in run.requests if sent.error is None]
    rates = [1.0 / sent.per_token for sent in good if sent.per_token]
    n_output, n_prompt = sum(sent.n_received for sent in good), sum(sent.n_prompt for sent in good)
    found = {
        "clients": run.n_clients,
        "seconds": run.seconds,
        "requests": len(run.requests),
        "errors": len(run.requests) - len(good),
        "sessions": len({sent.session for sent in run.requests}),
        "sessions_cut": run.n_left_out,
        "prompt_tokens": n_prompt,
        "output_tokens": n_output,
        "output_tokens_per_second": _per(n_output, run.seconds),
        "tokens_per_second": _per(n_output + n_prompt, run.seconds),
        "interactivity": float(np.median(rates)) if rates else None,
        "first_token": quantiles(sent.first_token for sent in good),
        "gap": quantiles(gap for sent in good for gap in sent.gaps),
        "cache": hits(good),
        "by_turn": [_by_turn(good, first, end) for first, end in zip(TURNS, (*TURNS[1:], None), strict=True)],
        "by_client": [_by_client(good, client) for client in range(run.n_clients)],
    }
    if goodput is not None and goodput.limits:
        n = sum(map(goodput.holds, run.requests))
        shown = {"limits_ms": goodput.limits, "requests": n, "share": _per(n, len(run.requests))}
        found["goodput"] = {**shown, "requests_per_second": _per(n, run.seconds)}
    return found


def quantiles(seconds: Iterable[float | None]) -> dict[str, float] | None:
    """Return median, 99 % quantile and maximum; None without a value."""
    known = [each for each in seconds if each is not None]
    if not known:
        return None
    return {"median": float(np.median(known)), "p99": float(np.percentile(known, 99)), "longest": float(max(known))}


def hits(requests: Sequence[SentRequest]) -> JsonObject | None:
    """Return what the prefix cache gave, None if the server does not say.

    ``cached`` are prompt tokens from the cache, ``reusable`` those of an earlier turn of the session: its prompt and as much
    of its answer as the next prompt holds. ``later`` are turns that continue an earlier one; they began with a state after
    that one's prompt (``answer``), within it (``prompt``) or with ``nothing``. ``answer_fits`` counts those that hold the
    whole answer, without which no state after it fits, and ``answer_found`` those of them that began with one. ``first``
    counts first turns that found something: the server has seen these prompts before.
    """
    reported = [sent for sent in requests if sent.n_cached is not None]
    if not reported:
        return None
    count: Callable[[str], int] = lambda kind: sum(sent.found == kind for sent in reported)  # noqa: E731
    return {
        "cached": sum(sent.n_cached or 0 for sent in reported),
        "reusable": sum(max(sent.n_before + sent.n_own - 1, 0) for sent in reported),
        "later": sum(sent.found is not None for sent in reported),
        "answer_fits": sum(sent.may_find_answer for sent in reported),
        "answer_found": sum(sent.may_find_answer and sent.found == "answer" for sent in reported),
        **{kind: count(kind) for kind in ("answer", "prompt", "nothing")},
        "first": sum(bool(sent.n_cached) for sent in reported if not sent.turn),
    }


def _by_turn(requests: Sequence[SentRequest], first: int, end: int | None) -> JsonObject:
    some = [sent for sent in requests if first <= sent.turn + 1 < (end or sent.turn + 2)]
    return {
        "turns": f"{first}" if end == first + 1 else f"{first} to {end - 1}" if end else f"{first} and more",
        "requests": len(some),
        "prompt_tokens": _median(sent.n_prompt for sent in some),
        "read_tokens": _median(None if sent.n_cached is None else sent.n_prompt - sent.n_cached for sent in some),
        "first_token": quantiles(sent.first_token for sent in some),
    }


def _by_client(requests: Sequence[SentRequest], client: int) -> JsonObject:
    some = [sent for sent in requests if sent.client == client]
    return {
        "requests": len(some),
        "output_tokens": sum(sent.n_received for sent in some),
        "first_token": quantiles(sent.first_token for sent in some),
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _per(n: float, seconds: float) -> float:
    return n / seconds if seconds else 0.0
