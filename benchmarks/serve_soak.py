"""Soak test of a running server: hours of mixed load over all APIs, with counts and memory every five minutes.

python -m dflash.serve demo --strategy adaptive --threads 2 --context 4096 --prefix-cache-mib 64 --port 8199 &
python benchmarks/serve_soak.py http://127.0.0.1:8199 [--pid $!] [--clients 8] [--minutes 120] [--out samples.jsonl]

Clients send texts, conversations, tools, schemas, patterns, recoveries and long new prompts, streamed and whole, with
random strategies. They drop streams, leave before an answer, and send hostile bodies (which must get 4xx) and random ones
(anything but 5xx). Sampled requests must give the texts that they gave alone. Every five minutes all clients pause, and
one JSON line shows what is left on the server. At the start and at the end, sequences that together fill the KV cache must
run at the same time. Ends with 1 if anything was wrong. There must be no other clients; latencies do not matter.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
from soak_requests import (
    COMPLETIONS,
    GOOD,
    KINDS,
    N_FIXED,
    STRATEGIES,
    fixed,
    has_form,
    is_cut,
    is_too_costly,
    request,
    text_of,
)

ENDS = ("[DONE]", "message_stop", "response.completed", "response.incomplete")
CONTEXT, SEQUENCES = 4096, 8
"""Tokens of a sequence, and how many such sequences fill the KV cache of the server above."""


class Clients:
    """Clients of one server, and counts of what came back."""

    def __init__(self, url):
        self.url, self.http, self.counts, self.n_wrong, self.alone = url, None, Counter(), 0, []

    def wrong(self, *what):
        self.n_wrong += 1
        print("WRONG", json.dumps(what)[:2000], flush=True)

    async def send(self, path, body, allowed=GOOD, drop_after=None):
        """Send a request; return its events, or its body alone, or None without a complete answer."""
        content, events, last = body if isinstance(body, bytes) else json.dumps(body).encode(), [], ""
        async with self.http.stream("POST", path, content=content, headers={"Content-Type": "application/json"}) as answer:
            if answer.status_code != 200 or answer.status_code not in allowed:
                self.counts[f"status {answer.status_code}"] += 1
                said = (await answer.aread()).decode()[:300]
                self.counts["grammar too costly"] += is_too_costly(allowed, said)
                if answer.status_code not in allowed:
                    self.wrong(path, answer.status_code, said, content.decode(errors="replace")[:1000])
                return None
            if not answer.headers["content-type"].startswith("text/event-stream"):
                return [json.loads(await answer.aread())]
            async for line in answer.aiter_lines():
                last = line or last
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:]))
                    if events[-1].get("error") or events[-1].get("type") == "response.failed":
                        if is_too_costly(allowed, line):
                            self.counts["grammar too costly"] += 1
                            return None
                        self.wrong(path, line, content.decode(errors="replace")[:1000])
                    if len(events) == drop_after:
                        self.counts["dropped"] += 1
                        return None
        if not any(end in last for end in ENDS):
            self.wrong(path, "no end", last, content.decode(errors="replace")[:1000])
        return events

    def check(self, kind, path, body, number, events):
        """Compare an answer with what it must be."""
        text = text_of(events)
        if kind == "fixed" and text != self.alone[number]:
            self.wrong("text differs", number, body, text, self.alone[number])
        if kind == "schema" and is_cut(events):
            self.counts["cut"] += 1
        elif not has_form(kind, path, body, text):
            self.wrong("not of the form", path, body, text)

    async def one(self, rng, until):
        """Send random requests until a time."""
        while time.monotonic() < until:
            (kind,) = rng.choices(list(KINDS), KINDS.values())
            number, drop_after, seconds = rng.randrange(N_FIXED), None, None
            path, body, allowed = (
                request(kind, rng) if kind != "fixed" else (*fixed(number, rng.choice(STRATEGIES[:-1])), GOOD)
            )
            if kind not in ("hostile", "random", "fixed") and rng.random() < 0.2:
                drop_after, seconds = (rng.randint(1, 6), None) if body["stream"] else (None, rng.random() * 2)
            self.counts[kind] += 1
            try:
                async with asyncio.timeout(seconds):
                    events = await self.send(path, body, allowed, drop_after)
                if events is not None:
                    self.counts["answered"] += 1
                    self.check(kind, path, body, number, events)
            except TimeoutError:
                self.counts["left before an answer"] += 1
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self.wrong(kind, path, repr(error), repr(body)[:1000])

    async def round(self, n, seed, until):
        """Run all clients on new connections until a time."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=n)
        async with httpx.AsyncClient(base_url=self.url, timeout=3600, limits=limits) as self.http:
            if not self.alone:
                self.alone = [text_of(await self.send(*fixed(number))) for number in range(N_FIXED)]
            await asyncio.gather(*(self.one(random.Random(seed * 1000 + number), until) for number in range(n)))

    async def fill(self):
        """Start sequences that fill the KV cache until all of them hold memory, and leave; return how many did."""
        body = {"prompt": [20] * (CONTEXT - 64), "max_tokens": 64, "cache_prompt": False, "ignore_eos": True}
        async with httpx.AsyncClient(base_url=self.url, timeout=3600) as self.http:
            sent = [asyncio.create_task(self.send(COMPLETIONS, {**body, "cache_salt": f"{n}"})) for n in range(SEQUENCES)]
            n_running = 0
            while n_running < SEQUENCES and not any(task.done() for task in sent):
                n_running = (await self.metrics())["num_requests_running"]
                await asyncio.sleep(0.005)  # a GPU reads such prompts in a tenth of a second
            for task in sent:
                task.cancel()
            await asyncio.gather(*sent, return_exceptions=True)
        if n_running < SEQUENCES:
            self.wrong("sequences that ran at the same time", n_running)
        return {"sequences that fill the cache": n_running}

    async def metrics(self):
        """Return the sums of the server's counters, and its responses with 5xx."""
        found = Counter()
        for line in (await self.http.get("/metrics")).text.splitlines():
            name, value = line.rsplit(" ", 1)
            if name.startswith("dflash:"):
                found[name[7:].partition("{")[0]] += float(value)
                found["5xx"] += float(value) * ('status="5' in name)
        return found

    async def sample(self, pid, minute):
        """Wait until nothing runs, and return what the server counts and holds."""
        async with httpx.AsyncClient(base_url=self.url, timeout=3600) as self.http:
            for _ in range(600):
                found, health = await self.metrics(), (await self.http.get("/health")).json()
                left = [health["active"], health["waiting"], found["num_requests_running"], found["num_requests_waiting"]]
                left.append(found["kv_cache_usage_perc"])
                if not any(left):
                    break
                await asyncio.sleep(0.5)
            sample = {"minute": round(minute, 1), "wrong": self.n_wrong, "health": health["status"]}
            sample |= dict(zip(("active", "queued", "running", "waiting", "share of pages"), left, strict=True))
            if pid:
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                sample |= {"MB": int(status["VmRSS"].split()[0]) >> 10, "threads": int(status["Threads"])}
                sample["files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            for name in ("5xx", "request_failed_total", "request_cancelled_total", "num_preemptions_total"):
                sample[name] = found[name]
            sample |= {"prompt": found["prompt_tokens_total"], "output": found["generation_tokens_total"]}
            sample |= {"prefix MB": found["prefix_cache_bytes"] / 2**20, "load": round(os.getloadavg()[0], 1)}
        n_failed = found["request_failed_total"] - self.counts["grammar too costly"]
        if any(left) or health["status"] != "ok" or found["5xx"] or n_failed > 0:
            self.wrong("left on the server, or failed", sample)
        return sample | {"requests": dict(self.counts)}


async def soak(arguments):
    """Run the rounds; return the number of things that were wrong."""
    clients, began = Clients(arguments.url), time.monotonic()
    samples, end = [], began + 60 * arguments.minutes

    async def note():
        samples.append(await clients.sample(arguments.pid, (time.monotonic() - began) / 60))
        print(json.dumps(samples[-1]), flush=True)
        if arguments.out:
            Path(arguments.out).write_text("".join(json.dumps(each) + "\n" for each in samples))

    print(json.dumps(await clients.fill()), flush=True)
    await note()
    while time.monotonic() < end:
        await clients.round(arguments.clients, len(samples), min(end, time.monotonic() + 300))
        await note()
    print(json.dumps(await clients.fill()), flush=True)
    await note()
    for key, allowed in (("MB", 1.1), ("threads", 1.1), ("files", 1.0)):
        values = [sample.get(key, 0) for sample in samples[1:-1]]
        early, late = max(values[: len(values) // 2], default=0), max(values[len(values) // 2 :])
        print(f"{key}: {values}")
        if len(values) >= 8 and late > early * allowed:
            clients.wrong(f"{key} grew", early, late)
    n_requests = sum(clients.counts[kind] for kind in KINDS)
    print(f"{n_requests} requests in {samples[-1]['minute']} minutes, {dict(clients.counts)}; wrong: {clients.n_wrong}")
    return clients.n_wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--pid", type=int, help="process of the server, for its memory, threads and files")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--out", help="file for the samples, one JSON line each")
    sys.exit(asyncio.run(soak(parser.parse_args())) > 0)


if __name__ == "__main__":
    main()
