"""How a request wants its text written: by which strategy, and watched over by what."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dflash.decode import registry
from dflash.decode.drafters import Strategy
from dflash.decode.recoveries.loop_guard import MAX_PERIOD, LoopGuard
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.errors import ModelError, RequestError, public_message
from dflash.generation.engine_thread import Worker
from dflash.generation.recovery.names import Language, Recover, check, recoveries
from dflash.serve.fields import FieldError, Fields, shown
from dflash.serve.limits import MAX_RECOVERIES, MAX_RECOVERY_NAME

MAX_COUNT = 1000
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a request says about it.

    Parameters
    ----------
    strategy : str, optional
        Name of a strategy; the server's own if None.
    recover : str or sequence of str, optional
        Names of recoveries; the server's own if None.
    more : tuple of Recovery
        What the fields of other servers ask for.
    """

    strategy: str | None = None
    recover: Recover = None
    more: tuple[Any, ...] = ()


UNSAID = Decoding()
"""Of a request that says nothing."""


def parse_decoding(fields: Fields) -> Decoding:
    """Read ``strategy`` and ``recover``, and ``min_tokens`` and ``repetition_detection`` as vLLM has them.

    Raises
    ------
    FieldError
        If one of them can't be used.
    """
    recover = fields.any("recover")
    _check_names(fields, recover)
    try:
        check(recover)
    except RequestError as error:
        raise fields.error("recover", str(error).partition(": ")[2]) from error
    least = fields.integer("min_tokens", 0, MAX_TOKENS, 0)
    more: list[Any] = [MinTokens(least)] if least else []
    circles = fields.object("repetition_detection")
    if circles is not None:
        longest = circles.integer("max_pattern_size", 0, MAX_PERIOD, 0)
        shortest = circles.integer("min_pattern_size", 0, max(longest, 1), 1)
        count = circles.integer("min_count", 2, MAX_COUNT, 3)
        if longest:
            more.append(LoopGuard(same=0, min_period=max(shortest, 1), max_period=longest, count=count))
    return Decoding(fields.text("strategy"), recover, tuple(more))


def _check_names(fields: Fields, recover: Any) -> None:
    """Refuse what is no list of names, and more or longer names than are allowed."""
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
    """What the server does where a request says nothing.

    Parameters
    ----------
    strategy : Strategy
        How tokens are guessed.
    draft : str, optional
        Draft model that a strategy named by a request guesses with; a request can't name files.
    settings : mapping
        How that model is run: what `naming.strategy` takes.
    recover : str, optional
        Names of recoveries; the environment's if None.
    allowed : tuple of str, optional
        Words that the names of strategies in requests may be made of; all if None, and none lets no request choose.
    """

    strategy: Strategy = field(default_factory=Strategy)
    draft: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    recover: Recover = None
    allowed: tuple[str, ...] | None = None


PLAIN = Defaults()
"""Of a server that was told nothing."""


async def strategy_of(wanted: Decoding, defaults: Defaults, language: Language, worker: Worker) -> Strategy:
    """Make the strategy of a request, and load what it needs.

    Raises
    ------
    FieldError
        If the request names one that can't be used here.
    """
    strategy = defaults.strategy
    if wanted.strategy is not None:
        try:
            _check_allowed(wanted.strategy, defaults.allowed)
            strategy = named(wanted.strategy, defaults.draft, **defaults.settings)
            await worker.preparing(strategy).arrive()
        except (RequestError, ModelError) as error:
            raise FieldError("strategy", public_message(error).removeprefix("strategy: ")) from error
    recover = defaults.recover if wanted.recover is None else wanted.recover
    watches = await asyncio.to_thread(recoveries, recover, language)
    added = dict.fromkeys((*watches, *wanted.more))
    return replace(strategy, recoveries=(*strategy.recoveries, *added))


def allowed(text: str | None) -> tuple[str, ...] | None:
    """Read which words the names of strategies in requests may be made of.

    Parameters
    ----------
    text : str, optional
        Words between commas, or ``none``; all are allowed if None.

    Raises
    ------
    RequestError
        If no name has such a word; the message lists those there are.
    """
    if text is None:
        return None
    known = registry.words()
    words = () if text.strip() == "none" else tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in known:
            raise RequestError(f"--allow-strategies: {word!r:.40} is no strategy; there are {', '.join(known)}, or none")
    return words


def _check_allowed(name: str, words: tuple[str, ...] | None) -> None:
    if words is None:
        return
    if not words:
        raise RequestError("strategy: this server lets no request choose one")
    if set(registry.words_of(name[: registry.MAX_NAME])) & set(registry.words()) - set(words):
        raise RequestError(f"strategy: {name!r:.80} is not allowed, this server takes {', '.join(words)}")


def named(name: str | None, draft: str | None, **settings: Any) -> Strategy:
    """Make the strategy that a name and a draft stand for, a draft alone being one; plain decoding if there is neither."""
    if name is None and draft is None:
        return Strategy()
    return Strategy.named("dflash" if name is None else name, draft, **settings)
