"""Bounds on one request, and that what is within them is still taken."""

import asyncio
import json
import re
import threading
from math import inf
from pathlib import Path

import pytest
from hang_guard import GUARD, wait_until
from in_process import client_of, sent

from dflash.decode import registry
from dflash.decode.drafters import PromptLookup, Strategy
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import ContextOverflow, RequestError
from dflash.generation.grammar import limits as grammar_limits
from dflash.generation.messages import deferred_tools
from dflash.generation.messages.fields import FieldError, Fields, shown
from dflash.generation.recovery.names import Language
from dflash.serve import limits
from dflash.serve.http_errors import Problem
from dflash.serve.limits import Limits
from dflash.serve.parsing.body import parse_json
from dflash.serve.strategy_choice import Decoding, Defaults, parse_decoding, strategy_of


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("first(" + ",".join(f"lookup:{i}" for i in range(1, 10)) + ")", "names 9 strategies, at most 8"),
        ("first(" * 3 + "plain" + ")" * 3, "is nested 3 levels deep, at most 2"),
        ("adaptive(" + ",".join(["lookup"] * 40) + ")", "has 289 characters, at most 200"),
    ],
)
def test_strategies_too_large(name, message):
    with pytest.raises(RequestError, match=message) as raised:
        Strategy.named(name)
    assert len(str(raised.value)) < 300


def test_a_deep_name_is_refused_at_once():
    for opening in ("first(", "((((", "("):
        with pytest.raises(RequestError):
            Strategy.named(opening * 30)


def test_equal_parts_of_a_strategy_count_once():
    assert Strategy.named("first(lookup, lookup, lookup)") == Strategy.named("first(lookup)")
    assert len(Strategy.named("adaptive(lookup, plain, lookup)").drafter.strategies) == 2
    with pytest.raises(RequestError, match=r"FirstOf: names MTP\(\) twice"):
        Strategy.named("first(mtp, lookup, mtp:2)")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("empty," * 20000, "holds more than 8 names"),
        ([["empty"]] * 9, "holds more than 8 names"),
        ("stall:" + "x" * 300, "holds a name of more than 200 characters"),
        (["stall:" + "x" * 300], "holds a name of more than 200 characters"),
        ("," * 100, "holds more than 8 names"),
    ],
)
def test_recoveries_too_many(value, message):
    with pytest.raises(FieldError, match=message):
        parse_decoding(Fields({"recover": value}))


def test_equal_recoveries_count_once(lm):
    wanted = Decoding(recover=["loop", "loop", "empty", "loop"])
    strategy, _ = strategy_of(wanted, Defaults(), Language(lm.tokenizer, lm.template), lm._engine_thread)
    assert len(strategy.recoveries) == 2


@pytest.mark.parametrize("name", ["", " ", "first()"])
def test_an_empty_name_is_no_strategy(lm, name):
    for allowed in (None, ("plain",)):
        with pytest.raises(FieldError, match=r"is not (known|allowed)"):
            strategy_of(Decoding(strategy=name), Defaults(allowed=allowed), Language(lm.tokenizer), lm._engine_thread)


def test_what_is_not_allowed_is_not_read(lm, monkeypatch):
    monkeypatch.setattr("dflash.serve.strategy_choice.named", lambda *_, **__: 1 // 0)
    for allowed in ((), ("plain",)):
        with pytest.raises(FieldError, match="strategy: "):
            strategy_of(
                Decoding(strategy="lookup," * 9999), Defaults(allowed=allowed), Language(lm.tokenizer), lm._engine_thread
            )


SMALL = Limits(1024)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 65 + b"]" * 65, "is nested 65 levels deep, at most 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "is nested 65 levels deep, at most 64"),
        (b"[" * 1000000, "is nested 1000000 levels deep"),
        (b"[" + b"[]," * 70000 + b"[]]", "arrays and objects, at most 65536"),
        (b"[" + b"1," * 70000 + b"1]", "values, at most 67584"),
        (b'{"a": ' + b"1" * 513 + b"}", "a number of more than 512 characters"),
        (b'{"a": 0.' + b"1" * 5000 + b"}", "a number of more than 512 characters"),
        (b'{"a": "' + b'\\"' * 100000, "is not valid JSON"),  # quotes in a string that never ends
        (b'"' + b"\\" * 100001, "is not valid JSON"),
    ],
)
def test_json_beyond_the_limits(body, message):
    with pytest.raises(Problem, match=message) as raised:
        parse_json(body, SMALL)
    assert raised.value.status == 400


