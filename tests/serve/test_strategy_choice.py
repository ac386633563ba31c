"""Strategies and recoveries that a request or a flag asks for; without them nothing is different."""

from argparse import ArgumentParser

import pytest
from in_process import sent

from dflash.cli.arguments import add_strategy, named_strategy
from dflash.cli.serve import defaults_of
from dflash.cli.serve_arguments import parse
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.verifiers import COUPLED, BlockVerification, RejectionSampling, SyntheticAcceptance, Typical
from dflash.errors import RequestError, Unsupported
from dflash.generation.messages.fields import FieldError, Fields
from dflash.generation.recovery.think_budget import ThinkBudget
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.strategy_choice import Decoding, Defaults, allowed, parse_decoding

CAPITAL = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "chat_template_kwargs": {"enable_thinking": False},
}
LIST = {"prompt": "a = [1, 2, 3, 4]\nb = [1, 2, 3, 4]\nc = [1, 2, 3, 4]\nd =", "max_tokens": 24}


def post(http, body, **more):
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    answer = http.post(path, json={**body, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def same(one, other):
    """Compare two responses without ids, times and draft token counts."""
    for answer in (one, other):
        for name in ("completion_tokens_details", "rows_per_step"):
            answer["usage"].pop(name, None)
    return {**one, "id": 0, "created": 0} == {**other, "id": 0, "created": 0}


def test_a_strategy_changes_no_answer(http):
    plain, drafted = post(http, LIST), post(http, LIST, strategy="lookup")
    details = drafted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 4
    assert details["rejected_prediction_tokens"] >= 0
    assert "completion_tokens_details" not in plain["usage"]
    assert same(plain, drafted)
    assert same(plain, post(http, LIST, strategy="plain"))


@pytest.mark.parametrize("recover", ["empty,stall,loop", ["empty", "stall", "loop"], "", "none", None])
@pytest.mark.parametrize("body", [CAPITAL, LIST], ids=["chat", "completion"])
def test_recoveries_change_no_answer_that_is_right(http, body, recover):
    plain = post(http, body)
    assert "interventions" not in plain
    assert same(plain, post(http, body, recover=recover))
    assert same(plain, post(http, body, recover=recover, strategy="lookup"))


def test_no_end_before_so_many_tokens(http):
    plain, longer = post(http, CAPITAL), post(http, CAPITAL, min_tokens=12)
    assert plain["usage"]["completion_tokens"] < 12 <= longer["usage"]["completion_tokens"]
    text = plain["choices"][0]["message"]["content"]
    assert longer["choices"][0]["message"]["content"].startswith(text)
    assert longer["interventions"][0] == "MinTokens: an end was likeliest after 8 tokens, of at least 12"
    assert same(longer, post(http, CAPITAL, recover=["min:12"]))


@pytest.mark.parametrize("strategy", ["plain", "lookup"])
def test_stop_strings_do_not_count_before_so_many_tokens(http, strategy):
    body = {"prompt": "def fibonacci(n):", "max_tokens": 40, "strategy": strategy}
    text = post(http, body)["choices"][0]["text"]
    stop = next(word for word in text.split() if text.count(word) > 1)
    at_once = post(http, {**body, "stop": stop})
    assert at_once["choices"][0]["text"] == text[: text.index(stop)]
    n = at_once["usage"]["completion_tokens"]
    later = post(http, {**body, "stop": stop, "min_tokens": n})
    assert later["usage"]["completion_tokens"] > n
    assert later["choices"][0]["text"].startswith(text[: text.index(stop) + len(stop)])
    assert later["choices"][0]["text"] == text[: text.index(stop, text.index(stop) + 1)]


def test_a_stream_tells_interventions_with_its_end(client):
    body = {"min_tokens": 12, "chat_template_kwargs": CAPITAL["chat_template_kwargs"]}
    chunks = client.chat.completions.create(model="demo", messages=CAPITAL["messages"], stream=True, extra_body=body)
    found = [hasattr(chunk, "interventions") for chunk in chunks]
    assert found == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("strategy", "nonsense", "nonsense"),
        ("strategy", "lookup:0", "lookup"),
        ("strategy", 7, "must be a string"),
        ("recover", "loop,stal", "'stal' is not one of empty, loop"),
        ("recover", [1], "must be a string or an array of strings"),
        ("recover", {"a": 1}, "must be a string or an array of strings"),
        ("min_tokens", -1, "must be a whole number"),
        ("thinking_token_budget", -2, "must be a whole number from -1"),
        ("thinking_token_budget", 2.5, "must be a whole number from -1"),
        ("repetition_detection", 3, "must be a JSON object"),
        ("repetition_detection.max_pattern_size", 5000, "must be a whole number from 0 to 4096"),
        ("repetition_detection.min_count", 1, "must be a whole number from 2"),
        ("repetition_detection.min_pattern_size", 9, "must be a whole number from 0 to 8"),
    ],
)
def test_what_is_refused(http, field, value, message):
    name, _, inner = field.partition(".")
    answer = http.post(
        "/v1/chat/completions", json={**CAPITAL, name: {"max_pattern_size": 8, inner: value} if inner else value}
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert message in error["message"]
    assert error["message"].startswith(f"{field}: ")


def test_a_strategy_that_the_model_can_not_have_is_the_requests_fault(http, monkeypatch):
    def refuse(self, model):
        raise Unsupported("lookup: this model is read backwards")

    monkeypatch.setattr(PromptLookup, "prepare", refuse)
    answer = http.post("/v1/completions", json={**LIST, "strategy": "lookup:3"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "strategy: lookup: this model is read backwards"


def test_fields_that_say_nothing():
    assert parse_decoding(Fields({})) == parse_decoding(Fields({"min_tokens": 0, "repetition_detection": {}})) == Decoding()
    wanted = parse_decoding(
        Fields({"min_tokens": 3, "repetition_detection": {"max_pattern_size": 9, "min_pattern_size": 2}})
    )
    assert wanted.more == (MinTokens(3), LoopGuard(same=0, min_period=2, max_period=9, count=3, lines=0, calls=0))
    assert parse_decoding(Fields({"thinking_token_budget": 0})).more == (ThinkBudget(0),)
    assert parse_decoding(Fields({"thinking_token_budget": -1})).more == ()
    with pytest.raises(FieldError, match="strategy: must be a string"):
        parse_decoding(Fields({"strategy": ["plain"]}))


def asked_of(server, defaults, *bodies):
    """Return the response of a server with these defaults."""
    app = build_app(Backend(server.engine_thread, server.loaded.tokenizer, server.loaded.template, ["demo"], defaults))
    return [sent(app, "POST", "/v1/chat/completions", json=body).json() for body in bodies]


@pytest.mark.parametrize(
    ("words", "name", "message"),
    [
        ("plain, lookup", "mtp:3", "strategy: 'mtp:3' is not allowed on this server; use plain, lookup"),
        ("plain,lookup,first", "first(lookup, mtp:2)", "strategy: 'first(lookup, mtp:2)' is not allowed"),
        ("mtp", "mtp-tree:8", "strategy: 'mtp-tree:8' is not allowed"),
        ("plain", "nonsense", "strategy: 'nonsense' is not known"),
        ("none", "plain", "strategy: requests can't choose one on this server"),
    ],
)
def test_strategies_that_are_not_allowed(server, monkeypatch, words, name, message):
    monkeypatch.setattr(server.engine_thread, "preparing", pytest.fail)  # nothing is loaded for them
    defaults = Defaults(allowed=allowed(words))
    unasked, asked = asked_of(server, defaults, CAPITAL, {**CAPITAL, "strategy": name})
    assert unasked["choices"][0]["finish_reason"] == "stop"
    assert asked["error"]["param"] == "strategy"
    assert asked["error"]["message"].startswith(message)


def test_a_server_with_synthetic_acceptance_says_so_everywhere(server):
    defaults = Defaults(Strategy(PromptLookup(min_ngram=1)), verifier=SyntheticAcceptance(1.5))
    app = build_app(Backend(server.engine_thread, server.loaded.tokenizer, server.loaded.template, ["demo"], defaults))
    mark = "synthetic acceptance 1.5 (assumed)"
    assert mark in sent(app, "GET", "/health").json()["warning"]
    body = {**CAPITAL, "max_tokens": 24, "ignore_eos": True, "prompt": LIST["prompt"], "input": "1 1 1 1 1"}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
        for strategy in ({}, {"strategy": "lookup"}, {"strategy": "plain"}):
            names = {"/v1/completions": ("prompt",), "/v1/responses": ("input",)}.get(path, ("messages",))
            asked = {name: value for name, value in body.items() if name in (*names, "ignore_eos")} | strategy
            limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            answer = sent(app, "POST", path, json={**asked, limit: 24})
            assert answer.status_code == 200, answer.text
            assert mark in " ".join(answer.json()["warnings"])


def test_a_lossy_verifier_is_named_by_answers_that_it_may_change(server):
    verifier = Typical()
    defaults = Defaults(Strategy(PromptLookup(min_ngram=1), verifier=verifier), verifier=verifier)
    app = build_app(Backend(server.engine_thread, server.loaded.tokenizer, server.loaded.template, ["demo"], defaults))
    health = sent(app, "GET", "/health").json()
    assert (health["verifier"], health["guarantee"]) == (repr(verifier), "lossy")
    assert "is lossy" in health["warning"]
    for strategy in ({}, {"strategy": "lookup"}):
        sampled = sent(app, "POST", "/v1/completions", json={**LIST, "temperature": 1, "seed": 3, **strategy}).json()
        assert "is lossy" in " ".join(sampled["warnings"])
        assert "warnings" not in sent(app, "POST", "/v1/completions", json={**LIST, **strategy}).json()


def test_a_lossless_verifier_is_used_and_no_answer_is_marked(server, lm):
    verifier = RejectionSampling()
    defaults = Defaults(verifier=verifier)
    app = build_app(Backend(server.engine_thread, server.loaded.tokenizer, server.loaded.template, ["demo"], defaults))
    health = sent(app, "GET", "/health").json()
    assert (health["verifier"], health["guarantee"], "warning" in health) == (repr(verifier), "distribution", False)
    body = {"prompt": LIST["prompt"], "max_tokens": 24, "temperature": 1.5, "seed": 5, "strategy": "mtp:2"}
    sent_text = sent(app, "POST", "/v1/completions", json=body).json()["choices"][0]["text"]
    texts = [
        lm.generate(LIST["prompt"], max_tokens=24, temperature=1.5, seed=5, strategy=Strategy("mtp:2", verifier=each)).text
        for each in (verifier, COUPLED)
    ]
    assert sent_text == texts[0] != texts[1]
    refused = sent(app, "POST", "/v1/completions", json={**body, "strategy": "ddtree:8"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "strategy")
    assert "needs a chain" in refused.json()["error"]["message"]


@pytest.mark.parametrize("options", [["--verifier", "block"], ["--synthetic-acceptance", "1.7"], []])
def test_servers_and_runs_take_the_verifier_from_one_option(options):
    verifiers = {"--verifier": BlockVerification(), "--synthetic-acceptance": SyntheticAcceptance(1.7)}
    wanted = verifiers[options[0]] if options else COUPLED
    served = defaults_of(parse(["demo", "--strategy", "mtp:2", *options]))
    assert served.verifier == served.strategy.verifier == wanted
    parser = ArgumentParser()
    add_strategy(parser)
    assert named_strategy(parser.parse_args(["--strategy", "mtp:2", *options])) == served.strategy


def test_a_verifier_that_does_not_fit_is_refused_at_the_start():
    with pytest.raises(RequestError, match="verifier: wanted coupled, rejection"):
        defaults_of(parse(["demo", "--verifier", "greedy"]))
    with pytest.raises(RequestError, match="needs a chain of draft tokens"):
        defaults_of(parse(["demo", "--strategy", "ddtree:8", "--verifier", "rejection"]))
    with pytest.raises(RequestError, match="give one of the two"):
        defaults_of(parse(["demo", "--verifier", "block", "--synthetic-acceptance", "2"]))


def test_strategies_that_are_allowed(server):
    assert allowed(None) is None
    defaults = Defaults(Strategy(PromptLookup()), allowed=allowed("lookup, plain,first"))
    texts = [
        answer["choices"][0]["message"]
        for answer in asked_of(
            server, defaults, *({**CAPITAL, "strategy": name} for name in ("plain", "lookup:4", "first(lookup:2, lookup)"))
        )
    ]
    assert texts[0] == texts[1] == texts[2]
    for wrong in ("nonsense", "lookup,", "lookup:4", ""):
        with pytest.raises(RequestError, match=r"--allow-strategies: '.*' is not a strategy; use plain, dflash"):
            allowed(wrong)


def test_what_the_server_does_unasked(server):
    """The server's options apply to requests that set nothing."""
    defaults = Defaults(Strategy(PromptLookup()), recover="min:12")
    unasked, asked = asked_of(server, defaults, CAPITAL, {**CAPITAL, "recover": "", "strategy": "plain"})
    assert unasked["usage"]["completion_tokens"] >= 12
    assert asked["usage"]["completion_tokens"] < 12
    assert "completion_tokens_details" in unasked["usage"]
    assert "completion_tokens_details" not in asked["usage"]
