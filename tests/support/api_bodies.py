"""Random requests for all routes of the server: valid bodies of each API, and the same with damage."""

import copy
import json

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}, "required": ["path"]}

CHAT = {
    "model": "toy",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Read a.py"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "A file.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "a.py", "n": 1e3}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "import os"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "description": "Reads.", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "reasoning_effort": "none",
    "chat_template_kwargs": {"enable_thinking": False},
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 3,
    "n": 2,
    "stop": ["\n\n"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "strategy": "lookup",
    "recover": ["loop"],
    "user": "me",
}
COMPLETION = {
    "prompt": ["import os", "a"],
    "max_tokens": 3,
    "stream": True,
    "echo": True,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "regex": "a{1,9}",
    "strategy": "lookup:3",
}
RESPONSES = {
    "model": "toy",
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read a.py"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "A file."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"path": "a.py"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "import os"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "run", "format": {"type": "text"}},
    ],
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 3,
    "metadata": {"a": "b"},
    "previous_response_id": None,
    "store": True,
    "stream": True,
}
MESSAGES = {
    "model": "toy",
    "max_tokens": 3,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Read a.py"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "A file.", "signature": "x"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"path": "a.py"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "import os"}]}],
        },
    ],
    "tools": [{"name": "look", "description": "Reads.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2},
    "stop_sequences": ["\n\n"],
    "temperature": 0.5,
    "top_k": 4,
    "metadata": {"user_id": "me"},
    "stream": True,
}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/tokenize": {"content": "import os", "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/apply-template": CHAT,
}
PATHS = ["/", "/health", "/metrics", "/slots", "/props", "/models", "/v1/models", "/v1/strategies", "/openapi.json"]
STRANGE = [
    "/v1/models/toy",
    "/v1/models/%ff",
    "/v1/responses/resp_1",
    "/v1/responses/%00",
    "/v1/responses/a/b",
    "/v2",
    "/%2e%2e/x",
]

NUMBERS = [0, -1, 1, 2, 1.5, 1e308, -1e308, 10**40, -(10**300), 2**31, 2**63, 2**64, 1e-320]
TEXTS = [
    "",
    "x",
    "\x00",
    "\ud800",
    "\U0001f600\u200d",
    "\u202e",
    "<|im_end|>",
    "</think>",
    "<tool_call>",
    "{{ x }}",
    "'\"\\",
]


def value(rng, depth=0):
    """Any JSON value."""
    size = rng.choice([0, 1, 2, 20, 3000]) if not depth else rng.choice([0, 1, 2])
    kind = rng.randrange(8)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(TEXTS) * rng.choice([1, 1, size])
    if kind == 4:
        return rng.choice([None, True, False, "auto", "function", "text", "user"])
    if depth > 4:
        return None
    inner = value(rng, depth + 1)
    return [inner] * size if kind < 6 else {rng.choice(["type", "text", "name", "content", *TEXTS]): inner}


def places(body, path=()):
    """Yield the path of every value in a body."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def damage(rng, body):
    """Change, remove, double or wrap the value of one place of a body."""
    found = list(places(body))
    if not found:
        return
    *path, last = rng.choice(found)
    holder = body
    for key in path:
        holder = holder[key]
    match rng.randrange(6):
        case 0:
            del holder[last]
        case 1:
            holder[last] = [holder[last]]
        case 2:
            *other, end = rng.choice(found)
            donor = body
            for key in other:
                donor = donor[key] if isinstance(donor, list | dict) and key in dict(_items(donor)) else {}
            holder[last] = copy.deepcopy(dict(_items(donor)).get(end))
        case 3 if isinstance(holder, list):
            holder[last:] = [holder[last]] * rng.choice([2, 30])
        case _:
            holder[last] = value(rng)


def _items(holder):
    return holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()


def request(rng):
    """Method, path and content of a request, and whether its body is one that the API takes."""
    if rng.random() < 0.1:
        return (
            rng.choice(["GET", "HEAD", "POST", "DELETE", "PUT", "BREW"]),
            rng.choice([*PATHS, *STRANGE, *BODIES]),
            b"{}",
            False,
        )
    path = rng.choice(list(BODIES))
    body = copy.deepcopy(BODIES[path])
    n_changes = rng.choice([0, 1, 1, 2, 3])
    absent = rng.sample(list(body), rng.randrange(len(body))) if n_changes else ()
    for name in absent:
        if name not in ("messages", "prompt", "input", "content", "tokens", "max_tokens"):
            del body[name]
    if rng.random() < 0.3:
        body["stream"] = False
        body.pop("stream_options", None)
    for _ in range(n_changes):
        damage(rng, body)
    text = json.dumps(body)
    if rng.random() < 0.1:
        place = rng.randrange(len(text))
        text = (
            text[:place] + rng.choice(["", '"', "[" * 200, "NaN", "9" * 600, "\\ud800", "\ufeff", "}"]) + text[place + 1 :]
        )
        n_changes += 1
    return "POST", path, text.encode("utf-8", "surrogatepass"), not n_changes