@pytest.mark.parametrize(
    "value",
    [
        "[" * 1000 + "{" * 1000,
        '"]}\\',
        {"a": '\\"[[[[' * 100},
        "1" * 10000,
        10**500,
        [[[[[]]]]] * 1000,
        list(range(60000)),
        {"deep": json.loads("[" * 63 + "]" * 63)},
    ],
)
def test_json_within_the_limits(value):
    assert parse_json(json.dumps(value).encode(), SMALL) == value


def test_messages_quote_long_values_in_part():
    for value in ("x" * 10**6, list(range(10**6)), {i: i for i in range(10**5)}, [["a" * 1000] * 1000] * 10):
        assert len(shown(value)) <= 60


def test_a_long_text_is_refused_after_a_part_of_it(lm, monkeypatch):
    tokenizer = lm.tokenizer
    read = []

    class Counting:
        def __init__(self, inner):
            self._inner = inner

        def encode(self, text, **settings):
            read.append(len(text))
            return self._inner.encode(text, **settings)

        def encode_batch_fast(self, texts, **_):
            raise AssertionError("the whole text was tokenized")

    monkeypatch.setattr(tokenizer, "_full", Counting(tokenizer._full))
    for text in ("9" * 500_000, "word " * 100_000, "<|im_end|>" * 50_000, "e\u0301 " * 100_000):
        read.clear()
        with pytest.raises(ContextOverflow, match="the text has more than"):
            tokenizer.encode(text, max_tokens=2000)
        assert sum(read) < 0.2 * len(text)


@pytest.mark.parametrize(
    "text", ["", "a", " " * 50_000, "a" * 30_000, "import os\n" * 900, "<|im_end|>" * 90, "\n\n " * 9000]
)
def test_the_check_of_the_length_changes_no_ids(lm, text):
    ids = lm.tokenizer.encode(text)
    assert lm.tokenizer.encode(text, max_tokens=max(len(ids), 1)) == ids
    if len(ids) > 1:
        with pytest.raises(ContextOverflow):
            lm.tokenizer.encode(text, max_tokens=len(ids) - 1)


def test_choices_share_what_their_prompt_is_made_of():
    prompt = PromptIds(list(range(300, 1300)))
    sampling = Sampling(temperature=1.0, logit_bias=dict.fromkeys(range(100), 1.0), seed=5)
    one, other = (Session(prompt, sampling=sampling.with_seed(seed)) for seed in (5, 6))
    assert one.prompt_array is other.prompt_array
    assert all(a is b for a, b in zip(one.token_ids, other.token_ids, strict=True))
    assert one.token_ids is not other.token_ids
    assert (one.seed, other.seed) == (5, 6)
    assert one.sampling.logit_bias is other.sampling.logit_bias
    assert one.sampling == sampling
    with pytest.raises(ValueError, match="read-only"):
        one.prompt_array[0] = 1


def test_the_loop_goes_on_while_requests_are_read(app_of, monkeypatch):
    """Parsing waits for an event here; meanwhile another request is answered."""
    entered, go_on = threading.Event(), threading.Event()
    real = parse_json

    def slow(body, bounds):
        if b"slow" in body:
            entered.set()
            assert go_on.wait(GUARD)
        return real(body, bounds)

    monkeypatch.setattr("dflash.serve.endpoints.parse_json", slow)
    app = app_of("hello")

    async def run():
        async with client_of(app) as client:
            held = asyncio.create_task(client.post("/v1/completions", json={"prompt": "slow"}))
            await asyncio.to_thread(entered.wait, GUARD)
            quick = await client.post("/v1/completions", json={"prompt": "a"})
            assert not held.done()
            go_on.set()
            return quick.status_code, (await held).status_code

    try:
        assert asyncio.run(run()) == (200, 200)
    finally:
        go_on.set()


