"""Random hostile grammars against a running server, beside a neighbour that streams without a grammar.

python -m dflash.serve demo --port 18300 --no-access-log --context 768 --prefix-cache-mib 0 &
python benchmarks/grammar_fuzz.py $! http://127.0.0.1:18300 [--cases 20000] [--first 0] [--threads 3]

Prints statuses, the server's CPU seconds between two events of the neighbour (of the whole process, of the
engine's thread and of the busiest other one), and its memory before and after. The server has few KV pages and no prefix
cache, so that neither fills. Ends with 1 if the server has ended, answers 5xx, or exceeds 0.3 s of the engine's thread or
50 MB.
"""

import argparse
import collections
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from hostile_grammars import hostile_fields

TICK = 1 / os.sysconf("SC_CLK_TCK")
MESSAGES = [{"role": "user", "content": "Tell me a long story."}]
SETTINGS = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}, "temperature": 1.0}


def cpu_of(pid):
    """CPU seconds of each thread of a process."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[task.name] = TICK * (int(fields[11]) + int(fields[12]))
    return found


def memory_of(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def neighbour(pid, url, ending, found):
    """Stream answers one after the other; note the server's CPU time between their events.

    In a process of its own: one that also makes the hostile requests reads late, and finds several steps between two events.
    """
    wall, process, took_of, total, seed = [], [], [], collections.Counter(), 0
    with httpx.Client(timeout=600) as client:
        while not ending.is_set():
            body = {**SETTINGS, "max_tokens": 400, "stream": True, "logit_bias": {}, "seed": (seed := seed + 1)}
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                before = None
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now = time.monotonic(), cpu_of(pid)
                    if before is not None:
                        took = {name: seconds - before[1].get(name, 0.0) for name, seconds in now[1].items()}
                        wall.append(now[0] - before[0])
                        process.append(sum(took.values()))
                        total.update(took)
                        took_of.append({name: seconds for name, seconds in took.items() if seconds})
                    before = now
    engine = total.most_common(1)[0][0]  # the thread that works most
    others = [max((seconds for name, seconds in took.items() if name != engine), default=0.0) for took in took_of]
    found.put((wall, process, [took.get(engine, 0.0) for took in took_of], others))


def shown(seconds):
    ordered = sorted(seconds)
    places = (0.5, 0.99, 0.999)
    return " / ".join(f"{1e3 * ordered[int(p * (len(ordered) - 1))]:.0f}" for p in places) + f" / {1e3 * ordered[-1]:.0f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pid", type=int)
    parser.add_argument("url")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--threads", type=int, default=3, help="requests at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    arguments = parser.parse_args()
    client = httpx.Client(timeout=600, limits=httpx.Limits(max_connections=arguments.threads + 1))
    statuses, messages = collections.Counter(), collections.Counter()
    deadline = time.monotonic() + arguments.seconds

    def one(seed):
        if time.monotonic() > deadline:
            return
        more = {"n": 4} if seed % 5 == 0 else {}
        strategy = "lookup" if seed % 2 else "plain"
        body = {**SETTINGS, **hostile_fields(seed), "max_tokens": 24, "seed": seed, "strategy": strategy, **more}
        answer = client.post(f"{arguments.url}/v1/chat/completions", json=body)
        statuses[answer.status_code] += 1
        if answer.status_code != 200:
            messages[answer.json()["error"]["message"][:60]] += 1
        if answer.status_code >= 500:
            print("seed", seed, answer.status_code, answer.text[:200], flush=True)

    for seed in range(10**6, 10**6 + 100):  # fill caches and pools
        one(seed)
    time.sleep(1)
    before = memory_of(arguments.pid)
    statuses.clear()
    spawn = get_context("spawn")
    ending, found = spawn.Event(), spawn.SimpleQueue()
    spawn.Process(target=neighbour, args=(arguments.pid, arguments.url, ending, found), daemon=True).start()
    began = time.monotonic()
    with ThreadPoolExecutor(arguments.threads) as threads:
        for n, _ in enumerate(threads.map(one, range(arguments.first, arguments.first + arguments.cases)), 1):
            if n % 500 == 0 and time.monotonic() < deadline:
                print(
                    n,
                    dict(statuses),
                    f"{time.monotonic() - began:.0f} s",
                    f"{memory_of(arguments.pid) >> 20} MB",
                    flush=True,
                )
    ending.set()
    wall, process, its, others = found.get()
    time.sleep(2)
    grown = memory_of(arguments.pid) - before
    print(f"{sum(statuses.values())} cases: {dict(statuses)}")
    for message, n in messages.most_common(12):
        print(f"{n:6d} {message}")
    print(f"events of the neighbour: {len(its)}; median / 99 % / 99.9 % / maximum between two of them")
    print(f"CPU of the engine's thread:      {shown(its)}")
    print(f"CPU of the busiest other thread: {shown(others)}")
    print(f"CPU of the process:              {shown(process)}")
    print(f"time:                            {shown(wall)}")
    print(f"memory: {before >> 20} MB before, {grown / 2**20:+.1f} MB after")
    fine = not any(status >= 500 for status in statuses) and max(its) < 0.3 and grown < 50 << 20
    sys.exit(not fine)


if __name__ == "__main__":
    main()
