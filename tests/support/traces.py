"""Small traces in the layout of kv-cache-tester, and a transport that answers at once."""

import json
import lzma

from dflash.errors import DFlashError
from dflash.evaluation.traces.transport import Answered

BLOCK = 16


def traced(n_prompt, n_output, blocks, think=0.0, **fields):
    """A request of a trace; `blocks` are the ids of its whole blocks."""
    assert len(blocks) == n_prompt // BLOCK
    return {"t": 0.0, "type": "s", "in": n_prompt, "out": n_output, "hash_ids": list(blocks), "think_time": think, **fields}


GROWING = [
    traced(100, 20, range(6)),
    traced(160, 30, range(10), 4.0),  # holds the answer of 20 tokens whole
    traced(170, 5, range(10), 2.0),  # 10 of the 30
    traced(90, 4, [0, 1, 2, 90, 91], 1.0),  # leaves the prompt after three blocks
    traced(185, 3, [*range(10), 92], 1.0),  # goes on from the third
]


def trace(requests=GROWING, name="one", **fields):
    return {"id": name, "block_size": BLOCK, "hash_id_scope": "local", "requests": list(requests), **fields}


def write(folder, *traces):
    """Write traces as files of both kinds; returns the folder."""
    for number, one in enumerate(traces):
        data = json.dumps(one).encode()
        name = f"{number}.json" if number % 2 else f"{number}.json.xz"
        (folder / name).write_bytes(data if number % 2 else lzma.compress(data))
    return folder


class Seconds:
    """A clock that only waits and answers move."""

    def __init__(self, end=float("inf")):
        self.time, self.end, self.waits, self.stopped = 0.0, end, [], False

    def now(self):
        return self.time

    @property
    def is_over(self):
        return self.stopped or self.time >= self.end

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.time = min(self.time + seconds, self.end)

    def stop(self):
        self.stopped = True


class Answering:
    """A transport for one client: the first token takes `first` seconds and each later one `each`; keeps the prompts."""

    name, context = "answering", None

    def __init__(self, clock=None, first=1.0, each=0.5, refuse=()):
        self.clock, self.first, self.each, self.refuse, self.prompts = clock or Seconds(), first, each, refuse, []

    def encode(self, text):
        return sorted(set(text.encode()))

    def about(self):
        return {}

    def start(self):
        self.prompts = []

    def send(self, prompt_ids, n_output, on_tokens, conversation):
        self.prompts.append(list(prompt_ids))
        if len(self.prompts) - 2 in self.refuse:
            raise DFlashError("refused")
        answer = [1000 + len(self.prompts) * 100 + i for i in range(n_output)]
        for i in range(n_output):
            self.clock.time += self.each if i else self.first
            on_tokens()
        return Answered(answer, None)

    @property
    def measured(self):
        """The prompts after that of the warm-up."""
        return self.prompts[1:]