def test_too_many_requests_at_a_time(app_of, monkeypatch):
    monkeypatch.setattr("dflash.serve.endpoints.MAX_PREPARING", 2)
    go_on = threading.Event()
    monkeypatch.setattr("dflash.serve.endpoints.parse_json", lambda *_: go_on.wait(GUARD) and {"prompt": "a"})
    app = app_of("hello")

    async def run():
        async with client_of(app) as client:
            held = [asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"})) for _ in range(2)]
            while app.state.api.preparing < 2:
                await asyncio.sleep(0)
            refused = await client.post("/v1/completions", json={"prompt": "a"})
            go_on.set()
            return refused, [(await each).status_code for each in held]

    try:
        refused, others = asyncio.run(run())
    finally:
        go_on.set()
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["code"] == "overloaded"
    assert others == [200, 200]


def test_a_client_that_takes_nothing_is_gone(app_of, monkeypatch):
    monkeypatch.setattr(limits, "SEND_SECONDS", 0.01)
    app = app_of(*["hello"] * 100000)

    async def run():
        body, never = [{"type": "http.request", "body": b'{"prompt": "a", "stream": true}'}], asyncio.Event()

        async def receive():
            if body:
                return body.pop()
            await never.wait()
            return None

        async def send(message):
            if message["type"] == "http.response.body":
                await never.wait()

        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        await app(scope, receive, send)

    asyncio.run(run())
    wait_until(lambda: not app.engine_thread.engine.busy)


def test_prompt_lookup_of_the_library_is_not_bounded():
    """Limits are of names; objects are the caller's own."""
    assert PromptLookup(n_draft=5000).n_draft == 5000


def test_the_page_of_limits_is_true():
    page = Path(__file__).parents[2].joinpath("docs", "limits.md").read_text()
    written = {constant: value for _, value, constant in re.findall(r"\| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|", page)}
    numbers = {
        name: value for module in (limits, grammar_limits, registry, deferred_tools) for name, value in vars(module).items()
    }
    for constant, value in written.items():
        if not constant.startswith("Limits."):
            assert float(value.split()[0]) == numbers[constant], constant
    for context in (1024, 32768, 262144):
        bounds = Limits(context)
        values = {"C": context, "16 C": 16 * context, "65536 + 2 C": 65536 + 2 * context, "65536": 65536, "no limit": inf}
        values["16 C, at least 524288"] = max(16 * context, 524288)
        for constant, value in written.items():
            if constant.startswith("Limits."):
                assert getattr(bounds, constant.partition(".")[2]) == values[value], constant
    public = {name for name in vars(limits) if name.isupper()} | {"MAX_NAME", "MAX_PARTS", "MAX_NESTING"}
    assert public <= set(written)


def test_tool_references_are_counted_before_they_are_written(app_of):
    """Each of 4,000 references in 300 kB stands for a definition of 60 kB."""
    tool = {"name": "big", "description": "x" * 60_000, "input_schema": {"type": "object"}, "defer_loading": True}
    references = [{"type": "tool_reference", "tool_name": "big"}] * 4000
    result = {"type": "tool_result", "tool_use_id": "1", "content": references}
    body = {"max_tokens": 4, "tools": [tool], "messages": [{"role": "user", "content": [result]}]}
    app = app_of("hello")
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = sent(app, "POST", path, json=body)
        assert (answer.status_code, "4000 tool references stand for 240" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"logprobs": True, "top_logprobs": 20, "n": 64}, 200),
        ({"logprobs": True, "top_logprobs": 20, "n": 64, "max_tokens": 195}, 200),
        ({"logprobs": True, "top_logprobs": 20, "n": 64, "max_tokens": 196}, 400),
        ({"logprobs": True, "n": 64, "max_tokens": 4097}, 400),
        ({"n": 64, "max_tokens": 100_000}, 200),
    ],
)
def test_log_probabilities_of_an_answer_are_bounded(app_of, settings, status):
    body = {"messages": [{"role": "user", "content": "a"}], **settings}
    answer = sent(app_of("hello"), "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == "max_tokens"


def test_a_stored_conversation_is_no_longer_than_a_body(app_of):
    app, previous, item = app_of("hello", limits=Limits(1024)), None, {"type": "web_search_call", "query": "x" * 120_000}
    statuses = []
    for _ in range(6):
        body = {"input": [item, {"role": "user", "content": "a"}], "previous_response_id": previous}
        answer = sent(app, "POST", "/v1/responses", json=body)
        statuses.append(answer.status_code)
        previous = answer.json().get("id")
    assert statuses == [200] * 5 + [400]
    assert answer.json()["error"]["param"] == "previous_response_id"
    many = {"input": [[]] * 30_000 + [{"role": "user", "content": "a"}], "store": True}
    assert sent(app, "POST", "/v1/responses", json=many).status_code == 400
