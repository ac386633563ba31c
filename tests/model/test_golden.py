"""Every recorded model: logits, layers and state as Transformers computes them in float32."""

import numpy as np
import pytest
from compare import assert_close
from golden import FILES, PRIMARY, assert_greedy, load, prefill, recorded, short_logits, tail
from golden_bounds import INTERMEDIATE, LOGITS, STATE, allowed


@pytest.mark.parametrize("name", FILES)
def test_logits_are_as_recorded(name):
    got, truth = tail(load(name), recorded(name))
    assert np.abs(got - truth).max() < allowed(name).largest("logits", LOGITS)
    assert_close(name, got, truth, allowed(name).rms(len(truth)))


@pytest.mark.parametrize("name", FILES)
def test_greedy_tokens_are_as_recorded(name):
    """The same tokens."""
    assert_greedy(load(name), recorded(name), allowed(name).largest("logits", LOGITS))


@pytest.mark.parametrize("name", PRIMARY)
def test_layers_and_state(name):
    model, want = load(name), recorded(name)
    config = model.config
    state = model.state()
    prompt = want["tokens"][: int(want["n_prompt"])]
    n = len(prompt)
    layers = tuple(range(config.n_layers))
    _, captured = prefill(model, state, prompt, capture=layers)
    pages, linear = state.pages, 0
    for layer, recurrent in enumerate(config.recurrent):
        own = {"out": captured[layer]}
        if recurrent:
            memory, conv = model.pools.delta[linear].state[state.slot], model.pools.conv[linear].tail[state.slot]
            own |= {"ssm": memory.transpose(0, 2, 1), "conv": conv.T}
            linear += 1
        elif f"state.layer{layer}.k" in want:
            for cache, part in zip(model.pools.layer_cache(layer), "kv", strict=True):
                own[part] = cache[pages].reshape(-1, *cache.shape[2:])[:n].transpose(1, 0, 2)
        for part, values in own.items():
            truth = want[f"{'prompt' if part == 'out' else 'state'}.layer{layer}.{part}"]
            tolerance = STATE if part in ("ssm", "conv") else INTERMEDIATE
            bound = allowed(name).largest(f"prompt.layer{layer}.{part}", tolerance)
            assert np.abs(values - truth).max() < bound, (layer, part)
    state.close()


@pytest.mark.parametrize("name", [name for name in FILES if "short.tokens" in recorded(name).files])
def test_a_prompt_shorter_than_the_conv(name):
    want, bound = recorded(name), allowed(name).largest("short.logits", LOGITS)
    assert np.abs(short_logits(load(name), want) - want["short.logits"]).max() < bound


@pytest.mark.parametrize("name", FILES)
def test_halves_in_the_cache_cost_little(name):
    assert_close(name, *tail(load(name, kv="f16"), recorded(name)), 5e-3)
