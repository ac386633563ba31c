"""Load on replicas of the demo behind Ray Serve, one of which is killed on the way.

python benchmarks/ray_load.py [--replicas 3] [--clients 32] [--seconds 120] [--threads 1] [--no-kill]

Every output is compared with that before the load, one of them with `lm.generate`. A request ends in one of four ways:
right, refused with an error of its API, broken (a stream that ends with an error event), or wrong. A request without an end
within a minute counts as hung.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import time
from collections import Counter

import httpx
import ray
from ray import serve

import dflash
from dflash.serve.ray import app

PROMPTS = [f"{number}, {number + 1}, {number + 2}, {number + 3}," for number in range(16)]
PATHS = "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"


def body_of(path, prompt, n, stream):
    """Return a request for `n` tokens in the form of one API."""
    messages = {"messages": [{"role": "user", "content": prompt}], "max_tokens": n}
    forms = {PATHS[0]: {"prompt": prompt, "max_tokens": n}, PATHS[3]: {"input": prompt, "max_output_tokens": n}}
    return {**forms.get(path, messages), "stream": stream, "temperature": 0.8, "seed": 5}


def texts(value):
    """Yield all texts of a model in a part of an answer."""
    pairs = sorted(value.items(), reverse=True) if isinstance(value, dict) else [(None, each) for each in value]
    for key, each in pairs:  # reasoning before content, as in a stream
        if key in ("text", "content", "thinking", "reasoning_content", "delta") and isinstance(each, str):
            yield each
        elif isinstance(each, dict | list):
            yield from texts(each)


def text_of(data):
    """Return reasoning and text in a whole answer or in the events of a stream, and whether an error was among them."""
    failed = any(each.get("error") or each.get("type") in ("error", "response.failed") for each in data)
    parts = [each for each in data if not each.get("type", "").startswith("response.") or "delta" in each]
    return "".join(texts(parts)), failed


async def request(http, path, prompt, n, stream):
    """Return the status, the text, whether an error event came, and the time to the first event with text."""
    began, first, data = time.monotonic(), None, []
    async with http.stream("POST", path, json=body_of(path, prompt, n, stream)) as answer:
        if answer.status_code != 200 or not stream:
            data = [json.loads(await answer.aread())]
        else:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    data.append(json.loads(line[6:]))
                    if first is None and text_of(data[-1:])[0]:
                        first = time.monotonic() - began
    text, failed = text_of(data)
    return answer.status_code, text, failed, first


async def client(http, rng, until, n, found):
    """Send random requests until a time; sort their ends into the counts of `found`."""
    expected, counts, times = found
    while time.monotonic() < until:
        path, prompt, stream = rng.choice(PATHS), rng.choice(PROMPTS), rng.random() < 0.7
        counts["sent"] += 1
        try:
            status, text, failed, first = await request(http, path, prompt, n, stream)
        except httpx.TimeoutException:
            counts["hung"] += 1
            continue
        except httpx.HTTPError as error:
            counts[f"cut off ({type(error).__name__})"] += 1
            continue
        if status != 200:
            counts[f"refused {status}"] += 1
        elif failed:
            counts["broken, with an error event"] += 1
        else:
            counts["right" if text == expected[path, prompt] else "wrong"] += 1
            times += [first] if first else []


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


async def load(url, given):
    counts, times, expected = Counter(), [], {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        for path in PATHS:  # alone, before the load: what every answer under load must equal
            for prompt in PROMPTS:
                status, text, failed, _ = await request(http, path, prompt, given.tokens, False)
                assert (status, failed) == (200, False), (status, text)
                expected[path, prompt] = text
        began = time.monotonic()
        until = began + given.seconds
        tasks = [
            client(http, random.Random(n), until, given.tokens, (expected, counts, times)) for n in range(given.clients)
        ]
        running = asyncio.gather(*tasks)
        if not given.no_kill:
            await asyncio.sleep(given.seconds / 3)
            actors = [each for each in ray.util.list_named_actors(all_namespaces=True) if "#Model#" in each["name"]]
            ray.kill(ray.get_actor(**actors[0]))
            counts["killed"] = 1
        await running
    return counts, times, time.monotonic() - began, expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-kill", action="store_true")
    given = parser.parse_args()
    ray.init(num_cpus=given.replicas, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    port = free_port()
    serve.start(http_options={"port": port})
    options = f"--device cpu --threads {given.threads} --context 2048 --prefix-cache-mib 64"
    serve.run(app({"replicas": given.replicas, "num_gpus": 0, "options": options}))
    try:
        counts, times, seconds, expected = asyncio.run(load(f"http://127.0.0.1:{port}", given))
    finally:
        serve.shutdown()
        ray.shutdown()
    with dflash.load("demo", device="cpu", threads=1, context=2048) as lm:
        prompt = PROMPTS[0]
        alone = lm.generate(prompt, max_tokens=given.tokens, temperature=0.8, seed=5).text
        assert expected[PATHS[0], prompt] == alone, (expected[PATHS[0], prompt], alone)
    print(dict(counts))
    ended = counts["right"] / seconds
    first = sorted(times)
    print(
        f"{seconds:.1f} s: {ended:.2f} right answers/s, {ended * given.tokens:.0f} tok/s; "
        f"time to the first text p50 {statistics.median(first):.2f}, p95 {first[int(len(first) * 0.95)]:.2f} s"
    )


if __name__ == "__main__":
    main()
