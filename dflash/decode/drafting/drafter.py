"""The protocol of a drafter, and `Strategy`: a drafter with a shape and recoveries."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.shapes import Chain, Shape
from dflash.decode.registry import parse, register
from dflash.decode.step import Step
from dflash.decode.verifiers.base import COUPLED, Verifier
from dflash.decode.view import SessionView
from dflash.errors import RequestError
from dflash.model.batch import Forward
from dflash.model.draft.request import DraftRequest
from dflash.model.protocols.device_drafter import DeviceDrafter
from dflash.model.protocols.target import TargetModel

if TYPE_CHECKING:
    from dflash.decode.recoveries.base import Recovery
    from dflash.model.state.host_arrays import HostArrays

Rows = slice | Sequence[int]
"""Rows of `Forward.hidden` and `Forward.captured`."""


class DraftPlan(NamedTuple):
    """Plan of a session's next step before the tokens of the step before it are known.

    drafter: drafter whose device can begin with the draft while the token above it is being sampled; None for `NO_DRAFT`.
    request: size and sampling of the draft, and a state of this drafter.
    """

    drafter: DeviceDrafter | None = None
    request: DraftRequest[Any] | None = None


NO_DRAFT = DraftPlan()
"""Plan of a step without draft tokens."""


class DrafterSnapshot(Protocol):
    """Copy of a `DrafterState`, from which `Drafter.start` of an equal drafter begins."""

    def close(self) -> None:
        """Release the memory of the copy. Called once, between two steps; states that began with it live on."""


class DrafterState(Protocol):
    """A drafter's state for one session. The engine calls all methods, in its own thread.

    A state whose memory grows with the sequence also defines ``reserve(length)``: it takes memory to read `length` tokens of
    the sequence, or raises `PoolExhausted`. It is called after `Drafter.start` and before each step that decodes.
    """

    if TYPE_CHECKING:

        @property
        def capture(self) -> tuple[int, ...]:
            """Target layers whose outputs `observe` needs, often none. Read before every forward; constant."""

    else:
        capture: tuple[int, ...]  # without a value: a derived class that lacks it is refused

    def propose(self, max_draft: int) -> Draft:
        """Return draft tokens to follow ``session.token_ids``; those beyond `max_draft` are dropped.

        `Drafter.propose` calls it once a step, after all earlier rows were observed. `max_draft` may be 0.
        """

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:
        """Receive a step and its rows of a forward that are part of the sequence now, in their order.

        Called once for each chunk of the prompt, with a slice: all prompt tokens but the last. If the session was preempted,
        the chunks include its output tokens, all but the last. After prefill it is called once a step, with the row of the
        token that was last before the step and the rows of the accepted draft tokens.

        ``session.token_ids`` contains the new tokens, unless the next step was planned as `NO_DRAFT`: then it may lack the
        newest one, and `step` lacks tokens and times. `step` never holds `Step.commit`, `Step.note` and `Step.by`. `out` is
        valid until the next forward, so keep copies only.
        """

    def snapshot(self) -> DrafterSnapshot | None:
        """Return a copy of the state for `Drafter.start`, or None if it need not be copied.

        Called between two steps.
        """

    def close(self) -> None:
        """Release all memory. Called once: when the session ends, restarts, is preempted or changes its drafter."""


D = TypeVar("D", bound=DrafterState)


class Drafter(Protocol[D]):
    """Proposes draft tokens, all of which the target verifies. Holds settings, no request.

    Equal drafters propose together, once a step for all of their sessions. Drafters that load files for a model derive
    from `dflash.decode.drafters.loading.LoadingDrafter`. `D` is the type of its states; the engine passes it no others.

    Attributes
    ----------
    instant : bool
        True if proposing takes next to no time.
    parts : tuple of Drafter
        Drafters that this one consists of. They are prepared before it.
    needs_all : bool
        True if the drafter cannot be used without all of its parts.
    chooses_size : bool
        True if the drafter itself weighs the gain of each draft token against its cost.
    """

    instant: bool = False
    chooses_size: bool = False
    parts: tuple[Drafter, ...] = ()
    needs_all: bool = True

    def prepare(self, model: TargetModel) -> None:  # noqa: ARG002
        """Load what is needed to draft for a model. Called in the thread that owns the model; harmless if done before.

        Raises
        ------
        DFlashError
            If the drafter does not fit the model; one sentence says why.
        """
        return

    def is_prepared(self, model: TargetModel) -> bool:  # noqa: ARG002
        """Return True if `prepare` would do nothing. Called from any thread."""
        return getattr(self.prepare, "__func__", None) is Drafter.prepare

    def prepare_in_parts(self, model: TargetModel) -> Generator[None, None, None]:
        """Do the work of `prepare`, without `parts`, in short pieces so that other sessions continue meanwhile.

        The piece before the first ``yield`` runs in any thread. It may read and download files and compile kernels, and
        may read only members of the model that never change. Each further piece runs in the thread that owns the model,
        between two steps. If preparation is cancelled, the generator is closed.
        """
        yield
        self.prepare(model)

    def start(self, session: SessionView, model: TargetModel, snapshot: Any = None) -> D:
        """Return the state for a session. Called before its first forward, and again if it restarts or was preempted.

        Parameters
        ----------
        session : SessionView
            The first ``session.n_prefilled`` tokens are in the target's state already and are never observed.
        model : TargetModel
            The target.
        snapshot : DrafterSnapshot, optional
            Result of `DrafterState.snapshot` of an equal drafter after these tokens; None if there is none.
        """

    def can_start_at(self, model: TargetModel, n_prompt: int, length: int, snapshot: Any = None) -> bool:  # noqa: ARG002
        """Return True if a state that starts after `length` prompt tokens drafts like one that has observed all of them.

        Called by the prefix cache after `prepare`: where it is False, the session begins with a shorter prefix, so that
        saved states never change what is accepted. By default True for an `instant` drafter and with a snapshot.

        Parameters
        ----------
        n_prompt : int
            Tokens of the prompt; more than `length`.
        snapshot : DrafterSnapshot, optional
            As in `start`.
        """
        return self.instant or snapshot is not None

    def snapshot_from_host(self, model: TargetModel, arrays: HostArrays) -> Any:  # noqa: ARG002
        """Return a snapshot for `start` from the arrays of its method ``host_arrays``; None if the drafter can't.

        Called after `prepare`, in the thread that owns the model, with arrays that an equal drafter has saved. Snapshots
        without a method ``host_arrays`` are not saved: the drafter starts at the end of the prefix.

        Raises
        ------
        FormatError
            If an array is missing or does not fit. Then the drafter starts without.
        PoolExhausted, OutOfMemory
            If there is no memory.
        """
        return None

    def propose(self, drafter_states: Sequence[D], max_drafts: Sequence[int]) -> list[Draft]:
        """Return drafts for several sessions, one each. Called once a step; the default asks one state after another.

        ``max_drafts[i]`` bounds draft i. An exception ends all these sessions.
        """
        return [
            drafter_state.propose(max_draft) for drafter_state, max_draft in zip(drafter_states, max_drafts, strict=True)
        ]

    def end_step(self, drafter_states: Sequence[D]) -> None:  # noqa: ARG002
        """Finish together what these states noted in `observe`; the default does nothing.

        Called once after each forward, when all of its rows were observed and before another forward overwrites them. An
        exception ends all these sessions. `DrafterState.snapshot` may be called before.
        """
        return

    def plan_next(self, drafter_states: Sequence[D], drafts: Sequence[Draft]) -> list[DraftPlan | None]:  # noqa: ARG002
        """Return the plans of several sessions for the next step, so that the device can begin with it. None plans nothing.

        Called while the forward of the present step runs, only if the model can overlap steps. A session without draft
        tokens whose plan is `NO_DRAFT` may continue without a call of `propose`.

        Parameters
        ----------
        drafts : sequence of Draft
            Drafts of the present step, of which it is not known yet how many tokens are accepted.
        """
        return [None] * len(drafter_states)

    def __hash__(self) -> int:
        """Return a hash, equal for equal drafters. Called once a step: the engine asks equal drafters together."""
        return object.__hash__(self)

    def __or__(self, recovery: Recovery) -> Strategy:
        """Return a strategy of this drafter with a recovery."""
        return Strategy(self) | recovery


def is_prepared(drafter: Drafter, model: TargetModel) -> bool:
    """Return `Drafter.is_prepared` of any drafter; False if it defines only `prepare`."""
    return False if _overrides_prepare(drafter, "is_prepared") else drafter.is_prepared(model)


def prepare_in_parts(drafter: Drafter, model: TargetModel) -> Generator[None, None, None]:
    """Return `Drafter.prepare_in_parts` of any drafter; a single piece if it defines only `prepare`."""
    whole = _overrides_prepare(drafter, "prepare_in_parts")
    return Drafter.prepare_in_parts(drafter, model) if whole else drafter.prepare_in_parts(model)


def _overrides_prepare(drafter: Drafter, name: str) -> bool:
    """Return True if a drafter overrides `prepare` below the class that defines the method `name`, or lacks that method."""
    if not hasattr(drafter, name) or "prepare" in getattr(drafter, "__dict__", ()):
        return True
    kinds = type(drafter).__mro__
    own, other = (next(i for i, kind in enumerate(kinds) if each in vars(kind)) for each in ("prepare", name))
    return own < other and kinds[other] is not Drafter


def reserve_draft(drafter_state: DrafterState, length: int) -> None:
    """Call ``reserve(length)`` of a drafter's state, if it defines the method; see `DrafterState`."""
    function = getattr(drafter_state, "reserve", None)
    if function is not None:
        function(length)


