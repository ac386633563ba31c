"""Fields that act have their effect on the demo, with every strategy, in streams and in batches."""

import json
import math
from itertools import accumulate, chain

import pytest
from in_process import sent

from dflash.errors import RequestError
from dflash.serve.limits import Limits

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "What is the capital of Japan?"}
PROMPT = "import os\nimport sys\n\n\ndef main():\n"
BARE = {"chat_template_kwargs": {"enable_thinking": False}}
STRATEGIES = ["plain", "lookup", "mtp:3"]


@pytest.fixture
def post(http):
    """Posts a body and returns the answer."""

    def post(path, status=200, **body):
        answer = http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    return post


@pytest.fixture
def stream(http):
    """Posts a body and returns the objects of the stream."""

    def stream(path, **body):
        answer = http.post(path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]

    return stream


@pytest.fixture
def tokenizer(server):
    return server.loaded.tokenizer


def ids_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [token for choice in choices for token in choice.get("token_ids", [])]


def test_ignore_eos_continues_after_end_tokens(post, stream, tokenizer):
    body = {"messages": [USER], "max_tokens": 90, "return_token_ids": True, **BARE}
    plain = post(CHAT, **body)["choices"][0]
    assert plain["finish_reason"] == "stop"
    assert plain["token_ids"][-1] in tokenizer.eos_ids
    found = [post(CHAT, **body, ignore_eos=True, strategy=strategy) for strategy in STRATEGIES]
    first = found[0]["choices"][0]
    for each in found:
        (choice,) = each["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["token_ids"] == first["token_ids"]
        assert choice["message"]["content"] == first["message"]["content"]
        assert each["usage"]["completion_tokens"] == len(choice["token_ids"]) == 90
    assert first["token_ids"][: len(plain["token_ids"])] == plain["token_ids"]
    assert first["message"]["content"].startswith(plain["message"]["content"])
    assert ids_of(stream(CHAT, **body, ignore_eos=True)) == first["token_ids"]


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_ignore_eos_in_the_other_apis(post, path):
    if path == RESPONSES:
        body = post(path, input=USER["content"], max_output_tokens=90, ignore_eos=True, **BARE)
        assert body["status"] == "incomplete"
    else:
        body = post(path, messages=[USER], max_tokens=90, ignore_eos=True)
        assert body["stop_reason"] == "max_tokens"
    assert body["usage"]["output_tokens"] == 90


def test_ignore_eos_has_no_effect_on_a_constraint(post):
    error = post(CHAT, 400, messages=[USER], ignore_eos=True, regex="a|b")["error"]
    assert error["param"] == "ignore_eos"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stop_token_ends_the_output_and_has_no_text(post, stream, tokenizer, strategy):
    body = {"prompt": PROMPT, "max_tokens": 24, "return_token_ids": True, "strategy": strategy}
    truth = post(COMPLETIONS, **body)["choices"][0]["token_ids"]
    at = next(i for i in range(6, 24) if truth[i] not in truth[:i])
    body |= {"stop_token_ids": [truth[at], 3]}
    (choice,) = post(COMPLETIONS, **body)["choices"]
    assert choice["token_ids"] == truth[: at + 1]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == tokenizer.decode(truth[:at])
    assert ids_of(stream(COMPLETIONS, **body)) == truth[: at + 1]
    (later,) = post(COMPLETIONS, **body, min_tokens=at + 3)["choices"]
    assert len(later["token_ids"]) > at + 2


def expected(server, ids):
    """Log-probabilities of the demo for each token but the first."""
    from dflash.generation import scoring

    return scoring.log_probabilities(server.engine_thread, server.loaded.model, ids).tolist()


@pytest.mark.parametrize(
    ("strategy", "max_tokens", "as_ids"),
    [("plain", 0, False), ("plain", 0, True), ("plain", 1, True), ("lookup", 7, False), ("mtp:3", 7, True)],
)
def test_echo_with_logprobs(post, stream, server, tokenizer, strategy, max_tokens, as_ids):
    ids = tokenizer.encode(PROMPT)
    body = {"prompt": ids if as_ids else PROMPT, "max_tokens": max_tokens, "echo": True, "logprobs": 2, "strategy": strategy}
    (choice,) = post(COMPLETIONS, **body)["choices"]
    assert choice["text"].startswith(PROMPT)
    found = choice["logprobs"]
    assert {len(values) for values in found.values()} == {len(ids) + max_tokens}
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    output = tokenizer.encode(choice["text"], special=False)[len(ids) :]
    assert found["token_logprobs"][1 : len(ids)] == pytest.approx(expected(server, ids), abs=1e-4)
    if max_tokens:
        assert found["token_logprobs"][len(ids) :] == pytest.approx(expected(server, ids + output)[len(ids) - 1 :], abs=1e-3)
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"] == [0, *accumulate(map(len, found["tokens"]))][:-1]
    assert all(len(top) in (2, 3) for top in found["top_logprobs"][1:])
    assert choice["finish_reason"] == "length"
    chunks = [chunk["choices"][0] for chunk in stream(COMPLETIONS, **body)]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    parts = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    assert {name: list(chain.from_iterable(part[name] for part in parts)) for name in found} == found


def test_the_end_token_has_an_entry_with_echo(post, tokenizer):
    """Evaluation programs drop the last entry as that of the one output token."""
    prompt = f"<|im_start|>user\n{USER['content']}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    answer = post(COMPLETIONS, prompt=prompt, max_tokens=90, echo=True, logprobs=0, return_token_ids=True)["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert len(answer["logprobs"]["tokens"]) == len(answer["prompt_token_ids"]) + len(answer["token_ids"])


def test_a_batch_of_prompts_gets_what_each_gets_alone(post):
    prompts = [PROMPT, "a", [5, 6, 7], "b" * 300]
    settings = {"max_tokens": 3, "echo": True, "logprobs": 1, "seed": 5, "temperature": 1.0}
    together = post(COMPLETIONS, prompt=prompts, **settings)["choices"]
    alone = [post(COMPLETIONS, prompt=prompt, **settings)["choices"][0] for prompt in prompts]
    assert [{**choice, "index": 0} for choice in together] == alone


def test_prompt_logprobs_have_the_form_of_vllm(post, server):
    rendered = post("/apply-template", messages=[USER])["prompt"]
    body = post(CHAT, messages=[USER], max_tokens=2, prompt_logprobs=1, return_token_ids=True)
    ids = body["prompt_token_ids"]
    assert server.loaded.tokenizer.decode(ids) == rendered
    completion = post(COMPLETIONS, prompt=ids, max_tokens=2, prompt_logprobs=1)["choices"][0]
    assert completion["prompt_logprobs"] == body["prompt_logprobs"]
    first, *others = body["prompt_logprobs"]
    assert first is None
    assert len(others) == len(ids) - 1
    for token, logprob, entry in zip(ids[1:], expected(server, ids), others, strict=True):
        own = entry[str(token)]
        assert own["logprob"] == pytest.approx(logprob, abs=1e-4)
        assert own["decoded_token"] == server.loaded.tokenizer.decode([token])
        likeliest = max(entry.values(), key=lambda each: each["logprob"])
        assert likeliest["rank"] == 1
        assert (own["rank"] == 1) == (own == likeliest)
        assert len(entry) == 1 + (own["rank"] > 1)


@pytest.mark.parametrize(("n", "side"), [(3, "left"), (3, "right"), (-1, "left"), (10**6, "left")])
def test_a_prompt_is_shortened(post, tokenizer, n, side):
    ids = tokenizer.encode(PROMPT)
    settings = {"prompt": PROMPT, "max_tokens": 2, "truncate_prompt_tokens": n, "truncation_side": side}
    (choice,) = post(COMPLETIONS, **settings, return_token_ids=True)["choices"]
    want = ids if n in (-1, 10**6) else ids[-n:] if side == "left" else ids[:n]
    assert choice["prompt_token_ids"] == want


def test_a_prompt_beyond_the_context_is_shortened(post):
    body = post(COMPLETIONS, prompt=[5] * 40000, max_tokens=1, truncate_prompt_tokens=20)
    assert body["usage"]["prompt_tokens"] == 20
    assert post(COMPLETIONS, 400, prompt=[5] * 40000, max_tokens=1)["error"]["code"] == "context_length_exceeded"


def test_reasoning_is_left_out_where_asked(post, stream):
    body = {"messages": [USER], "max_tokens": 200}
    shown = post(CHAT, **body)
    hidden = post(CHAT, **body, include_reasoning=False)
    assert shown["choices"][0]["message"].pop("reasoning_content")
    assert shown["choices"][0]["message"] == hidden["choices"][0]["message"]
    assert shown["usage"] == hidden["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(CHAT, **body, include_reasoning=False)]
    assert not any("reasoning_content" in delta for delta in deltas)
    assert "".join(delta.get("content") or "" for delta in deltas) == hidden["choices"][0]["message"]["content"]
    excluded = post(CHAT, **body, reasoning={"exclude": True})["choices"][0]["message"]
    assert excluded == hidden["choices"][0]["message"]


def test_control_tokens_are_shown(post, tokenizer):
    body = {"messages": [USER], "max_tokens": 90, "ignore_eos": True, **BARE}
    hidden, shown = (
        post(CHAT, **body, skip_special_tokens=skip)["choices"][0]["message"]["content"] for skip in (True, False)
    )
    assert "<|im_end|>" in shown
    assert "<|im_end|>" not in hidden
    assert shown.replace("<|im_end|>", "").replace("<|im_start|>", "").replace("<|endoftext|>", "") == hidden


def test_usage_comes_with_every_chunk(stream):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = stream(COMPLETIONS, prompt=PROMPT, max_tokens=6, n=2, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 12)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}
    assert last["usage"]["completion_tokens"] == 12


def test_no_seed_gives_several_texts(post):
    body = {"prompt": "Once", "max_tokens": 12, "temperature": 1.5}
    assert len({post(COMPLETIONS, **body, seed=-1)["choices"][0]["text"] for _ in range(3)}) > 1
    assert len({post(COMPLETIONS, **body, seed=-2)["choices"][0]["text"] for _ in range(3)}) == 1


def test_tokens_are_named_by_their_ids(post):
    body = {"prompt": PROMPT, "max_tokens": 2, "logprobs": 1}
    ids = post(COMPLETIONS, **body, return_token_ids=True)["choices"][0]["token_ids"]
    named = post(COMPLETIONS, **body, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert named["tokens"] == [f"token_id:{token}" for token in ids]
    assert all(name in top for name, top in zip(named["tokens"], named["top_logprobs"], strict=True))


def test_an_object_has_the_schema_that_stands_beside_its_type(post):
    schema = {"type": "object", "properties": {"n": {"const": 41}}, "required": ["n"], "additionalProperties": False}
    body = {"messages": [USER], "max_tokens": 60, **BARE, "response_format": {"type": "json_object", "schema": schema}}
    assert json.loads(post(CHAT, **body)["choices"][0]["message"]["content"]) == {"n": 41}


def test_a_grammar_of_sglang_holds(post):
    (choice,) = post(CHAT, messages=[USER], max_tokens=20, ebnf='root ::= "x" "yz"', **BARE)["choices"]
    assert choice["message"]["content"] == "xyz"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_last_message_is_continued(post, stream, strategy):
    """They equal those of the same tokens in a completion; with echo the message comes first."""
    begun = "The capital of"
    messages = [USER, {"role": "assistant", "content": begun}]
    body = {"messages": messages, "max_tokens": 12, "continue_final_message": True, "strategy": strategy}
    prompt = f"<|im_start|>user\n{USER['content']}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n{begun}"
    assert post("/apply-template", messages=messages, continue_final_message=True)["prompt"] == prompt
    want = post(COMPLETIONS, prompt=prompt, max_tokens=12)["choices"][0]["text"]
    message = post(CHAT, **body)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": want}
    assert post(CHAT, **body, echo=True)["choices"][0]["message"]["content"] == begun + want
    for echo in (False, True):
        deltas = [chunk["choices"][0]["delta"] for chunk in stream(CHAT, **body, echo=echo)]
        assert "".join(delta.get("content") or "" for delta in deltas) == begun * echo + want


def test_reasoning_is_continued(post):
    """Reasoning that is longer than the end of the prompt that parsers look at."""
    thought = "The user asks about a city, and I know that city well: it is"
    messages = [USER, {"role": "assistant", "reasoning_content": thought, "content": ""}]
    body = post(CHAT, messages=messages, max_tokens=200, continue_final_message=True)
    message = body["choices"][0]["message"]
    assert message["reasoning_content"]
    assert "</think>" not in message["content"]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_without_a_generation_prompt_the_last_message_is_the_end(post):
    rendered = post("/apply-template", messages=[USER], add_generation_prompt=False)["prompt"]
    assert rendered == f"<|im_start|>user\n{USER['content']}<|im_end|>\n"
    body = {"max_tokens": 3, "return_token_ids": True}
    chat = post(CHAT, messages=[USER], add_generation_prompt=False, **body)
    assert chat["choices"][0]["token_ids"] == post(COMPLETIONS, prompt=rendered, **body)["choices"][0]["token_ids"]


def test_old_turns_are_dropped(app_of):
    """No token more than needed is cut: with one more the prompt would be longer than the context."""
    app = app_of("hello", limits=Limits(1000))
    turns = [{"role": "user", "content": "word " * 60}, {"role": "assistant", "content": "ok"}] * 40
    body = {"instructions": "Keep me.", "input": [*turns, USER]}
    answer = sent(app, "POST", RESPONSES, json=body)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    answer = sent(app, "POST", RESPONSES, json={**body, "truncation": "auto"}).json()
    assert answer["truncation"] == "auto"
    n = answer["usage"]["input_tokens"]
    counted = [
        sent(app, "POST", f"{RESPONSES}/input_tokens", json={**body, "input": [*turns[2 * k :], USER]}).json()[
            "input_tokens"
        ]
        for k in range(25, 40)
    ]
    assert n == max(count for count in counted if count < 1000)
    last = {"input": [{"role": "user", "content": "word " * 2000}], "truncation": "auto"}
    assert sent(app, "POST", RESPONSES, json=last).json()["error"]["code"] == "context_length_exceeded"


def test_the_library_continues_a_message(lm):
    messages = [USER, {"role": "assistant", "content": "The capital of"}]
    found = lm.generate(messages, max_tokens=8, continue_final_message=True)
    assert found.prompt == lm.encode(lm.tokenizer.decode(found.prompt))
    assert lm.tokenizer.decode(found.prompt).endswith("</think>\n\nThe capital of")
    for prompt in ([USER], "The capital of", [{"role": "assistant", "content": ""}]):
        with pytest.raises(RequestError, match="continue_final_message"):
            lm.generate(prompt, max_tokens=1, continue_final_message=True)


def test_the_library_has_the_same(lm):
    truth = lm.generate(PROMPT, max_tokens=20)
    stop = next(token for i, token in enumerate(truth.tokens) if i > 4 and token not in truth.tokens[:i])
    ended = lm.generate(PROMPT, max_tokens=20, stop_token_ids=[stop], strategy="lookup")
    assert ended.tokens == truth.tokens[: truth.tokens.index(stop) + 1]
    assert ended.finish_reason == "stop"
    question = lm.encode([USER], enable_thinking=False)
    long = lm.generate(question, max_tokens=90, ignore_eos=True)
    assert (len(long.tokens), long.finish_reason) == (90, "length")
    scored = lm.generate(PROMPT, max_tokens=0, prompt_logprobs=1)
    assert scored.tokens == []
    assert [entry.token for entry in scored.prompt_logprobs] == scored.prompt[1:]
    mean = sum(entry.logprob for entry in scored.prompt_logprobs) / len(scored.prompt_logprobs)
    assert mean == pytest.approx(-math.log(lm.perplexity(PROMPT)))
