"""What is written down is what happened."""

import json

import pytest
from oracles import Oracle, naive
from toy import Toy, finish

from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.trace import Dump
from dflash.errors import RequestError

PROMPT = [7, 7, 2, 11]
RULED = Sampling(repetition_penalty=1.5, logit_bias={4: 2.0}, temperature=0.8, top_k=5, top_p=0.9, seed=3)


def written(path, sampling, strategy, n=20, eos=()):
    """Two texts, the second cancelled before it began; the rows of the file and the first session."""
    toy = Toy()
    engine, dump = Engine(toy, chunk=2), Dump(path, top=3)
    settings = {"max_tokens": n, "eos": eos, "detokenize": lambda ids: f"<{ids[0]}>"}
    session = Session(PROMPT, sampling=sampling, strategy=strategy, recorder=dump.recorder(), **settings)
    never = Session(PROMPT, recorder=dump.recorder())
    for each in (session, never):
        engine.add(each)
    never.cancel()
    finish(engine)
    assert session.error is None
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["finish"] for row in rows if row["text"] == 1] == ["cancelled"]
    return [row for row in rows if row["text"] == 0], session, toy


@pytest.mark.parametrize("sampling", [Sampling(), RULED], ids=["greedy", "ruled"])
@pytest.mark.parametrize("kind", ["plain", "tree"])
def test_a_line_a_step(tmp_path, sampling, kind):
    truth = naive(Toy(), PROMPT, sampling, 20, seed=sampling.seed)
    strategy = Plain() if kind == "plain" else Strategy(Oracle(((*PROMPT, *truth),), "tree"))
    rows, session, toy = written(tmp_path / "dump.jsonl", sampling, strategy)
    assert session.output_ids == truth
    head, *steps = rows
    assert head["prompt"] == PROMPT
    assert sum(row.get("prefilled", 0) for row in steps) == 3
    steps = [row for row in steps if "tokens" in row]
    assert [token for row in steps for token in row["tokens"]] == truth
    assert steps[-1]["finish"] == "length"
    assert any(len(row["draft"]["tokens"]) for row in steps) == (kind == "tree")
    text = list(PROMPT)
    for row, step in zip(steps, (step for step in session.steps if step.tokens), strict=True):
        assert [pick["token"] for pick in row["picks"]] == row["tokens"]
        above = -1
        for i, pick in enumerate(row["picks"]):
            assert pick["node"] == above
            assert pick["piece"] == f"<{pick['token']}>"
            logits = toy.after(text)
            assert pick["top"][0]["token"] == int(logits.argmax())
            assert pick.get("rules", [{"top": pick["top"]}])[-1]["top"]
            if i < row["accepted"]:
                above = step.draft.child(above, pick["token"])
                assert row["draft"]["parents"][above] == pick["node"]
            text.append(pick["token"])


def test_what_each_rule_did(tmp_path):
    rows, _, toy = written(tmp_path / "dump.jsonl", RULED, Plain() | MinTokens(1), n=1, eos=[0])
    (pick,) = rows[-1]["picks"]
    names = [rule["rule"].split("(")[0] for rule in pick["rules"]]
    assert names == ["Penalties", "Bias", "NoEnd", "TopK", "Temperature", "TopP"]
    penalties, bias, no_end, top_k, _, top_p = pick["rules"]
    assert no_end["masked"] == 1
    assert penalties["changed"] == len(set(PROMPT))
    assert (bias["changed"], bias["masked"]) == (1, 0)
    assert top_k["masked"] == toy.n_vocab - 5 - no_end["masked"]
    assert len(top_p["top"]) <= 3


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(RequestError, match="no/such"):
        Dump(tmp_path / "no/such/file")
