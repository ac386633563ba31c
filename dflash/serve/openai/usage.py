"""Token counts, interventions and warnings in OpenAI's form."""

from collections.abc import Sequence

from dflash.generation.completion import Completion
from dflash.json_types import JsonObject
from dflash.serve.usage import TokenCounts


def usage(completions: Sequence[Completion], n: int) -> JsonObject:
    """Return token counts of all choices, grouped by prompt, `n` for each; draft tokens are OpenAI's prediction tokens.

    With a strategy that drafts, ``rows_per_step`` is the mean number of rows of its forwards, which other requests share.
    """
    counts = TokenCounts.of(completions, n)
    details = {"reasoning_tokens": counts.reasoning} if counts.reasoning else {}
    rows = {} if counts.rows is None else {"rows_per_step": counts.rows}
    if rows:
        rejected = counts.drafted - counts.accepted
        details |= {"accepted_prediction_tokens": counts.accepted, "rejected_prediction_tokens": rejected}
    found = {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.output,
        "total_tokens": counts.prompt + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        **rows,
    }
    return {**found, "completion_tokens_details": details} if details else found


def remarks(completions: Sequence[Completion]) -> dict[str, list[str]]:
    """Return interventions of recoveries and warnings, one sentence each; empty if there were none."""
    sessions = [completion.session for completion in completions]
    done = [str(each) for session in sessions for each in session.interventions]
    warnings = list(dict.fromkeys(warning for session in sessions for warning in session.warnings))
    return ({"interventions": done} if done else {}) | ({"warnings": warnings} if warnings else {})
