"""Each row of the table of request fields keeps its promise: tests are made from the rows."""

from copy import deepcopy
from pathlib import Path

import pytest
from in_process import sent

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.generation.messages.fields import FieldError, Fields
from dflash.serve.anthropic.request import parse_messages
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.openai.dialects import parse_completion
from dflash.serve.parsing.session_id import session_id
from dflash.serve.request_fields.page import page
from dflash.serve.request_fields.row import ALL, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Outcome
from dflash.serve.request_fields.table import ROWS, TABLE
from dflash.serve.responses.request import parse_responses
from dflash.serve.responses.store import ResponseStore

USER = {"role": "user", "content": "Hi"}
BASES = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": [USER], "max_tokens": 5},
}
REQUIRED = {"messages", "prompt", "input"}
CASES = [pytest.param(row, api, id=f"{api}-{row.name}") for row in ROWS for api in row.apis]


def of(outcome):
    return pytest.mark.parametrize(("row", "api"), [case for case in CASES if case.values[0].outcome is outcome])


def parsed(api, body):
    """A request and its conversation, as the server reads them."""
    store = ResponseStore()
    store.add({"id": "resp_1", "output": [{"role": "assistant", "content": "first"}]}, b"[]", None)
    parse = {
        CHAT: parse_chat,
        COMPLETIONS: parse_completion,
        RESPONSES: lambda body: parse_responses(body, store),
        MESSAGES: parse_messages,
    }[api]
    return parse(deepcopy(body)), session_id(body)


def body_of(row, api):
    """A body in which the row's example is valid; without the field itself."""
    body = {**BASES[api], **row.needs}
    if row.name not in REQUIRED:
        body.pop(row.name, None)
    return body if row.name != "max_tokens" or api != MESSAGES else BASES[api]


@of(Outcome.DONE)
def test_a_field_that_is_done_changes_the_request(row, api):
    body = body_of(row, api)
    assert parsed(api, {**body, row.name: row.example}) != parsed(api, body)


@of(Outcome.IGNORED)
def test_a_field_that_is_ignored_changes_nothing(row, api):
    body = body_of(row, api)
    assert parsed(api, {**body, row.name: row.example}) == parsed(api, body)


@of(Outcome.MAPPED)
def test_a_field_that_is_mapped_is_the_other_one(row, api):
    body, to = body_of(row, api), TABLE[api][row.to]
    assert to.outcome is Outcome.DONE
    body = {name: value for name, value in body.items() if name != row.to}
    assert parsed(api, {**body, row.name: row.example}) == parsed(api, {**body, row.to: row.convert(row.example)})
    with pytest.raises(FieldError, match="another name") as caught:
        parsed(api, {**body, row.to: 987, row.name: row.example})
    assert caught.value.field == row.name
    if to.kind is not None:
        with pytest.raises(FieldError) as caught:
            parsed(api, {**body, row.name: to.kind.wrong})
        assert caught.value.field == row.name


@of(Outcome.REFUSED)
def test_a_field_that_is_refused_names_itself_and_the_alternative(row, api):
    body = body_of(row, api)
    with pytest.raises(FieldError) as caught:
        parsed(api, {**body, row.name: row.example})
    assert str(caught.value) == f"{row.name}: is not supported: {row.text}"
    assert caught.value.field == row.name
    off = [value for value in (None, False, True, 0, 1, "", "auto", [], {}, ["text"], -1) if row.is_off(value)]
    assert off
    for value in off:
        assert parsed(api, {**body, row.name: value}) == parsed(api, body)


@pytest.mark.parametrize(("row", "api"), [case for case in CASES if case.values[0].kind is not None])
def test_a_plain_field_has_a_type_and_a_range(row, api):
    body = body_of(row, api)
    for wrong in (row.kind.wrong, {"a": 1}):
        with pytest.raises(FieldError) as caught:
            parsed(api, {**body, row.name: wrong})
        assert caught.value.field == row.name


@pytest.mark.parametrize("api", ALL)
def test_no_field_has_two_rows(api):
    names = [row.name for row in ROWS if api in row.apis]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("api", ALL)
