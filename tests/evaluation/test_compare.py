"""Comparison of strategies: measurements, and a clear report of differing outputs."""

import json
import re
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import dflash
from dflash.__main__ import main
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Nothing
from dflash.decode.metrics import counted, shares
from dflash.decode.recoveries.base import DONE, Cut
from dflash.decode.session import Step
from dflash.errors import NotFound, RequestError
from dflash.evaluation.comparison import PARTS
from dflash.evaluation.prompt_sets import BUNDLED, Case

PROMPTS = ["def add(a, b):", [{"role": "user", "content": "Count from 3 to 12."}]]


@dataclass(frozen=True)
class Ends:
    """A recovery that ends every text after its first token: another text."""

    def start(self, session):
        return _Ending()


@dataclass(frozen=True)
class OfOnesOwn(dflash.PromptLookup):
    """A drafter without a name."""


class _Ending:
    name, restarts = "Ends", False

    def check_step(self, session, kept):
        return Cut(1, "stop", "enough") if session.n_tokens == 0 else DONE


@pytest.fixture(scope="module")
def comparison(lm):
    strategies = {"plain": "plain", "lookup": dflash.PromptLookup(min_ngram=1), "short": dflash.Plain() | Ends()}
    return dflash.compare(lm, PROMPTS, strategies, max_tokens=24, repeat=2)


def test_every_text_is_written_by_all(comparison, lm, pools):
    plain, lookup, _ = comparison.rows
    want = [lm.generate(prompt, max_tokens=24).tokens for prompt in PROMPTS]
    assert [one.tokens for one in plain.generations] == want * 2
    assert [one.tokens for one in lookup.generations] == want * 2
    assert lookup.tokens_per_step > plain.tokens_per_step == 1
    assert plain.acceptance is None
    assert 0 < lookup.acceptance < 1
    assert comparison.speed_up(plain) == 1
    for row in (plain, lookup):
        assert sum(row.shares[part] for part in PARTS) == pytest.approx(1, abs=0.02)
        assert [n for n, _ in row.rounds] == [sum(len(one.tokens) for one in row.generations[:2]) - _first(row)] * 2


def _first(row):
    """Tokens of the first steps, which no time is taken of."""
    return sum(next(len(step.tokens) for step in one.steps if step.tokens) for one in row.generations[:2])


def test_a_differing_text_is_reported(comparison):
    assert not comparison.same_text
    assert comparison["short"].differs == [("1", 1), ("2", 1)] * 2
    for shown in (repr(comparison), comparison._repr_html_()):
        assert "short: OUTPUT DIFFERS from plain: 1 from token 1" in shown
    assert comparison["lookup"].differs == []


def test_it_shows_itself(comparison, monkeypatch, tmp_path):
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert len(repr(comparison).split("\n\n")[0].splitlines()) == 2 + 3
    html = comparison._repr_html_()
    assert html.count("<tr>") == 1 + 3
    head, plain, lookup, _ = (
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in html.split("<tr>")[1:]
    )
    steps = [step for one in comparison["lookup"].generations for step in one.steps]
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    at = head.index("draft tokens")
    assert head[at : at + 3] == ["draft tokens", "accepted", "acceptance rate"]
    assert lookup[at : at + 3] == [f"{drafted:,}", f"{accepted:,}", f"{accepted / drafted:.0%}"]
    assert plain[at : at + 3] == ["", "", ""]
    figure = comparison.plot()
    assert len(figure.axes[0].patches) == 3
    figure.savefig(tmp_path / "bars.png")
    assert json.loads(json.dumps(comparison.as_dict()))["strategies"][1]["name"] == "lookup"


def test_a_row_by_its_name(comparison):
    assert [comparison[row.name] for row in comparison] == comparison.rows
    with pytest.raises(RequestError, match=r"comparison: has no strategy 'plan' \(did you mean plain\?\); it has plain, "):
        comparison["plan"]


