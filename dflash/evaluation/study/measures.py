"""Measures of a cell, computed from the rows of its requests."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dflash.evaluation.study.bootstrap import Pairs, interval, ratio, resampled
from dflash.evaluation.tables import Values

Rows = Sequence[Values]


def measured(rows: Rows) -> Values:
    """Return the measures of a cell as JSON values.

    ``acceptance_length`` is 1 + accepted draft tokens / steps, with ``interval`` by the bootstrap over prompts.
    ``acceptance_by_position``: accepted at a position over drafted there, in steps that accepted all positions before.
    ``first_rejected``: steps by the position of their first rejected draft token; 0 if none was. ``tokens_a_step``: steps by
    their number of tokens. ``seconds_a_step``: mean seconds of drafting, of the forward, of the session's own verification,
    and of all else, which includes the verification of other sequences. ``tokens_per_second``: of a sequence, after its
    first step.
    """
    lengths = acceptance_pairs(rows)
    return {
        "requests": len(rows),
        "acceptance_length": 1 + ratio(lengths),
        "interval": [1 + end for end in interval(resampled(lengths))],
        "acceptance_by_position": by_position(rows),
        "tokens_a_step": _counts(n for row in rows for n in row["step_tokens"]),
        "first_rejected": _counts(
            accepted + 1 if accepted < depth else 0
            for row in rows
            for accepted, depth in zip(row["step_accepted"], row["step_depths"], strict=True)
            if depth
        ),
        "seconds_a_step": _seconds(rows),
        "tokens_per_second": ratio(rate_pairs(rows)),
        "first_token_seconds": sorted(row["first_token_seconds"] for row in rows)[len(rows) // 2],
    }


def acceptance_pairs(rows: Rows) -> Pairs:
    """Return accepted draft tokens and steps of each prompt."""
    return _by_prompt(rows, lambda row: (sum(row["step_accepted"]), len(row["step_accepted"])))


def rate_pairs(rows: Rows) -> Pairs:
    """Return tokens after the first step, and the seconds for them, of each prompt."""
    return _by_prompt(rows, lambda row: (sum(row["step_tokens"][1:]), row["decode_seconds"]))


def by_position(rows: Rows) -> list[float]:
    """Return the acceptance rate at each position, given that all positions before were accepted."""
    reached: Counter[int] = Counter()
    taken: Counter[int] = Counter()
    for row in rows:
        for accepted, depth in zip(row["step_accepted"], row["step_depths"], strict=True):
            reached.update(range(min(depth, accepted + 1)))
            taken.update(range(accepted))
    return [taken[position] / reached[position] for position in sorted(reached)]


def _by_prompt(rows: Rows, pair: Callable[[Values], tuple[float, float]]) -> Pairs:
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        above, below = found.get(row["prompt"], (0, 0))
        more_above, more_below = pair(row)
        found[row["prompt"]] = above + more_above, below + more_below
    return list(found.values())


def _counts(values: Iterable[int]) -> dict[str, int]:
    return {str(value): n for value, n in sorted(Counter(values).items())}


def _seconds(rows: Rows) -> dict[str, float]:
    n = sum(max(len(row["step_tokens"]) - 1, 0) for row in rows)
    parts = {"draft": "propose_seconds", "forward": "forward_seconds", "verify": "verify_seconds"}
    found = {name: sum(row[key] for row in rows) / n if n else 0.0 for name, key in parts.items()}
    total = sum(row["decode_seconds"] for row in rows) / n if n else 0.0
    return {**found, "host": max(total - sum(found.values()), 0.0)}
