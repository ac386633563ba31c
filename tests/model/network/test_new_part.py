"""An architecture with a new part takes one function, one op folder and one entry of a table; see `squared_relu`."""

import model_definition
from compare import assert_close
from squared_relu import architecture
from test_random_models import CLOSE, DENSE, KEYS, TOKENS, computed, written


def test_a_feed_forward_with_squared_relu_and_a_second_norm(tmp_path, monkeypatch):
    architecture.add(monkeypatch)
    monkeypatch.setitem(KEYS, "squared", DENSE)
    file, config = written(tmp_path / "model.gguf", "squared", "Q8_0", ())
    with file:
        assert_close("logits", computed(file, config, TOKENS), model_definition.logits(file, config, TOKENS), CLOSE)
