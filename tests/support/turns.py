"""A drafter whose steps go by a plan, so that each way from one kind of step to the next is gone."""

from dataclasses import dataclass

from dflash.decode.drafters.composite import CompositeState, start_all
from dflash.decode.drafting.draft import EMPTY
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, planned_next


@dataclass(frozen=True)
class Turns(Drafter):
    """Step i is of the drafter whose number stands at place i of a plan; "." is a plain one, "?" one nobody foresees."""

    drafters: tuple
    plan: str

    def prepare(self, model):
        for drafter in self.drafters:
            drafter.prepare(model)

    def start(self, session, model, snapshot=None):
        together = CompositeState(start_all(self.drafters, session, model, snapshot))
        together.session = session
        return together

    def propose(self, drafter_states, max_drafts):
        drafts = [EMPTY] * len(drafter_states)
        for i, drafter in enumerate(self.drafters):
            own = [j for j, drafter_state in enumerate(drafter_states) if self._turn(drafter_state) == str(i)]
            found = drafter.propose([drafter_states[j].parts[i] for j in own], [max_drafts[j] for j in own]) if own else []
            for j, draft in zip(own, found, strict=True):
                drafts[j] = draft
        return drafts

    def plan_next(self, drafter_states, drafts):
        return [self._planned_next(*each) for each in zip(drafter_states, drafts, strict=True)]

    def _planned_next(self, drafter_state, draft):
        turn = self._turn(drafter_state, 1)
        if turn in ".?":
            return NO_DRAFT if turn == "." else None
        return planned_next(self.drafters[int(turn)], [drafter_state.parts[int(turn)]], [draft])[0]

    def _turn(self, drafter_state, later=0):
        return self.plan[(sum(bool(step.tokens) for step in drafter_state.session.steps) + later) % len(self.plan)]
