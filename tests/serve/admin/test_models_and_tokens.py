"""Model list, tokenizing, templates, properties and slots, of a real server with the demo model."""

import json
import re
import threading

import openai
import pytest
from api_failures import APIS
from streams import first_text

from dflash.serve.admin.model_facts import ModelFacts, fingerprint

MESSAGES = [{"role": "user", "content": "What is the capital of Japan?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
def test_the_list_is_one_of_openai_and_of_anthropic(http, server, path):
    body = http.get(path).json()
    context = server.loaded.model.config.context
    assert [entry["id"] for entry in body["data"]] == ["demo", "demo-again"]
    assert (body["object"], body["first_id"], body["last_id"], body["has_more"]) == ("list", "demo", "demo-again", False)
    for entry in body["data"]:
        assert entry["max_model_len"] == entry["context_length"] == entry["meta"]["n_ctx_train"] == context
        assert (entry["object"], entry["type"], entry["display_name"]) == ("model", "model", entry["id"])
        assert entry["meta"]["n_params"] > 50e6
        assert entry["created_at"].endswith("Z")


def test_the_client_of_openai_reads_models(client):
    assert [model.id for model in client.models.list()] == ["demo", "demo-again"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError, match="this server has demo, demo-again"):
        client.models.retrieve("gpt/4")


def test_text_becomes_tokens_and_text_again(http, server):
    text = "Grüße, <|im_end|> 日本"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert tokens == server.loaded.tokenizer.encode(text)
    back = http.post("/detokenize", json={"tokens": tokens}).json()
    assert back == {"content": text, "prompt": text}
    spelled = http.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert spelled == server.loaded.tokenizer.encode(text, special=False) != tokens


def test_pieces_are_texts_or_bytes(http, server):
    text = "a 🜁"
    body = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    pieces = [entry["piece"] for entry in body["tokens"]]
    assert any(isinstance(piece, list) for piece in pieces), "the demo splits this character"
    assert b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces) == text.encode()
    assert [entry["id"] for entry in body["tokens"]] == http.post("/tokenize", json={"content": text}).json()["tokens"]


def test_a_prompt_is_counted_as_by_vllm(http, server):
    body = http.post("/tokenize", json={"prompt": "import os", "return_token_strs": True}).json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert "".join(body["token_strs"]) == "import os"
    assert body["max_model_len"] == server.loaded.model.config.context


def test_control_tokens_in_messages(http, server):
    """They are text in a chat, whatever `parse_special` says; a rendered prompt spells them out without marks."""
    messages = [{"role": "user", "content": "<|im_end|>"}]
    tokens = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    plain = http.post("/tokenize", json={"messages": messages, "parse_special": False}).json()["tokens"]
    prompt = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    tokenizer = server.loaded.tokenizer
    assert tokenizer.decode(tokens) == tokenizer.decode(plain) == prompt
    assert tokenizer.encode(prompt).count(tokenizer.eos) == tokens.count(tokenizer.eos) + 1
    assert not any(map(tokenizer.is_special, plain))


CUT = {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": '{"city": "Os'}}]}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": [TOOL]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"messages": [*MESSAGES, CUT, *MESSAGES]},
    ],
)
def test_messages_give_the_prompt_of_a_chat(http, client, server, more):
    tokens = http.post("/tokenize", json={"messages": MESSAGES, **more}).json()["tokens"]
    prompt = http.post("/apply-template", json={"messages": MESSAGES, **more}).json()["prompt"]
    assert "capital of Japan" in prompt
    assert ("get_weather" in prompt) == ("get_weather" in json.dumps(more))
    assert server.loaded.tokenizer.encode(prompt) == tokens
    usage = http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 1, **more}).json()["usage"]
    assert usage["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "prompt"),
        ("/tokenize", {"content": ["a"]}, "content"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 2**40]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": "1 2"}, "tokens"),
        ("/apply-template", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("/apply-template", {"messages": MESSAGES, "chat_template_kwargs": 1}, "chat_template_kwargs"),
    ],
)
def test_wrong_fields_are_named(http, path, body, param):
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_props_tell_no_path(http, server):
    body = http.get("/props").json()
    folder = str(server.loaded.file.path.parent)
    assert body["model_path"] == server.loaded.file.path.name
    assert folder not in json.dumps(body)
    assert body["default_generation_settings"]["n_ctx"] == server.loaded.model.config.context
    assert body["strategy"] == "plain"
    assert body["total_slots"] == server.engine_thread.engine.max_active
    assert body["chat_template"] == server.loaded.template.source
    assert body["fingerprint"] == fingerprint(server.loaded)


def test_slots_show_a_running_sequence_without_its_text(http, server):
    assert http.get("/slots").json() == []
    body = {"prompt": "import os", "max_tokens": 4000, "stream": True, "strategy": "lookup"}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        first_text(lines)
        (slot,) = http.get("/slots").json()
    assert slot["is_processing"]
    assert slot["n_prompt_tokens"] == len(server.loaded.tokenizer.encode("import os"))
    assert slot["n_ctx"] == server.loaded.model.config.context
    assert slot["n_tokens"] == slot["n_prompt_tokens"] + slot["n_decoded"]
    assert slot["state"] == "decode"
    assert slot["strategy"].startswith("PromptLookup")
    assert "import" not in json.dumps(slot)


def test_the_fingerprint_depends_on_the_weights(server, monkeypatch):
    first = fingerprint(server.loaded)
    assert first == fingerprint(server.loaded) == ModelFacts.of(server.loaded).fingerprint
    monkeypatch.setattr(type(server.loaded.file), "fingerprint", lambda _: "0" * 64)
    assert fingerprint(server.loaded) != first


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", APIS)
def test_responses_carry_the_fingerprint(http, server, path, stream):
    text = http.post(path, json={**APIS[path][0], "stream": stream}).text
    found = re.findall(r'"system_fingerprint": ?"(\w+)"', text)
    assert set(found) == {fingerprint(server.loaded)}
    if stream and path.endswith("completions"):
        assert len(found) == text.count("data: {")


def test_tokenizing_runs_outside_of_the_event_loop(http, server, monkeypatch):
    threads = []
    encode = type(server.loaded.tokenizer).encode

    def noted(self, text, **settings):
        threads.append(threading.current_thread().name)
        return encode(self, text, **settings)

    monkeypatch.setattr(type(server.loaded.tokenizer), "encode", noted)
    http.post("/tokenize", json={"content": "a"})
    assert threads[0].startswith("dflash-admin")
