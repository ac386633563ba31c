"""Bodies of public load generators, and streams as these programs read them: exact lengths, and true first tokens.

Written after the fields that their sources set: vLLM ``vllm/benchmarks/lib/endpoint_request_func.py`` (commit 02cfb53),
SGLang ``python/sglang/bench_serving.py`` (commit 0c69f5b). Programs that can be installed run in ``tests/clients``.
"""

import json

import pytest

TEXT = "import os\ndef add(a, b):\n    return"
N = 12
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

VLLM = {"model": "demo", "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
SGLANG = {"model": "demo", "stream": True, "temperature": 0.0, "ignore_eos": True}
MESSAGE = {"role": "user", "content": TEXT}
BODIES = {
    "vllm": (COMPLETIONS, {**VLLM, "prompt": TEXT, "repetition_penalty": 1.0, "max_tokens": N, "logprobs": None}),
    "vllm ids": (
        COMPLETIONS,
        {**VLLM, "prompt": [260, 261, 262], "repetition_penalty": 1.0, "max_tokens": N, "logprobs": None},
    ),
    "vllm chat": (
        CHAT,
        {**VLLM, "messages": [{**MESSAGE, "content": [{"type": "text", "text": TEXT}]}], "max_completion_tokens": N},
    ),
    "sglang": (COMPLETIONS, {**SGLANG, "prompt": TEXT, "best_of": 1, "max_tokens": N}),
    "sglang chat": (CHAT, {**SGLANG, "messages": [MESSAGE], "max_completion_tokens": N}),
}


def streamed(http, name):
    """The chunks of a stream, without its end."""
    path, body = BODIES[name]
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    *chunks, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def text_of(choice):
    delta = choice.get("delta", choice)
    return delta.get("text") or delta.get("content") or delta.get("reasoning_content") or ""


@pytest.mark.parametrize("name", [name for name in BODIES if name.startswith("vllm")])
def test_vllm_bench_serve(name, http):
    """It counts tokens by usage, in a chunk without choices, and times a completion by its first chunk with one."""
    chunks = streamed(http, name)
    with_choice = [chunk for chunk in chunks if chunk["choices"]]
    (usage,) = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    assert usage["completion_tokens"] == N
    assert usage["prompt_tokens"] > 0
    if "chat" not in name:
        assert text_of(with_choice[0]["choices"][0])


@pytest.mark.parametrize("name", [name for name in BODIES if name.startswith("sglang")])
def test_sglang_bench_serving(name, http):
    """It reads the first choice of every chunk, without asking for usage."""
    chunks = streamed(http, name)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert "".join(text_of(chunk["choices"][0]) for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]] == ["length"]
    path, body = BODIES[name]
    assert http.post(path, json={**body, "stream": False}).json()["usage"]["completion_tokens"] == N