def test_a_field_that_acts_in_one_api_is_known_in_all(api):
    """None of them vanishes where it does not act."""
    acting = {row.name for row in ROWS if row.outcome in (Outcome.DONE, Outcome.MAPPED)}
    assert acting - TABLE[api].keys() == set()


@pytest.mark.parametrize("api", ALL)
def test_no_field_is_read_that_has_no_row(api, monkeypatch):
    """The example of every row is parsed, and the names that the parsers look up are noted."""
    seen = set()
    for name in ("any", "object", "list"):
        original = getattr(Fields, name)

        def noted(self, field, *args, _original=original, **more):
            if not self.path:
                seen.add(field)
            return _original(self, field, *args, **more)

        monkeypatch.setattr(Fields, name, noted)
    for row in ROWS:
        if api in row.apis and row.outcome is Outcome.DONE:
            parsed(api, {**body_of(row, api), row.name: row.example})
    assert len(seen) > 20
    assert seen - {"dflash"} <= TABLE[api].keys()


def test_the_page_is_made_from_the_table():
    """``python -m dflash.serve.request_fields.page > docs/request-fields.md`` writes it."""
    assert (Path(__file__).parents[3] / "docs" / "request-fields.md").read_text(encoding="utf-8") == page()


def test_the_fields_of_the_client_libraries_are_known():
    """OpenAI's and Anthropic's libraries list the fields of the APIs that they know."""
    from anthropic.types.beta import message_create_params as messages
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    for api, module, name in (
        (CHAT, chat, "CompletionCreateParamsBase"),
        (COMPLETIONS, completions, "CompletionCreateParamsBase"),
        (RESPONSES, responses, "ResponseCreateParamsBase"),
        (MESSAGES, messages, "MessageCreateParamsBase"),
    ):
        fields = set(getattr(module, name).__annotations__) | {"stream"}
        assert len(fields) > 15
        assert fields <= TABLE[api].keys(), sorted(fields - TABLE[api].keys())