def test_a_row_a_strategy_for_pandas(comparison, monkeypatch):
    class DataFrame(list):
        def set_index(self, name):
            return {row[name]: row for row in self}

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))
    found = comparison.to_pandas()
    assert list(found) == ["plain", "lookup", "short"]
    assert set(PARTS) <= set(found["plain"])
    assert found["lookup"]["tokens_per_step"] == comparison["lookup"].tokens_per_step


def test_a_prefix_cache_changes_nothing(lm):
    strategies = ["plain", "dflash", "mtp:3"]
    want = dflash.compare(lm, PROMPTS, strategies, max_tokens=16)
    with dflash.load("demo", device="cpu", context=1024, sequences=2, prefix_cache=True) as cached:
        for name in ("plain", "mtp:3", "dflash"):
            cached.generate(PROMPTS[0], strategy=name, max_tokens=16)
        before = cached.info()["prefix_cache"]
        found = dflash.compare(cached, PROMPTS, strategies, max_tokens=16)
        assert cached.info()["prefix_cache"] == before
    for row in found.rows:
        assert row.tokens_per_step == want[row.name].tokens_per_step


def test_names_and_what_is_refused(lm):
    named = dflash.compare(lm, "import os", ["plain", dflash.PromptLookup(), Nothing() | Ends()], max_tokens=4)
    assert [row.name for row in named.rows] == ["plain", "lookup", "plain | Ends()"]
    assert r"plain \| Ends()" in repr(named)
    own = dflash.Strategy(OfOnesOwn(), verifier=dflash.Typical()) | Ends()
    (row,) = dflash.compare(lm, "import os", [own], max_tokens=2).rows
    assert row.name == f"Strategy({OfOnesOwn()}) | Ends(), {dflash.Typical()}"
    for prompts, strategies, message in (
        ("a", [], "0 strategies"),
        ("a", "plain", "sequence"),
        ("a", dflash.MTP(), "sequence"),
        ("a", None, "sequence"),
        (None, ["plain"], "prompt: must be a text"),
        ("a", ["nothing-such"], "nothing-such"),
        ("a", ["plain", dflash.Plain()], "twice"),
    ):
        with pytest.raises(RequestError, match=message):
            dflash.compare(lm, prompts, strategies)
    for more, message in (
        ({"repeat": 0}, "repeat: must be a whole number of at least 1"),
        ({"max_tokens": None}, "max_tokens: must be a whole number of at least 1"),
        ({"recover": "loop"}, r"compare: takes no recover; .* as in Plain\(\) \| LoopGuard\(\)"),
        ({"stream": True}, "compare: takes no stream; "),
    ):
        with pytest.raises(RequestError, match=message):
            dflash.compare(lm, "a", ["plain"], **more)


