"""Command-line arguments and their error messages."""

import argparse
import io
import json
import re

import pytest
from eagle_heads import CASES, write_speculators
from tqdm import tqdm

from dflash.__main__ import main
from dflash.cli import bench, run
from dflash.cli.info import as_text, draft_as_text
from dflash.cli.model_arguments import add_draft, check_draft
from dflash.cli.rates.measure import Bench
from dflash.cli.rates.traffic import Traffic
from dflash.cli.terminal import size, table
from dflash.kernels.gpu import device as gpu
from dflash.model.draft import vocabulary

PROMPT = "What is the capital of Japan?"


@pytest.fixture(autouse=True)
def loaded(lm, monkeypatch):
    """Commands get the demo that is loaded already, and may close it as often as they like."""
    monkeypatch.setattr(lm, "_finalizer", lambda: None)
    monkeypatch.setattr("dflash.load", lambda *_, **__: lm)


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "tools.json"
    function = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    path.write_text(json.dumps([{"type": "function", "function": function}]))
    return path


def test_run_answers_through_the_template(capsys):
    assert main(["run", "demo", PROMPT, "--no-think"]) == 0
    out, err = capsys.readouterr()
    assert out == "The capital of Japan is Tokyo.\n"
    assert "tokens at" in err


def test_run_is_the_default(capsys):
    assert main(["demo", PROMPT, "--no-think"]) == 0
    assert capsys.readouterr().out == "The capital of Japan is Tokyo.\n"


@pytest.mark.parametrize(
    "words", ["--no-think demo ?", "run --no-think demo ?", "run demo --no-think ?", "run demo ? --no-think"]
)
def test_options_stand_anywhere(capsys, words):
    assert main([PROMPT if word == "?" else word for word in words.split()]) == 0
    assert capsys.readouterr().out == "The capital of Japan is Tokyo.\n"


def test_minus_one_is_no_limit(capsys):
    assert main(["run", "demo", PROMPT, "--no-think", "-n", "-1"]) == 0
    assert capsys.readouterr().out == "The capital of Japan is Tokyo.\n"


@pytest.mark.parametrize("words", ["--max-tokens 12", "-n 12 --temp 0 -c 512", "--n-predict 12 --repeat-penalty 1 -s 5"])
def test_run_raw_continues_the_text(capsys, lm, words):
    assert main(["demo", "def fibonacci(n):", "--raw", *words.split()]) == 0
    assert capsys.readouterr().out.rstrip("\n") == lm.generate("def fibonacci(n):", max_tokens=12).text.rstrip("\n")


def test_run_as_json(capsys, lm):
    words = "--max-tokens 8 --temperature 0.9 --top-k 50 --top-p 0.9 --min-p 0.01 --seed 3"
    assert main(["demo", "Once upon", "--raw", "--json", *words.split()]) == 0
    out, err = capsys.readouterr()
    same = lm.generate("Once upon", max_tokens=8, temperature=0.9, top_k=50, top_p=0.9, min_p=0.01, seed=3)
    about = json.loads(out)
    assert about["tokens"] == same.tokens
    assert about["seed"] == 3
    assert err == ""


