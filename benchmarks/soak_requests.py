"""Random requests for `serve_soak.py`: all APIs, valid ones of ten kinds, hostile and damaged ones."""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from hostile_grammars import hostile_fields
from serve_load import WORDS, chat
from three_apis import CHAT, MESSAGES, RESPONSES, TOOLS

COMPLETIONS = "/v1/completions"
STRATEGIES = ["plain", "lookup", "mtp:2", "dflash", "ddtree:22", "suffix", "adaptive", None]
KINDS = {"text": 30, "turns": 10, "long": 4, "tools": 10, "schema": 10, "pattern": 8, "recovery": 8, "fixed": 12}
KINDS |= {"hostile": 5, "random": 3}
"""Kinds of requests with their shares in percent."""

RECOVERIES = ["empty", "loop", "min:8", "think:6", "think-leak", "stall", "stall:ls"]
PATTERN = "[a-z]{3,9}( [a-z]{2,6}){0,3}"
CITY = {"enum": ["Paris", "Rome", "Oslo"]}
SCHEMA = {"type": "object", "properties": {"city": CITY, "n": {"enum": [1, 22, 333]}}, "additionalProperties": False}
SCHEMA["required"] = list(SCHEMA["properties"])
FORMAT = {"type": "json_schema", "name": "place", "schema": SCHEMA}
BAD_FIELDS = [
    {"temperature": "hot"}, {"temperature": 1e9}, {"top_p": 7}, {"seed": "x"}, {"max_tokens": -1, "max_output_tokens": -1},
    {"strategy": "no-such"}, {"strategy": "first(" * 3000}, {"recover": ["no-such"]}, {"logit_bias": {"5": 1000}},
    {"stream": "yes"}, {"messages": 5, "prompt": {}, "input": 5}, {"min_tokens": "2"},
]  # fmt: skip
BAD_BODIES = [b"", b"{", b"[]", b"null", b'{"messages": "\xff"}', b"[" * 100_000, b"9" * 5000, b'{"a": "' + b"x" * 2_000_000]
TEXT_KEYS = {"text", "content", "reasoning_content", "thinking", "delta", "arguments", "partial_json"}
GOOD, REFUSED, ANY = range(200, 201), range(400, 500), range(200, 500)
N_FIXED = 16
"""Sampled requests whose texts are compared with those alone."""


def words_of(rng, n):
    """Return a new text of `n` words, each one token of the demo's vocabulary."""
    return " ".join(rng.choices(["the", "file", "import", "return", "lazy", "dog", "then", "quick", "class", "over"], k=n))


def fixed(number, strategy="plain"):
    """Return path and body of a sampled request; its text depends on its number only."""
    settings = {"temperature": 0.8, "seed": number, "stream": number % 8 >= 4, "strategy": strategy}
    return chat(WORDS[number * 5 :], 24, **settings)[number % 4]


def request(kind, rng):
    """Return path, body and allowed statuses of a random request."""
    settings = {"stream": rng.random() < 0.5, "temperature": rng.choice([0, 0.7, 1.2]), "seed": rng.randrange(2**31)}
    if strategy := rng.choice(STRATEGIES):
        settings["strategy"] = strategy
    n_prompt = rng.randint(500, 3850) if kind == "long" else rng.randint(3, 120)
    text, n = words_of(rng, n_prompt), rng.choice([1, 4, 16] if kind == "long" else [1, 8, 32, 64, 128])
    if kind in ("schema", "pattern"):
        n, settings["chat_template_kwargs"] = 200, {"enable_thinking": False}
    path, body = rng.choice(chat(text, n, **settings))
    if kind == "long" and path == COMPLETIONS:
        body["prompt"] = [rng.randrange(20, 8000) for _ in range(rng.randint(500, 3900))]
    if kind == "turns" and "messages" in body:
        past = [("user", WORDS * 5), ("assistant", WORDS * 2), ("user", "And?"), ("assistant", "Yes. " * rng.randint(1, 3))]
        body["messages"] = [{"role": role, "content": said} for role, said in past] + body["messages"]
    if kind == "text" and path in (CHAT, COMPLETIONS) and rng.random() < 0.3:
        body["n"] = 2
    if kind == "tools" and path != COMPLETIONS:
        body["tools"] = TOOLS[path]
        if rng.random() < 0.5:
            body["tool_choice"] = {"type": "any"} if path == MESSAGES else "required"
    if kind == "recovery":
        body["recover"] = rng.sample(RECOVERIES, rng.randint(1, 3))
    if path == MESSAGES and kind in ("schema", "pattern"):
        body |= {"thinking": {"type": "disabled"}, "output_config": {"format": FORMAT}}
    elif kind == "pattern":
        body["regex"] = PATTERN
    elif kind == "schema" and path == RESPONSES:
        body["text"] = {"format": FORMAT}
    elif kind == "schema":
        body["response_format"] = {"type": "json_schema", "json_schema": FORMAT}
    if kind == "hostile":
        too_long = rng.random() < 0.1
        path, body = rng.choice(chat(WORDS * 200 if too_long else WORDS, n))
        bad = {} if too_long else rng.choice(BAD_FIELDS + BAD_BODIES)
        return path, bad if isinstance(bad, bytes) else body | bad, REFUSED
    if kind == "random":
        damaged = bytearray(json.dumps(body | {"stream": False}).encode())
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        grammar = body | hostile_fields(rng.randrange(10**9)) | {"max_tokens": 24, "max_output_tokens": 24}
        return path, rng.choice([bytes(damaged), grammar]), ANY
    return path, body, GOOD


def text_of(value, key=""):
    """Return all texts of an answer, one after another; streams give the same whatever their events are."""
    if isinstance(value, str):
        return value if key in TEXT_KEYS else ""
    parts = value.items() if isinstance(value, dict) else ((key, each) for each in value) if isinstance(value, list) else ()
    return "".join(text_of(part, name) for name, part in parts)


def is_cut(value):
    """Return whether a value of an answer says that the limit of tokens ended it, perhaps inside of its JSON."""
    if isinstance(value, str):
        return value in ("length", "max_tokens", "incomplete")
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(is_cut, parts))


def has_form(kind, path, body, text):
    """Return whether the text of an answer has the form of a schema or pattern; some streams repeat their texts."""
    if kind not in ("schema", "pattern") or (body["stream"] and path in (RESPONSES, MESSAGES)):
        return True
    if kind == "pattern" and path != MESSAGES:
        return re.fullmatch(PATTERN, text) is not None
    found = json.loads(text)
    return sorted(found) == sorted(SCHEMA["required"]) and found["city"] in CITY["enum"]


def is_too_costly(allowed, said):
    """Return whether the random grammar of a request has reached a limit while it ran, which ends that request alone."""
    return allowed == ANY and any(reason in said for reason in ("can't be followed further", "masks take too long"))
