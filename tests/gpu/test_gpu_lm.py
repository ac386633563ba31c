"""The doors with the model on a GPU: the same text as on the CPU, several at a time, and what it says of itself."""

import json

import numpy as np
import pytest
from compare import assert_close
from demo_text import recorded_prompts

import dflash
from dflash.cli.info import as_text
from dflash.errors import OutOfMemory, RequestError
from dflash.kernels.gpu import device

pytest.importorskip("cupy")

PROMPTS = recorded_prompts()
CLEAR = [prompt for prompt in PROMPTS if min(prompt["margins"]) > 0.05][:8]


@pytest.fixture(scope="module")
def gpu():
    with dflash.load("demo", device="cuda", context=4096) as lm:
        yield lm


def test_texts_together(gpu):
    """Those whose every token was clear, at once."""
    longest = max(len(prompt["output_ids"]) for prompt in CLEAR)
    for found, prompt in zip(gpu.generate([p["prompt_ids"] for p in CLEAR], max_tokens=longest), CLEAR, strict=True):
        n = len(prompt["output_ids"])
        assert list(found.tokens)[:n] == prompt["output_ids"], prompt["name"]


def test_logits_and_perplexity(gpu):
    """The recorded tokens win, by the margins that were recorded."""
    prompt = PROMPTS[0]
    ids, n = prompt["prompt_ids"] + prompt["output_ids"], len(prompt["prompt_ids"])
    logits = gpu.logits(ids)
    assert logits.dtype == np.float32
    assert logits.shape == (len(ids), gpu.model.n_vocab)
    likeliest = -np.partition(-logits[n - 1 : -1], 1, axis=1)[:, :2]
    off = np.abs(likeliest[:, 0] - likeliest[:, 1] - prompt["margins"])
    assert off.max() < 0.1
    exact = logits.astype(np.float64)
    total = np.log(np.exp(exact - exact.max(axis=1, keepdims=True)).sum(axis=1)) + exact.max(axis=1)
    wanted = exact[np.arange(len(ids) - 1), ids[1:]] - total[:-1]
    assert np.abs(gpu.log_probabilities(ids) - wanted).max() < 1e-4
    assert gpu.perplexity(ids) == pytest.approx(np.exp(-wanted.mean()), rel=1e-5)


def test_hidden_states(gpu, lm):
    """Hidden states equal a CPU's but for the rounding of products in 16 bits, in NumPy's arrays; bad layers are refused."""
    ids = PROMPTS[0]["prompt_ids"]
    found, want = gpu.hidden_states(ids, range(9)), lm.hidden_states(ids, range(9))
    for layer, states in want.items():
        assert isinstance(found[layer], np.ndarray)
        assert_close(f"layer {layer}", found[layer], states, 0.02)
    with pytest.raises(RequestError, match="layers: "):
        gpu.hidden_states(ids, [9])


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.8, "seed": 3}, {"temperature": 1, "top_p": 0.9, "seed": 4, "logprobs": 3}]
)
def test_the_same_seed_the_same_text(gpu, sampling):
    one, other = (gpu.generate(PROMPTS[0]["prompt_ids"], max_tokens=60, **sampling) for _ in range(2))
    assert one.tokens == other.tokens


def test_info(gpu):
    about = gpu.info()
    assert about["device"]["kind"] == "cuda"
    assert about["device"]["launches"]["1"] < 12 * (
        about["model"]["layers"]["attention"] + about["model"]["layers"]["recurrent"]
    )
    assert all(kernel.startswith("cuda") for kernel in about["kernels"].values())
    assert about["device"]["processor"] in as_text(about)
    json.dumps(about)


def test_what_does_not_fit(monkeypatch):
    free = device.free_memory()
    monkeypatch.setattr(device, "free_memory", lambda: 1 << 28)
    with pytest.raises(OutOfMemory, match="weights take"):
        dflash.load("demo", device="cuda")
    monkeypatch.setattr(device, "free_memory", lambda: free)
    with pytest.raises(RequestError, match="trained for"):
        dflash.load("demo", device="cuda", context=1 << 30)
