"""Replays on the demo: what the cache holds at each turn, failures and the exit status."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import dflash
from dflash.__main__ import main
from dflash.decode.recoveries.base import DONE, Cut
from dflash.errors import RequestError
from dflash.evaluation.replay import Turn, load_session, replay, synthetic
from dflash.generation.messages.chat_prompt import chat_ids
from dflash.model.text.spelled_tokens import ROLE_STARTS

DATA = Path(__file__).parents[2] / "data" / "replay"

ASKED = {"role": "user", "content": "Hi"}

REFUSED = {"role": "critic", "content": "No."}


@dataclass(frozen=True)
class EndsSome:
    """A recovery that ends answers early: after the first token, of all requests or of those that use the cache."""

    only_warm: bool

    def start(self, session):
        return _EndingSome(self.only_warm)


@dataclass
class _EndingSome:
    only_warm: bool
    name = "EndsSome"
    restarts = False

    def check_step(self, session, kept):
        wanted = session.use_prefix_cache or not self.only_warm
        return Cut(1, "length" if self.only_warm else "stop", "enough") if wanted and session.n_tokens == 0 else DONE


@pytest.fixture(scope="module")
def cached():
    with dflash.load("demo", device="cpu", threads=1, context=2048, sequences=2, prefix_cache=1 << 30) as lm:
        yield lm


@pytest.fixture
def bench(cached, monkeypatch):
    """Run the command on the model that is loaded already."""
    given = {}
    monkeypatch.setattr(cached, "_finalizer", lambda: None)
    monkeypatch.setattr("dflash.load", lambda *_, **settings: given.update(settings) or cached)
    monkeypatch.setenv("MPLBACKEND", "agg")

    def run(*words):
        status = main(["bench", "demo", *map(str, words)])
        assert given["prefix_cache"]
        assert given["sequences"] >= 2
        return status

    return run


def test_a_growing_conversation(cached):
    """A warm turn begins where the prompt before it asked for the answer; each round begins with an empty cache."""
    turns = load_session(DATA / "messages.jsonl")
    found = replay(cached, turns, max_tokens=3, repeat=2)
    start = cached.tokenizer.id_of(ROLE_STARTS[0])
    ids = [np.array(chat_ids(cached.tokenizer, cached.template, turn.messages, max_tokens=2048)) for turn in turns]
    asked = [int(np.flatnonzero(prompt == start)[-1]) for prompt in ids]
    assert not found.failures
    assert [reply.cached_tokens for turn in found.turns for reply in turn.warm] == [n for n in (0, *asked[:2]) for _ in "ab"]
    assert all(reply.cached_tokens == 0 for turn in found.turns for reply in turn.cold)
    assert [turn.warm[0].prompt_tokens for turn in found.turns] == list(map(len, ids))
    for turn, prompt in zip(found.turns, ids, strict=True):
        want = cached.generate(prompt.tolist(), max_tokens=3, prefix_cache=False).tokens
        assert [reply.tokens for reply in (*turn.cold, *turn.warm)] == [want] * 4
        assert all(0 < reply.first_token <= reply.seconds for reply in (*turn.cold, *turn.warm))


def test_the_synthetic_session_is_the_same_in_every_run():
    assert synthetic(4) == synthetic(4)
    first, second = synthetic(4)[:2]
    assert second.messages[: len(first.messages)] == first.messages
    with pytest.raises(RequestError, match="turns"):
        synthetic(0)


def test_the_synthetic_session_runs_without_a_file(bench, capsys, tmp_path):
    assert bench("--replay", "synthetic:2", "-n", 1, "--plot", tmp_path / "plot.png") == 0
    head, _, *rows = capsys.readouterr().out.strip().split("\n")
    assert [row.split("|")[1].strip() for row in rows] == ["turn 1", "turn 2", "all"]
    assert len({len(row) for row in (head, *rows)}) == 1
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_json(bench, capsys):
    words = "--strategies", "lookup", "--temperature", 0.9, "--seed", 4
    assert bench("--replay", DATA / "messages.jsonl", "-n", 3, "-r", 2, "--json", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sampling"] == {"temperature": 0.9, "seed": 4}
    assert "PromptLookup" in found["strategy"]
    assert [len(turn["warm"]) for turn in found["turns"]] == [2, 2, 2]
    assert len({tuple(reply["tokens"]) for turn in found["turns"] for reply in turn["cold"] + turn["warm"]}) <= 3


def test_the_exit_status_counts_failures(bench, capsys, tmp_path):
    """Prompts that the template refuses fail; the others are measured."""
    answer = {"role": "assistant", "content": "Hello."}
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [ASKED, answer, REFUSED, answer, ASKED]), encoding="utf-8")
    assert bench("--replay", path, "-n", 2) == 2
    out = capsys.readouterr().out
    assert "!!! line 4: the chat template refused the messages: Unexpected message role." in out
    assert "!!! end: the chat template refused the messages" in out
    assert [line.split("|")[-2].strip() for line in out.split("\n")[2:5]] == ["same", "ERROR", "ERROR"]


def test_a_prompt_longer_than_the_context_fails_alone(cached):
    long = Turn("long", [{"role": "user", "content": "word " * 3000}])
    found = replay(cached, [long, Turn("short", [ASKED])], max_tokens=2)
    (failure,) = found.failures
    assert failure.startswith("long: ")
    assert len(found.turns[1].warm) == 1


def test_an_empty_answer_is_a_failure(cached):
    """An answer that ends within its reasoning has no content; one that the limit cuts is not empty."""
    turns = load_session(DATA / "messages.jsonl")[:1]
    found = replay(cached, turns, strategy=dflash.Plain() | EndsSome(only_warm=False), max_tokens=4)
    assert found.failures == ["line 3: cold: the answer is empty", "line 3: warm: the answer is empty"]
    assert "EMPTY" in repr(found)
    assert not replay(cached, turns, max_tokens=1).failures


def test_a_warm_output_that_differs_is_a_failure(cached):
    turns = load_session(DATA / "messages.jsonl")[:1]
    found = replay(cached, turns, strategy=dflash.Plain() | EndsSome(only_warm=True), max_tokens=4, repeat=2)
    assert found.failures == ["line 3: warm: the output differs from the cold one from token 1"] * 2
    assert "DIFFERS" in repr(found)


def test_a_replay_needs_a_cache(lm):
    with pytest.raises(RequestError, match="load it with prefix_cache=True"):
        replay(lm, synthetic(1))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--replay", "synthetic:x"), "the number of turns must be a whole number, as in synthetic:10"),
        (("--replay", "synthetic", "--strategies", "plain,lookup"), "a replay takes one strategy, got 2"),
        (("--replay", "synthetic", "-p", "4"), "--prompt: not used by --replay"),
        (("--plot", "x.png"), "--plot: not used by measurements without --replay"),
        (("--replay", "none.jsonl"), "--replay none.jsonl: No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_arguments_that_do_not_fit(capsys, words, message):
    assert main(["bench", "demo", *words]) != 0
    assert message in capsys.readouterr().err
