"""Recoveries by name, or as objects, for a model with its tokenizer and chat template."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.recoveries.base import Recovery
from dflash.decode.registry.recoveries import from_environment, parse
from dflash.generation.recovery.tool_call_prefix import ToolChoice
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Language:
    """Tokenizer, chat template and tools that text-level recoveries are built from."""

    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    tools: Sequence[JsonMapping] = ()
    tool_choice: ToolChoice = field(default=None)


class RecoveryBuilder(Protocol):
    """Settings of a recovery that depends on the tokenizer, the chat template or the tools of a request."""

    def build(self, language: Language) -> Recovery | None:
        """Return the recovery; None if it can't be used. Called once a request, in any thread, before its session starts."""


Recover = str | Recovery | RecoveryBuilder | Sequence[str | Recovery | RecoveryBuilder] | None
"""Comma-separated names, a recovery, or a sequence of names and recoveries; None reads the environment."""


def recoveries(wanted: Recover, language: Language) -> tuple[Recovery, ...]:
    """Create the requested recoveries, in the given order.

    wanted: names or objects; ``""`` and ``"none"`` mean no recovery.
    language: passed to the ``build`` method of each that has one.
    """
    found = (parse(part.strip()) if isinstance(part, str) else part for part in _parts(wanted))
    return tuple(_built((each for each in found if each is not None), language))


def with_recoveries(strategy: Strategy, wanted: Recover, language: Language) -> Strategy:
    """Return a strategy with its own recoveries and then the requested ones, all built. Raises as `recoveries` does."""
    return replace(strategy, recoveries=(*_built(strategy.recoveries, language), *recoveries(wanted, language)))


def settle(wanted: str | None) -> str:
    """Return the given names of recoveries, else those of the environment. Raises as `recoveries` does."""
    names = from_environment() if wanted is None else wanted
    check(names)
    return names


def check(wanted: Recover) -> None:
    """Check names of recoveries before a model is loaded. Raises as `recoveries` does."""
    for part in _parts("" if wanted is None else wanted):
        if isinstance(part, str):
            parse(part.strip())


def _built(found: Iterable[Any], language: Language) -> Iterator[Any]:
    for each in found:
        if isinstance(each, type) or not hasattr(each, "build"):
            yield each
        elif (recovery := each.build(language)) is not None:
            yield recovery


def _parts(wanted: Recover) -> list[Any]:
    if wanted is None:
        wanted = from_environment()
    if isinstance(wanted, str):
        wanted = wanted.split(",")
    return list(wanted) if isinstance(wanted, Iterable) else [wanted]
