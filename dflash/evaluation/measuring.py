"""Parts that the comparison of strategies and the replay of sessions share."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash.lm import LM

WARM_UP = 8
"""Output tokens of a warm-up request on a CPU, not measured. On a GPU it has all tokens, so that graphs are captured."""


def n_warm_up(lm: "LM", max_tokens: int) -> int:
    """Return the output tokens of a warm-up request."""
    return max_tokens if lm.model.device == "cuda" else min(WARM_UP, max_tokens)


def bar(shown: bool, total: int | None, what: str) -> Any:
    """Return a progress bar on stderr, which draws nothing unless `shown`."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit="", leave=False, disable=not shown)
