"""Loops of tool calls over a scripted engine: the prompts of later requests, cut calls, failures in the middle."""

import json

import pytest
from in_process import sent
from parsing import call
from responses_stream import folded
from serve_fakes import ScriptedEngine

from dflash.errors import ContextOverflow, KernelError

CUT = object()
"""Place in a script where the output reaches its maximum length."""

PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [
    {"type": "function", "name": "ls", "parameters": PATH, "strict": False},
    {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
    {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "stop"}]},
]
PATCH = '*** Begin Patch\n+é "quoted" \\ back\n*** End Patch'
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}
CALLS = call("ls", path="/repo") + "\n" + call("apply_patch", input=PATCH) + "\n" + call("stop")
TURN = ["I list.\n", "</think>\n\nLook.\n\n", *CALLS]


class TurnEngine(ScriptedEngine):
    """Plays one script a request, and keeps the prompts."""

    def __init__(self, tokenizer, turns):
        super().__init__(tokenizer, ())
        self._turns, self.prompts = list(turns), []

    def add_all(self, sessions):
        """Start the next script."""
        super().add_all(sessions)
        self.script = self._turns.pop(0)
        self.prompts += [self.tokenizer.decode(list(session.prompt_ids)) for session in sessions]

    def _advance(self, session):
        place = self.sessions[session]
        if place < len(self.script) and self.script[place] is CUT:
            return self._end(session, "length")
        return super()._advance(session)


@pytest.fixture
def served(app_of):
    """Makes an engine with scripts, and a function that posts to its server."""

    def make(*turns):
        app = app_of(*turns, engine=TurnEngine)
        post = lambda **body: sent(app, "POST", "/v1/responses", json={"tools": TOOLS, **body})  # noqa: E731
        return app.engine_thread.engine, post

    return make


def stream(ask, **body):
    blocks = ask(stream=True, **body).text.removesuffix("\n\n").split("\n\n")
    return folded([json.loads(block.partition("data: ")[2]) for block in blocks])


def results_of(items):
    """The outputs of all calls among items, as a client sends them."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in items if "call_id" in item
    ]


def as_codex(item):
    """An item as Codex sends it back."""
    if item["type"] == "reasoning":
        return {**{key: value for key, value in item.items() if key != "status"}, "content": None}
    return item


def as_opencode(item):
    """An item as the AI SDK sends it back: without ids, messages without a type."""
    kept = {key: value for key, value in item.items() if key not in ("id", "status")}
    if item["type"] == "message":
        texts = [{"type": "output_text", "text": part["text"]} for part in item["content"]]
        return {"role": "assistant", "content": texts}
    return kept


def as_pydantic(item):
    """An item as pydantic-ai sends it back: reasoning is a message."""
    if item["type"] == "reasoning":
        return {"role": "assistant", "content": f"<think>\n{item['summary'][0]['text']}\n</think>"}
    return item


@pytest.mark.parametrize("client", [dict, as_codex, as_opencode, as_pydantic])
def test_a_loop_goes_on_with_the_tokens_that_the_model_wrote(served, client):
    engine, ask = served(TURN, ["</think>\n\nDone."])
    items, last = stream(ask, input=[QUESTION], include=["reasoning.encrypted_content"])
    assert last["type"] == "response.completed"
    kinds = ["reasoning", "message", "function_call", "custom_tool_call", "function_call"]
    assert [item["type"] for item in items] == kinds
    assert items[3]["input"] == PATCH
    assert (items[4]["name"], items[4]["namespace"]) == ("stop", "agents")
    history = [QUESTION, *map(client, items), *results_of(items)]
    (answer,), _ = stream(ask, input=history)
    assert answer["content"][0]["text"] == "Done."
    assert engine.prompts[1].startswith(engine.prompts[0] + "".join(TURN)), "the prefix cache can go on from here"


def test_a_chain_has_the_prompts_of_the_full_history(served):
    engine, ask = served(TURN, ["</think>\n\nDone."], ["</think>\n\nBye."], ["</think>\n\nDone."], ["</think>\n\nBye."])
    first = ask(input=[QUESTION]).json()
    results = results_of(first["output"])
    second = ask(input=results, previous_response_id=first["id"]).json()
    third = ask(input="more", previous_response_id=second["id"], instructions="Be brief.").json()
    assert third["previous_response_id"] == second["id"]
    history = [QUESTION, *first["output"], *results]
    ask(input=history)
    ask(input=[*history, *second["output"], {"role": "user", "content": "more"}], instructions="Be brief.")
    assert engine.prompts[1:3] == engine.prompts[3:]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_a_cut_call_comes_back_with_an_error_and_is_read(served, kind):
    text = call("ls", path="/re") if kind == "function_call" else call("apply_patch", input="+x")
    engine, ask = served(["</think>\n\n", text.partition("\n</parameter>")[0], CUT], ["</think>\n\nSorry."])
    (item,), last = stream(ask, input=[QUESTION])
    assert (item["type"], item["status"], last["type"]) == (kind, "incomplete", "response.incomplete")
    assert item.get("arguments", '{"path": "/re') == '{"path": "/re'
    (answer,), _ = stream(ask, input=[QUESTION, item, *results_of([item])])
    assert answer["content"][0]["text"] == "Sorry."
    assert "/re" in engine.prompts[1] or "+x" in engine.prompts[1]


@pytest.mark.parametrize(
    ("error", "code"),
    [(KernelError("the device said no"), "server_error"), (ContextOverflow("full"), "context_length_exceeded")],
)
def test_a_failure_in_the_middle_is_the_last_event(served, error, code):
    _, ask = served(["I think.\n</think>\n\n", call("ls", path="/repo")[:-30], error], [error])
    items, last = stream(ask, input=[QUESTION])
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", code)
    assert [item["type"] for item in items] == ["reasoning"], "the open call is not done"
    refused = ask(input=[QUESTION])
    assert refused.status_code == (500 if code == "server_error" else 400)
    assert refused.json()["error"]["message"]
    missing = ask(input="and?", previous_response_id=last["response"]["id"])
    assert missing.json()["error"]["code"] == "previous_response_not_found"


def test_refusals_come_before_the_stream(served):
    _, ask = served()
    refused = ask(input=[{"type": "item_reference", "id": "msg_1"}], stream=True)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input[0].type"
