"""A chat: its commands, its cache, its files, and the lines that are typed."""

import json

import pytest

import dflash
from dflash.__main__ import main
from dflash.cli.conversation import run_command
from dflash.cli.conversation.chat import Chat
from dflash.cli.conversation.file import load_messages, save_messages
from dflash.errors import RequestError
from dflash.evaluation.prompt_sets import Case, load_prompts

JAPAN, FRANCE = "What is the capital of Japan?", "What is the capital of France?"


@pytest.fixture(scope="module")
def cached():
    """The demo as a chat loads it, with a prefix cache."""
    with dflash.load("demo", device="cpu", threads=1, context=8192, sequences=2, prefix_cache=64 << 20, isolate=False) as lm:
        yield lm


@pytest.fixture
def chat(cached, monkeypatch):
    """Run the command on lines; return the chat, stdout and stderr."""
    monkeypatch.setattr(cached, "_finalizer", lambda: None)
    monkeypatch.setattr(dflash, "load", lambda *_, **given: given["prefix_cache"] and cached)
    cached.prefix_cache.clear()

    def run(capsys, *lines, options=("--no-think",)):
        left, made = iter(lines), []

        def read(_=""):
            line = next(left, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        start = Chat.__init__
        monkeypatch.setattr(Chat, "__init__", lambda self, *given: (made.append(self), start(self, *given))[1])
        monkeypatch.setattr("builtins.input", read)
        assert main(["chat", *options]) == 0
        return made[0], *capsys.readouterr()

    return run


def test_the_history_is_kept(capsys, chat):
    found, out, _ = chat(capsys, JAPAN, "", FRANCE, "/exit", "never", options=("--no-think", "--system", "Be kind."))
    assert out.splitlines()[0] == "The capital of Japan is Tokyo."
    assert "Paris" in out
    assert [message["role"] for message in found.messages] == ["system", *("user", "assistant") * 2]


def test_a_turn_reads_only_what_is_new(capsys, chat, lm):
    """A long first message is read once; the texts are those without a cache."""
    found, _, err = chat(capsys, "word " * 500 + JAPAN, FRANCE, JAPAN, options=("--show-reasoning", "hide"))
    first, *later = (answer.usage for answer in found.answers)
    assert first.cached_tokens == 0
    assert first.prompt_tokens > 500
    for usage in later:
        assert usage.prompt_tokens - usage.cached_tokens < 100
        assert f"({usage.cached_tokens:,} cached)" in err
    assert found.answers[-1].text == lm.generate(found.messages[:-1]).text


def test_reasoning_is_kept_apart_from_the_answer(capsys, chat):
    found, out, _ = chat(capsys, JAPAN, options=())
    assert "</think>" not in out
    assert found.messages[1]["reasoning_content"]
    assert "Tokyo" in found.messages[1]["content"]


def test_a_comparison_never_uses_the_cache(capsys, chat, cached, lm):
    """Numbers are those of a model without a cache, also after an answer by another strategy has filled it."""
    found, out, _ = chat(capsys, FRANCE, "/compare plain dflash mtp:3")
    case = Case("", found.messages[:1], (), {"chat_template_kwargs": {"enable_thinking": False}})
    wanted = dflash.compare(lm, [case], ["plain", "dflash", "mtp:3"], max_tokens=128)
    before = cached.prefix_cache.stats
    assert run_command(found, "/compare plain dflash")
    assert cached.prefix_cache.stats == before
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("|")][2:]
    assert [row[0].strip() for row in rows] == ["plain", "dflash", "mtp:3"]
    assert {row[-1].strip() for row in rows} == {"same"}
    assert [float(row[1]) for row in rows] == [round(row.tokens_per_step, 2) for row in wanted.rows]
    assert found.answers[0].usage.cached_tokens == 0


def test_a_comparison_needs_two_strategies_and_a_question(capsys, chat):
    _, out, err = chat(capsys, "/compare", JAPAN, "/compare", "/compare plain", "/compare lookup")
    assert "nothing was asked yet" in err
    assert err.count("needs two strategies, as in /compare plain lookup") == 2
    assert [line.split()[1] for line in out.splitlines() if line.startswith("|")] == [
        "strategy",
        "--------",
        "plain",
        "lookup",
    ]