@pytest.mark.parametrize(
    ("strategies", "options", "message"),
    [
        (["plain", "lookup:4"], {"draft": "d.gguf"}, "draft='d.gguf': strategy 'plain', 'lookup:4' does not take it; "),
        (["mtp"], {"draft_device": "cpu"}, "draft_device='cpu': strategy 'mtp' does not take it; "),
        ({"a": "plain"}, {"draft_vocab": 9}, "draft_vocab=9: strategy 'plain' does not take it; "),
        ([dflash.DFlash()], {"draft_vocab": 9}, "draft_vocab=9: no strategy is named; those that do are dflash, "),
    ],
)
def test_unused_draft_options_are_refused(lm, strategies, options, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        dflash.compare(lm, "a", strategies, **options)


def test_warning_about_the_draft_vocabulary_of_an_mtp_head(lm):
    found = dflash.compare(lm, "import os", ["plain", "mtp"], draft_vocab=300, max_tokens=4)
    assert found["mtp"].strategy == dflash.Strategy(dflash.MTP(draft_vocab=300))


def test_turns_follow_each_other(lm):
    case = Case("two", [{"role": "user", "content": "What is the capital of Japan?"}], ("What is the capital of France?",))
    found = dflash.compare(lm, [case], ["plain", "lookup"], max_tokens=40)
    assert found.prompts == ["two", "two turn 2"]
    first, second = found["plain"].generations
    said = {"role": "assistant", "content": first.text}
    assert second.prompt == lm.encode([*case.prompt, said, {"role": "user", "content": case.later[0]}])


def test_acceptance_is_counted_by_position():
    tree = Draft([1, 2, 3, 4], [-1, -1, 0, 2])
    steps = [
        Step([1, 3, 9], drafted=4, accepted=2, draft=tree),
        Step([2, 9], drafted=4, accepted=1, draft=tree),
        Step([9], drafted=1, draft=Draft([5])),
        Step([9]),
        Step([], prefilled=4),
    ]
    counts = counted(steps)
    assert counts == [(2, 3), (1, 2), (0, 2)]
    assert shares(counts) == [2 / 3, 1 / 2, 0]


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_prompts_fit_the_demo(lm, name):
    cases = dflash.load_prompts(name)
    assert len(cases) == len({case.name for case in cases}) == 12
    for case in cases:
        settings = case.options.get("chat_template_kwargs")
        raw = isinstance(case.prompt, str)
        assert raw or case.prompt[0]["role"] == "user"
        generation = lm.generate(case.prompt, max_tokens=0, tools=case.options.get("tools"), chat_template_kwargs=settings)
        assert 8 <= len(generation.prompt) < 512


def test_files_in_the_form_of_public_sets(tmp_path):
    rows = [
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    pass", "test": ""},
        {"question": "What is 1 + 1?", "answer": "#### 2"},
        {"question_id": 81, "category": "writing", "turns": ["Hi.", "Shorter."]},
        {"id": "own", "messages": [{"role": "user", "content": "x"}], "tools": [], "sampling": {"temperature": 1}},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    human, gsm, bench, own = dflash.load_prompts(path)
    assert (human.name, human.prompt) == ("HumanEval/0", "def f():\n")
    assert (gsm.name, gsm.prompt) == ("2", [{"role": "user", "content": "What is 1 + 1?"}])
    assert (bench.name, bench.prompt[0]["content"], bench.later) == ("81", "Hi.", ("Shorter.",))
    assert (own.options, own.sampling) == ({"tools": []}, {"temperature": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no prompts"),
        ("\n{", "line 2: not valid JSON"),
        ('{"text": "a"}', "line 1: must be an object"),
        ("[]", "line 1: must be a JSON object"),
        ('{"prompt": "a", "sampling": 5}', "line 1: sampling: must be an object, got 5"),
        ('{"prompt": "a", "sampling": {"warmth": 1}}', "line 1: sampling: unknown field 'warmth'"),
        ('{"prompt": "a", "sampling": {"temperature": -1}}', "line 1: temperature: must be a number from 0 to 100"),
        ('{"question": "a", "tools": {}}', "line 1: tools: must be an array"),
        ('{"question": "a", "chat_template_kwargs": []}', "line 1: chat_template_kwargs: must be an object"),
    ],
)
def test_files_that_are_none(tmp_path, text, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(RequestError, match=message):
        dflash.load_prompts(path)
    with pytest.raises(NotFound, match="code"):
        dflash.load_prompts(tmp_path / "none.jsonl")


def test_bench_compares_strategies(lm, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(lm, "_finalizer", lambda: None)
    monkeypatch.setattr("dflash.load", lambda *_, **__: lm)
    path = tmp_path / "few.jsonl"
    path.write_text('{"prompt": "import os"}\n{"question": "Count from 3 to 12."}\n')
    words = ["bench", "demo", "--strategies", "plain,first(lookup, lookup:2)", "--prompts", str(path), "-n", "12"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "2 prompts" in out
    assert "first(lookup, lookup:2)" in out
    assert main([*words, "--json", "--temperature", "0.9", "-r", "2"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["sets"].values()
    assert found["same_text"]
    assert found["sampling"] == {"temperature": 0.9}
    assert [len(row["rounds"]) for row in found["strategies"]] == [2, 2]
    assert main(["bench", "demo", "--strategies", "nonsense"]) == 1
