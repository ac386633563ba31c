"""Token counts and interventions in OpenAI's form."""

from collections.abc import Sequence
from typing import Any

from dflash.generation.completion import Completion
from dflash.serve.usage import TokenCounts


def usage(completions: Sequence[Completion], n: int) -> dict[str, Any]:
    """Return token counts of all choices, grouped by prompt, `n` for each; draft tokens are OpenAI's prediction tokens."""
    counts = TokenCounts.of(completions, n)
    details = {"reasoning_tokens": counts.reasoning} if counts.reasoning else {}
    if counts.drafted:
        rejected = counts.drafted - counts.accepted
        details |= {"accepted_prediction_tokens": counts.accepted, "rejected_prediction_tokens": rejected}
    found = {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.output,
        "total_tokens": counts.prompt + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }
    return {**found, "completion_tokens_details": details} if details else found


def interventions(completions: Sequence[Completion]) -> dict[str, list[str]]:
    """Return the interventions of recoveries, one sentence each; empty if there were none."""
    done = [str(each) for completion in completions for each in completion.session.interventions]
    return {"interventions": done} if done else {}