def test_settings_change_the_next_answer(capsys, chat):
    lines = "/strategy lookup", "/recover min:20", "/set max-tokens 24", "/set temperature 0.5", JAPAN
    found, _, _ = chat(capsys, *lines)
    (answer,) = found.answers
    assert "PromptLookup" in repr(answer.strategy)
    assert len(answer.tokens) >= 20
    assert answer.sampling.temperature == 0.5
    run_command(found, "/reset")
    assert found.settings["temperature"] == 0
    assert "Plain" in repr(found.settings["strategy"])
    assert found.messages == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/cmpare", "/cmpare: unknown command (did you mean /compare?)"),
        ("/xyzzy", "/xyzzy: unknown command; /help lists all"),
        ("/strategy dflahs", "did you mean dflash?"),
        ("/recover lop", "did you mean loop?"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set temperature hot", "temperature: must be a number, got 'hot'"),
        ("/set top_k 1.5", "top_k: must be a whole number"),
        ("/set temperature -1", "temperature"),
        ("/set max_tokens 0", "max_tokens"),
        ("/reasoning loud", "must be one of dim, fold, hide, got 'loud'"),
        ("/regen", "there is no message yet"),
        ("/tokens", "there is no answer yet"),
        ("/stats", "there is no answer yet"),
        ("/save", "/save: needs the name of a file"),
        ("/load /no/such", "/load /no/such: No such file or directory"),
    ],
)
def test_a_wrong_command_is_one_line_and_changes_nothing(capsys, chat, line, message):
    found, out, err = chat(capsys, line)
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 2  # the greeting is the first
    first = Chat(found.lm, found.arguments, {name: found.settings[name] for name in ("strategy", "recover")})
    assert (found.settings, found.messages) == (first.settings, first.messages)


def test_regen_answers_again_with_another_seed(capsys, chat):
    options = "--no-think", "--temperature", "1", "--seed", "5"
    found, _, _ = chat(capsys, "Tell me a story.", "/set max_tokens 12", "/regen", "/undo", "/undo", options=options)
    assert [answer.seed for answer in found.answers] == [5, 6]
    assert found.messages == []


def test_tokens_and_stats(capsys, chat):
    _, out, err = chat(capsys, "/strategy dflash", JAPAN, "/tokens", "/stats")
    assert out.splitlines()[0] == "The capital of Japan is Tokyo."
    assert "[" in out.splitlines()[1]
    assert " accepted]" in out.splitlines()[-1]
    assert "strategy dflash" in err
    assert "all: 1 answer, " in err


def test_a_conversation_is_saved_and_loaded(capsys, chat, tmp_path):
    path, other = tmp_path / "talk.jsonl", tmp_path / "notes.txt"
    other.write_text("precious")
    options = "--no-think", "--system", "Be kind."
    found, _, err = chat(capsys, JAPAN, f"/save {path}", f"/save {path}", f"/save {other}", options=options)
    assert other.read_text() == "precious"
    assert "holds no conversation" in err
    again, _, _ = chat(capsys, f"/load {path}", FRANCE)
    assert again.messages[:3] == found.messages
    assert again.system == "Be kind."
    assert load_prompts(path)[0].prompt == found.messages


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"messages": [1]}', '{"messages": [{"role": "me", "content": "x"}]}'])
def test_a_file_without_messages_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=str(path)):
        load_messages(path)
    with pytest.raises(RequestError, match="choose another name"):
        save_messages(path, [{"role": "user", "content": "x"}])
    assert path.read_text() == text


def test_results_of_calls_are_asked_for(capsys, chat, tmp_path):
    tools = tmp_path / "tools.json"
    function = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    tools.write_text(json.dumps([{"type": "function", "function": function}]))
    options = "--no-think", "--tools", str(tools), "--max-tokens", "60"
    found, out, _ = chat(capsys, "What is the weather in Oslo?", '{"temperature": 3}', options=options)
    assert 'tool call: get_weather {"city": "Oslo"}\n' in out
    assert "<tool_call>" not in out
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[2]["tool_call_id"] == found.messages[1]["tool_calls"][0]["id"]


def test_lines_are_joined(capsys, chat):
    found, *_ = chat(capsys, "/set max_tokens 1", '"""What', "is", 'this?"""', "one \\", "two", '"""a"""', '"""open', "end")
    users = [message["content"] for message in found.messages if message["role"] == "user"]
    assert users == ["What\nis\nthis?", "one\ntwo", "a", "open\nend"]


def test_an_interrupt_and_an_error_do_not_end_a_chat(capsys, monkeypatch, chat):
    interrupts = [KeyboardInterrupt]

    def show(stream, **_):
        for _ in stream:
            if interrupts:
                raise interrupts.pop()

    monkeypatch.setattr("dflash.cli.conversation.chat.show", show)
    found, _, err = chat(capsys, "Tell me a story.", "word " * 9000, KeyboardInterrupt(), JAPAN)
    assert "8192" in err
    assert [message["role"] for message in found.messages] == ["user", "assistant"] * 2
