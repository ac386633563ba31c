"""What is known of one text, and what is bet on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.decode.draft import EMPTY, Draft
from dflash.decode.drafter import Drafting, Rows
from dflash.decode.drafters.choice import Bet, Choice, Option, Others, Placed, Worth
from dflash.decode.drafters.odds import Ease, all_right
from dflash.decode.drafters.together import Together

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward

_BURST = 3
"""Steps of a try: in the first a drafter has to catch up with the text."""


class Adapting(Together):
    """Bets of one session.

    Attributes
    ----------
    choice : Choice
    bet : Bet
        Of the step under way.
    next : Bet or None
        Of the step after it, if that was chosen already.
    drafted : int
        Guesses that are verified in the step under way.
    own, others : Others
        Rows and tokens of its steps on average, and of the steps of the other sessions.
    room : int
        Most guesses in the last step that had any choice.
    found : dict of Option to Draft
        Guesses that took no time, so that they are known before anything is chosen.
    """

    def __init__(self, choice: Choice, session: Session, parts: list[Drafting]) -> None:
        super().__init__(parts)
        self.choice, self.session, self.bet, self.drafted = choice, session, Bet(None), 0
        self.next: Bet | None = None
        self.own, self.others, self.room = Others(1.0, 1.0), Others(), 0
        self.found: dict[Option, Draft] = {}
        self._found_at = 0
        self._guessed, self._looked_up = Ease(0.97, 1.0), Ease(0.97, 1.0)
        self._draft, self._given = EMPTY, None
        self._burst: tuple[Option, int] | None = None

    def observe(self, out: Forward, rows: Rows) -> None:
        """Let each see it, and learn of the guesses; the text may not have the newest token yet."""
        super().observe(out, rows)
        if isinstance(rows, slice):
            return
        mean = self.own
        self.own = Others(mean.rows + 0.2 * (1 + self.drafted - mean.rows), mean.tokens + 0.2 * (len(rows) - mean.tokens))
        option, n = self.bet.option, self.bet.n
        if option is None or option.instant:
            return
        right = {row - rows[0] - 1 for row in rows[1:]}
        if self._given is None:
            chances = [float(i in right) for i in range(n)]
        else:
            # what it thinks of all its guesses tells more than the one outcome, once it is known how far that can be trusted
            chances = all_right(self._given)
            option.clues.learn(self._draft.scores[: self.drafted].tolist(), len(right))
        given = option.odds.given
        expected = sum(above * (1 - chance) for above, chance in zip([1.0, *chances[:-1]], given, strict=False))
        self._guessed.learn(1 - chances[-1], expected)
        option.odds.learn(chances)
        option.filled += 0.05 * (len(self._draft) / n - option.filled)

    def look_back(self) -> None:
        """Learn how good the guesses were that took no time, whether they were used or not."""
        new, found, self.found = self.session.text[self._found_at :], self.found, {}
        for option, draft in found.items():
            n, path, node = min(len(draft), len(new)), [], -1
            for token in new[:n]:
                if (node := draft.child(node, token)) < 0:
                    break
                path.append(node)
            if n == 0:
                continue
            given = option.given(draft)[: len(path) + 1][:n]
            self._looked_up.learn(float(len(path) < n), sum(1 - chance for chance in given))
            if draft.scores is None:
                option.odds.learn([float(i in path) for i in range(n)])
            else:
                option.clues.learn(draft.scores[:n].tolist(), len(path))

    def look(self, found: dict[Option, Draft]) -> None:
        """Guesses were found for the text as it is known."""
        self.found, self._found_at = found, len(self.session.text)

    def decide(self, room: int) -> None:
        """Bet on the next step, unless that was done before."""
        bet, self.next = self.next, None
        if room < 1 or self.session.forced:
            self.bet = Bet(None)
        elif bet is not None and bet.n <= room:
            self.bet = bet
        else:
            self.room = room
            bet = self.choose(room)
            self.bet = self.looked_up(bet) or bet

    def looked_up(self, bet: Bet) -> Bet | None:
        """Rather what was found, if that pays more."""
        best, most = None, 0.0
        for option, draft in self.found.items():
            if len(draft) and not bet.tried:
                given = self._looked_up.here(option.given(draft))
                gain, n = self.choice.gain(option, given, bet.rate, self.others)
                if n and gain > most:
                    best, most = Bet(option, n, bet.rate), gain
        return best

    def choose(self, room: int) -> Bet:
        """Choose whom to ask, and for how much, by what was seen up to the step before: of what is to come nothing is known.

        Parameters
        ----------
        room : int
            Most guesses, at least 1.
        """
        worths: dict[Option | None, Worth] = {None: self.choice.plain(self.others)}
        for option in self.choice.options:
            if not option.instant:
                worths[option] = self.choice.best(option, self._guessed.here(option.odds.given), room, self.others)
        best = max(worths, key=lambda option: worths[option].rate)
        tried = self._try(worths, best)
        used = best if tried is None else tried
        for option in self.choice.options:
            option.passed(chosen=option is best, tried=option is tried)
        n = worths[used].n if tried is None else worths[used].deep
        return Bet(used, n, worths[best].rate, tried is not None, used is None or used is self.bet.option)

    def worth_verifying(self, draft: Draft) -> Draft:
        """Those guesses of a drafter that was asked which are sure enough."""
        option, self._draft = self.bet.option, draft
        self._given = option.given(draft) if len(draft) and draft.scores is not None else None
        if self._given is None or self.bet.tried:
            return draft
        return draft.cut(self.choice.gain(option, self._given, self.bet.rate, self.others)[1])

    def place(self, draft: Draft) -> Placed:
        """The step under way has these guesses."""
        option, self.drafted = self.bet.option, len(draft)
        self.by = type(option.drafter).__name__ if option and len(draft) else ""
        return Placed(self.bet, self.drafted, self.session, len(self.session.steps) + len(self.session.held))

    def _try(self, worths: dict[Option | None, Worth], best: Option | None) -> Option | None:
        """What to try instead of the best, if anything: for a few steps, since the first has to catch up with the text."""
        if self._burst is not None:
            option, left = self._burst
            self._burst = (option, left - 1) if left > 1 else None
            if option is not best:
                return option
        for option, worth in worths.items():
            if option is None or option is best or not option.is_due:
                continue
            if self.choice.affords(_BURST * worth.seconds * (1 - worth.rate / worths[best].rate)):
                self._burst = (option, _BURST - 1)
                return option
        return None


def settle_others(draftings: Sequence[Adapting]) -> None:
    """Tell each what the others have in a step: it stands in the same forward."""
    rows, tokens = (sum(column) for column in zip(*(drafting.own for drafting in draftings), strict=True))
    for drafting in draftings:
        drafting.others = Others(rows - drafting.own.rows, tokens - drafting.own.tokens)
