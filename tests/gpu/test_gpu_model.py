"""The recorded models on a GPU: logits, layers, state, and the text that the demo writes."""

from functools import cache

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from demo_text import recorded_prompts
from golden import FILES, PRIMARY, assert_greedy, chain, host, load, prefill, recorded, short_logits, step, tail, truth_of

from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.kernels.formats import BLOCKS
from dflash.kernels.gpu.capabilities import capabilities
from dflash.model.batch import Span
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

LOGITS = 4e-3
"""RMS error over RMS; what a multiply reads is float16. Weights of type F32 and BF16 are float16 here, too."""

INT8 = 0.1
"""RMS error over RMS of logits after prompts with int8 products."""

LAYERS, STATE = 4e-3, 4e-3
MARGIN = 0.05
"""Where two tokens are as close as this, the other one may be picked."""

PROMPTS = recorded_prompts()


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("name", FILES)
def test_logits(name, kv):
    assert_close(name, *tail(load(name, kv=kv, device="cuda"), recorded(name)), LOGITS)


@pytest.mark.parametrize("name", FILES)
def test_logits_of_steps(name):
    """The same, read as pending rows of several sizes."""
    model, want = load(name, device="cuda"), recorded(name)
    state, rows, tokens, at = model.state(), [], want["tokens"], 0
    for size in (1, 2, 1, 5, 16, 23, 64):
        part = tokens[at : at + size]
        if len(part):
            rows.append(step(model, state, part))
            state.commit(range(len(part)))
        at += size
    state.close()
    truth = truth_of(want)
    assert_close(name, np.concatenate(rows)[-len(truth) :], truth, LOGITS)


@pytest.mark.parametrize("name", FILES)
def test_greedy(name):
    """The same tokens."""
    assert_greedy(load(name, device="cuda"), recorded(name), MARGIN)


@pytest.mark.parametrize("name", PRIMARY)
def test_layers_and_state(name):
    model, want = load(name, device="cuda"), recorded(name)
    config, state = model.config, model.state()
    prompt = want["tokens"][: int(want["n_prompt"])]
    _, captured = prefill(model, state, prompt, capture=tuple(range(config.n_layers)))
    pages, linear = state.pages, 0
    for layer, recurrent in enumerate(config.recurrent):
        assert_close(f"layer {layer}", captured[layer], want[f"prompt.layer{layer}.out"], LAYERS)
        if recurrent:
            memory, conv = model.pools.delta[linear].state[state.slot], model.pools.conv[linear].tail[state.slot]
            assert_close(f"{layer} memory", host(memory).transpose(0, 2, 1), want[f"state.layer{layer}.ssm"], STATE)
            assert_close(f"{layer} tail", host(conv).T, want[f"state.layer{layer}.conv"], STATE)
            linear += 1
        elif f"state.layer{layer}.k" in want:
            for cache, part in zip(model.pools.layer_cache(layer), "kv", strict=True):
                rows = host(cache)[pages].reshape(-1, *cache.shape[2:])[: len(prompt)]
                assert_close(f"{layer} {part}", rows.transpose(1, 0, 2), want[f"state.layer{layer}.{part}"], STATE)
    state.close()


@pytest.mark.parametrize("name", [name for name in FILES if "short.tokens" in recorded(name).files])
def test_a_prompt_shorter_than_the_conv(name):
    want = recorded(name)
    assert_close(name, short_logits(load(name, device="cuda"), want), want["short.logits"], LOGITS)


@pytest.mark.parametrize("name", ["qwen35-r3-tied-k-IQ4_XS", "qwen35moe-r2-F16"])
def test_graphs_change_nothing(name, monkeypatch):
    """Launches one by one leave the bits of a replayed graph, in captured layers too."""
    model, tokens = load(name, device="cuda"), recorded(name)["tokens"][:23]
    results = []
    for graphs in (True, False):
        monkeypatch.setattr(model._decode.graphs, "wanted", graphs)
        state = model.state()
        out = model.forward([Span(state, tokens, chain(23))], capture=(0, 1))
        results.append([host(out.logits), host(out.hidden), host(out.captured[0]), host(out.captured[1])])
        state.close()
    for got, want in zip(*results, strict=True):
        assert_same_bits("graph", got, want)


@cache
def demo(kv="f16"):
    return load_model("demo", LoadSettings(device="cuda", context=4096, sequences=8, kv=kv))


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["name"])
def test_demo_writes_the_recorded_text(prompt):
    """Token by token; where another one is picked, both must have been close, and the comparison ends."""
    session = Session(prompt["prompt_ids"], max_tokens=len(prompt["output_ids"]))
    for _ in Engine(demo().model).stream(session):
        pass
    for i, (got, want) in enumerate(zip(session.output_ids, prompt["output_ids"], strict=False)):
        if got != want:
            margin = prompt["margins"][i]
            print(f"{prompt['name']}: token {i} is {got}, recorded {want} with a margin of {margin:.3g}")
            assert margin < MARGIN
            break


@pytest.mark.parametrize("name", [name for name in FILES if BLOCKS[name.rpartition("-")[2]].elements > 1])
def test_logits_of_int8_prompts(name):
    if not capabilities().has_wgmma:
        pytest.skip("neither a Hopper GPU nor its target")
    assert_close(name, *tail(load(name, device="cuda", prompts="int8"), recorded(name)), INT8)
