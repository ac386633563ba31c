"""Sampling parameters of a request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from numbers import Integral, Real
from typing import Any

from dflash.decode.sampling.processors import Bias, LogitsProcessor, MinP, Penalties, Temperature, TopK, TopP
from dflash.errors import RequestError, did_you_mean

GREEDY = 1e-5
"""Temperatures below this count as 0: greedy."""

LOWEST_REPETITION = 1e-6
"""Smallest repetition penalty: logits of some thousands, divided by it, stay far from the largest float32 (3.4e38).

Divided by 1e-38 or less, they become infinite, and a row of infinities has no probabilities.
"""
_MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True, repr=False)
class Sampling:
    """Sampling parameters. Defaults turn each one off.

    The order is penalties, bias, the session's processors, temperature, top-k, top-p, min-p. This is the order of
    Transformers and, except for bias and min-p, of vLLM. llama.cpp by default applies temperature last, which changes the
    tokens that top-p and min-p keep. Then a token is sampled with noise that is a function of seed, position and token, so
    the same seed gives the same tokens with every strategy. At temperature 0 the largest logit wins; of equal ones the
    lowest id.

    Parameters
    ----------
    temperature : float
        0 to 100; 0 (below 1e-5) is greedy.
    top_k : int
        Number of likeliest tokens to keep; 0 or -1 keeps all.
    top_p : float
        Keep the likeliest tokens that together have this probability; 0 keeps one, 1 all.
    min_p : float
        Keep tokens with at least this fraction of the largest probability; 0 keeps all.
    repetition_penalty : float
        1e-6 to 100; applies to tokens of prompt and output, 1 is off.
    presence_penalty, frequency_penalty : float
        -2 to 2; apply to tokens of the output.
    logit_bias : mapping of int to float
        Added to the logits of these tokens, -100 to 100. Kept as sorted pairs.
    seed : int, optional
        -2**63 to 2**64 - 1; a random one for each session if None.
    logprobs : int, optional
        Number of likeliest tokens whose log-probabilities are returned beside that of the picked token. They are computed
        from the model's own logits, before all of the above, as in OpenAI's API and vLLM. None returns none.

    Raises
    ------
    RequestError
        If a value is of the wrong kind or out of range; the message names the argument.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    logprobs: int | None = None

    @classmethod
    def of_keywords(cls, given: Mapping[str, Any], function: Callable[..., Any]) -> "Sampling":
        """Return the parameters that a function got as ``**sampling``.

        Raises
        ------
        TypeError
            If one is no parameter; the message names the function's argument or the parameter that is most like it.
        """
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                near = did_you_mean(name, (*known, *signature(function).parameters))
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{near}")
        return cls(**given)

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, 100)
        check_whole("top_k", self.top_k, -1)
        _number("top_p", self.top_p, 0, 1)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, LOWEST_REPETITION, 100)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))
        if self.seed is not None:
            check_whole("seed", self.seed, -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            check_whole("logprobs", self.logprobs, 0)

    def __repr__(self) -> str:
        changed = [f"{f.name}={value!r}" for f in fields(self) if (value := getattr(self, f.name)) != f.default]
        return f"Sampling({', '.join(changed)})"

    def with_seed(self, seed: int | None) -> "Sampling":
        """Return a copy with another seed (-2**63 to 2**64 - 1), without checking the other values again."""
        made = object.__new__(Sampling)
        for field in fields(self):
            object.__setattr__(made, field.name, seed if field.name == "seed" else getattr(self, field.name))
        return made

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is picked without noise."""
        return self.temperature < GREEDY

    @property
    def penalties(self) -> Penalties | None:
        """Penalties; None if all are off."""
        penalties = Penalties(self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return None if penalties == Penalties() else penalties

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs, as it is stored once it was checked."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def before(self) -> list[LogitsProcessor]:
        """Processors that come before those of the session."""
        processors: list[LogitsProcessor] = [self.penalties] if self.penalties else []
        return processors + ([Bias(self.bias_pairs)] if self.logit_bias else [])

    @property
    def after(self) -> list[LogitsProcessor]:
        """Processors after those of the session. Top-k comes first: it keeps the same tokens at every temperature."""
        if self.greedy:
            return []
        processors: list[LogitsProcessor] = [TopK(self.top_k)] if self.top_k > 0 else []
        processors.append(Temperature(self.temperature))
        processors += [TopP(self.top_p)] if self.top_p < 1 else []
        return processors + ([MinP(self.min_p)] if self.min_p > 0 else [])


def _number(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise RequestError(f"{name}: must be a number from {low:g} to {high:g}, got {value!r}")


def check_whole(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise a RequestError if an argument is not a whole number in this range."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        span = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name}: must be a whole number {span}, got {value!r}")


def _pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = dict(bias)
    except (TypeError, ValueError):
        raise RequestError(f"logit_bias: must map token ids to numbers, got {bias!r}") from None
    for token, value in pairs.items():
        check_whole("logit_bias: a token id", token, 0, _MAX_ID)
        _number(f"logit_bias of token {token}", value, -100, 100)
    return tuple(sorted(pairs.items()))
