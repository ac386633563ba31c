"""Rows of a comparison for data frames: one for each request, each step, or each category of prompts.

Rows of requests and steps begin with ``strategy``, ``prompt``, ``round`` and ``category`` (of the prompt).

Requests: ``prompt_tokens``, ``cached_tokens``, ``tokens``, ``steps``, ``tokens_per_step``, ``drafted``, ``accepted``,
``acceptance`` (None without drafts), ``first_token_seconds``, ``decode_seconds``, ``tokens_per_second``, ``finish_reason``,
``seed``, ``interventions``, ``same_text`` (as that of the first strategy).

Steps: ``step``, ``tokens``, ``drafted``, ``accepted``, ``injected``, ``draft_depth``, ``rows`` (of the forward),
``propose_seconds``, ``forward_seconds``, ``verify_seconds``, ``commit_seconds``,
``drafter`` (class, if several take turns), ``finish_reason``.

Categories: ``strategy``, ``category``, ``requests``, ``tokens_per_step``, ``drafted``, ``accepted``, ``acceptance``,
``tokens_per_second``.
"""

from collections.abc import Callable, Iterator, Sequence

from dflash.errors import RequestError, did_you_mean
from dflash.evaluation.row import Row
from dflash.generation.result import Generation
from dflash.json_types import JsonObject

Values = JsonObject


def requests(rows: Sequence[Row], prompts: Sequence[str], categories: Sequence[str] = ()) -> Iterator[Values]:
    """Yield one row for each request, in the order of strategies, rounds and prompts; `categories` are those of prompts."""
    for row, number, generation, wanted in _requests(rows, len(prompts)):
        same = generation.tokens == wanted.tokens
        yield {**_place(row, number, prompts, categories), **of_request(generation), "same_text": same}


def of_request(generation: Generation) -> Values:
    """Return the columns of a request that belong to it alone."""
    steps = [step for step in generation.steps if step.tokens]
    drafted, accepted = (sum(getattr(step, name) for step in steps) for name in ("drafted", "accepted"))
    return {
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
        "interventions": len(generation.interventions),
    }


def steps(rows: Sequence[Row], prompts: Sequence[str], categories: Sequence[str] = ()) -> Iterator[Values]:
    """Yield one row for each step that produced tokens, of all requests."""
    for row, number, generation, _ in _requests(rows, len(prompts)):
        place = _place(row, number, prompts, categories)
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


def by_category(rows: Sequence[Row], prompts: Sequence[str], categories: Sequence[str] = ()) -> Iterator[Values]:
    """Yield one row for each category, in the order of their names, and strategy."""
    for category in sorted(set(categories)):
        for row in rows:
            part = Row(row.name, row.strategy)
            for number, generation in enumerate(row.generations):
                round_, prompt = divmod(number, len(prompts))
                if categories[prompt] == category:
                    part.add(round_, generation)
            yield {
                "strategy": row.name,
                "category": category,
                "requests": len(part.generations),
                **{name: getattr(part, name) for name in ("tokens_per_step", "drafted", "accepted", "acceptance")},
                "tokens_per_second": part.rate,
            }


KINDS: dict[str, Callable[[Sequence[Row], Sequence[str], Sequence[str]], Iterator[Values]]] = {
    "requests": requests,
    "steps": steps,
    "categories": by_category,
}
"""Rows by the name of their kind, from those of the strategies, and the names and categories of the prompts."""


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


def _place(row: Row, number: int, prompts: Sequence[str], categories: Sequence[str]) -> Values:
    round_, prompt = divmod(number, len(prompts))
    category = categories[prompt] if categories else ""
    return {"strategy": row.name, "prompt": prompts[prompt], "round": round_, "category": category}
