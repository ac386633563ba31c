"""TraceLimits of a request that a user is content with, spelled as in ``vllm bench serve``."""

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.errors import RequestError, did_you_mean
from dflash.evaluation.traces.sent import SentRequest

NAMES = {
    "ttft": "time to the first token",
    "tpot": "time per output token after the first",
    "e2el": "time to the last token",
}


@dataclass(frozen=True)
class Goodput:
    """Upper limits of latencies in milliseconds; a request is good if it ended without an error and is within all.

    limits: milliseconds by name: ``ttft``, ``tpot`` and ``e2el``.

    Zhong et al. 2024, arXiv 2401.09670 (DistServe).
    """

    limits: dict[str, float]

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Goodput":
        """Read pairs as ``ttft:500``."""
        found: dict[str, float] = {}
        for word in words:
            name, _, number = word.partition(":")
            if name not in NAMES:
                raise RequestError(f"goodput {word!r:.40}: has no {name!r}{did_you_mean(name, NAMES)}: {', '.join(NAMES)}")
            try:
                found[name] = float(number)
            except ValueError:
                found[name] = -1.0
            if not 0 <= found[name] < float("inf"):
                raise RequestError(f"goodput {word!r:.40}: must be a number of milliseconds, as {name}:500")
        return cls(found)

    def holds(self, sent: SentRequest) -> bool:
        """Return True if a request is good. One with a single output token has no ``tpot`` that is too long."""
        found = {"ttft": sent.first_token, "tpot": sent.per_token, "e2el": sent.latency}
        return sent.error is None and all(1e3 * (found[name] or 0.0) <= limit for name, limit in self.limits.items())

    def __str__(self) -> str:
        return " ".join(f"{name}:{limit:g}" for name, limit in self.limits.items())
