"""Chat completions and completions, as the `openai` client sees them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
CAPITAL = [{"role": "user", "content": "What is the capital of Japan?"}]


def ask(client, text="What is the capital of Japan?", **settings):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="demo", messages=messages, extra_body=NO_THINKING, **settings)


def test_a_chat_completion_has_content_reason_and_usage(client, server):
    answer = ask(client)
    choice = answer.choices[0]
    assert choice.message.content == "The capital of Japan is Tokyo."
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == "demo"
    text = server.loaded.template.render(CAPITAL, enable_thinking=False)
    assert answer.usage.prompt_tokens == len(server.loaded.tokenizer.encode(text))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_equals_the_whole_one(client):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == "The capital of Japan is Tokyo."
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == ask(client).usage
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_a_stream_has_no_usage_unless_asked(client):
    assert all(chunk.usage is None and chunk.choices for chunk in ask(client, stream=True))


def test_a_streamed_completion_has_the_text_of_a_whole_one(client):
    answer = client.completions.create(model="demo", prompt="def fibonacci(n):", max_tokens=20)
    streamed = client.completions.create(model="demo", prompt="def fibonacci(n):", max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.object == "text_completion"


def test_a_completion_ends_early_by_default(client):
    assert client.completions.create(model="demo", prompt="import os").usage.completion_tokens == 16


def test_completion_of_ids_and_of_several(client, server):
    ids = server.loaded.tokenizer.encode("def fibonacci(n):")
    text = client.completions.create(model="demo", prompt="def fibonacci(n):", max_tokens=8).choices[0].text
    of_ids = client.completions.create(model="demo", prompt=ids, max_tokens=8)
    several = client.completions.create(model="demo", prompt=["import", "def fibonacci(n):"], max_tokens=8, n=2)
    assert of_ids.choices[0].text == text
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[2].text == several.choices[3].text == text
    assert several.usage.completion_tokens == 32
    assert several.usage.prompt_tokens == len(ids) + len(server.loaded.tokenizer.encode("import"))


@pytest.mark.parametrize("stream", [False, True])
def test_echo_begins_the_text_with_the_prompt(client, stream):
    answer = client.completions.create(model="demo", prompt="import os", max_tokens=4, echo=True, stream=stream)
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert text.startswith("import os")
    assert len(text) > len("import os")


def test_the_text_ends_before_a_stop_string(client):
    answer = ask(client, "Count from 3 to 12.", stop=[", 7", "never"])
    assert answer.choices[0].message.content == "3, 4, 5, 6"
    assert answer.choices[0].finish_reason == "stop"
    streamed = ask(client, "Count from 3 to 12.", stop=", 7", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "3, 4, 5, 6"


def test_an_answer_has_at_most_max_tokens(client):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, "Count from 3 to 12.", **{name: 5})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5


def test_choices_differ_and_the_seed_gives_them_again(client):
    settings = {"n": 3, "temperature": 1.5, "seed": 11, "max_tokens": 20}
    first, again = (ask(client, "Tell me a story.", **settings) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3
    alone = ask(client, "Tell me a story.", **{**settings, "n": 1})
    assert alone.choices[0].message.content == texts[0]


def test_choices_are_streamed_side_by_side(client):
    pieces = {0: "", 1: ""}
    for chunk in ask(client, "Tell me a story.", n=2, temperature=1.5, seed=4, max_tokens=20, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    whole = ask(client, "Tell me a story.", n=2, temperature=1.5, seed=4, max_tokens=20)
    assert pieces == {choice.index: choice.message.content for choice in whole.choices}


def test_log_probabilities_come_where_asked(client):
    whole = ask(client, logprobs=True, top_logprobs=2).choices[0]
    streamed = ask(client, logprobs=True, top_logprobs=2, stream=True)
    entries = whole.logprobs.content
    assert "".join(entry.token for entry in entries) == whole.message.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == whole.message.content
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)
    assert all(entry.token == entry.top_logprobs[0].token for entry in entries)
    parts = [chunk.choices[0].logprobs.content for chunk in streamed if chunk.choices[0].logprobs]
    assert [entry for part in parts for entry in part] == entries
    assert ask(client).choices[0].logprobs is None


def test_log_probabilities_of_a_completion(client):
    choice = client.completions.create(model="demo", prompt="import os", max_tokens=6, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 6
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:n])) for n in range(6)]


def test_the_picked_token_is_always_among_the_likeliest(client):
    settings = {"model": "demo", "prompt": "import os", "temperature": 3, "seed": 3, "max_tokens": 20}
    for n in (0, 1, 2):
        logprobs = client.completions.create(**settings, logprobs=n).choices[0].logprobs
        picked = list(zip(logprobs.tokens, logprobs.token_logprobs, strict=True))
        assert all(top[token] == value for top, (token, value) in zip(logprobs.top_logprobs, picked, strict=True))
        assert {len(top) for top in logprobs.top_logprobs} <= {max(n, 1), n + 1}
        assert n + 1 in {len(top) for top in logprobs.top_logprobs}


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_ends_inside_a_character_ends_before_it(client, server, stream):
    tokenizer = server.loaded.tokenizer
    start = next(token for token in range(tokenizer.n_vocab) if tokenizer.token_bytes(token) == b"\xe4")
    answer = client.completions.create(
        model="demo", prompt="import os", max_tokens=3, logit_bias={str(start): 100}, stream=stream, logprobs=0
    )
    # two characters that can't go on as they do, and the start of one that could
    chunks = list(answer) if stream else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "\ufffd\ufffd"
    assert sum(len(chunk.choices[0].logprobs.tokens) for chunk in chunks if chunk.choices[0].logprobs) == 3


def test_bias_and_penalties_have_an_effect(client, server):
    token = server.loaded.tokenizer.encode("The")[0]
    assert not ask(client, logit_bias={str(token): -100}).choices[0].message.content.startswith("The")
    plain = client.completions.create(model="demo", prompt="a a a a", max_tokens=12).choices[0].text
    other = client.completions.create(model="demo", prompt="a a a a", max_tokens=12, frequency_penalty=2).choices[0].text
    assert plain != other


def test_eight_clients_get_what_each_gets_alone(client):
    questions = [f"What is {n} + {3 * n}?" for n in range(4)] + [f"Count from {n} to {n + 9}." for n in range(4)]
    settings = [{"temperature": 0.7, "seed": n} if n % 2 else {} for n in range(8)]
    alone = [ask(client, text, **extra).choices[0].message.content for text, extra in zip(questions, settings, strict=True)]

    def streamed(text, extra):
        return "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, text, stream=True, **extra))

    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            assert list(pool.map(streamed, questions, settings)) == alone


def test_more_requests_than_places_wait_their_turn(client):
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: ask(client, f"What is {n} + 1?", max_tokens=8), range(20)))
    assert len(answers) == 20