def can_start_at(drafter: Drafter, model: TargetModel, n_prompt: int, length: int, snapshot: Any) -> bool:
    """Return `Drafter.can_start_at` of any drafter; the default if it does not define the method."""
    function = getattr(drafter, "can_start_at", None)
    if function is None:
        return snapshot is not None or getattr(drafter, "instant", False)
    return function(model, n_prompt, length, snapshot)


def snapshot_draft(drafter_state: DrafterState) -> Any:
    """Return `DrafterState.snapshot` of any drafter's state; None if it does not define the method."""
    function = getattr(drafter_state, "snapshot", None)
    return None if function is None else function()


def end_step(drafter: Drafter, drafter_states: Sequence[DrafterState]) -> None:
    """Call `Drafter.end_step` of any drafter, if it defines the method."""
    function = getattr(drafter, "end_step", None)
    if function is not None:
        function(drafter_states)


def planned_next(
    drafter: Drafter, drafter_states: Sequence[DrafterState], drafts: Sequence[Draft]
) -> list[DraftPlan | None]:
    """Return `Drafter.plan_next` of any drafter; None for each session if it does not define the method."""
    plan_next = getattr(drafter, "plan_next", None)
    return [None] * len(drafter_states) if plan_next is None else plan_next(drafter_states, drafts)


