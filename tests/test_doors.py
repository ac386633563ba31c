"""`dflash.load` and what an LM does, with the demo model."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from compare import assert_same_bits
from hang_guard import wait_until
from python_run import run_python

import dflash
from dflash.errors import ContextOverflow, NotFound, RequestError, TemplateError, Unsupported

CAPITAL = [{"role": "user", "content": "What is the capital of Japan?"}]
NO_THINKING = {"enable_thinking": False}
TEXT = "The server reads its configuration file once at start-up. To change a setting, edit the file and restart it."
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def test_import_is_cheap():
    code = (
        "import sys; before = set(sys.modules); import dflash;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    loaded = run_python("-c", code).stdout.split()
    assert loaded == ["dflash"]


def test_names_are_found_when_they_are_asked_for():
    assert dflash.Plain() == dflash.Plain()
    assert dflash.__version__
    assert set(dflash.__all__) <= set(dir(dflash))
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = dflash.nothing_such


def test_a_chat_is_answered(lm, pools):
    generation = lm.generate(CAPITAL, chat_template_kwargs=NO_THINKING)
    assert generation.text == str(generation) == "The capital of Japan is Tokyo."
    assert generation.finish_reason == "stop"
    assert generation.tokens[-1] in lm.tokenizer.eos_ids
    assert generation.usage.completion_tokens == len(generation.tokens)
    assert generation.usage.total_tokens == len(generation.prompt) + len(generation.tokens)
    assert generation.prompt == lm.encode(CAPITAL, enable_thinking=False)


def test_thinking_is_part_of_the_text(lm):
    text = lm.generate([{"role": "user", "content": "What is 57 + 68?"}]).text
    assert "</think>" in text


def test_tools_reach_the_template(lm):
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    text = lm.generate(messages, tools=[TOOL], chat_template_kwargs=NO_THINKING).text
    assert "<function=get_weather>" in text
    assert "Oslo" in text


def test_text_ids_and_messages_are_distinguished(lm):
    ids = lm.tokenizer.encode("def add(a, b):")
    from_text, from_ids = lm.generate("def add(a, b):", max_tokens=8), lm.generate(ids, max_tokens=8)
    assert from_text.tokens == from_ids.tokens == lm.generate(np.array(ids), max_tokens=8).tokens


def test_several_prompts_give_what_each_gives_alone(lm, pools):
    several = [
        "def add(a, b):",
        CAPITAL,
        lm.tokenizer.encode(TEXT),
        "import os",
        "class Stack:",
        "In the",
        "A",
        "B",
        "C",
        "D",
    ]
    settings = {"max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    together = lm.generate(several, **settings)
    assert [one.tokens for one in together] == [lm.generate(prompt, **settings).tokens for prompt in several]


def test_the_same_seed_gives_the_same_text(lm):
    first = lm.generate("Once upon", max_tokens=24, temperature=1.0)
    again = lm.generate("Once upon", max_tokens=24, temperature=1.0, seed=first.seed)
    other = lm.generate("Once upon", max_tokens=24, temperature=1.0, seed=first.seed + 1)
    assert again.tokens == first.tokens != other.tokens


def test_a_strategy_may_be_named(lm):
    plain, named = lm.generate(CAPITAL, max_tokens=12), lm.generate(CAPITAL, max_tokens=12, strategy="ddtree:22")
    assert named.tokens == plain.tokens
    assert len(named.steps) < len(plain.steps)
    with lm.stream(CAPITAL, max_tokens=12, strategy="mtp:2") as stream:
        assert "".join(delta.text for delta in stream) == plain.text
    with pytest.raises(RequestError, match=r"^strategy: 'tree' is not known; there are plain, dflash"):
        lm.stream(CAPITAL, strategy="tree")


def test_stop_strings_cut_the_text(lm):
    whole = lm.generate("def fibonacci(n):", max_tokens=60)
    stop = whole.text[30:34]
    cut = lm.generate("def fibonacci(n):", max_tokens=60, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.tokens == whole.tokens[: len(cut.tokens)]


def test_a_stream_gives_the_text_in_pieces(lm, pools):
    stream = lm.stream(TEXT * 40, max_tokens=20)
    deltas = list(stream)
    whole = lm.generate(TEXT * 40, max_tokens=20)
    assert "".join(delta.text for delta in deltas) == whole.text == stream.generation.text
    prefilled = [delta.step.prefilled for delta in deltas if delta.step.prefilled]
    assert len(prefilled) > 1
    assert sum(prefilled) == len(whole.prompt) - 1
    assert next(stream, None) is None


def test_breaking_off_a_stream_frees_it(lm, pools):
    with lm.stream("import os", max_tokens=4000) as stream:
        for _, delta in zip(range(5), stream, strict=False):
            assert delta.step.finish is None
    generation = stream.generation
    assert generation.finish_reason == "cancelled"
    assert generation.text.startswith("".join(generation.pieces[:5]))


def test_forgetting_a_stream_frees_it(lm, pools):
    stream = lm.stream("import os", max_tokens=4000)
    next(stream)
    del stream
    wait_until(lambda: pools.free_slots == pools.slots)


def test_threads_share_the_loop(lm, pools, monkeypatch):
    prompts = [f"Chapter {n}." for n in range(6)]
    alone = [lm.generate(prompt, max_tokens=20).tokens for prompt in prompts]
    found, together, forward = {}, threading.Event(), lm.model.forward

    def waits(spans, **settings):
        """Wait in the first forward until the requests of all threads are there."""
        wait_until(lambda: together.is_set() or len(lm._engine_thread._completions) == len(prompts))
        together.set()
        return forward(spans, **settings)

    monkeypatch.setattr(lm.model, "forward", waits)
    threads = [
        threading.Thread(target=lambda p=prompt: found.update({p: lm.generate(p, max_tokens=20)})) for prompt in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[prompt].tokens for prompt in prompts] == alone
    assert {one.steps[10].batch for one in found.values()} == {len(prompts)}


def test_log_probabilities_are_those_of_the_logits(lm, pools):
    generation = lm.generate(TEXT, max_tokens=6, logprobs=3)
    logits = lm.logits(generation.prompt + generation.tokens)[len(generation.prompt) - 1 : -1].astype(np.float64)
    norm = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    for row, total, entry in zip(logits, norm, generation.logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token] - total, abs=1e-4)
        assert [token for token, _ in entry.top] == np.argsort(-row, kind="stable")[:3].tolist()
    assert json.loads(json.dumps(generation.as_dict()))["logprobs"][0]["token"] == generation.tokens[0]


def test_logits_do_not_depend_on_how_they_are_read(lm, pools, monkeypatch):
    ids = lm.tokenizer.encode(TEXT)
    whole = lm.logits(ids)
    assert whole.shape == (len(ids), lm.model.n_vocab)
    assert whole.dtype == np.float32
    monkeypatch.setattr("dflash.generation.scoring._MAX_ROWS", 16)
    monkeypatch.setattr("dflash.generation.scoring._CHUNK_BYTES", 1)
    assert_same_bits("logits in chunks of 16", lm.logits(TEXT), whole)


def test_two_threads_change_no_bit(lm, pools, monkeypatch):
    alone = lm.logits(TEXT), lm.generate(TEXT, max_tokens=24, strategy="ddtree:22").tokens
    monkeypatch.setattr(lm.model, "threads", 2)
    assert_same_bits("logits", lm.logits(TEXT), alone[0])
    assert lm.generate(TEXT, max_tokens=24, strategy="ddtree:22").tokens == alone[1]


def test_perplexity_is_that_of_the_logits(lm, pools):
    ids = lm.tokenizer.encode(TEXT)
    logits = lm.logits(ids)[:-1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(ids) - 1), ids[1:]]
    assert lm.perplexity(TEXT) == pytest.approx(np.exp(losses.mean()), rel=1e-6)


def test_scoring_goes_on_beside_as_many_texts_as_fit(lm, pools):
    streams = [lm.stream(f"Part {n}", max_tokens=1000) for n in range(8)]
    for stream in streams:
        next(stream)
    assert lm.perplexity(TEXT) > 1
    for stream in streams:
        stream.close()


def test_info_names_what_will_run(lm):
    about = lm.info()
    assert about["model"]["architecture"] == "qwen35"
    assert about["quantization"]["Q4_K"]["tensors"] == 60
    assert about["memory"]["weights"] == sum(part["bytes"] for part in about["quantization"].values())
    assert set(about["kernels"]) == set(about["quantization"])
    assert about["template"]["thinking"]
    assert "NFC" in about["tokenizer"]["normalizer"]
    assert json.dumps(about)


def test_memory_is_what_is_held(lm):
    memory, pools = lm.info()["memory"], lm.model.pools
    arrays = [*pools.conv, *pools.delta]
    state = sum((memory.tail if hasattr(memory, "tail") else memory.state).nbytes for memory in arrays)
    pending = sum(getattr(memory, name).nbytes for memory in arrays for name in type(memory).__slots__) - state
    assert memory["state_per_sequence"] == state // pools.slots
    assert memory["pending_per_sequence"] == pending // pools.slots
    assert memory["kv_per_1000_tokens"] == 1000 * (pools.k.nbytes + pools.v.nbytes) // (pools.pages * 256)


def test_profile_counts_ops(lm):
    with lm.profile() as seconds:
        lm.generate("import os", max_tokens=4)
    assert seconds
    assert all(took > 0 for took in seconds.values())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"prompt": ""}, RequestError, "prompt"),
        ({"prompt": []}, RequestError, "prompt"),
        ({"prompt": 5}, RequestError, "prompt"),
        ({"prompt": CAPITAL[0]}, RequestError, "list"),
        ({"prompt": [{"role": "robot", "content": ""}]}, TemplateError, "role"),
        ({"prompt": ["a", None]}, RequestError, "prompt"),
        ({"prompt": [1.5, 2]}, RequestError, "prompt"),
        ({"prompt": [1, 99999]}, RequestError, "99999"),
        ({"prompt": [-1]}, RequestError, "-1"),
        ({"prompt": [2**40]}, RequestError, str(2**40)),
        ({"prompt": "a", "tools": [TOOL]}, RequestError, "tools"),
        ({"prompt": "a", "temperature": -1}, RequestError, "temperature"),
        ({"prompt": "a", "temperature": float("nan")}, RequestError, "temperature"),
        ({"prompt": "a", "top_p": 2}, RequestError, "top_p"),
        ({"prompt": "a", "min_p": -0.1}, RequestError, "min_p"),
        ({"prompt": "a", "top_k": -5}, RequestError, "top_k"),
        ({"prompt": "a", "max_tokens": -1}, RequestError, "max_tokens"),
        ({"prompt": "a", "stop": [""]}, RequestError, "stop"),
        ({"prompt": "a", "stop": [1]}, RequestError, "stop"),
        ({"prompt": "a", "logit_bias": {99999: 1.0}}, RequestError, "99999"),
        ({"prompt": ["a"], "stream": True}, RequestError, "stream"),
        ({"prompt": "a " * 9000}, ContextOverflow, "8192"),
        ({"prompt": "a", "temperatur": 1}, TypeError, "temperatur"),
        ({"prompt": "a", "max_tokens": "5"}, RequestError, "max_tokens: must be a whole number"),
        ({"prompt": "a", "strategy": "plain", "draft": "d.gguf"}, RequestError, "draft: belongs to the strategy, as "),
        ({"prompt": "a", "strategy": "mtp", "draft_vocab": 9}, RequestError, "draft_vocab: belongs to the strategy, as "),
        (
            {"prompt": "a", "strategy": dflash.MTP(draft_vocab="9")},
            RequestError,
            "draft_vocab is '9', must be a whole number from 1 to",
        ),
    ],
)
def test_what_can_not_be_is_refused_and_leaves_nothing(lm, pools, arguments, error, words):
    with pytest.raises(error, match=words):
        lm.generate(**arguments)


def test_one_bad_prompt_ends_the_others(lm, pools):
    with pytest.raises(RequestError):
        lm.generate(["import os", [99999], "import sys"], max_tokens=3000)


@pytest.mark.parametrize("text", ["", "a", [5]])
def test_a_text_too_short_to_score_is_refused(lm, pools, text):
    with pytest.raises(RequestError, match="at least 2"):
        lm.perplexity(text)


def test_texts_that_can_not_be_scored_are_refused(lm, pools):
    with pytest.raises(RequestError, match="at least 1"):
        lm.logits([])
    with pytest.raises(RequestError, match="99999"):
        lm.logits([1, 99999])
    with pytest.raises(ContextOverflow, match="8192"):
        lm.logits([1] * 8193)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"name": "no/such.gguf"}, NotFound, "no/such.gguf"),
        ({"name": __file__}, dflash.DFlashError, "test_doors"),
        ({"name": "demo", "device": "cuda:0"}, Unsupported, "device"),
        ({"name": "demo", "kv": "q3"}, RequestError, "kv"),
        ({"name": "demo", "threads": 0}, RequestError, "threads"),
        ({"name": "demo", "sequences": 0}, RequestError, "sequences"),
        ({"name": "demo", "sequences": 5000}, RequestError, "sequences"),
        ({"name": "demo", "context": 0}, RequestError, "context"),
        ({"name": "demo", "context": 40000}, RequestError, "32768"),
        ({"name": "demo-draft"}, Unsupported, "draft model"),
    ],
)
def test_what_can_not_be_loaded_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        dflash.load(**arguments)


def test_a_closed_lm_takes_no_work():
    lm = dflash.load("demo", threads=1, sequences=1, context=512)
    stream = lm.stream("import os")
    next(stream)
    lm.close()
    lm.close()
    assert list(stream)[-1].step.finish == "cancelled"
    with pytest.raises(dflash.DFlashError, match="shut"):
        lm.generate("import os")
    pools = lm.model.pools
    assert (pools.free_pages, pools.free_slots) == (pools.pages, pools.slots)


def test_the_cache_is_not_in_the_package():
    from dflash.kernels.cpu import jit

    folder = jit.CACHE.folder
    assert Path(dflash.__file__).parent not in folder.parents
