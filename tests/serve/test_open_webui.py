"""The requests of Open WebUI, in the order and form of its published source (0.12): models, a chat with a tool, a title."""

import json
import socket

import httpx
from agent_server import Agent, serving
from client_recipes import called
from hang_guard import GUARD

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TITLE = '{"title": "Rain in Oslo"}'
END = "It **rains**: é"


def streamed(http, messages):
    """Send a chat; return reasoning, content and calls, put together as Open WebUI does."""
    body = {
        "model": "local",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [TOOL],
    }
    reasoning, content, calls, reasons, usage = "", "", {}, [], None
    with http.stream("POST", "/chat/completions", json=body | {"user": {"name": "someone", "id": "7"}}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta = choice["delta"]
                reasons += [choice["finish_reason"]] * bool(choice["finish_reason"])
                reasoning += delta.get("reasoning_content") or ""
                content += delta.get("content") or ""
                for part in delta.get("tool_calls") or ():
                    call = calls.setdefault(part["index"], {"id": part.get("id"), "name": "", "arguments": ""})
                    call["name"] += part["function"].get("name") or ""
                    call["arguments"] += part["function"].get("arguments") or ""
    assert len(reasons) == 1
    assert usage["prompt_tokens"] > 0
    return reasoning, content, list(calls.values()), reasons[0]


def test_a_chat_with_a_tool_and_a_title(lm):
    steps = [called("weather", {"city": "Oslo"}), END, TITLE]
    engine = Agent(lm.tokenizer, lambda prompt: steps[len(engine.prompts)])
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(lm, engine, listener) as url,
        httpx.Client(base_url=f"{url}/v1", headers={"Authorization": "Bearer none"}, timeout=GUARD) as http,
    ):
        (model,) = http.get("/models").json()["data"]
        assert model["id"] == "local"

        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How is the weather in Oslo?"}]
        reasoning, content, (call,), reason = streamed(http, messages)
        assert reason == "tool_calls"
        assert reasoning.strip() == "Let me see."
        assert call["id"]
        assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Oslo"})
        function = {"name": call["name"], "arguments": call["arguments"]}
        messages += [
            {
                "role": "assistant",
                "content": content,
                "reasoning_content": reasoning,
                "tool_calls": [{"index": 0, "id": call["id"], "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call["id"], "content": "rain"},
        ]
        assert streamed(http, messages)[1:] == (END, [], "stop")

        task = {
            "model": "local",
            "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title as JSON."}],
            "stream": False,
            "max_completion_tokens": 1000,
        }
        answer = http.post("/chat/completions", json=task).json()
        assert answer["choices"][0]["message"]["content"] == TITLE
    assert "<tool_response>\nrain\n</tool_response>" in engine.prompts[1]
    assert "Let me see." in engine.prompts[1]
