"""State of `Adaptive` for one session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dflash.decode.drafters.adaptive.acceptance import RequestBias, all_right
from dflash.decode.drafters.adaptive.controller import Controller
from dflash.decode.drafters.adaptive.draft_choice import BatchLoad, DraftChoice, PlacedChoice
from dflash.decode.drafters.adaptive.draft_option import DraftOption
from dflash.decode.drafters.composite import CompositeState
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import DrafterState, Rows

if TYPE_CHECKING:
    from dflash.decode.drafters.adaptive.cost_model import CostTable
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward

_COST_LIFETIME = 8
"""Steps for which a cost table is used before a new one is made."""

_NO_LOAD = BatchLoad()


class _Observed(NamedTuple):
    """A draft that was verified, and the indices of its accepted tokens."""

    choice: DraftChoice
    draft: Draft
    expected: list[float] | None
    drafted: int
    right: list[int]


class AdaptiveState(CompositeState):
    """Draft choices of one session.

    Attributes
    ----------
    controller : Controller
    choice : DraftChoice
        Choice of the present step.
    next : DraftChoice or None
        Choice of the next step if it was made already.
    drafted : int
        Draft tokens that are verified in the present step.
    rows, tokens : float
        Moving averages of rows and tokens of its steps.
    others : BatchLoad
        Rows and tokens of the other sessions.
    max_draft : int
        Most draft tokens in the last step that allowed any.
    open : bool
        True if instant drafters are to be asked before the next step.
    found : dict of DraftOption to (Draft, list of float)
        Drafts of instant drafters, made before anything is chosen, and their acceptance rates.
    """

    def __init__(self, controller: Controller, session: SessionView, parts: list[DrafterState]) -> None:
        super().__init__(parts)
        self.controller, self.session, self.choice, self.drafted = controller, session, DraftChoice(None), 0
        self.next: DraftChoice | None = None
        self.rows, self.tokens, self.others, self.max_draft = 1.0, 1.0, _NO_LOAD, 0
        self.open = True
        self.found: dict[DraftOption, tuple[Draft, list[float]]] = {}
        self._n_at_proposal = 0
        self._drawn = session.sampler.params.scale is not None
        self._drafted_bias, self._instant_bias = RequestBias(), RequestBias()
        self._draft = EMPTY
        self._expected: list[float] | None = None
        self._reach = 0
        self._observed: list[_Observed] = []
        self._costs: CostTable
        self._left = 0

    def observe(self, out: Forward, rows: Rows) -> None:
        """Pass the rows to each drafter and store the outcome of the draft.

        Learning is left to `propose_instant`: a GPU may be waiting, and the newest token may not be known yet.
        """
        super().observe(out, rows)
        if isinstance(rows, slice):
            return
        self.rows += 0.2 * (1 + self.drafted - self.rows)
        self.tokens += 0.2 * (len(rows) - self.tokens)
        option, first = self.choice.option, rows[0] + 1
        if option is not None and not option.instant:
            right = [row - first for row in rows[1:]]
            self._observed.append(_Observed(self.choice, self._draft, self._expected, self.drafted, right))

    def propose_instant(self, max_draft: int) -> None:
        """Learn from the last drafts, then let the instant drafters make theirs."""
        self._learn_from_steps()
        for option in self.controller.instant if max_draft > 0 else ():
            [draft] = option.propose([self.parts[option.part]], [min(option.most, max_draft)])
            if len(draft):
                self.found[option] = draft, option.known[self._drawn].expected(draft)
        self._n_at_proposal = len(self.session.token_ids)

    def decide(self, max_draft: int) -> DraftChoice:
        """Choose the draft of the next step, unless it was chosen before."""
        choice, looked, self.next, self.open = self.next, self.open, None, True
        if max_draft < 1 or self.session.forced_ids:
            self.choice = DraftChoice(None)
            return self.choice
        self.max_draft = max_draft
        choice = self.choose(max_draft) if choice is None else choice._replace(n=min(choice.n, max_draft))
        self.choice = (self.better_instant(choice) if looked else None) or choice
        return self.choice

    def better_instant(self, choice: DraftChoice) -> DraftChoice | None:
        """Return the choice of an instant draft that gains more, or None.

        At most twice as many tokens as were accepted the last time are verified, and at least `CostTable.cheap`.
        """
        best, most = None, 0.0
        for option, (_, expected) in self.found.items():
            chances = self._instant_bias.adjusted(expected)[: max(self._reach, self._costs.cheap)]
            gain, n = self._costs.gain(option, chances, choice.rate)
            if n and gain > most:
                best, most = DraftChoice(option, n, choice.rate), gain
        return best

    def choose(self, max_draft: int) -> DraftChoice:
        """Choose a drafter and a draft size by the statistics up to the step before.

        Parameters
        ----------
        max_draft : int
            Most draft tokens, at least 1.
        """
        if not self._left:
            self._costs, self._left = self.controller.costs(self.others), _COST_LIFETIME
            for option in self._costs.with_drafter:
                option.known[self._drawn].rates.pass_time(self.controller.n_steps)
        self._left -= 1
        self._drafted_bias.fade()
        self._instant_bias.fade()
        best, most, used = self._costs.plain, 0, None
        for option in self._costs.with_drafter:
            rates = self._drafted_bias.adjusted(option.known[self._drawn].rates.optimistic)
            rate, n = self._costs.best(option, rates, max_draft)
            if rate > best:
                best, most, used = rate, n, option
        return DraftChoice(used, most, best, used is self.choice.option)

    def worth_verifying(self, draft: Draft) -> Draft:
        """Return the part of a draft whose verification gains tokens, by the drafter's scores if it gives any."""
        option, self._draft = self.choice.option, draft
        self._expected = None
        if option is None or not len(draft) or draft.scores is None:
            return draft
        self._expected = expected = option.known[self._drawn].expected(draft)
        return draft.cut(self._costs.gain(option, expected, self.choice.rate)[1])

    def taken(self) -> Draft:
        """Return the instant draft if it was chosen, else the empty draft."""
        option = self.choice.option
        if option is None or option not in self.found:
            return EMPTY
        return self.found[option][0].cut(self.choice.n)

    def place(self, draft: Draft) -> PlacedChoice:
        """Store the draft of the present step and return the choice for `Controller.record`."""
        option, self.drafted = self.choice.option, len(draft)
        self.by = type(option.drafter).__name__ if option and len(draft) else ""
        return PlacedChoice(self.choice, self.drafted, self.session, len(self.session.steps) + len(self.session.held_steps))

    def _learn_from_steps(self) -> None:
        """Learn from the drafts that were verified, and from all instant drafts, whether they were used or not."""
        for observed in self._observed:
            self._learn(*observed)
        self._observed = []
        if not self.found:
            return
        new, found, self.found = self.session.token_ids[self._n_at_proposal :], self.found, {}
        for option, (draft, expected) in found.items():
            n = min(len(draft), len(new))
            if n == 0:
                continue
            path = _right(draft, new[:n])
            self._reach = max(self._reach if len(path) == n else 0, 2 * len(path) + 1)
            known = option.known[self._drawn]
            self._instant_bias.learn(float(len(path) < n), sum([1 - chance for chance in expected[: len(path) + 1][:n]]))
            if draft.scores is None:
                known.rates.learn([float(i in path) for i in range(n)])
            else:
                known.calibration.learn(draft.scores[:n].tolist(), len(path))

    def _learn(
        self, choice: DraftChoice, draft: Draft, expected: list[float] | None, drafted: int, right: list[int]
    ) -> None:
        """Update the statistics with one draft, of which the first `drafted` tokens were verified."""
        option = choice.option
        assert option is not None, "plain steps are not observed"
        known = option.known[self._drawn]
        if expected is None:
            chances = [float(i in right) for i in range(choice.n)]
        else:
            # calibrated scores of all draft tokens are better evidence than the single outcome
            chances = all_right(expected)
            assert draft.scores is not None, "they were calibrated"
            known.calibration.learn(draft.scores[:drafted].tolist(), len(right))
        self._drafted_bias.learn(1 - chances[-1], known.rates.learn(chances))
        option.filled += 0.05 * (len(draft) / choice.n - option.filled)


def _right(draft: Draft, tokens: Sequence[int]) -> list[int]:
    """Return the accepted nodes of a draft, from the root down."""
    found, node = [], -1
    ids = draft.tokens.tolist() if draft.scores is not None else None
    for n, token in enumerate(tokens):
        node = (n if ids[n] == token else -1) if ids is not None else draft.child(node, token)
        if node < 0:
            break
        found.append(node)
    return found


def share_batch_load(drafter_states: Sequence[AdaptiveState]) -> None:
    """Set `others` of each session, since all share one forward."""
    if len(drafter_states) == 1:
        drafter_states[0].others = _NO_LOAD
        return
    rows = sum([drafter_state.rows for drafter_state in drafter_states])
    tokens = sum([drafter_state.tokens for drafter_state in drafter_states])
    for drafter_state in drafter_states:
        drafter_state.others = BatchLoad(rows - drafter_state.rows, tokens - drafter_state.tokens)
