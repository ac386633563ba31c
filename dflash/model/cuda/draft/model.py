"""A block draft on a GPU: the same face as `dflash.model.draft.model.BlockDraft`, and guesses that stay on the device."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from dflash.errors import KernelError, RequestError, Unsupported
from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.device import DeviceBatch
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.ragged import PENDING
from dflash.kernels.sample import Law
from dflash.kernels.sample.cuda_pairs import Pairs
from dflash.kernels.tree.cuda import SEQUENCES, Plant, Walk
from dflash.model.candidates import Candidates
from dflash.model.cuda.device_drafts import Guesses, may_follow, most_rows
from dflash.model.cuda.draft.block import Block
from dflash.model.cuda.draft.context import Context
from dflash.model.cuda.draft.feature_buffer import Kept
from dflash.model.cuda.draft.markov import Markov
from dflash.model.cuda.draft.rings import DeviceRings
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.context import Rows
from dflash.model.draft.request import Ask, Wish
from dflash.model.draft.source import Source
from dflash.model.draft.state import DraftSnapshot, DraftState
from dflash.model.draft.vocabulary import Vocabulary

_MOST_HEAD, _MOST_SHARE, _MOST_TOP = 256, 64, 32


class DeviceBlockDraft:
    """Guesses a block of tokens at once, for several texts together, on the GPU of its target.

    Parameters
    ----------
    config : DraftConfig
    source : Source
        Weights of the same file; they are read once and kept on the device, repacked.
    target : DeviceModel
        Its embedding and head are used unless the file has others, and its batches are followed.
    vocabulary : Vocabulary
        The tokens that are guessed.
    common : sequence of Vocabulary
        Those that do for texts that keep to them, from fewer to more; not of a draft with a soft cap on its logits.
    sequences : int
        Texts that may be in work at a time.
    context : int
        Positions that layers without a window see.
    short : bool
        Taken as False: rows of a block cost the same up to 16.
    confidence : float
        As of `BlockDraft`. What lies further stands in the pass as guesses that are nearly never right, so that the step can
        be launched before anybody knows how far it goes.

    Attributes
    ----------
    config : DraftConfig
    reach : int
        Most positions of a text that are kept.
    most_texts : int
        Most that one pass guesses for.
    common : sequence of Vocabulary
        As given, where they are used.
    latest : Guesses or None
        Those that lie on the device.

    Raises
    ------
    Unsupported
        If it is of a kind that is run on the CPU alone.
    OutOfMemory
        If the device has no room for it.
    """

    device = "cuda"

    def __init__(
        self,
        config: DraftConfig,
        source: Source,
        target: DeviceModel,
        vocabulary: Vocabulary,
        *,
        common: Sequence[Vocabulary] = (),
        sequences: int,
        context: int,
        short: bool = False,  # noqa: ARG002
        confidence: float = 0.0,
    ) -> None:
        _refuse(config)
        self.config, self._source, self._target = config, source, target
        # a cap would bring what lies far below up to all others
        self.common = common = () if config.logit_cap else common
        self._rings = rings = DeviceRings(config, sequences, context)
        self.reach = rings.reach
        self.most_texts = n = max(1, min(PENDING // config.block, sequences, SEQUENCES))
        with device.device_errors(f"the draft ({config.kind})"), Staging(target.threads) as staging:
            weights, theirs = DeviceWeights(source, staging), target.weights
            embedding = (weights if source.has("token_embd.weight") else theirs).matrix("token_embd.weight")
            output = "token_embd.weight" if target.config.tied else "output.weight"
            head = weights.matrix("output.weight") if source.has("output.weight") else theirs.matrix(output)
            self._context = Context(weights, config, rings)
            about = {"n_texts": n, "confidence": confidence, "scratch": target.scratch()}
            self._block = Block(weights, config, rings, (embedding, head), vocabulary=vocabulary, common=common, **about)
        self.weights = weights
        shape = {"rows": config.block, "places": rings.size, "mask": config.mask}
        context, block = self._context.arrays, self._block.arrays
        self._walk = Walk(target.batch, target.drawn, context, self._block.out, block=block, **shape)
        self._plant = Plant(self._block.out, target.batch)
        self._kept = Kept(config.taps, rings.slots, config.width)
        self._ahead: Guesses | None = None
        self.latest: Guesses | None = None
        jit.warm()

    @property
    def free_slots(self) -> int:
        """Texts that could still be begun."""
        return self._rings.free

    def warm(self) -> Iterator[None]:
        """Capture the target's passes, and those of a chain for one text, one between two ``yield``."""
        for n in (1, self.config.most + 1):
            self._target.prepare([n], tuple(sorted(self.config.taps)))
            yield
            self._context.prepare(n)
            yield
        state, most = self.state(), self.config.most
        try:
            for law, some in product((Law(), Law(1.0)), (None, *range(len(self.common)))):
                self._block.prepare([Wish(state, law, most, 1, most, some)])
                yield
        finally:
            state.close()

    def state(self, begin: int = 0) -> DraftState:
        """Begin a text; see `BlockDraft.state`."""
        return _State(self, self._rings, begin)

    def read(self, state: DraftState, features: Mapping[int, Any], rows: Rows) -> None:
        """Append the next positions of one text to its context; see `BlockDraft.read_many`."""
        self.read_many([(state, rows)], features)

    def read_many(self, items: Sequence[tuple[DraftState, Rows]], features: Mapping[int, Any]) -> None:
        """Append the next positions of several texts to their contexts; see `BlockDraft.read_many`.

        What `follow` has read already is not read again; a few rows are kept until guesses are wanted.
        """
        unread: list[tuple[DraftState, Rows]] = []
        for state, rows in items:
            if self._ahead is not None and self._ahead.expects(state, features):
                self._ahead.told(state, len(range(PENDING)[rows]) if isinstance(rows, slice) else len(rows))
            elif not self._kept.add(state, features, rows):
                self.catch_up([state])
                if not self._kept.add(state, features, rows):
                    unread.append((state, rows))
        if unread:
            self._context.read(unread, features)

    def catch_up(self, states: Sequence[DraftState]) -> None:
        """Read what was kept of some texts."""
        items, features = self._kept.take(states)
        if items:
            self._context.read(items, features)

    def forget(self, state: DraftState) -> None:
        """Drop what was kept of a text."""
        self._kept.take([state])

    def propose(self, asks: Sequence[Ask]) -> list[Candidates]:
        """Guess what follows the last token of each text; see `BlockDraft.propose`."""
        if asks:
            self._check(asks)
        found: list[Candidates] = []
        for start in range(0, len(asks), self.most_texts):
            part = asks[start : start + self.most_texts]
            wishes = [Wish(ask.state, ask.law, ask.n, ask.width, ask.n, ask.common) for ask in part]
            self._guess(wishes, [ask.anchor for ask in part], candidates=True)
            with device.device_errors("a draft"):
                reach = [self.config.most] * len(part) if self._block.reach is None else self._block.reach.get().tolist()
                for i, ask in enumerate(part):
                    first = i * self.config.block + self.config.lead
                    found.append(self._found(ask, slice(first, first + min(ask.n, reach[i]))))
        return found

    def _found(self, ask: Ask, rows: slice) -> Candidates:
        """What the rows of a block have found, fetched."""
        found: Any = self._block.candidates
        if isinstance(found, Markov) and ask.width > 1:
            found = found.pairs
        width = self._block.width(ask.width, pairs=isinstance(found, Pairs))
        edges = found.edges[rows].get()[:, :width, :width] if isinstance(found, Pairs) else None
        return Candidates(found.ids[rows].get()[:, :width], found.scores[rows].get()[:, :width], edges)

    def guess(self, wishes: Sequence[Wish], anchors: Sequence[int]) -> Guesses | None:
        """Guess trees that stay on the device, unless that was begun by `follow`.

        Parameters
        ----------
        wishes : sequence of Wish
        anchors : sequence of int
            The last token of each text.

        Returns
        -------
        Guesses or None
            They may still be being computed. None if there are too many texts for one pass.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.fit(wishes, anchors):
            return ahead
        if len(wishes) > self.most_texts:
            return None
        self._guess(wishes, anchors)
        self.latest = Guesses(self, wishes, self._block.out, anchors)
        return self.latest

    def follow(self, wishes: Sequence[Wish], order: Sequence[int]) -> bool:
        """As `Guesser` says."""
        target, n = self._target, len(wishes)
        self.catch_up([wish.state for wish in wishes])
        if n > self.most_texts or not may_follow(target, wishes, order):
            return False
        features = target.latest.captured
        if not all(tap in features for tap in self.config.taps):
            return False
        size = self._context.prepare(most_rows(target, order))
        block = self._block.prepare(wishes)
        self._context.lay([wish.state for wish in wishes], features)
        self._block.lay(wishes)
        self._walk(order)
        self._context.run(size)
        self._block.run(block)
        self._ahead = self.latest = Guesses(self, wishes, self._block.out, None).follows(features)
        return True

    def planter(self, batch: DeviceBatch) -> Plant:
        """As `Guesser` says."""
        assert batch is self._target.batch
        return self._plant

    def close(self) -> None:
        """Let go of the file."""
        self._source.close()

    def _guess(self, wishes: Sequence[Wish], anchors: Sequence[int], *, candidates: bool = False) -> None:
        self.catch_up([wish.state for wish in wishes])
        size = self._block.prepare(wishes, candidates=candidates)
        self._ahead = self.latest = None
        self._block.lay(wishes, anchors)
        self._block.run(size)

    def _check(self, asks: Sequence[Ask]) -> None:
        if len({ask.state.slot for ask in asks}) < len(asks) or any(ask.state.closed for ask in asks):
            raise KernelError("propose: every ask must be of another state, which is not closed")
        for ask in asks:
            if not 0 <= ask.anchor < self._target.n_vocab:
                raise RequestError(f"token {ask.anchor} is not in the vocabulary: ids are 0 to {self._target.n_vocab - 1}")
            if not 1 <= ask.n <= self.config.most:
                raise RequestError(f"n is {ask.n}, this draft guesses 1 to {self.config.most} positions")


class _State(DraftState):
    """The context of one text, of which the last rows may not have been read."""

    def __init__(self, draft: DeviceBlockDraft, rings: DeviceRings, begin: int) -> None:
        super().__init__(rings, begin)
        self._draft: DeviceBlockDraft | None = draft

    def snapshot(self) -> DraftSnapshot:
        """As of `DraftState`."""
        if self._draft is not None:
            self._draft.catch_up([self])
        return super().snapshot()

    def close(self) -> None:
        """As of `DraftState`."""
        draft, self._draft = self._draft, None  # which may remember this state
        if draft is not None:
            draft.forget(self)
        super().close()


def _refuse(config: DraftConfig) -> None:
    """Refuse sizes that the kernels of a GPU have no room for."""
    share = config.heads // config.kv_heads
    for what, size, fits, room in (
        ("heads of", config.head_size, config.head_size <= _MOST_HEAD, f"up to {_MOST_HEAD} numbers"),
        ("heads that share keys:", share, share <= _MOST_SHARE, f"up to {_MOST_SHARE}"),
        ("candidates of a selector:", config.selector_top, config.selector_top <= _MOST_TOP, f"up to {_MOST_TOP}"),
    ):
        if not fits:
            raise Unsupported(
                f"draft: {what} {size}, a GPU runs {room}; draft_device='cpu' runs this draft beside a model on one"
            )
