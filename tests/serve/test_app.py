"""The application without a network: keys, failures in the middle, closing."""

import json
from types import SimpleNamespace

import pytest
from in_process import sent

from dflash.cli.serve import default_name, main
from dflash.errors import KernelError
from dflash.generation.load import start
from dflash.model.loading.settings import LoadSettings
from dflash.serve.http_errors import INTERNAL


def test_a_failure_of_the_engine_is_a_500(app_of, caplog):
    app = app_of(KernelError("attention: the device said no"))
    answer = sent(app, "POST", "/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.json()["error"]["message"] == INTERNAL
    assert "said no" in caplog.text


def test_details_of_an_internal_failure_are_only_logged(app_of, caplog):
    answer = sent(app_of(ZeroDivisionError("secret path")), "POST", "/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 500
    assert "secret path" not in answer.text
    assert "secret path" in caplog.text


def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(app_of, caplog):
    app = app_of("hello", KernelError("attention: the device said no"))
    answer = sent(app, "POST", "/v1/completions", json={"prompt": "a", "stream": True})
    *lines, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    events = [json.loads(line) for line in lines]
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["hello"]
    assert done == "[DONE]"
    assert events[-1]["error"]["message"] == INTERNAL
    assert "said no" in caplog.text


def test_a_strict_server_refuses_other_names(app_of):
    app = app_of("hello", strict_names=True)
    refused = sent(app, "POST", "/v1/completions", json={"prompt": "a", "model": "gpt-4"})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "demo" in refused.json()["error"]["message"]
    for model in ("demo", None):
        assert sent(app, "POST", "/v1/completions", json={"prompt": "a", "model": model}).status_code == 200


def test_the_server_has_variables_of_the_template(app_of, lm):
    """A request's own take precedence."""
    app = app_of("hello", template_kwargs={"enable_thinking": False, "other": 1})
    messages = [{"role": "user", "content": "hi"}]
    for own, thinks in ({}, False), ({"enable_thinking": True}, True), ({"chat_template_kwargs": {"other": 2}}, False):
        answer = sent(app, "POST", "/v1/chat/completions", json={"messages": messages, **own})
        prompt = lm.template.render(messages, enable_thinking=thinks)
        assert answer.json()["usage"]["prompt_tokens"] == len(lm.tokenizer.encode(prompt))


def test_a_closing_server_says_so(app_of):
    app = app_of("hello")
    app.engine_thread.close()
    answer = sent(app, "POST", "/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert sent(app, "GET", "/health").status_code == 503


def test_a_model_without_a_template_can_not_chat(app_of):
    app = app_of("hello", template=None)
    answer = sent(app, "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert answer.status_code == 400
    assert "/v1/completions" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("model", "name"), [("demo", "demo"), ("/models/big-Q4_K_M.gguf", "big-Q4_K_M"), ("hf:org/repo:q4", "org/repo:q4")]
)
def test_what_a_model_is_called(model, name):
    assert default_name(model) == name


def test_flags_are_read_before_the_model(capsys):
    for flags, message in (
        (["--allow-strategies", "plain,fast"], "--allow-strategies: 'fast' is not a strategy"),
        (["--strategy", "fast"], "strategy: 'fast' is not known"),
        (["--recover", "fast"], "recover: 'fast' is not one of"),
        (["--chat-template-kwargs", "{a"], "--chat-template-kwargs: '{a' is not valid JSON"),
        (["--grace", "nan"], "--grace: must be 0 to 3600 seconds, got nan"),
        (["--grace", "-1"], "--grace: must be 0 to 3600 seconds, got -1"),
        (
            ["--host", "0.0.0.0"],
            "--host 0.0.0.0 without --api-key: every client that reaches this address can use the server",
        ),
        (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs: must be a JSON object, got '[1]'"),
    ):
        assert main(["/no/such.gguf", *flags]) == 1
        assert capsys.readouterr().err.startswith(f"dflash: {message}")


def test_the_flag_reaches_the_application(monkeypatch, lm):
    backends = []
    engine = SimpleNamespace(model=lm.model, max_active=1, prefix_cache=None)
    worker = SimpleNamespace(prepare=id, close=bool, error=None, engine=engine)
    monkeypatch.setattr("dflash.generation.load.start", lambda *_, **__: (lm, worker))
    monkeypatch.setattr("dflash.serve.app.build_app", lambda backend, **_: backends.append(backend))
    monkeypatch.setattr("dflash.serve.server.Server", lambda *_, **__: SimpleNamespace(run=bool))
    for flags, words in (([], None), (["--allow-strategies", "none"], ()), (["--allow-strategies", "lookup"], ("lookup",))):
        assert main(["demo", "--port", "0", *flags]) == 0
        assert backends.pop().defaults.allowed == words


def test_start_loads_and_warms(lm):
    loaded, engine_thread = start("demo", LoadSettings(threads=1, sequences=1, context=512))
    assert loaded.model.config.context == 512
    assert engine_thread.alive
    engine_thread.close()
