"""What is known of one text, and what is bet on it."""

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

_KEPT = 8
"""Steps for which prices are taken to be what they were."""

_NOBODY = BatchLoad()


class _Seen(NamedTuple):
    """What became of a draft: the guesses that were right, of those that were verified."""

    bet: DraftChoice
    draft: Draft
    given: list[float] | None
    drafted: int
    right: list[int]


class AdaptiveState(CompositeState):
    """Bets of one session.

    Attributes
    ----------
    choice : Controller
    bet : DraftChoice
        Of the step under way.
    next : DraftChoice or None
        Of the step after it, if that was chosen already.
    drafted : int
        Guesses that are verified in the step under way.
    rows, tokens : float
        Of its steps, on average.
    others : BatchLoad
        Rows and tokens of the steps of the other sessions.
    max_draft : int
        Most guesses in the last step that had any choice.
    open : bool
        Whether what can be found without taking time is to be looked at before the next step.
    found : dict of DraftOption to (Draft, list of float)
        Guesses that took no time, so that they are known before anything is chosen, and their chances.
    """

    def __init__(self, choice: Controller, session: SessionView, parts: list[DrafterState]) -> None:
        super().__init__(parts)
        self.choice, self.session, self.bet, self.drafted = choice, session, DraftChoice(None), 0
        self.next: DraftChoice | None = None
        self.rows, self.tokens, self.others, self.max_draft = 1.0, 1.0, _NOBODY, 0
        self.open = True
        self.found: dict[DraftOption, tuple[Draft, list[float]]] = {}
        self._found_at = 0
        self._drawn = session.sampler.params.scale is not None
        self._guessed, self._looked_up = RequestBias(), RequestBias()
        self._draft, self._given = EMPTY, None
        self._reach = 0
        self._seen: list[_Seen] = []
        self._prices: CostTable
        self._left = 0

    def observe(self, out: Forward, rows: Rows) -> None:
        """Let each see it, and remember it: a GPU may be waiting, and the text may not have the newest token yet."""
        super().observe(out, rows)
        if isinstance(rows, slice):
            return
        self.rows += 0.2 * (1 + self.drafted - self.rows)
        self.tokens += 0.2 * (len(rows) - self.tokens)
        option, first = self.bet.option, rows[0] + 1
        if option is not None and not option.instant:
            right = [row - first for row in rows[1:]]
            self._seen.append(_Seen(self.bet, self._draft, self._given, self.drafted, right))

    def look(self, max_draft: int) -> None:
        """Let those guess whom it costs no time, after it was learned what the last guesses were worth."""
        self._look_back()
        for option in self.choice.instant if max_draft > 0 else ():
            [draft] = option.ask([self.parts[option.part]], [min(option.most, max_draft)])
            if len(draft):
                self.found[option] = draft, option.known[self._drawn].given(draft)
        self._found_at = len(self.session.token_ids)

    def decide(self, max_draft: int) -> DraftChoice:
        """Bet on the next step, unless that was done before."""
        bet, looked, self.next, self.open = self.next, self.open, None, True
        if max_draft < 1 or self.session.forced_ids:
            self.bet = DraftChoice(None)
            return self.bet
        self.max_draft = max_draft
        bet = self.choose(max_draft) if bet is None else bet._replace(n=min(bet.n, max_draft))
        self.bet = (self.looked_up(bet) if looked else None) or bet
        return self.bet

    def looked_up(self, bet: DraftChoice) -> DraftChoice | None:
        """Rather what was found, if that pays more: a little of it, and twice as much as was right the last time."""
        best, most = None, 0.0
        for option, (_, given) in self.found.items():
            chances = self._looked_up.here(given)[: max(self._reach, self._prices.cheap)]
            gain, n = self._prices.gain(option, chances, bet.rate)
            if n and gain > most:
                best, most = DraftChoice(option, n, bet.rate), gain
        return best

    def choose(self, max_draft: int) -> DraftChoice:
        """Choose whom to ask, and for how much, by what was seen up to the step before: of what is to come nothing is known.

        Parameters
        ----------
        max_draft : int
            Most guesses, at least 1.
        """
        if not self._left:
            self._prices, self._left = self.choice.prices(self.others), _KEPT
            for option in self._prices.asked:
                option.known[self._drawn].rates.pass_time(self.choice.n_steps)
        self._left -= 1
        self._guessed.fade()
        self._looked_up.fade()
        best, most, used = self._prices.plain, 0, None
        for option in self._prices.asked:
            rate, n = self._prices.best(option, self._guessed.here(option.known[self._drawn].rates.hoped), max_draft)
            if rate > best:
                best, most, used = rate, n, option
        return DraftChoice(used, most, best, used is self.bet.option)

    def worth_verifying(self, draft: Draft) -> Draft:
        """Those guesses of a drafter that was asked which are sure enough."""
        option, self._draft = self.bet.option, draft
        sure = len(draft) > 0 and draft.scores is not None
        self._given = option.known[self._drawn].given(draft) if sure else None
        return draft if self._given is None else draft.cut(self._prices.gain(option, self._given, self.bet.rate)[1])

    def taken(self) -> Draft:
        """What was found, if that is bet on."""
        draft, _ = self.found.get(self.bet.option, (EMPTY, None))
        return draft.cut(self.bet.n)

    def place(self, draft: Draft) -> PlacedChoice:
        """The step under way has these guesses."""
        option, self.drafted = self.bet.option, len(draft)
        self.by = type(option.drafter).__name__ if option and len(draft) else ""
        return PlacedChoice(self.bet, self.drafted, self.session, len(self.session.steps) + len(self.session.held_steps))

    def _look_back(self) -> None:
        """Learn of the guesses that were verified, and of those that took no time, whether they were used or not."""
        for seen in self._seen:
            self._learn(*seen)
        self._seen = []
        if not self.found:
            return
        new, found, self.found = self.session.token_ids[self._found_at :], self.found, {}
        for option, (draft, given) in found.items():
            n = min(len(draft), len(new))
            if n == 0:
                continue
            path = _right(draft, new[:n])
            self._reach = max(self._reach if len(path) == n else 0, 2 * len(path) + 1)
            known = option.known[self._drawn]
            self._looked_up.learn(float(len(path) < n), sum([1 - chance for chance in given[: len(path) + 1][:n]]))
            if draft.scores is None:
                known.rates.learn([float(i in path) for i in range(n)])
            else:
                known.calibration.learn(draft.scores[:n].tolist(), len(path))

    def _learn(self, bet: DraftChoice, draft: Draft, given: list[float] | None, drafted: int, right: list[int]) -> None:
        """Of one draft, of which so many guesses were verified."""
        option = bet.option
        known = option.known[self._drawn]
        if given is None:
            chances = [float(i in right) for i in range(bet.n)]
        else:
            # what it thinks of all its guesses tells more than the one outcome, once it is known how far that can be trusted
            chances = all_right(given)
            known.calibration.learn(draft.scores[:drafted].tolist(), len(right))
        self._guessed.learn(1 - chances[-1], known.rates.learn(chances))
        option.filled += 0.05 * (len(draft) / bet.n - option.filled)


def _right(draft: Draft, tokens: Sequence[int]) -> list[int]:
    """Guesses that became text, from the root down."""
    found, node = [], -1
    guesses = draft.tokens.tolist() if draft.scores is not None else None
    for n, token in enumerate(tokens):
        node = (n if guesses[n] == token else -1) if guesses is not None else draft.child(node, token)
        if node < 0:
            break
        found.append(node)
    return found


def share_batch_load(drafter_states: Sequence[AdaptiveState]) -> None:
    """Tell each what the others have in a step: it stands in the same forward."""
    if len(drafter_states) == 1:
        drafter_states[0].others = _NOBODY
        return
    rows = sum([drafter_state.rows for drafter_state in drafter_states])
    tokens = sum([drafter_state.tokens for drafter_state in drafter_states])
    for drafter_state in drafter_states:
        drafter_state.others = BatchLoad(rows - drafter_state.rows, tokens - drafter_state.tokens)
