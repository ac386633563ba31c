"""Every recorded model: logits, layers and state as Transformers computes them in float32."""

import numpy as np
import pytest
from compare import assert_close
from golden import FILES, PRIMARY, allowed, assert_greedy, load, prefill, recorded, short_logits, tail


@pytest.mark.parametrize("name", FILES)
def test_logits_are_as_recorded(name):
    got, truth = tail(load(name), recorded(name))
    largest, rms, *_ = allowed(name)
    assert np.abs(got - truth).max() < largest
    assert_close(name, got, truth, rms)


@pytest.mark.parametrize("name", FILES)
def test_greedy_tokens_are_as_recorded(name):
    """The same tokens."""
    assert_greedy(load(name), recorded(name), allowed(name)[0])


@pytest.mark.parametrize("name", PRIMARY)
def test_layers_and_state(name):
    model, want = load(name), recorded(name)
    config = model.config
    *_, layer_bound, state_bound = allowed(name)
    state = model.state()
    prompt = want["tokens"][: int(want["n_prompt"])]
    n = len(prompt)
    layers = tuple(range(config.n_layers))
    _, captured = prefill(model, state, prompt, capture=layers)
    pages, linear = state.pages, 0
    for layer, recurrent in enumerate(config.recurrent):
        assert np.abs(captured[layer] - want[f"prompt.layer{layer}.out"]).max() < layer_bound, layer
        if recurrent:
            memory, conv = model.pools.delta[linear].state[state.slot], model.pools.conv[linear].tail[state.slot]
            assert np.abs(memory.transpose(0, 2, 1) - want[f"state.layer{layer}.ssm"]).max() < state_bound
            assert np.abs(conv.T - want[f"state.layer{layer}.conv"]).max() < state_bound
            linear += 1
        elif f"state.layer{layer}.k" in want:
            for cache, part in zip(model.pools.layer_cache(layer), "kv", strict=True):
                rows = cache[pages].reshape(-1, *cache.shape[2:])[:n]
                assert np.abs(rows.transpose(1, 0, 2) - want[f"state.layer{layer}.{part}"]).max() < layer_bound
    state.close()


@pytest.mark.parametrize("name", [name for name in FILES if "short.tokens" in recorded(name).files])
def test_a_prompt_shorter_than_the_conv(name):
    want = recorded(name)
    assert np.abs(short_logits(load(name), want) - want["short.logits"]).max() < allowed(name)[0]


@pytest.mark.parametrize("name", FILES)
def test_halves_in_the_cache_cost_little(name):
    assert_close(name, *tail(load(name, kv="f16"), recorded(name)), 5e-3)