@register("plain")
@dataclass(frozen=True)
class Nothing(Drafter[DrafterState]):
    """Proposes no draft tokens: plain decoding."""

    def start(self, session: SessionView, model: TargetModel | None, snapshot: Any = None) -> DrafterState:  # noqa: ARG002
        """Return the same empty state for all sessions."""
        return _NO_DRAFT_STATE

    def can_start_at(self, model: TargetModel, n_prompt: int, length: int, snapshot: Any = None) -> bool:  # noqa: ARG002
        """Return True: there is no state."""
        return True

    def plan_next(self, drafter_states: Sequence[DrafterState], drafts: Sequence[Draft]) -> list[DraftPlan | None]:  # noqa: ARG002
        """Plan `NO_DRAFT` for every session."""
        return [NO_DRAFT] * len(drafter_states)


class _NoDraftState:
    capture: tuple[int, ...] = ()

    def propose(self, max_draft: int) -> Draft:  # noqa: ARG002
        return EMPTY

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:
        pass

    def snapshot(self) -> None:
        pass

    def close(self) -> None:
        pass


_NO_DRAFT_STATE = _NoDraftState()
_NOTHING = Nothing()


@dataclass(frozen=True, repr=False)
class Strategy:
    """A drafter, the shape of its drafts, and recoveries. Holds settings, no request.

    Drafter and shape never change the output tokens; recoveries may, and verifiers but `Coupled` do. ``strategy | recovery``
    is the strategy with one more recovery.

    Parameters
    ----------
    drafter : Drafter or str
        A drafter or a name as `dflash.decode.registry` parses it. A name may include the shape, as ``"ddtree:22"``.
    shape : optional
        Makes drafts from the drafter's candidates: a `Chain` or a `Tree`. `Chain()` if None.
    recoveries : tuple
        Recoveries that check each step, the innermost first.
    verifier : Verifier
        Decides which draft tokens are accepted: `Coupled` (bit for bit the tokens of plain decoding), `RejectionSampling`
        and `BlockVerification` (its distribution), `Typical` (lossy), or `SyntheticAcceptance` (to measure speed; the text
        is meaningless). All but the last give the tokens of plain decoding at temperature 0.

    Raises
    ------
    RequestError
        If there is no such name, if both the name and `shape` give a shape, if an argument is of another type, or if the
        verifier needs chains, sampled from the drafter's distribution, which shape or drafter do not make.
    """

    drafter: Drafter = _NOTHING
    shape: Shape | None = None
    recoveries: tuple[Recovery, ...] = ()
    verifier: Verifier = COUPLED

    if TYPE_CHECKING:

        def __init__(
            self,
            drafter: Drafter | str = _NOTHING,
            shape: Shape | None = None,
            recoveries: tuple[Recovery, ...] = (),
            verifier: Verifier = COUPLED,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the arguments and replace a name by its drafter and shape."""
        if self.shape is not None and (isinstance(self.shape, type) or not hasattr(self.shape, "wants")):
            raise RequestError(f"strategy: wanted a shape, as Chain(3) or Tree(22), got {self.shape!r:.80}")
        if not isinstance(self.drafter, str):
            if isinstance(self.drafter, type) or not (hasattr(self.drafter, "start") and hasattr(self.drafter, "propose")):
                raise RequestError(f"strategy: wanted a name, a Strategy or a drafter, got {self.drafter!r:.80}")
            _check_hash(self.drafter)
            self._check_verifier()
            return
        named = parse(self.drafter)
        if named.shape is not None and self.shape is not None:
            raise RequestError(f"strategy {self.drafter!r}: has a shape of its own, {named.shape!r}, got {self.shape!r}")
        object.__setattr__(self, "shape", self.shape if named.shape is None else named.shape)
        object.__setattr__(self, "drafter", named.drafter)
        self._check_verifier()

    def _check_verifier(self) -> None:
        if isinstance(self.verifier, type) or not hasattr(self.verifier, "guarantee"):
            raise RequestError(f"strategy: wanted a verifier, as RejectionSampling(), got {self.verifier!r:.80}")
        if not self.verifier.draws:
            return
        if self.shape is not None and not isinstance(self.shape, Chain):
            raise RequestError(f"strategy: {self.verifier!r} needs a chain of draft tokens, got {self.shape!r}; use Chain()")
        if getattr(self.drafter, "chooses_size", False):
            raise RequestError(
                f"strategy: {self.verifier!r} needs a drafter that does not choose draft sizes, got {self.drafter!r:.80}"
            )

    @classmethod
    def of(cls, value: Strategy | Drafter | str | None) -> Strategy:
        """Return the strategy for a strategy, a name, a drafter, or None for plain decoding."""
        if isinstance(value, Strategy):
            return value
        if value is None:
            return cls()
        return cls.named(value) if isinstance(value, str) else cls(value)

    @classmethod
    def named(cls, text: str, draft: str | None = None, **options: Any) -> Strategy:
        """Make the strategy that a name stands for, as `dflash.decode.registry.parse` reads it with these draft options."""
        return cls(*parse(text, draft, **options))

    def __or__(self, recovery: Recovery) -> Strategy:
        return replace(self, recoveries=(*self.recoveries, recovery))

    def __repr__(self) -> str:
        shape = f", shape={self.shape!r}" if self.shape is not None else ""
        shape += f", verifier={self.verifier!r}" if self.verifier != COUPLED else ""
        plain = self.drafter == _NOTHING and not shape
        name = "Plain()" if plain else f"Strategy({self.drafter!r}{shape})"
        name += " [lossy]" if self.verifier.guarantee == "lossy" else ""
        return " | ".join([name, *map(repr, self.recoveries)])


def _check_hash(drafter: Drafter) -> None:
    """Raise a RequestError if a drafter can't be a key: equal drafters propose together."""
    try:
        hash(drafter)
    except RecursionError:
        return  # nested too deep: its session ends with this error when it starts
    except TypeError as error:
        raise RequestError(
            f"strategy: a drafter must be a frozen dataclass with hashable fields, got {drafter!r:.80}"
        ) from error


def Plain() -> Strategy:  # noqa: N802
    """Return the strategy of plain decoding: one token a step, no draft tokens."""
    return Strategy()
