"""Fusion rules that are switched off: the same results, from ops that run one by one."""

import json

import numpy as np
import pytest
from golden import FILES, load, step

from dflash.__main__ import main
from dflash.errors import RequestError
from dflash.kernels.joined import cpu as joined_kernels
from dflash.model.run.rules import RULES, applies, without


def steps_of(name):
    """Logits of a sequence of some steps of a model that is loaded now."""
    model = load.__wrapped__(name)
    state = model.state()
    rows = [step(model, state, tokens).copy() for tokens in ([1, 2, 3], [4], [5])]
    state.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("name", FILES)
def test_ops_that_are_not_joined_have_the_same_bits(name, monkeypatch):
    want = steps_of(name)
    monkeypatch.setattr(joined_kernels, "run", None)
    with without(["joined"]):
        assert steps_of(name).tobytes() == want.tobytes()


def test_rules_are_on_again_afterwards():
    with without(RULES), without(["joined"]):
        assert not any(map(applies, RULES))
    assert all(map(applies, RULES))


def test_a_rule_that_is_none_is_refused():
    with pytest.raises(RequestError, match="no fusion rule is called 'fast'; there are joined"), without(["joined", "fast"]):
        pass
    assert applies("joined")


def test_the_command_measures_without_a_rule(capsys):
    sizes = ["-p", "0", "-n", "2", "-r", "1", "--json"]
    assert main(["bench", "demo", "--device", "cpu", "--without", "joined", *sizes]) == 0
    assert json.loads(capsys.readouterr().out)["rates"]["tg2"]["mean"] > 0
    assert main(["bench", "demo", "--device", "cpu", "--without", "split", *sizes]) != 0
    assert "no fusion rule is called 'split'" in capsys.readouterr().err
