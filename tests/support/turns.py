"""A drafter whose steps go by a plan, so that each way from one kind of step to the next is gone."""

from dataclasses import dataclass

from dflash.decode.drafters.composite import Together, start_all
from dflash.decode.drafting.draft import EMPTY
from dflash.decode.drafting.drafter import NOTHING, Drafter, foreseen


@dataclass(frozen=True)
class Turns(Drafter):
    """Step i is of the drafter whose number stands at place i of a plan; "." is a plain one, "?" one nobody foresees."""

    drafters: tuple
    plan: str

    def prepare(self, model):
        for drafter in self.drafters:
            drafter.prepare(model)

    def start(self, session, model, snapshot=None):
        together = Together(start_all(self.drafters, session, model, snapshot))
        together.session = session
        return together

    def propose(self, draftings, rooms):
        drafts = [EMPTY] * len(draftings)
        for i, drafter in enumerate(self.drafters):
            own = [j for j, drafting in enumerate(draftings) if self._turn(drafting) == str(i)]
            found = drafter.propose([draftings[j].parts[i] for j in own], [rooms[j] for j in own]) if own else []
            for j, draft in zip(own, found, strict=True):
                drafts[j] = draft
        return drafts

    def foresee(self, draftings, drafts):
        return [self._foreseen(*each) for each in zip(draftings, drafts, strict=True)]

    def _foreseen(self, drafting, draft):
        turn = self._turn(drafting, 1)
        if turn in ".?":
            return NOTHING if turn == "." else None
        return foreseen(self.drafters[int(turn)], [drafting.parts[int(turn)]], [draft])[0]

    def _turn(self, drafting, later=0):
        return self.plan[(sum(bool(step.tokens) for step in drafting.session.steps) + later) % len(self.plan)]
