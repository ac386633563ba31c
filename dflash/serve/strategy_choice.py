"""Strategy and recoveries of a request."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dflash.decode import registry
from dflash.decode.drafters import Strategy
from dflash.decode.recoveries.base import Recovery
from dflash.decode.registry.recoveries import from_request
from dflash.decode.verifiers import COUPLED, Verifier
from dflash.errors import ModelError, RequestError, public_message
from dflash.generation.engine_thread import EngineThread
from dflash.generation.messages.fields import FieldError, Fields, shown
from dflash.generation.preparation import PreparationJob
from dflash.generation.recovery.names import Language, Recover, check, recoveries
from dflash.serve.limits import MAX_RECOVERIES, MAX_RECOVERY_NAME


@dataclass(frozen=True, slots=True)
class Decoding:
    """Fields of a request that choose its strategy and recoveries.

    recover: names of recoveries; None is the server's default.
    more: recoveries that fields of their own turn on, such as ``min_tokens``.
    """

    strategy: str | None = None
    recover: Recover = None
    more: tuple[Recovery, ...] = ()


UNSAID = Decoding()
"""Value for a request that sets none of these fields."""


def parse_decoding(fields: Fields) -> Decoding:
    """Read ``strategy``, ``recover``, and the fields of single recoveries."""
    recover = fields.any("recover")
    _check_names(fields, recover)
    try:
        check(recover)
    except RequestError as error:
        raise fields.error("recover", str(error).partition(": ")[2]) from error
    return Decoding(fields.text("strategy"), recover, from_request(fields))


def _check_names(fields: Fields, recover: object) -> None:
    """Check the type of ``recover``, and the number and length of its names."""
    names = recover[: MAX_RECOVERIES * (MAX_RECOVERY_NAME + 2)].split(",") if isinstance(recover, str) else recover
    if names is None:
        return
    if isinstance(names, list) and len(names) > MAX_RECOVERIES:
        raise fields.error("recover", f"holds more than {MAX_RECOVERIES} names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.error("recover", f"must be a string or an array of strings, got {shown(recover)}")
    if max(map(len, names), default=0) > MAX_RECOVERY_NAME:
        raise fields.error("recover", f"holds a name of more than {MAX_RECOVERY_NAME} characters")


@dataclass(frozen=True, slots=True)
class Defaults:
    """Strategy and recoveries of requests that name none, and limits on those that do.

    draft: draft model of strategies that requests name; a request can't name files.
    recover: names of recoveries; None reads the environment.
    allowed: strategy names that requests may use; None allows all, an empty tuple none.
    sampling: sampling parameters of requests that leave them out, by the name of their field.
    without_files: strategy names for which neither the model's file nor the table of published drafts has what they need.
    """

    strategy: Strategy = field(default_factory=Strategy)
    draft: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    recover: Recover = None
    allowed: tuple[str, ...] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    without_files: Collection[str] = ()
    verifier: Verifier = COUPLED


PLAIN = Defaults()
"""Defaults of a server without options: plain decoding."""


def strategy_of(
    wanted: Decoding, defaults: Defaults, language: Language, engine_thread: EngineThread
) -> tuple[Strategy, PreparationJob]:
    """Return the strategy of a request, and the job that loads its files and kernels. Called in any thread."""
    strategy, loading = defaults.strategy, PreparationJob.done()
    if wanted.strategy is not None:
        with as_field():
            _check_allowed(wanted.strategy, defaults.allowed)
            strategy = named(wanted.strategy, defaults.draft, **defaults.settings)
            loading = engine_thread.preparing(replace(strategy, verifier=defaults.verifier))
    recover = defaults.recover if wanted.recover is None else wanted.recover
    added = dict.fromkeys((*recoveries(recover, language), *recoveries(wanted.more, language)))
    return replace(strategy, recoveries=(*strategy.recoveries, *added), verifier=defaults.verifier), loading


@contextmanager
def as_field() -> Iterator[None]:
    """Raise errors of a strategy as errors of the field."""
    try:
        yield
    except (RequestError, ModelError) as error:
        raise FieldError("strategy", public_message(error).removeprefix("strategy: ")) from error


def allowed(text: str | None) -> tuple[str, ...] | None:
    """Parse ``--allow-strategies``. text: comma-separated names, or ``none``; None allows all."""
    if text is None:
        return None
    known = registry.words()
    words = () if text.strip() == "none" else tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in known:
            raise RequestError(f"--allow-strategies: {word!r:.40} is not a strategy; use {', '.join(known)}, or none")
    return words


def _check_allowed(name: str, words: tuple[str, ...] | None) -> None:
    if words is None:
        return
    if not words:
        raise RequestError("strategy: requests can't choose one on this server")
    if set(registry.words_of(name[: registry.MAX_NAME])) & set(registry.words()) - set(words):
        raise RequestError(f"strategy: {name!r:.80} is not allowed on this server; use {', '.join(words)}")


def named(name: str | None, draft: str | None, **settings: Any) -> Strategy:
    """Return the strategy for a name and a draft model; a draft model alone means ``dflash``, neither plain decoding."""
    if name is None and draft is None:
        return Strategy()
    return Strategy.named("dflash" if name is None else name, draft, **settings)
