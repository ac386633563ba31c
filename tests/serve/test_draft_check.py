"""The draft model is checked at start: an unusable one is a one-line error with every strategy."""

import pytest
from drafts import SMALL, random_weights, write_gguf
from eagle_heads import write_speculators
from golden import path_of

import dflash
from dflash.__main__ import main
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.eagle import Eagle3
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Strategy
from dflash.errors import RequestError, Unsupported
from dflash.serve import server
from dflash.serve.draft_check import prepare_draft
from dflash.serve.strategy_choice import Defaults, allowed

MODEL = ["demo", "--device", "cpu", "--threads", "1", "--context", "256"]
SERVE = ["serve", *MODEL, "--port", "0"]


@pytest.fixture
def damaged(tmp_path):
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 60)
    return str(path)


@pytest.fixture
def foreign(tmp_path):
    """A sound draft of another model."""
    return str(write_gguf(tmp_path / "foreign.gguf", SMALL, random_weights(SMALL)))


@pytest.fixture
def nobody_listens(monkeypatch):
    """A server that ends as soon as it would listen; the list has what it would have served with."""
    begun = []

    class Server:
        def __init__(self, app, engine_thread, **_):
            self.engine_thread = engine_thread

        def run(self, sockets):
            begun.append(sorted(type(key).__name__ for key in self.engine_thread.engine.model.attachments))

    monkeypatch.setattr(server, "Server", Server)
    return begun


def refusal(capsys, *words):
    """The one line of a command that fails."""
    assert main(list(words)) == 1
    output = capsys.readouterr()
    lines = [line for line in output.err.splitlines() if line.startswith("dflash: ") and "loading" not in line]
    assert len(lines) == 1, output.err
    assert "Traceback" not in output.err
    assert not output.out
    return lines[0]


@pytest.mark.parametrize("strategy", ["plain", "lookup", "first(lookup, mtp)"])
def test_a_server_refuses_a_draft_that_its_own_strategy_does_not_use(capsys, nobody_listens, damaged, strategy):
    assert "draft.gguf" in refusal(capsys, *SERVE, "--draft", damaged, "--strategy", strategy)
    assert not nobody_listens


@pytest.mark.parametrize("draft", ["nowhere.gguf", "foreign"])
def test_a_server_refuses_what_is_missing_or_of_another_model(capsys, nobody_listens, foreign, draft):
    line = refusal(capsys, *SERVE, "--draft", foreign if draft == "foreign" else draft, "--strategy", "plain")
    assert ("is for a" if draft == "foreign" else "there is no such file") in line
    assert not nobody_listens


def test_a_server_has_its_draft_ready(nobody_listens):
    assert main([*SERVE, "--draft", "demo-draft", "--strategy", "plain"]) == 0
    assert main([*SERVE, "--strategy", "plain"]) == 0
    assert nobody_listens == [["DFlash"], []]


@pytest.mark.parametrize(
    "words",
    [
        ("run", *MODEL, "--strategy", "ddtree:8"),
        ("chat", *MODEL, "--strategy", "dflash"),
        ("bench", *MODEL, "--strategies", "plain,dflash", "--prompts", "copy"),
    ],
    ids=lambda words: words[0],
)
def test_commands_refuse_it_before_they_ask_or_write(capsys, monkeypatch, damaged, words):
    monkeypatch.setattr("sys.stdin", None)  # nobody is asked for a prompt
    monkeypatch.setattr(dflash.LM, "generate", pytest.fail)
    assert "draft.gguf" in refusal(capsys, *words, "--draft", damaged)


class FakeWorker:
    """Knows which drafters can be had."""

    def __init__(self, *refused):
        self.refused, self.asked = refused, []

    def prepare(self, strategy):
        self.asked.append(strategy.drafter)
        if type(strategy.drafter) in self.refused:
            raise Unsupported(f"{strategy.drafter!r} is of another model")


def test_the_kind_of_a_file_selects_the_strategies(tmp_path):
    eagle = str(write_speculators(tmp_path / "eagle"))
    whole, with_head = str(path_of("qwen35-r2-untied-F32")), str(path_of("qwen35-r2-mtp-F16"))
    for draft, refused, asked in (
        ("demo-draft", (), [DFlash("demo-draft")]),
        (eagle, (), [Eagle3(eagle)]),
        (whole, (), [DraftModel(whole)]),
        (with_head, (), [MTP(with_head)]),
        (with_head, (MTP,), [MTP(with_head), DraftModel(with_head)]),
    ):
        engine_thread = FakeWorker(*refused)
        prepare_draft(engine_thread, Defaults(draft=draft))
        assert engine_thread.asked == asked
    with pytest.raises(Unsupported, match="DraftModel"):
        prepare_draft(FakeWorker(MTP, DraftModel), Defaults(draft=with_head))


def test_the_draft_of_the_default_strategy_is_not_loaded_twice():
    engine_thread = FakeWorker()
    prepare_draft(engine_thread, Defaults())
    prepare_draft(engine_thread, Defaults(Strategy.named("adaptive(lookup, dflash)", "demo-draft"), draft="demo-draft"))
    assert not engine_thread.asked


def test_a_draft_that_no_request_may_name():
    engine_thread = FakeWorker()
    with pytest.raises(RequestError, match=r"--draft demo-draft: only ddtree, dflash, dspark use it, and --allow"):
        prepare_draft(engine_thread, Defaults(draft="demo-draft", allowed=allowed("plain,draft-model")))
    prepare_draft(engine_thread, Defaults(draft="demo-draft", allowed=allowed("plain,ddtree")))
    assert engine_thread.asked == [DFlash("demo-draft")]
