"""Measurements of one request, as its client sees them."""

from dataclasses import dataclass, field

import numpy as np

from dflash.json_types import JsonObject


@dataclass
class SentRequest:
    """A request and the times at which its tokens came, in seconds since the run began.

    client: number of the client, from 0.
    n_before, n_own: tokens of the earlier prompt that this one continues, and those of the model's own answer after it.
    n_answered: tokens of the answer to that earlier prompt; 0 if it is not known.
    arrivals: times at which tokens came; several tokens may come at once.
    n_cached: prompt tokens that came from the server's prefix cache; None if the server does not say.
    """

    client: int
    session: str
    turn: int
    n_prompt: int
    n_output: int
    n_before: int = 0
    n_own: int = 0
    n_answered: int = 0
    began: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    n_received: int = 0
    n_cached: int | None = None
    error: str | None = None

    @property
    def first_token(self) -> float | None:
        """Seconds from the request to its first token."""
        return self.arrivals[0] - self.began if self.arrivals else None

    @property
    def latency(self) -> float | None:
        """Seconds from the request to its last token."""
        return self.arrivals[-1] - self.began if self.arrivals else None

    @property
    def per_token(self) -> float | None:
        """Seconds per output token after the first; None for a single one."""
        if self.n_received < 2 or not self.arrivals:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.n_received - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between two arrivals of tokens."""
        return np.diff(self.arrivals).tolist()

    @property
    def found(self) -> str | None:
        """State of an earlier turn that the server began with; None for a prompt that continues none, or if it is not known.

        ``answer``: one after the earlier prompt, in or after its answer. ``prompt``: one within the earlier prompt.
        ``nothing``: none.
        """
        if not self.n_before or self.n_cached is None:
            return None
        return "answer" if self.n_cached >= self.n_before else "prompt" if self.n_cached else "nothing"

    @property
    def may_find_answer(self) -> bool:
        """True if the prompt holds the whole answer to the earlier one, so that the state after it fits."""
        return 0 < self.n_answered <= self.n_own

    def as_dict(self) -> JsonObject:
        """JSON values: all but the single arrivals, in whose place quantiles of the gaps stand. Times are in seconds."""
        gaps = self.gaps or [0.0]
        names = ("client", "session", "turn", "n_prompt", "n_output", "n_received", "n_before", "n_own", "n_cached")
        return {
            **{name: getattr(self, name) for name in names},
            "found": self.found,
            "began": round(self.began, 6),
            "first_token": _rounded(self.first_token),
            "latency": _rounded(self.latency),
            "per_token": _rounded(self.per_token),
            "gaps": {
                "n": len(self.gaps),
                "median": _rounded(float(np.median(gaps))),
                "p99": _rounded(float(np.percentile(gaps, 99))),
                "longest": _rounded(max(gaps)),
            },
            **({} if self.error is None else {"error": self.error}),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
