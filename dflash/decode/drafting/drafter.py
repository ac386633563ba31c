"""Who guesses, and what a guesser is told."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.registry import parse, register
from dflash.decode.view import SessionView
from dflash.errors import RequestError
from dflash.model.batch import Forward
from dflash.model.draft.request import DeviceDraftRequest

Rows = slice | Sequence[int]
"""Rows of `Forward.hidden` and `Forward.captured`."""


class LaunchDraft(NamedTuple):
    """Guesses that a device can begin to make while the token above them is still being drawn.

    Parameters
    ----------
    drafter : DeviceDrafter
        That makes them; see `dflash.model.cuda.device_drafts`.
    request : DeviceDraftRequest
        What it is to be asked for.
    """

    drafter: Any
    request: DeviceDraftRequest


class _NoDraft:
    def __repr__(self) -> str:
        return "NO_DRAFT"


NO_DRAFT = _NoDraft()
"""What is foreseen of a step without guesses."""

NextStep = LaunchDraft | _NoDraft | None
"""What is known of a step before its text is: None if nothing."""


class DrafterState(Protocol):
    """A drafter at work on one session.

    Attributes
    ----------
    capture : tuple of int
        Layers of the target that it wants to see, often none.
    """

    capture: tuple[int, ...]

    def propose(self, max_draft: int) -> Draft:
        """Guess at most `max_draft` tokens under the last token of ``session.token_ids``; what is beyond is cut off."""
        ...

    def observe(self, out: Forward, rows: Rows) -> None:
        """See rows of a forward, in the order of the text, that are text now; they last until the next forward.

        The prompt but its last token comes first, chunk by chunk; then, after each step, the token that was last before it
        and the accepted guesses. ``session.token_ids`` has the new tokens already, unless `NO_DRAFT` was foreseen of the
        next step: then the token that was last is shown before the one after it is known.
        """
        ...

    def snapshot(self) -> Any:
        """Remember what it knows of the text so far, to be handed to `Drafter.start`; has a ``close()``, or is None."""
        ...

    def close(self) -> None:
        """Give back what it holds; called once, whatever happened."""
        ...


class Drafter(Protocol):
    """Guesses what comes next; is never believed. Holds settings, no request; equal drafters work together.

    Attributes
    ----------
    instant : bool
        Whether a guess takes next to no time.
    parts : tuple of Drafter
        Drafters that it is made of, which are prepared before it.
    needs_all : bool
        Whether it can't be used if one of its parts can't.
    """

    instant = False
    parts: tuple[Drafter, ...] = ()
    needs_all = True

    def prepare(self, model: Any) -> None:
        """Load what it needs to guess for a model, in the thread that owns the model; harmless if done before.

        Raises
        ------
        DFlashError
            If it can't guess for this model; one sentence says why.
        """

    def is_prepared(self, model: Any) -> bool:  # noqa: ARG002
        """Return whether `prepare` would do nothing. Called from any thread."""
        return getattr(self.prepare, "__func__", None) is Drafter.prepare

    def prepare_in_parts(self, model: Any) -> Generator[None, None, None]:
        """Do what `prepare` does, its `parts` apart, so that other sessions go on meanwhile.

        What comes before the first ``yield`` runs in any thread: it may read and download files and compile kernels, and
        reads of the model only what never changes. Each further piece runs in the thread that owns the model, between two
        steps, and is short. If preparing is given up, the generator is closed.
        """
        yield
        self.prepare(model)

    def start(self, session: SessionView, model: Any, snapshot: Any = None) -> DrafterState:
        """Begin with a session.

        Parameters
        ----------
        session : Session
            ``session.n_prefilled`` tokens of its prompt have been read before: by others, whose `snapshot` may be there.
        model : Model
            That the session runs on.
        snapshot : optional
            What `DrafterState.snapshot` of an equal drafter gave at that place; None if it has seen nothing of them.
        """
        ...

    def propose(self, drafter_states: Sequence[DrafterState], max_drafts: Sequence[int]) -> list[Draft]:
        """Guess for several sessions at once; in this default, one after another. An exception ends them all."""
        return [
            drafter_state.propose(max_draft) for drafter_state, max_draft in zip(drafter_states, max_drafts, strict=True)
        ]

    def plan_next(self, drafter_states: Sequence[DrafterState], drafts: Sequence[Draft]) -> list[NextStep]:  # noqa: ARG002
        """Tell what several sessions will do in the next step, so that a device can begin with it.

        Parameters
        ----------
        drafter_states : sequence of DrafterState
        drafts : sequence of Draft
            Of the step that is being run, whose tokens are not known. A session that has none, and of which `NO_DRAFT` is
            foreseen, may go on without `propose`.
        """
        return [None] * len(drafter_states)

    def __or__(self, recovery: Any) -> Strategy:
        """Watch over it: a strategy with this recovery."""
        return Strategy(self) | recovery


def is_prepared(drafter: Drafter, model: Any) -> bool:
    """Return `Drafter.is_prepared` of anything that can guess: False, where `prepare` alone knows."""
    return False if _overrides_prepare(drafter, "is_prepared") else drafter.is_prepared(model)


def prepare_in_parts(drafter: Drafter, model: Any) -> Generator[None, None, None]:
    """Return `Drafter.prepare_in_parts` of anything that can guess: all in one piece, where `prepare` alone knows."""
    whole = _overrides_prepare(drafter, "prepare_in_parts")
    return Drafter.prepare_in_parts(drafter, model) if whole else drafter.prepare_in_parts(model)


def _overrides_prepare(drafter: Drafter, name: str) -> bool:
    """Return whether a drafter has a `prepare` of its own that an inherited method of that name does not know of."""
    if not hasattr(drafter, name) or "prepare" in getattr(drafter, "__dict__", ()):
        return True
    own, other = (
        next(i for i, kind in enumerate(type(drafter).__mro__) if each in vars(kind)) for each in ("prepare", name)
    )
    return own < other and type(drafter).__mro__[other] is not Drafter


def planned_next(drafter: Drafter, drafter_states: Sequence[DrafterState], drafts: Sequence[Draft]) -> list[NextStep]:
    """`Drafter.plan_next` of anything that can guess: nothing, of what was not made to tell."""
    plan_next = getattr(drafter, "plan_next", None)
    return [None] * len(drafter_states) if plan_next is None else plan_next(drafter_states, drafts)


@register("plain")
@dataclass(frozen=True)
class Nothing(Drafter):
    """Guesses nothing: plain decoding."""

    def start(self, session: SessionView, model: Any, snapshot: Any = None) -> DrafterState:  # noqa: ARG002
        """There is nothing to remember of any session."""
        return _NO_DRAFT_STATE

    def plan_next(self, drafter_states: Sequence[DrafterState], drafts: Sequence[Draft]) -> list[NextStep]:  # noqa: ARG002
        """It never guesses."""
        return [NO_DRAFT] * len(drafter_states)


class _NoDraftState:
    capture: tuple[int, ...] = ()

    def propose(self, max_draft: int) -> Draft:  # noqa: ARG002
        return EMPTY

    def observe(self, out: Forward, rows: Rows) -> None:
        pass

    def snapshot(self) -> None:
        pass

    def close(self) -> None:
        pass


_NO_DRAFT_STATE = _NoDraftState()
_NOTHING = Nothing()


@dataclass(frozen=True, repr=False)
class Strategy:
    """Who guesses, in what shape, and what watches over it. Holds settings, no request; no strategy changes the text.

    ``strategy | recovery`` is the strategy with one more recovery.

    Parameters
    ----------
    drafter : Drafter or str
        Who guesses; a name of `dflash.decode.registry` may bring the shape along, as ``"ddtree:22"``.
    shape : optional
        How the drafter's candidates become a draft, where it leaves that open: `Chain` if None.
    recoveries : tuple
        Watches that may step in, the innermost first.

    Raises
    ------
    RequestError
        If there is no such name, or it brings a shape where another is given, or something else is given for one of them.
    """

    drafter: Drafter = _NOTHING
    shape: Any = None
    recoveries: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        """Put what a name stands for in its place."""
        if self.shape is not None and (isinstance(self.shape, type) or not hasattr(self.shape, "wants")):
            raise RequestError(f"strategy: wanted a shape, as Chain(3) or Tree(22), got {self.shape!r:.80}")
        if not isinstance(self.drafter, str):
            if isinstance(self.drafter, type) or not (hasattr(self.drafter, "start") and hasattr(self.drafter, "propose")):
                raise RequestError(f"strategy: wanted a name, a Strategy or a drafter, got {self.drafter!r:.80}")
            return
        named = parse(self.drafter)
        if named.shape is not None and self.shape is not None:
            raise RequestError(
                f"strategy {self.drafter!r}: has a shape of its own, {named.shape!r}, got {self.shape!r}, too"
            )
        object.__setattr__(self, "shape", self.shape if named.shape is None else named.shape)
        object.__setattr__(self, "drafter", named.drafter)

    @classmethod
    def of(cls, value: Strategy | Drafter | str | None) -> Strategy:
        """Take what a caller may give for a strategy: one, its name, a drafter by itself, or None for plain decoding.

        Raises
        ------
        RequestError
            If it is something else, or there is no such name.
        """
        if isinstance(value, cls):
            return value
        if value is None:
            return cls()
        return cls.named(value) if isinstance(value, str) else cls(value)

    @classmethod
    def named(cls, text: str, draft: str | None = None, **options: Any) -> Strategy:
        """Make the strategy that a name stands for, as `dflash.decode.registry.parse` reads it with these draft options."""
        return cls(*parse(text, draft, **options))

    def __or__(self, recovery: Any) -> Strategy:
        return replace(self, recoveries=(*self.recoveries, recovery))

    def __repr__(self) -> str:
        shape = f", shape={self.shape!r}" if self.shape is not None else ""
        plain = self.drafter == _NOTHING and not shape
        name = "Plain()" if plain else f"Strategy({self.drafter!r}{shape})"
        return " | ".join([name, *map(repr, self.recoveries)])


def Plain() -> Strategy:  # noqa: N802
    """Decode token by token, without guesses."""
    return Strategy()
