"""Routing rules on paper: recorded agent sessions on 4 to 64 simulated replicas, each with a prefix cache of bounded size.

python benchmarks/routing.py                                # from the recording of the tests
python benchmarks/routing.py --replicas 16 --sessions 12    # 12 open sessions for each of 16 replicas
python benchmarks/routing.py --transcripts FOLDER           # recorded bodies, FOLDER/AGENT/SESSION.jsonl
python benchmarks/routing.py --record FOLDER                # measure such bodies and write the recording of the tests

The recording has the length of each prompt and how much of it other prompts share. The recorded tasks end after two to five
requests, so a session goes on with turns of random length. Prefill and decode cost what a 27B model costs on an H200.
"""

import argparse
import heapq
import json
import random
import statistics
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from dflash.serve.routing.body_hints import DIALECTS, hints_of, prompt_of
from dflash.serve.routing.hints import BLOCK, RouteHints
from dflash.serve.routing.prefix_affinity import PrefixAffinity

RECORDED = Path(__file__).parents[1] / "tests" / "data" / "routing" / "agents.json"
BYTES_PER_TOKEN = 4
POLICIES = ("round robin", "least loaded", "session id", "affinity 64", "affinity 16")
"""Rules; the number of an affinity rule is its `balance_absolute`."""


@dataclass(frozen=True)
class Costs:
    """A replica and its load. Defaults: 27B on an H200 (results/gpu-models.md); lengths of turns and pauses are assumed."""

    sequences: int = 8
    prefill: float = 8000.0  # tokens a second
    decode: float = 190.0  # tokens a second of one sequence alone
    batch: float = 0.03  # step time added by each further sequence, as a share
    step: float = 0.05  # seconds of a step that also prefills a chunk: --max-step-ms
    cache: int = 400_000  # tokens in the prefix cache of a replica
    context: int = 100_000  # tokens after which a session compacts its history
    turn: float = 900.0  # median tokens that a turn adds to a prompt
    output: float = 250.0  # median output tokens
    pause: float = 6.0  # mean seconds of a tool call; every seventh pause is the user's and takes ten times as long
    turns: float = 20.0  # mean turns of a session


def shared(a, b):
    """Return the number of equal bytes at the beginning."""
    return next((place for place, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))


