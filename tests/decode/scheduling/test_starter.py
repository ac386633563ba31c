"""Sessions with grammars whose masks are slow start one at a time, or not beside others."""

import numpy as np
import pytest
from toy import Toy
from word_grammar import WordGrammar

from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session


def session(grammar=None, n=12):
    return Session([3, 4, 5], sampling=Sampling(seed=1), max_tokens=n, grammar=grammar)


def starts(engine, sessions):
    """Step until all have ended; return the step in which each of them started."""
    started, step = {}, 0
    while not all(each.finished for each in sessions):
        assert engine.busy
        engine.step()
        step += 1
        for each in sessions:
            if each.started_at is not None:
                started.setdefault(each, step)
    return [started[each] for each in sessions]


@pytest.mark.parametrize(("load", "expected"), [(0.0, [1, 1, 1, 1]), (0.5, [1, 1, 2, 3])])
def test_while_a_part_of_the_time_is_spent_one_starts_in_a_step(load, expected):
    engine = Engine(Toy())
    sessions = [session(), *(session(WordGrammar(mask_load=load)) for _ in range(3))]
    engine.add_all(sessions)
    assert starts(engine, sessions) == expected


def test_while_all_of_it_is_spent_none_starts_beside_others():
    engine = Engine(Toy())
    plain, constrained, later = session(n=20), session(WordGrammar(mask_load=1.5)), session(n=5)
    engine.add_all([plain, constrained, later])
    first, second, third = starts(engine, [plain, constrained, later])
    assert first == third == 1
    assert second == len(plain.steps) + 1, "it starts once no other runs"
    assert len(constrained.output_ids) == 12


class Changing(WordGrammar):
    """A load that is another one at each look."""

    rng = np.random.default_rng(3)

    @property
    def mask_load(self):
        return float(self.rng.choice([0.0, 0.4, 1.2]))

    @mask_load.setter
    def mask_load(self, load):
        pass


def test_texts_are_those_of_an_engine_without_load():
    alone = session(WordGrammar())
    list(Engine(Toy()).run([alone]))
    engine = Engine(Toy())
    sessions = [session(Changing()) if i % 2 else session() for i in range(20)]
    engine.add_all(sessions)
    starts(engine, sessions)
    assert {tuple(each.output_ids) for each in sessions[1::2]} == {tuple(alone.output_ids)}
