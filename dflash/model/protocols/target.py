"""Protocols of a target model: all that decoding may use of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from dflash.model.attachments import Attachments
from dflash.model.batch import Forward, Span
from dflash.model.protocols.sequence import SequenceState


class ModelSizes(Protocol):
    """Sizes of a model that decoding reads; never change."""

    @property
    def context(self) -> int:
        """Most tokens of a sequence. Read at admission, and by drafters that bound their drafts."""

    @property
    def pending(self) -> int:
        """Most pending rows of a sequence: its last token and draft tokens. The engine never plans more; never changes."""

    @property
    def width(self) -> int:
        """Elements of a hidden state. Read by `warm`, which chooses a prompt length that uses all cores."""

    @property
    def n_layers(self) -> int:
        """Number of layers whose outputs can be captured. Read by `LM.hidden_states`."""


class MemoryPools(Protocol):
    """Memory of a model that sequences share. Numbers of free parts change with every sequence that starts or ends."""

    @property
    def pages(self) -> int:
        """Number of KV pages, free or not. Read at admission, to refuse what never fits; never changes."""

    @property
    def slots(self) -> int:
        """Most sequences that may be open. Bounds the active sessions and the memory of drafters; never changes."""

    @property
    def free_pages(self) -> int:
        """Number of free KV pages. Read in the model's thread before a session is admitted."""

    @property
    def free_slots(self) -> int:
        """Number of sequences that may still be opened. Read in the model's thread before a session is admitted."""

    def n_holders(self, page: int) -> int:
        """Return how many sequences and snapshots hold a KV page. Called in the model's thread by the prefix cache."""


class TargetModel(Protocol):
    """A model as the engine, drafters and measurements see it.

    Members that never change may be read from any thread. Methods, `pools` and `attachments` belong to the thread that owns
    the model; the engine calls them there. Implemented by `dflash.model.model.Model` and
    `dflash.model.cuda.model.DeviceModel`.
    """

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda"``. Read by warm-up and measurements, since launches on a GPU overlap; never changes."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids; ids are smaller. Checked at admission and for every draft; never changes."""

    @property
    def config(self) -> ModelSizes:
        """Sizes of the model."""

    @property
    def max_rows(self) -> int:
        """Most rows of a forward. The engine never plans more; never changes."""

    @property
    def chunk_alignment(self) -> int:
        """Multiple of positions at which chunks of a prompt must begin. The batch plan obeys it; never changes."""

    @property
    def max_state_copies(self) -> int:
        """Most `Span.copies` of a forward. With 0, chunks of prompts end where a state is saved; never changes."""

    @property
    def can_overlap(self) -> bool:
        """True if the model is an `OverlappingModel`; see `overlaps`. Never changes."""

    @property
    def pools(self) -> MemoryPools:
        """Memory that sequences share."""

    @property
    def attachments(self) -> Attachments:
        """Objects that drafters have loaded for this model, by drafter. `Engine.close` closes them."""

    def state(self) -> SequenceState:
        """Begin a sequence. Called at admission; the caller closes the state.

        Raises
        ------
        PoolExhausted
            If every slot is in use.
        """

    def forward(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """Read tokens of one or more sequences, once a step. Commits prefill spans; rows of other spans stay pending.

        Parameters
        ----------
        spans : sequence of Span
            Spans of states of this model, at most one for each; at most `max_rows` rows in all.
        capture : tuple of int
            Layers whose outputs drafters need.

        Returns
        -------
        Forward
            Valid until the next forward of this model. Arrays of a GPU may still be being computed.

        Raises
        ------
        RequestError, PoolExhausted, KernelError
            If a token, a layer, the memory or the batch does not fit; no span was read then.
        """

    def finish(self) -> None:
        """Wait for all launched work. Called by measurements, around what they time."""

    def warm(self) -> None:
        """Compile and capture all that a forward needs. Called once, by `dflash.decode.warmup.warm`, with no open sequence.

        The results of the last forward are lost.
        """


class OverlappingModel(TargetModel, Protocol):
    """A model that can read tokens which its device is still sampling, such as `DeviceModel`."""

    @property
    def latest(self) -> Forward | None:
        """Result of the last forward; None after `warm`.

        `OverlappedStep.take` compares it with the forward that was launched ahead: any other forward makes that invalid.
        """

    @property
    def most_overlapped(self) -> int:
        """Most sequences of `forward_overlapped`. Read by the engine before it launches a step ahead; never changes."""

    def forward_before(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """Read tokens as `forward` does; the results stay valid until the next forward but `forward_behind`."""

    def forward_behind(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """Read prompts as `forward` does, without logits, and leave the results of `forward_before` alone.

        Called once between two forwards, after sampling was launched: its tokens reach the host before the prompts are read.
        """

    def forward_overlapped(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """Read one more token of each sequence: the token that is being sampled from its row of the last forward.

        Called by the engine after sampling was launched and before a token is known on the host.

        Parameters
        ----------
        spans : sequence of Span
            Spans of the last forward, in its order and each of one pending row, but for those whose sequences end; nothing
            was committed since.
        capture : tuple of int
            See `TargetModel.forward`.

        Returns
        -------
        Forward
            Results by these spans. The states do not record this forward: the engine calls `SequenceState.mark_read` once
            the row before is committed.
        """


def overlaps(model: TargetModel) -> TypeGuard[OverlappingModel]:
    """Return True if forwards of a model may be launched before the tokens that they read reach the host."""
    return model.can_overlap
