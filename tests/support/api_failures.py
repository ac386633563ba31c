"""A small request of each API, and the shape in which each reports a failure."""

import json

from dflash.serve.anthropic.format import MessageFormat
from dflash.serve.openai.chat_format import ChatFormat
from dflash.serve.openai.completion_format import CompletionFormat
from dflash.serve.responses.format import ResponsesFormat

TURN = [{"role": "user", "content": "hi"}]
APIS = {
    "/v1/chat/completions": ({"messages": TURN, "max_tokens": 5}, ChatFormat),
    "/v1/completions": ({"prompt": "a", "max_tokens": 5}, CompletionFormat),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 5}, ResponsesFormat),
    "/v1/messages": ({"messages": TURN, "max_tokens": 5}, MessageFormat),
}
STATUSES = (500, 503, 529)


def check_failure(answer, path):
    """Check that a response is an error, or a stream whose last events say so, in the shape of its API."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.status_code in STATUSES
        body = answer.json()
        assert body["error"]["message"]
        assert (body.get("type") == "error") == (path == "/v1/messages")
        return body["error"]
    assert answer.status_code == 200
    events = [event.removeprefix("data: ").partition("data: ") for event in answer.text.strip().split("\n\n")]
    last = [data or head for head, _, data in events]
    if path == "/v1/responses":
        body = json.loads(last[-1])
        assert body["type"] == "response.failed"
        return body["response"]["error"]
    if path == "/v1/messages":
        body = json.loads(last[-1])
        assert body["type"] == "error"
        return body["error"]
    assert last[-1] == "[DONE]"
    return json.loads(last[-2])["error"]
