"""Streams that arrive together at a running server: throughput, first tokens and gaps, as its clients see them.

python -m dflash.serve MODEL -np 64 --context 2048 --no-access-log --port 18302 &
python benchmarks/serve_side.py http://127.0.0.1:18302 [--streams 1,8,32,64] [--prompt 1000] [--output 128] [--json FILE]

Several ways are measured in turns with ``--way STRATEGY@URL`` instead of the address, as ``--way plain@URL --way mtp:3@URL``
and another server that was started with ``--fixed-drafts``; a table at the end compares their medians. ``--text SET`` sends
the prompts of a set of ``dflash bench`` instead of random ids, so that drafts are accepted.

Each stream is a request of ``/v1/completions`` with new random token ids, and has exactly ``--output`` output tokens.
A gap is the time between two chunks that bring tokens, whether or not these are text yet; ``text`` are gaps between chunks
with text, which a tokenizer holds back in the middle of a character. With ``--long N`` a prompt of N tokens arrives beside
the streams, one second after them; its first token is compared with that of the same length alone.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from dflash.evaluation.prompt_sets import load_prompts


async def stream(client, arguments, n_prompt, n_output, seed, *, way):
    """Return the times of the request, of chunks with tokens, and of chunks with text."""
    ids = random.Random(seed).choices(range(256, arguments.vocab), k=n_prompt)
    url, strategy = way
    body = {
        "prompt": ids if not arguments.text else arguments.text[seed % len(arguments.text)],
        **({"strategy": strategy} if strategy else {}),
        "max_tokens": n_output,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "temperature": 0,
    }
    began, tokens, texts, n, event = time.perf_counter(), [], [], 0, None
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            sys.exit(f"{answer.status_code} {(await answer.aread()).decode()[:300]}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now, event = time.perf_counter(), json.loads(line[6:])
            for choice in event.get("choices", ()):
                n += len(choice.get("token_ids") or ())
                if choice.get("token_ids"):
                    tokens.append(now)
                if choice.get("text"):
                    texts.append(now)
    if n != n_output:
        sys.exit(f"{n} tokens came, {n_output} were asked for; the last event was {event}")
    return began, tokens, texts


def texts(name):
    return [case.prompt for case in load_prompts(name) if isinstance(case.prompt, str)]


def ms(seconds):
    return " / ".join(f"{1e3 * each:,.0f}" for each in seconds)


async def measure(client, arguments, n, seed, way):
    """Run `n` streams at once and return what they saw, in seconds."""
    ask = lambda i: stream(client, arguments, arguments.prompt, arguments.output, seed + i, way=way)  # noqa: E731
    began = time.perf_counter()
    found = await asyncio.gather(*(ask(i) for i in range(n)))
    took = time.perf_counter() - began
    first = np.array([tokens[0] - start for start, tokens, _ in found])
    gaps = np.concatenate([np.diff(tokens) for _, tokens, _ in found] or [[0.0]])
    text = np.concatenate([np.diff(texts) for _, _, texts in found] or [[0.0]])
    return {
        "streams": n,
        "way": "@".join(filter(None, way[::-1])),
        "tokens_per_second": n * arguments.output / took,
        "seconds": took,
        "first": [float(np.median(first)), float(first.max())],
        "gap": [float(np.median(gaps)), float(np.percentile(gaps, 99)), float(gaps.max())],
        "text_gap": float(text.max(initial=0.0)),
    }


async def beside(client, arguments, n_long):
    """Return the first token of a long prompt alone and beside eight streams, and the longest gap of these."""
    way = arguments.ways[0]
    alone = await stream(client, arguments, n_long, 1, 10**6, way=way)
    running = [asyncio.create_task(stream(client, arguments, 100, 1000, 10**6 + 1 + i, way=way)) for i in range(8)]
    await asyncio.sleep(1)
    long = await stream(client, arguments, n_long, 1, 10**6 + 9, way=way)
    found = await asyncio.gather(*running)
    gaps = np.concatenate([np.diff(tokens) for _, tokens, _ in found])
    return {"prompt": n_long, "alone": alone[1][0] - alone[0], "beside": long[1][0] - long[0], "gap": float(gaps.max())}


async def run(arguments):
    """Print a table, and return its rows."""
    rows = []
    # kept connections would cost the client 5 ms of its own for each of 128 requests and their ends: its pool looks at all
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        for way in arguments.ways:
            await measure(client, arguments, 2, 0, way)
        print(
            "| streams | tok/s | seconds | first token, median / last, ms | gap, median / p99 / longest, ms | text gap, ms |"
        )
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        for n in arguments.streams:
            for turn, way in ((turn, way) for turn in range(arguments.repeat) for way in arguments.ways):
                row = await measure(client, arguments, n, 1000 * n + 10**5 * (1 + turn), way)
                rows.append(row)
                if len(arguments.ways) > 1:
                    print(row["way"], end=" ")
                rate, took = f"{row['tokens_per_second']:,.0f}", f"{row['seconds']:.2f}"
                print(
                    f"| {n} | {rate} | {took} | {ms(row['first'])} | {ms(row['gap'])} | {ms([row['text_gap']])} |",
                    flush=True,
                )
        if len(arguments.ways) > 1:
            summary(rows)
        if arguments.long:
            found = await beside(client, arguments, arguments.long)
            rows.append(found)
            times = ms([found["alone"], found["beside"], found["gap"]])
            print(f"a prompt of {arguments.long}: {times} ms alone / beside / gap")
    return rows


def summary(rows):
    """Print the median tokens per second of each way, and its ratios to those of the first way in the same turns."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    print(f"| streams | {' | '.join(ways)} |\n| ---: |{' ---: |' * len(ways)}")
    for n in dict.fromkeys(row["streams"] for row in rows):
        rates = np.array([[r["tokens_per_second"] for r in rows if (r["streams"], r["way"]) == (n, way)] for way in ways])
        ratios = rates / rates[0]
        cells = [
            f"{np.median(rate):,.0f} ({np.median(ratio):.2f}, {ratio.min():.2f} to {ratio.max():.2f})"
            for rate, ratio in zip(rates, ratios, strict=True)
        ]
        print(f"| {n} | {' | '.join(cells)} |")


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--way", action="append", default=[], metavar="STRATEGY@URL", help="a strategy on a server; repeat")
    parser.add_argument("--text", type=texts, default=(), metavar="SET", help="code, prose, or a file of prompts")
    parser.add_argument(
        "--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32, 64], metavar="N,..."
    )
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=10_000, help="ids are below this number (10,000)")
    parser.add_argument("--long", type=int, default=0, metavar="N", help="also a prompt of N tokens beside eight streams")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    arguments.ways = [tuple(way.partition("@")[::-2]) for way in arguments.way] or [(arguments.url, "")]
    rows = asyncio.run(run(arguments))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