def bodies(folder):
    """Return recorded requests that have a prompt: sessions of one agent by file, as pairs of path and body."""
    found = {}
    for path in sorted(Path(folder).glob("*/*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path] = [
            (each["path"], each["body"])
            for each in lines
            if each.get("path") in DIALECTS and isinstance(each.get("body"), dict)
        ]
    return found


def record(folder):
    """Measure recorded prompts: agent -> sessions -> [blocks, shared with earlier ones, shared with other sessions]."""
    sessions = {path: [prompt for sent in sents if (prompt := prompt_of(*sent))] for path, sents in bodies(folder).items()}
    found = {}
    for path, prompts in sessions.items():
        others = [
            prompt for other in sessions if other.parent == path.parent and other != path for prompt in sessions[other]
        ]
        rows = []
        for number, prompt in enumerate(prompts):
            own = max((shared(prompt, earlier) for earlier in prompts[:number]), default=0)
            alike = max((shared(prompt, other) for other in others), default=0)
            rows.append([length // BLOCK for length in (len(prompt), own, alike)])
        if len(rows) > 1 and rows[0][0] >= 4 and rows not in found.get(path.parent.name, ()):
            found.setdefault(path.parent.name, []).append(rows)
    return found


class Session:
    """Requests of one session: those of a recording, then turns of random length, until it ends."""

    numbers = count()

    def __init__(self, rng, recorded, costs):
        self.rng, self.costs, self.name = rng, costs, f"session {next(self.numbers)}"
        self.agent = rng.choice(sorted(recorded))
        self.rows = deque(rng.choice(recorded[self.agent]))
        self.left = max(1, round(rng.expovariate(1 / costs.turns)))
        self.history = ()  # blocks of the conversation; side requests are not part of it
        self.fresh = count()

    def next(self):
        """Return hints and output tokens of the next request; None at the end."""
        if self.left <= 0 and not self.rows:
            return None
        self.left -= 1
        blocks = self._recorded(*self.rows.popleft()) if self.rows else self._turn()
        tokens = round(self.rng.lognormvariate(0, 0.8) * self.costs.output)
        return RouteHints(blocks, 1.0, self.name), max(tokens, 8)

    def _recorded(self, n, own, others):
        if own >= 0.3 * n:
            begun = self.history[:own]
        else:  # the last block is the user's text, which the recorded sessions have in common
            begun = tuple((self.agent, others // 2, place) for place in range(min(others, n - 1)))
        blocks = self._filled(begun, n)
        if n >= len(self.history) * 0.7:  # a shorter prompt without a common beginning is a title or a summary
            self.history = blocks
        return blocks

    def _turn(self):
        grown = self.rng.lognormvariate(0, 1.0) * self.costs.turn * BYTES_PER_TOKEN
        if len(self.history) * BLOCK > self.costs.context * BYTES_PER_TOKEN:  # the history becomes a summary
            self.history = self.history[: sum(isinstance(block[1], int) for block in self.history)]
        self.history = self._filled(self.history, len(self.history) + round(grown / BLOCK))
        return self.history

    def _filled(self, blocks, n):
        return blocks[:n] + tuple((self.name, "own", next(self.fresh)) for _ in range(n - len(blocks)))

    def pause(self):
        return self.rng.expovariate(1 / self.costs.pause) * (10 if self.rng.random() < 1 / 7 else 1)


class Cache:
    """The blocks that a replica has saved; the least recently used prompts lose their ends first."""

    def __init__(self, blocks):
        self.size, self.held = blocks, OrderedDict()

    def hit(self, blocks):
        return next((place for place, block in enumerate(blocks) if block not in self.held), len(blocks))

    def add(self, blocks):
        for block in reversed(blocks):
            self.held[block] = None
            self.held.move_to_end(block)
        while len(self.held) > self.size:
            self.held.popitem(last=False)


@dataclass(eq=False)
class Request:
    session: Session
    hints: RouteHints
    output: float
    arrived: float
    prefill: float = 0.0


@dataclass
class Totals:
    queue: list = field(default_factory=list)
    first: list = field(default_factory=list)
    prompt: int = 0
    hit: int = 0
    busy: float = 0.0


class Replica:
    """Serves up to `sequences` requests: one prefill at a time, and one token of each other request per step."""

    def __init__(self, costs, totals):
        self.costs, self.totals = costs, totals
        self.cache = Cache(costs.cache * BYTES_PER_TOKEN // BLOCK)
        self.waiting, self.prefilling, self.decoding = deque(), deque(), []
        self.now = 0.0

    @property
    def load(self):
        return len(self.waiting) + len(self.prefilling) + len(self.decoding)

    def rates(self):
        """Return prefill tokens a second, and decoded tokens a second of each sequence."""
        step = (1 + self.costs.batch * (len(self.decoding) - 1)) / self.costs.decode if self.decoding else 0.0
        if not self.prefilling:
            return 0.0, 1 / step if step else 0.0
        return self.costs.prefill * max(1 - step / self.costs.step, 0.1), 1 / self.costs.step

    def advance(self, now):
        """Let time pass; return the requests that end, at most those of one instant."""
        prefill, decode = self.rates()
        passed, self.now = now - self.now, now
        self.totals.busy += passed if self.load else 0.0
        if self.prefilling:
            self.prefilling[0].prefill -= passed * prefill
        for request in self.decoding:
            request.output -= passed * decode
        done = [request for request in self.decoding if request.output <= 1e-6]
        self.decoding = [request for request in self.decoding if request.output > 1e-6]
        if self.prefilling and self.prefilling[0].prefill <= 1e-6:
            request = self.prefilling.popleft()
            self.cache.add(request.hints.blocks)
            self.totals.first.append(now - request.arrived)
            self.decoding.append(request)
        self._start()
        return done

    def _start(self):
        while self.waiting and len(self.prefilling) + len(self.decoding) < self.costs.sequences:
            request = self.waiting.popleft()
            n, hit = len(request.hints.blocks), self.cache.hit(request.hints.blocks)
            self.totals.queue.append(self.now - request.arrived)
            self.totals.prompt += n
            self.totals.hit += hit
            request.prefill = max((n - hit) * BLOCK / BYTES_PER_TOKEN, 32.0)
            self.prefilling.append(request)

    def next_event(self):
        prefill, decode = self.rates()
        times = [request.output / decode for request in self.decoding] if decode else []
        if self.prefilling:
            times.append(self.prefilling[0].prefill / prefill)
        return self.now + max(min(times), 1e-6) if times else None


def chooser(policy, costs, n):
    """Return a function from hints and loads to the number of a replica."""
    names, turn, homes = [str(number) for number in range(n)], count(), {}
    blocks = max(costs.cache * BYTES_PER_TOKEN // BLOCK, 1)
    rule = PrefixAffinity(max_blocks=blocks, balance_absolute=float(policy.split()[1]) if policy[0] == "a" else 64)

    def choose(hints, loads):
        if policy == "round robin":
            return next(turn) % n
        if policy == "least loaded":
            return min(range(n), key=loads.__getitem__)
        if policy == "session id":
            return homes.setdefault(hints.session, min(range(n), key=loads.__getitem__))
        best = rule.rank(hints, dict(zip(names, loads, strict=True)))[0]
        rule.note(hints, best)
        return int(best)

    return choose


def simulate(policy, recorded, n, costs, *, sessions, requests, seed=0):
    """Run `sessions` sessions for each of `n` replicas at once until `requests` for each have ended."""
    rng, totals = random.Random(seed), Totals()
    replicas, choose = [Replica(costs, totals) for _ in range(n)], chooser(policy, costs, n)
    events, order, versions, ended, now = [], count(), [0] * n, 0, 0.0

    def plan(number):
        versions[number] += 1
        time = replicas[number].next_event()
        if time is not None:
            heapq.heappush(events, (time, next(order), number, versions[number]))

    def send(session, at):
        heapq.heappush(events, (at, next(order), session, None))

    for _ in range(n * sessions):
        session = Session(random.Random(rng.random()), recorded, costs)
        send(session, session.rng.uniform(0, 10 * costs.pause))
    while ended < requests * n:
        now, _, what, version = heapq.heappop(events)
        if version is None:
            request = what.next()
            if request is None:
                what = Session(random.Random(what.rng.random()), recorded, costs)
                request = what.next()
            number = choose(request[0], [replica.load for replica in replicas])
            done = replicas[number].advance(now)
            replicas[number].waiting.append(Request(what, *request, arrived=now))
            replicas[number]._start()
        elif version == versions[what]:
            number = what
            done = replicas[number].advance(now)
        else:
            continue
        for request in done:
            ended += 1
            send(request.session, now + request.session.pause())
        plan(number)
    return totals, now, ended


def summary(totals, seconds, ended, n):
    """Return the numbers of a run by name."""
    queue, first = sorted(totals.queue), sorted(totals.first)
    return {
        "hit rate": totals.hit / totals.prompt,
        "queue p50": statistics.median(queue),
        "queue p95": queue[int(len(queue) * 0.95)],
        "ttft p50": statistics.median(first),
        "ttft p95": first[int(len(first) * 0.95)],
        "requests/s": ended / seconds / n,
        "gpu s": totals.busy / ended,
    }


def mixed(sessions, rng):
    """Yield the requests of several sessions in random order; those of one session stay in theirs."""
    left = [deque(session) for session in sessions if session]
    while left:
        session = rng.choice(left)
        yield session.popleft()
        left = [session for session in left if session]


def router_hits(requests, n):
    """Return the share of the prompts' blocks that their replica has had before, under two rules."""
    rule, turn, total = PrefixAffinity(), count(), 0
    hits = dict.fromkeys(("round robin", "affinity"), 0)
    held = {name: [Cache(rule.max_blocks) for _ in range(n)] for name in hits}
    for hints in requests:
        total += len(hints.blocks)
        best = rule.rank(hints, {str(number): 0 for number in range(n)})[0]
        rule.note(hints, best)
        for name, number in (("round robin", next(turn) % n), ("affinity", int(best))):
            hits[name] += held[name][number].hit(hints.blocks)
            held[name][number].add(hints.blocks)
    return {name: hit / total for name, hit in hits.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="FOLDER")
    parser.add_argument("--transcripts", metavar="FOLDER")
    parser.add_argument("--replicas", default="4,16,64")
    parser.add_argument("--sessions", type=int, default=16, help="open sessions for each replica (16)")
    parser.add_argument("--requests", type=int, default=400, help="requests for each replica (400)")
    parser.add_argument("--seed", type=int, default=0)
    for name, default in vars(Costs()).items():
        parser.add_argument(
            f"--{name}-cost" if name == "batch" else f"--{name}", type=type(default), default=default, dest=name
        )
    given = parser.parse_args()
    if given.record:
        RECORDED.write_text(json.dumps(record(given.record), separators=(",", ":")) + "\n")
        return
    if given.transcripts:
        sent = bodies(given.transcripts).values()
        sessions = [[hints_of(path, json.dumps(body).encode()) for path, body in requests] for requests in sent]
        for n in map(int, given.replicas.split(",")):
            print(n, "replicas:", router_hits(mixed(sessions, random.Random(given.seed)), n))
        return
    recorded = json.loads(RECORDED.read_text())
    costs = replace(Costs(), **{name: getattr(given, name) for name in vars(Costs())})
    run = {"sessions": given.sessions, "requests": given.requests, "seed": given.seed}
    print("| replicas | rule | hit rate | queue p50, s | p95 | TTFT p50, s | p95 | requests/s a replica | GPU s a request |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for n in map(int, given.replicas.split(",")):
        for policy in POLICIES:
            found = summary(*simulate(policy, recorded, n, costs, **run), n)
            numbers = " | ".join(f"{value:.3f}" for value in found.values())
            print(f"| {n} | {policy} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