def test_run_reads_the_prompt_from_stdin(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert main(["run", "demo", "--no-think", "--system", "You are a helpful assistant."]) == 0
    assert "Tokyo" in capsys.readouterr().out


def test_run_with_tools_and_stop(capsys, tools):
    words = ["--tools", str(tools), "--no-think", "--stop", "</function>"]
    assert main(["demo", "What is the weather in Oslo?", *words]) == 0
    assert capsys.readouterr().out == 'tool call: get_weather {"city": "Oslo" (not finished)\n'


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "hi", "--temperature", "-1"], "temperature"),
        (["demo", "hi", "--top-p", "7"], "top_p"),
        (["demo", "hi", "--max-tokens", "-2"], "max_tokens"),
        (["demo", "hi", "--raw", "--system", "be kind"], "--raw"),
        (["demo", "hi", "--tools", "/no/such.json"], "/no/such.json"),
        (["demo", "hi", "--tools", __file__], "not valid JSON"),
        (["demo", "word " * 9000], "8192"),
        (["demo", ""], "prompt"),
        (["info", "/no/such.gguf"], "/no/such.gguf"),
        (["info", __file__], "test_arguments"),
        (["bench", "demo", "--repeat", "0"], "--repeat"),
    ],
)
def test_an_error_is_one_line(capsys, words, message):
    words = [*words, "--raw"] if words[-1] == "" else words
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("dflash: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["run"], ["demo", "hi", "--no-such"], ["bench", "-p", "x"], ["bench", "-n", "-1"]])
def test_a_usage_error_is_a_2(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["chat", "--help"], ["serve", "--help"], ["--version"]])
def test_help_is_a_0(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out


def test_an_interrupt_while_loading(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dflash.load", interrupt)
    assert main(["demo", "hi"]) == 130


def test_an_interrupt_keeps_what_is_there(capsys, monkeypatch, pools):
    def interrupted(stream, **_):
        next(stream)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "show", interrupted)
    assert main(["demo", "import os", "--raw"]) == 130
    assert "cancelled" in capsys.readouterr().err


def test_info_prints_what_the_description_holds(capsys):
    assert main(["info", "demo"]) == 0
    text = capsys.readouterr().out
    for word in ("qwen35", "Q4_K", "Q6_K", "KV cache", "NFC", "tools", "threads", "mtp[:DEPTH]", "min:N, stall[:TOOL]"):
        assert word in text
    assert main(["info", "demo", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert as_text(about) == text.rstrip("\n")


def test_info_says_what_strategies_need(capsys):
    assert main(["info", "demo", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert "\n               draft auto is demo-draft\n" in as_text(about)
    assert "unpacked for prompts" not in as_text(about)
    gpu = {"kind": "cuda", "processor": "GPU", "memory": 1 << 30, "architecture": "sm_90"}
    assert "unpacked for prompts up to 77.5 MiB more, where there is room" in as_text(about | {"device": gpu})
    without = dict.fromkeys(("dflash", "ddtree"), "no draft is known") | {"mtp": "no MTP layer"}
    text = as_text(about | {"draft_auto": None, "without_files": without})
    assert "draft auto" not in text
    assert "\n               dflash, ddtree need --draft: no draft is known\n" in text
    assert "\n               mtp needs --draft: no MTP layer\n" in text


def test_info_shows_the_parsers(capsys):
    """Also that none knows the tool calls of a template that has some."""
    assert main(["info", "demo", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["parsers"] == {"reasoning": "qwen3", "tool": "qwen3-coder"}
    assert "reasoning parsed as qwen3, tool calls parsed as qwen3-coder\n" in as_text(about)
    text = as_text(about | {"parsers": {"reasoning": "qwen3", "tool": None}})
    assert "reasoning parsed as qwen3, no parser for its tool calls (left as text)\n" in text
    plain = about["template"] | {"tools": False, "thinking": False}
    text = as_text(about | {"parsers": {"reasoning": None, "tool": None}, "template": plain})
    assert "no reasoning or tool calls\n" in text


def test_info_shows_the_cache(capsys):
    for words, shown in (([], "f16, 4.0 KiB per token"), (["--kv", "q8_0"], "q8_0, 2.1 KiB per token, 2.1 MiB for 1,000")):
        assert main(["info", "demo", *words]) == 0
        assert shown in capsys.readouterr().out
    assert main(["info", "demo", "--kv", "q8_0"]) == 0
    assert "on the demo: perplexity 14.7962, KL divergence from f32 8.6e-06 nats" in capsys.readouterr().out
    assert main(["info", "demo", "-ctk", "q8_0"]) == 0
    assert "q8_0/f16, 3.1 KiB per token" in capsys.readouterr().out


def test_info_shows_the_draft_vocabulary_on_a_gpu(capsys, monkeypatch):
    place = {"kind": "cuda", "processor": "a GPU", "memory": 1 << 37, "architecture": "sm_90"}
    monkeypatch.setattr(gpu, "trouble", lambda: None)
    monkeypatch.setattr(gpu, "description", lambda: place)
    words = "6,544 or 9,824 of 16,384 tokens for block drafts and the MTP head, while the output stays within them"
    for large, device, shown in ((1000, "cuda", True), (1000, "cpu", False), (100_000, "cuda", False)):
        monkeypatch.setattr(vocabulary, "LARGE", large)
        assert main(["info", "demo", "--device", device]) == 0
        assert (words in capsys.readouterr().out) == shown
    assert vocabulary.n_common(248_320) == (99_328, 148_992)


@pytest.mark.parametrize("target", ["sm_90", "sm_86"])
def test_info_shows_target_and_limit_of_a_gpu(capsys, monkeypatch, target):
    place = {"kind": "cuda", "processor": "a GPU", "memory": 1 << 37, "architecture": "sm_90", "target": target}
    monkeypatch.setattr(gpu, "trouble", lambda: None)
    monkeypatch.setattr(gpu, "description", lambda: place | {"bandwidth": 4_000_000_000_000})
    assert main(["info", "demo", "--device", "cuda", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    mtp_and_all = about["memory"]["weights"]
    assert 0.9 * mtp_and_all < about["limit"]["bytes_per_token"] < mtp_and_all
    assert about["limit"]["tokens_per_second"] == pytest.approx(4e12 / about["limit"]["bytes_per_token"], rel=1e-3)
    text = as_text(about)
    assert ("sm_90 under the rules of sm_86" in text) == (target == "sm_86")
    assert f"at most {about['limit']['tokens_per_second']:,.0f} tokens/s at 4.00 TB/s" in text


def test_info_of_a_draft(capsys):
    assert main(["info", "demo-draft"]) == 0
    text = capsys.readouterr().out
    for words in (
        "DFlash, 12 M",
        "16 rows, 15 draft tokens",
        "target layers 1, 3, 5,",
        "the last 512 positions",
        "all positions; inside",
    ):
        assert words in text
    assert main(["info", "demo-draft", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert draft_as_text(about) == text.rstrip("\n")
    assert about["memory"]["weights"] == sum(part["bytes"] for part in about["quantization"].values())


def test_export(capsys, tmp_path):
    head = str(write_speculators(tmp_path / "head"))
    assert main(["export", head, str(tmp_path / "out"), "--layout", "specforge"]) == 0
    assert re.fullmatch(r"\S+/out: eagle3, [\d.]+ \w+, layout of specforge\n", capsys.readouterr().out)
    assert main(["export", head, str(tmp_path / "out")]) == 1
    assert "holds a model already" in capsys.readouterr().err


def test_info_of_an_eagle_head(capsys, tmp_path):
    folder = str(write_speculators(tmp_path / "head", **CASES["qwen3, 3.1"]))
    assert main(["info", folder]) == 0
    text = capsys.readouterr().out
    for words in (
        "EAGLE-3 head, 0 M",
        "target layers 0, 1, 3, width 96",
        "drafts 128 of 512 tokens",
        "norm of each layer's features, plain residual stream, feeds back normed states",
        "f16, 256 B per token",
    ):
        assert words in text
    assert main(["info", folder, "--json"]) == 0
    assert draft_as_text(json.loads(capsys.readouterr().out)) == text.rstrip("\n")


def test_bench_prints_text_and_json(capsys, monkeypatch):
    """Measurements are printed as text and as JSON."""
    measure, measured = bench.measure, []

    def once(*given):
        measured.extend(() if measured else [measure(*given)])
        return measured[0]

    class Bar(tqdm):
        """A progress bar that keeps what it has shown."""

        def set_description(self, desc):
            shown.append(desc)

    shown = []
    monkeypatch.setattr("dflash.evaluation.measuring.bar", lambda _, total, __: Bar(total=total, disable=True))
    monkeypatch.setattr(bench, "measure", once)
    words = ["bench", "demo", "-p", "16", "-n", "4", "-d", "8,0", "-r", "1", "--threads", "2", "--context", "512"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "pp16" in text
    assert "tg4 @ d8" in text
    assert shown == ["pp16", "tg4", "tg4 @ d8", "wider forwards"]
    assert main([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert list(results["rates"]) == ["pp16", "tg4", "tg4 @ d8"]
    assert all(rate["mean"] > 0 for rate in results["rates"].values())
    for shares in results["shares"].values():
        assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert [cost["tokens"] for cost in results["forward"]] == [1, 2, 4, 8, 16, 23, 32, 64]
    writing = results["rates"]["tg4 @ d8"]
    assert writing["of_copy"] == pytest.approx(writing["gb_s"] / results["copy_gb_s"])


def test_what_a_token_reads(lm):
    """All weights but the MTP block, whose bytes the recorded header tells; keys and values of two layers."""
    config = lm.model.config
    of_mtp = sum(tensor.n_bytes for name, tensor in lm.file.tensors.items() if name.startswith("blk.8."))
    traffic = Traffic.of(lm.file, config, kv="f16", device="cpu")
    assert traffic.weights == sum(tensor.n_bytes for tensor in lm.file.tensors.values()) - of_mtp
    assert traffic.position == 2 * 2 * 2 * 2 * 256
    assert traffic.at(100) - traffic.at(0) == 100 * traffic.position
    assert traffic.state == 2 * 6 * 4 * (12 * 128 * 128 + 3 * (12 + 2 * 4) * 128)


def test_a_text_grows_out_of_the_last_one(lm, pools):
    bench = Bench(lm.model, repeat=1)
    for depth in (300, 40, 0, 64, 200):
        steps = []
        bench.write(3, depth, steps)
        assert sum(len(step.tokens) for step in steps) == 3
        assert (bench._prefix.length if bench._prefix else 0) == depth
    bench.close()


@pytest.mark.parametrize("words", ["-n 4 -d 600", "-n 600"])
def test_bench_refuses_what_does_not_fit(capsys, words):
    assert main(["bench", "demo", "-p", "0", *words.split(), "-r", "1", "--context", "512"]) == 1
    assert "512" in capsys.readouterr().err


def test_tables_line_up():
    assert table([("a", "b"), ("long", 1)], right=[1]).splitlines() == ["| a    | b |", "| ---- | : |", "| long | 1 |"]
    assert size(100) == "100 B"
    assert size(3 << 30) == "3.00 GiB"


@pytest.mark.parametrize("words", ["--strategy lookup", "--strategy plain --recover empty,stall,loop", "--recover none"])
def test_no_strategy_and_no_recovery_changes_an_answer(capsys, words):
    assert main(["demo", PROMPT, "--no-think", *words.split()]) == 0
    assert capsys.readouterr().out == "The capital of Japan is Tokyo.\n"


def test_a_recovery_is_reported(capsys):
    assert main(["demo", PROMPT, "--no-think", "--json", "--recover", "min:12"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["tokens"]) >= 12
    assert answer["interventions"][0]["recovery"] == "MinTokens"


@pytest.fixture
def nothing_loaded(monkeypatch):
    """Fail where a model is loaded."""
    for name in ("dflash.load", "dflash.model.loading.target.load_model", "dflash.generation.load.start"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("it was loaded"))


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--recover stal", "recover: 'stal' is not one of empty, loop[:BODY], min:N, stall[:TOOL]"),
        ("--strategy nonsense", "nonsense"),
        ("--recover min:x", "recover: 'min:x' is not one of"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_loaded(capsys, nothing_loaded, command, words, message):
    assert main([command, "demo", *words.split()]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_an_invalid_environment_is_refused_before_anything_is_loaded(capsys, monkeypatch, nothing_loaded, command):
    monkeypatch.setenv("DFLASH_MIN_TOKENS", "many")
    assert main([command, "demo"]) == 1
    assert capsys.readouterr() == ("", "dflash: DFLASH_MIN_TOKENS: must be a whole number or off, got 'many'\n")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_there_is_not(capsys, nothing_loaded, port):
    assert main(["serve", "demo", "--port", str(port)]) == 1
    assert capsys.readouterr() == ("", f"dflash: --port: must be 0 to 65535, got {port}\n")


@pytest.mark.parametrize(
    ("words", "argument"),
    [("--prompts code", "--prompts"), ("--seed 0", "--seed"), ("--temperature 1", "--temperature")]
    + [("--strategies plain -d 0", "--depth"), ("--strategies plain -p 8", "--prompt")],
)
def test_bench_refuses_arguments_that_a_mode_does_not_use(capsys, words, argument):
    assert main(["bench", "demo", *words.split()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dflash: {argument}: not used by ")


@pytest.mark.parametrize(
    ("names", "message"),
    [("plain,mtp:0", "'mtp:0' is not known"), ("plain,plain", "is given twice"), ("", "'' is not known; there are plain")],
)
def test_strategies_side_by_side_are_checked_before_anything_is_loaded(capsys, nothing_loaded, names, message):
    assert main(["bench", "demo", "--strategies", names]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize("command", ["run", "chat", "bench", "serve"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--strategy lookup --draft d.gguf", "--draft d.gguf: strategy 'lookup' does not take it; those that do are dflash"),
        ("--strategy mtp:2 --draft-device cpu", "--draft-device cpu: strategy 'mtp:2' does not take it"),
        ("--strategy mtp:2 --draft-gpu 1", "--draft-gpu 1: strategy 'mtp:2' does not take it"),
        ("--strategy draft-model --draft s.gguf --draft-vocab 9", "--draft-vocab 9: strategy 'draft-model' does not"),
        ("--strategy adaptive(lookup) --draft-vocab 9", "--draft-vocab 9: strategy"),
        ("--draft-vocab 9", "--draft-vocab 9: "),
    ],
)
def test_unused_draft_options_are_refused(capsys, nothing_loaded, command, words, message):
    words = words.replace("--strategy", "--strategies") if command == "bench" else words
    more = ["--allow-strategies", "none"] if command == "serve" else []
    assert main([command, "demo", *words.split(), *more]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--draft h.gguf", ["plain", "mtp-tree:8"]),
        ("--draft d.gguf --draft-device cpu --draft-vocab 9", ["first(lookup, ddtree:9)"]),
        ("--draft-device cpu --draft-vocab 9", ["adaptive"]),
        ("--draft-device cpu", ["adaptive(draft-model:3)"]),
        ("--draft-vocab 9", ["adaptive(mtp,lookup)"]),
        ("", []),
    ],
)
def test_what_a_strategy_takes(words, names):
    parser = argparse.ArgumentParser()
    add_draft(parser)
    check_draft(parser.parse_args(words.split()), names)


def test_what_requests_may_choose_takes_a_draft(monkeypatch):
    def start(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dflash.generation.load.start", start)
    for more in ([], ["--allow-strategies", "plain,dflash"]):
        assert main(["serve", "demo", "--port", "0", "--draft-vocab", "9", *more]) == 130
