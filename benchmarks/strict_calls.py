"""Random strict calls through each API of a running server: every call that finished must validate against its schema.

python -m dflash.serve demo --port 18301 --no-access-log --context 1024 --sequences 4 &
python benchmarks/strict_calls.py http://127.0.0.1:18301 [--calls 1000] [--first 0]

Each request has one random strict tool, which must be called, and a text of tags, quotes and code to copy. APIs, strategies,
reasoning, streaming and temperature take turns. Prints how calls ended; ends with 1 if one is invalid, or an answer fails.
"""

import argparse
import collections
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from strict_tools import TAGS, WORDS, strict_tool
from three_apis import CHAT, MESSAGES, PATHS, RESPONSES, events_of

STRATEGIES = ("plain", "dflash", "mtp:3", "ddtree:22", "lookup", "first(lookup, dflash)", "adaptive")
MAX_TOKENS = 300


def body_of(path, seed):
    """A request in the words of its API."""
    rng = random.Random(seed)
    function = strict_tool(seed)["function"]
    copied = "".join(rng.choices(TAGS + WORDS, k=6))
    message = {"role": "user", "content": f"Call go with the text {copied!r} in each argument."}
    think = seed % 5 == 0
    body = {
        "strategy": STRATEGIES[seed % len(STRATEGIES)],
        "seed": seed,
        "temperature": (0.0, 1.0, 1.5)[seed % 3],
        "stream": seed % 2 == 1,
    }
    if path == MESSAGES:
        tool = {"name": "go", "input_schema": function["parameters"], "strict": True}
        thinking = {"type": "enabled", "budget_tokens": 20} if think else {"type": "disabled"}
        return {
            **body, "messages": [message], "max_tokens": MAX_TOKENS, "tools": [tool], "tool_choice": {"type": "any"},
            "thinking": thinking,
        }  # fmt: skip
    about = {"chat_template_kwargs": {"enable_thinking": think}, "tool_choice": "required"}
    about |= {"thinking_token_budget": 20} if think else {}
    if path == RESPONSES:
        tool = {"type": "function", **function}
        return {**body, **about, "input": [message], "max_output_tokens": MAX_TOKENS, "tools": [tool]}
    tool = {"type": "function", "function": function}
    return {**body, **about, "messages": [message], "max_tokens": MAX_TOKENS, "tools": [tool]}


def calls_of(path, answer):
    """Return whether the answer was cut at the limit, and the arguments of its calls as texts."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return _streamed(path, events_of(answer.text))
    body = answer.json()
    if path == CHAT:
        (choice,) = body["choices"]
        return choice["finish_reason"] == "length", [
            each["function"]["arguments"] for each in choice["message"].get("tool_calls") or ()
        ]
    if path == RESPONSES:
        found = [item["arguments"] for item in body["output"] if item["type"] == "function_call"]
        return body["status"] == "incomplete", found
    return body["stop_reason"] == "max_tokens", [
        json.dumps(block["input"]) for block in body["content"] if block["type"] == "tool_use"
    ]


def _streamed(path, events):
    texts = collections.defaultdict(str)
    if path == CHAT:
        choices = [choice for event in events for choice in event["choices"]]
        for choice in choices:
            for each in choice["delta"].get("tool_calls") or ():
                texts[each["index"]] += each["function"].get("arguments") or ""
        return any(choice["finish_reason"] == "length" for choice in choices), list(texts.values())
    if path == RESPONSES:
        done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
        return any(event["type"] == "response.incomplete" for event in events), [event["arguments"] for event in done]
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            texts[event["index"]] = ""
        if event.get("delta", {}).get("type") == "input_json_delta":
            texts[event["index"]] += event["delta"]["partial_json"]
    cut = any(event.get("delta", {}).get("stop_reason") == "max_tokens" for event in events)
    return cut, list(texts.values())


def judge(url, path, seed):
    """Return how one request ended: validates, invalid, cut, refused or failed, and what to print."""
    body = body_of(path, seed)
    answer = httpx.post(url + path, json=body, timeout=600)
    if answer.status_code == 400:
        return "refused", answer.text
    if answer.status_code != 200:
        return "failed", f"{answer.status_code} {answer.text}"
    cut, found = calls_of(path, answer)
    if cut:
        return "cut", ""
    if not found:
        return "invalid", f"no call: {answer.text}"
    for text in found:
        try:
            Draft202012Validator(strict_tool(seed)["function"]["parameters"]).validate(json.loads(text))
        except Exception as error:
            return "invalid", f"{text!r}: {error}"
    return "validates", ""


def main():
    """Print how the calls of each API ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="requests of each API (1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first request")
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    ended = {path: collections.Counter() for path in PATHS}
    work = [(path, arguments.first + i) for i in range(arguments.calls) for path in PATHS]
    with ThreadPoolExecutor(arguments.threads) as threads:
        judged = threads.map(lambda each: judge(arguments.url, *each), work)
        for (path, seed), (how, text) in zip(work, judged, strict=True):
            ended[path][how] += 1
            if how in ("invalid", "failed") or (how == "refused" and ended[path][how] <= 5):
                print(f"{path} {seed} {how}: {text[:600]}", flush=True)
            if path == PATHS[-1] and ((seed - arguments.first + 1) % 50 == 0 or seed == work[-1][1]):
                print({path: dict(found) for path, found in ended.items()}, flush=True)
    return any(found["invalid"] or found["failed"] for found in ended.values())


if __name__ == "__main__":
    sys.exit(main())
