"""The number of reasoning tokens is the same in all APIs: the tokenized reasoning and its closing tag."""

import json

import pytest

MESSAGES = [{"role": "user", "content": "What is the capital of Japan?"}]


def chat(**settings):
    return "/v1/chat/completions", {"messages": MESSAGES, **settings}


def messages(max_tokens=200, **settings):
    return "/v1/messages", {"messages": MESSAGES, "max_tokens": max_tokens, "thinking": {"type": "adaptive"}, **settings}


def responses(max_tokens=200, **settings):
    return "/v1/responses", {"input": MESSAGES, "max_output_tokens": max_tokens, **settings}


def of_chat(answer):
    usage = answer["usage"]
    return usage["completion_tokens"], usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)


def of_messages(answer):
    return answer["usage"]["output_tokens"], answer["usage"]["output_tokens_details"]["thinking_tokens"]


def of_responses(answer):
    return answer["usage"]["output_tokens"], answer["usage"]["output_tokens_details"]["reasoning_tokens"]


@pytest.fixture
def counts(http):
    """Returns output and reasoning tokens of a request, the same for each API, streamed or not; and the reasoning."""

    def count(**settings):
        found = []
        for build, read in ((chat, of_chat), (messages, of_messages), (responses, of_responses)):
            path, body = build(**settings)
            found.append(read(whole := http.post(path, json=body).json()))
            if build is chat:
                reasoning = whole["choices"][0]["message"].get("reasoning_content", "")
                body["stream_options"] = {"include_usage": True}
            lines = http.post(path, json={**body, "stream": True}).text.splitlines()
            bodies = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            found.append(read([each for body in bodies if (each := body.get("response", body)).get("usage")][-1]))
        assert len(set(found)) == 1, found
        return *found[0], reasoning

    return count


def test_an_answer_after_reasoning(counts, server):
    n, n_reasoning, reasoning = counts()
    assert n_reasoning == len(server.loaded.tokenizer.encode(f"{reasoning}\n</think>")) < n


def test_an_answer_that_is_cut_in_its_reasoning(counts, server):
    n, n_reasoning, reasoning = counts(max_tokens=5)
    assert n_reasoning == n == len(server.loaded.tokenizer.encode(reasoning)) == 5


def test_an_answer_that_is_reasoning_only(counts, server):
    """The end token that comes instead of the closing tag is no reasoning."""
    tokenizer = server.loaded.tokenizer
    n, n_reasoning, reasoning = counts(min_tokens=5, logit_bias={str(tokenizer.eos_ids[0]): 100})
    assert n_reasoning == n - 1 == len(tokenizer.encode(reasoning)) == 5


@pytest.mark.parametrize("budget", [0, 3])
def test_reasoning_that_is_closed_by_force(counts, server, budget):
    n, n_reasoning, reasoning = counts(thinking_token_budget=budget)
    assert n_reasoning == len(server.loaded.tokenizer.encode(f"{reasoning}\n</think>")) < n


@pytest.mark.parametrize("settings", [{"chat_template_kwargs": {"enable_thinking": False}}, {"logit_bias": {"EOS": 100}}])
def test_an_answer_without_reasoning_counts_none(counts, server, settings):
    end = str(server.loaded.tokenizer.eos_ids[0])
    settings = {"logit_bias": {end: 100}} if "logit_bias" in settings else settings
    assert counts(**settings)[1:] == (0, "")