BENCHMARKS = {
    "vllm bench serve, completions": (
        COMPLETIONS,
        {
            "model": "m",
            "prompt": "Hi",
            "repetition_penalty": 1.0,
            "temperature": 0.0,
            "max_tokens": 128,
            "logprobs": None,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        },
    ),
    "vllm bench serve, chat": (
        CHAT,
        {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "max_completion_tokens": 128,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "temperature": 0.0,
        },
    ),
    "sglang.bench_serving, completions": (
        COMPLETIONS,
        {
            "model": "m",
            "prompt": "Hi",
            "temperature": 0.0,
            "best_of": 1,
            "max_tokens": 128,
            "stream": True,
            "ignore_eos": True,
        },
    ),
    "sglang.bench_serving, chat": (
        CHAT,
        {
            "model": "m",
            "messages": [USER],
            "temperature": 0.0,
            "max_completion_tokens": 128,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "GuideLLM, completions": (
        COMPLETIONS,
        {
            "model": "m",
            "prompt": "Hi",
            "max_tokens": 128,
            "stop": None,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "AIPerf, chat": (
        CHAT,
        {
            "model": "m",
            "messages": [{"role": "user", "name": "", "content": [{"type": "text", "text": "Hi"}]}],
            "stream": True,
            "max_completion_tokens": 128,
            "min_tokens": 128,
            "ignore_eos": True,
        },
    ),
    "lm-eval, log-likelihood": (
        COMPLETIONS,
        {
            "model": "m",
            "prompt": [[1, 2, 3], [4, 5]],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        },
    ),
    "lm-eval, text": (
        COMPLETIONS,
        {"prompt": [[1, 2]], "model": "m", "max_tokens": 256, "temperature": 0, "stop": ["\n\n"], "seed": 1234},
    ),
    "llama.cpp's page": (
        CHAT,
        {
            "messages": [USER],
            "stream": True,
            "reasoning_format": "auto",
            "temperature": 0.8,
            "n_predict": -1,
            "dynatemp_range": 0,
            "dynatemp_exponent": 1,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "xtc_probability": 0,
            "xtc_threshold": 0.1,
            "typ_p": 1,
            "typical_p": 1,
            "repeat_last_n": 64,
            "repeat_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "dry_multiplier": 0,
            "dry_base": 1.75,
            "dry_allowed_length": 2,
            "dry_penalty_last_n": -1,
            "timings_per_token": True,
            "return_progress": True,
        },
    ),
    "LM Studio's examples": (CHAT, {"model": "m", "messages": [USER], "temperature": 0.7, "stream": False, "ttl": 300}),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_bodies_of_programs_are_taken(name):
    api, body = BENCHMARKS[name]
    request, _ = parsed(api, body)
    options = request.options
    assert options.ignore_eos == body.get("ignore_eos", False)
    wanted = body.get("max_tokens", body.get("max_completion_tokens"))
    assert options.max_tokens == (MAX_TOKENS if "n_predict" in body else wanted)
    assert options.stream == body.get("stream", False)
    assert options.continuous_usage == ("continuous_usage_stats" in (body.get("stream_options") or {}))


@pytest.mark.parametrize("name", ["whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"])
@pytest.mark.parametrize("api", [CHAT, COMPLETIONS, RESPONSES])
def test_settings_of_constraints_are_refused_by_name(api, name):
    with pytest.raises(FieldError, match="is not supported: ") as caught:
        parsed(api, {**BASES[api], "structured_outputs": {"regex": "a", name: True}})
    assert caught.value.field == f"structured_outputs.{name}"
    assert parsed(api, {**BASES[api], "structured_outputs": {"regex": "a", "backend": "xgrammar", name: False}})


@pytest.mark.parametrize("mark", ["prefix", "partial"])
def test_a_mark_in_the_last_message_continues_it(mark):
    begun = {"role": "assistant", "content": "The"}
    wanted = parsed(CHAT, {"messages": [USER, begun], "continue_final_message": True})[0].ending
    assert parsed(CHAT, {"messages": [USER, {**begun, mark: True}]})[0].ending == wanted
    assert parsed(CHAT, {"messages": [USER, {**begun, mark: False}]})[0].ending != wanted
    assert parsed(CHAT, {"messages": [{**begun, mark: True}, USER]})[0].ending != wanted


@pytest.mark.parametrize("api", ALL)
def test_a_budget_of_minus_one_is_none(api):
    assert parsed(api, {**BASES[api], "thinking_token_budget": -1}) == parsed(api, BASES[api])


@pytest.mark.parametrize("api", ALL)
def test_minus_one_is_no_seed(api):
    assert parsed(api, {**BASES[api], "seed": -1})[0].options.sampling.seed is None
    assert parsed(api, {**BASES[api], "seed": -2})[0].options.sampling.seed == -2


@pytest.mark.parametrize(
    "value", [{"enable_thinking": "false"}, {"enable_thinking": 0}, {"preserve_thinking": "x"}, {"other": "False"}]
)
@pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES])
def test_a_variable_that_is_true_or_false_is_no_text(api, value):
    with pytest.raises(FieldError) as caught:
        parsed(api, {**BASES[api], "chat_template_kwargs": value})
    assert caught.value.field == f"chat_template_kwargs.{next(iter(value))}"


PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions", RESPONSES: "/v1/responses", MESSAGES: "/v1/messages"}
NEEDS_A_MODEL = {"strategy", "previous_response_id"}


@pytest.mark.parametrize("api", ALL)
def test_the_server_answers_as_the_rows_say(app_of, api):
    """Each row is sent: 400 with its name in the form of the API if it is refused, an answer otherwise."""
    app = app_of("hello")
    for row in TABLE[api].values():
        if row.name in NEEDS_A_MODEL:
            continue
        answer = sent(app, "POST", PATHS[api], json={**body_of(row, api), row.name: row.example})
        assert answer.status_code == (400 if row.outcome is Outcome.REFUSED else 200), (row.name, answer.text)
        if row.outcome is Outcome.REFUSED:
            error = answer.json()["error"]
            assert error["message"].startswith(f"{row.name}: is not supported")
            assert error["type"] == "invalid_request_error"
            assert api == MESSAGES or error["param"] == row.name
