"""State of `Adaptive` for one session."""

from itertools import accumulate
from math import inf
from operator import mul

from dflash.decode.drafters.adaptive.cost_model import IDLE_DECAY, CostModel, Variant, best_size
from dflash.decode.drafters.composite import CompositeState, set_shape
from dflash.decode.drafting.acceptance_rates import PRIOR_WEIGHT, ObservedRatio
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import NO_DRAFT, DrafterState, DraftPlan, Rows, planned_next
from dflash.decode.shared_prefix import n_shared
from dflash.decode.step import Step
from dflash.decode.view import SessionView
from dflash.model.batch import Forward

DraftChoice = tuple[Variant | None, int]
PLAIN: DraftChoice = (None, 0)


class AdaptiveState(CompositeState):
    """Draft choices of one session. The other sessions of a batch count its `rows` and expected `tokens` as load."""

    def __init__(self, costs: CostModel, session: SessionView, parts: list[DrafterState]) -> None:
        super().__init__(parts)
        self.costs, self.session, self.choice, self.draft = costs, session, PLAIN, EMPTY
        self.rows, self.tokens, self._worth = 1, 1.0, 1.0 / (costs.forwards[1] + costs.plain)
        self._bias, self._instant_bias = ObservedRatio(), ObservedRatio()
        self.planned: DraftChoice | None = None
        self._found: list[tuple[Variant, Draft, list[float]]] = []
        self._chances: list[float] = []
        self._n_found = self._max_draft = self._others = 0

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:
        """Pass the rows to each drafter, and learn from the outcome of the draft."""
        super().observe(step, out, rows)
        if isinstance(rows, slice):
            return
        (option, n), costs = self.choice, self.costs
        costs.n_steps += 1
        for each in costs.options if costs.n_steps % 32 == 0 else ():
            each.rates.decay(IDLE_DECAY**32)
        if option is None or option.drafter.instant:
            return
        if costs.on_host and step.batch == 1 + step.drafted:  # relative to the forward, which other work slows as much
            ratio = (step.propose + step.verify) / step.forward * costs.forwards[step.batch] / option.extra[len(self.draft)]
            option.pace.learn(PRIOR_WEIGHT * min(max(ratio, 0.5), 2.0), PRIOR_WEIGHT)  # one step says as much as measuring
        nodes = [row - 1 for row in step.rows[1:]]
        if self._chances and self.draft.scores is not None:
            # calibrated scores of all draft tokens are better evidence than the single outcome
            option.rates.learn_scores(self.draft.scores[: step.drafted].tolist(), len(nodes))
        chances = self._chances or [float(node in nodes) for node in range(n)]
        self._bias.learn(1.0 - chances[-1], option.rates.learn(chances))

    def choose(self, max_draft: int, rows: int, tokens: float) -> DraftChoice:
        """Return the draft that gains most, beside `rows` and expected `tokens` of the other sessions in the step.

        Time is worth the tokens that the last choice promised for it, which approaches the best rate (Dinkelbach 1967).
        """
        worth, forward = self._worth, self.costs.forwards[rows + 1]
        choice, ms, gain = PLAIN, forward + self.costs.plain, tokens + 1.0 - worth * (forward + self.costs.plain)
        self._worth = worth + gain / ms
        asked = [(option, option.rates.optimistic, self._bias.factor, option.most) for option in self.costs.asked]
        found = [(option, rates, self._instant_bias.factor, len(draft)) for option, draft, rates in self._found]
        for option, rates, bias, most in asked + found:
            table = self.costs.step_ms(option, rows + 1)
            more, n = best_size(rates[: min(most, max_draft)], bias, table, tokens=tokens + 1.0, worth=worth)
            if n and more > gain:
                choice, gain, ms = (option, n), more, table[n]
                if not option.drafter.instant:  # drafts of instant drafters are not there at every step
                    self._worth = worth + gain / ms
                    _, less = best_size(option.rates.expected[:n], bias, table, tokens=tokens + 1.0, worth=worth)
                    middle = (n + less + 1) // 2  # optimism finds the drafter, and half of it the size
                    choice = (option, middle if table[middle] < inf else n)
        self.tokens = gain + worth * ms - tokens
        return choice

    def decide(self, max_draft: int, rows: int, tokens: float) -> DraftChoice:
        """Return the choice of the step that begins: the planned one, or a new one as `choose` does."""
        choice, self.planned, self._max_draft, self._others = self.planned, None, max_draft, rows
        if max_draft < 1 or self.session.forced_ids:
            return self.begin(PLAIN)
        if choice is None:
            self.ask_instant(max_draft)
            choice = self.choose(max_draft, rows, tokens)
        return self.begin((choice[0], min(choice[1], max_draft)))

    def begin(self, choice: DraftChoice) -> DraftChoice:
        """Begin a step with a choice, and take its draft if an instant drafter has made it."""
        self.choice, self.rows, self.by = choice, 1, ""
        self.draft = next((draft for option, draft, _ in self._found if option is choice[0]), EMPTY).cut(choice[1])
        return choice

    def cut(self) -> Draft:
        """Return the draft of the present step without the tokens that gain nothing by the drafter's scores."""
        option, draft, self._chances = self.choice[0], self.draft, []
        if option is None:
            return draft
        if len(draft) and draft.scores is not None and not option.drafter.instant:
            rates = option.rates.by_score(draft.scores.tolist())
            self._chances, ms = list(accumulate(rates, mul)), self.costs.forwards[self._others + 1 :][: len(draft) + 1]
            draft = draft.cut(best_size(rates, 1.0, ms, tokens=1.0, worth=self._worth)[1])
        if len(draft):
            self.rows, self.by = 1 + len(draft), type(option.drafter).__name__
        return draft

    def plan(self, draft: Draft, rows: int, tokens: float) -> DraftPlan | None:
        """Choose and plan the next step before the result of the present one; None if an instant draft may be better."""
        self.ask_instant(self._max_draft)
        option, n = choice = self.choose(self._max_draft, rows, tokens)
        waits = self._max_draft < 1 or self.session.forced_ids or option in self.costs.instant
        self.planned = None if waits else choice
        if waits or option is None:
            return None if waits else NO_DRAFT
        set_shape(self.parts[option.part], option.shape_of(n))
        return planned_next(option.drafter, [self.parts[option.part]], [draft])[0]

    def ask_instant(self, max_draft: int) -> None:
        """Learn from the last drafts of the instant drafters, verified or not, then let them make new ones."""
        new = self.session.token_ids[self._n_found :]
        for option, draft, rates in self._found if new else ():
            n, accepted = min(len(draft), len(new)), n_shared(draft.tokens.tolist(), new)
            if draft.scores is None:
                option.rates.learn([1.0] * accepted + [0.0] * (n - accepted))
            else:
                option.rates.learn_scores(draft.scores[:n].tolist(), accepted)
            self._instant_bias.learn(float(accepted < n), sum(1.0 - rate for rate in rates[: accepted + 1][:n]))
        self._found, self._n_found = [], len(self.session.token_ids)
        for option in self.costs.instant if max_draft > 0 else ():
            n = min(option.most, max_draft)
            set_shape(self.parts[option.part], option.shape_of(n))
            draft, found = option.drafter.propose([self.parts[option.part]], [n])[0].cut(n), option.rates
            known = found.expected if draft.scores is None else found.by_score(draft.scores.tolist())
            self._found.append((option, draft, known))
