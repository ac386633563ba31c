"""Rows of a comparison for data frames: one for each request or each step.

Rows of both kinds begin with ``strategy``, ``prompt`` and ``round``.

Requests: ``prompt_tokens``, ``cached_tokens``, ``tokens``, ``steps``, ``tokens_per_step``, ``drafted``, ``accepted``,
``acceptance`` (None without drafts), ``first_token_seconds``, ``decode_seconds``, ``tokens_per_second``, ``finish_reason``,
``seed``, ``same_text`` (as that of the first strategy), ``interventions``.

Steps: ``step``, ``tokens``, ``drafted``, ``accepted``, ``injected``, ``draft_depth``, ``rows`` (of the forward),
``propose_seconds``, ``forward_seconds``, ``verify_seconds``, ``commit_seconds``,
``drafter`` (class, if several take turns), ``finish_reason``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dflash.errors import RequestError, did_you_mean
from dflash.evaluation.row import Row
from dflash.generation.result import Generation

Values = dict[str, Any]


def requests(rows: Sequence[Row], prompts: Sequence[str]) -> Iterator[Values]:
    """Yield one row for each request, in the order of strategies, rounds and prompts."""
    for row, number, generation, wanted in _requests(rows, len(prompts)):
        steps = [step for step in generation.steps if step.tokens]
        drafted, accepted = (sum(getattr(step, name) for step in steps) for name in ("drafted", "accepted"))
        yield {
            **_place(row, number, prompts),
            "prompt_tokens": generation.usage.prompt_tokens,
            "cached_tokens": generation.usage.cached_tokens,
            "tokens": len(generation.tokens),
            "steps": len(steps),
            "tokens_per_step": generation.tokens_per_step,
            "drafted": drafted,
            "accepted": accepted,
            "acceptance": generation.acceptance,
            "first_token_seconds": generation.timings.first_token,
            "decode_seconds": generation.timings.decode,
            "tokens_per_second": generation.timings.decode_rate,
            "finish_reason": generation.finish_reason,
            "seed": generation.seed,
            "same_text": generation.tokens == wanted.tokens,
            "interventions": len(generation.interventions),
        }


def steps(rows: Sequence[Row], prompts: Sequence[str]) -> Iterator[Values]:
    """Yield one row for each step that produced tokens, of all requests."""
    for row, number, generation, _ in _requests(rows, len(prompts)):
        place = _place(row, number, prompts)
        for index, step in enumerate(step for step in generation.steps if step.tokens):
            yield {
                **place,
                "step": index,
                "tokens": len(step.tokens),
                "drafted": step.drafted,
                "accepted": step.accepted,
                "injected": step.injected,
                "draft_depth": step.draft.depth,
                "rows": step.batch,
                "propose_seconds": step.propose,
                "forward_seconds": step.forward,
                "verify_seconds": step.verify,
                "commit_seconds": step.commit,
                "drafter": step.by,
                "finish_reason": step.finish,
            }


KINDS: dict[str, Callable[[Sequence[Row], Sequence[str]], Iterator[Values]]] = {"requests": requests, "steps": steps}
"""Rows by the name of their kind, from those of the strategies and the names of the prompts."""


def check_kind(kind: str) -> None:
    """Raise a RequestError if there are no such rows."""
    names = ("strategies", *KINDS)
    if kind not in names:
        near = did_you_mean(str(kind), names)
        raise RequestError(f"to_pandas: rows must be one of {', '.join(names)}, got {kind!r:.40}{near}")


def _requests(rows: Sequence[Row], n_prompts: int) -> Iterator[tuple[Row, int, Generation, Generation]]:
    """Yield the strategy, number and result of each request, and the result of the first strategy for the same prompt."""
    first = rows[0].generations
    for row in rows:
        for number, generation in enumerate(row.generations):
            yield row, number, generation, first[number % n_prompts]


def _place(row: Row, number: int, prompts: Sequence[str]) -> Values:
    round_, prompt = divmod(number, len(prompts))
    return {"strategy": row.name, "prompt": prompts[prompt], "round": round_}
