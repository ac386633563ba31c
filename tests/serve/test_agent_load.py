"""Load of agents on the demo: in this process and over HTTP the same prompts, lengths and states found; the command."""

import json
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from traces import trace, write

import dflash
from dflash.__main__ import main
from dflash.errors import DFlashError, RequestError
from dflash.evaluation.traces import InProcess, ServerURL, TraceLimits, load_traces, replay_traces
from dflash.evaluation.traces.measures import measured
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits

QUIET = TraceLimits(think_scale=0.0)


@pytest.fixture(scope="module")
def cached():
    with dflash.load("demo", device="cpu", threads=1, context=2048, sequences=2, prefix_cache=1 << 28) as lm:
        yield lm


@pytest.fixture(scope="module")
def url(cached, serving):
    """Address of a server over the same engine; it closes the engine at the end."""
    backend = Backend(cached._engine_thread, cached.tokenizer, cached.template, ["demo"], limits=Limits(cached.context))
    with serving(build_app(backend)) as url:
        yield url


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path, trace(), trace(name="two"))


def watched(transport):
    """The transport, and a list of the prompts that go through it."""
    prompts, send = [], transport.send
    transport.send = lambda ids, *rest: prompts.append(list(ids)) or send(ids, *rest)
    return transport, prompts


def test_both_ways_send_the_same_prompts_and_find_the_same_states(cached, url, folder):
    """On a CPU the state after an answer is found where the next prompt holds the whole of it; else that before it."""
    traces, found = load_traces(folder)[:1], []
    for transport in (InProcess(cached), ServerURL(url)):
        watching, prompts = watched(transport)
        cached.call(cached.prefix_cache.clear)
        run = replay_traces(watching, traces, limits=replace(QUIET, turns=3))
        assert [sent.error for sent in run.requests] == [None] * 3
        assert [sent.n_received for sent in run.requests] == [20, 30, 5]
        assert run.is_exact
        assert [sent.n_cached for sent in run.requests] == [0, 119, 159]
        cache = measured(run)["cache"]
        assert (cache["answer"], cache["prompt"], cache["nothing"], cache["first"]) == (1, 1, 0, 0)
        found.append(prompts)
    assert found[0] == found[1]


def test_two_clients_at_once_and_a_drafter(cached, folder):
    run = replay_traces(InProcess(cached, "lookup"), load_traces(folder), 2, replace(QUIET, turns=2), seed=3)
    assert {sent.client for sent in run.requests} == {0, 1}
    assert [sum(sent.n_received for sent in run.requests if sent.client == i) for i in (0, 1)] == [50, 50]


def test_the_context_of_the_server_is_a_limit(url):
    server = ServerURL(f"{url}/v1/")
    assert (server.model, server.context) == ("demo", 2048)
    with pytest.raises(DFlashError, match=r"400 .*maximum context length"):
        server.send([300] * 2100, 5, lambda: None, "a")


def test_addresses_that_no_server_has(monkeypatch):
    for wrong in ("127.0.0.1:8000", "ftp://a"):
        with pytest.raises(RequestError, match="must be an address"):
            ServerURL(wrong)
    with pytest.raises(DFlashError, match="refused"):
        ServerURL("http://127.0.0.1:1")


def other_server(*chunks, tokens="prompt"):
    """An app that answers as other servers do: with these chunks, and with one of the two forms of ``/tokenize``."""

    async def tokenize(request):
        body = await request.json()
        return JSONResponse(
            {"tokens": list(body[tokens].encode())} if tokens in body else {"error": "?"}, 200 if tokens in body else 400
        )

    async def completions(_):
        return PlainTextResponse("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")

    async def models(_):
        return JSONResponse({"data": [{"id": "other", "meta": {"n_ctx": 99}}]})

    routes = [("/tokenize", tokenize, "POST"), ("/v1/completions", completions, "POST"), ("/v1/models", models, "GET")]
    return Starlette(routes=[Route(path, route, methods=[method]) for path, route, method in routes])


def texts(*pieces, **last):
    chunks = [{"choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in pieces]
    return [*chunks, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], **last}]


@pytest.mark.parametrize("form", ["prompt", "content"])
def test_a_server_that_sends_text_without_ids(form, serving):
    """Stand-in for llama-server: answers have no token ids, and `timings` holds the number of cached tokens."""
    chunks = texts("ab", "", "c", usage={"completion_tokens": 3, "prompt_tokens": 9}, timings={"cache_n": 7})
    arrived = []
    with serving(other_server(*chunks, tokens=form)) as url:
        server = ServerURL(url)
        assert (server.model, server.context) == ("other", 99)
        assert server.send([1] * 9, 3, lambda: arrived.append(1), "a") == ([97, 98, 99], 7, False)
    assert len(arrived) == 2


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (texts("a", usage={"completion_tokens": 1}), "1 output tokens came, 3 were asked for"),
        ([*texts("a")[:1], {"error": {"message": "no memory"}}], "no memory"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(chunks, message, serving):
    with serving(other_server(*chunks)) as url, pytest.raises(DFlashError, match=message):
        ServerURL(url).send([1], 3, lambda: None, "a")


@pytest.fixture
def bench(cached, monkeypatch):
    """Run the command on the model that is loaded already."""
    monkeypatch.setattr(cached, "_finalizer", lambda: None)
    monkeypatch.setattr("dflash.load", lambda *_, **settings: cached)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return lambda *words: main(["bench", *map(str, words)])


def test_the_command_saves_its_settings(bench, folder, tmp_path, capsys):
    record, plot = tmp_path / "record.json", tmp_path / "plot.png"
    limits = ("--scale", 4, "--think-scale", 0, "--turns", 2, "--goodput", "ttft:60000", "tpot:60000")
    assert bench("demo", "--traces", folder, "--clients", "1,2", *limits, "--record", record, "--plot", plot) == 0
    out = capsys.readouterr().out
    assert "good (ttft:60000 tpot:60000)" in out
    assert "shape run: lengths divided by 4, pauses times 0, at most 2 turns" in out
    assert plot.read_bytes().startswith(b"\x89PNG")
    saved = json.loads(record.read_text())
    assert [run["clients"] for run in saved["runs"]] == [1, 2]
    assert [len(run["rows"]) for run in saved["runs"]] == [4, 4]
    assert all(run["goodput"]["share"] == 1.0 for run in saved["runs"])
    assert saved["traces"] == ["one", "two"]
    assert saved["environment"]["model"]["files"] == ["demo-Q4_K_M.gguf"]
    assert (saved["seed"], saved["limits"]["scale"]) == (0, 4)


def test_the_command_against_a_server(bench, url, folder, capsys):
    words = ("--traces", folder / "0.json.xz", "--url", url, "--think-scale", 0, "--requests", 2, "--seed", 5, "--json")
    words += ("--strategies", "lookup", "--scale", 4)
    assert bench(*words) == 0
    saved = json.loads(capsys.readouterr().out)
    assert (saved["target"], saved["model"], saved["strategy"]) == (url, "demo", "lookup")
    assert [row["n_received"] for row in saved["runs"][0]["rows"]] == [5, 8]
    assert bench(*words) == 0
    assert "use another seed" in " ".join(json.loads(capsys.readouterr().out)["remarks"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--traces", "F", "--clients", "0"), "--clients: invalid list of numbers"),
        (("--traces", "F", "--url", "http://a", "--draft", "d.gguf"), "--draft: not used by --url"),
        (("--traces", "F", "-p", "5"), "--prompt: not used by --traces"),
        (("--url", "http://a"), "--url: not used by measurements without --traces"),
        (("--traces", "F", "--goodput", "tft:5"), "did you mean ttft"),
        (("--traces", "gone"), "No such file"),
        (("--traces", "F", "--record", "no/folder.json"), "--record no/folder.json: there is no such folder"),
    ],
)
def test_arguments_that_do_not_fit(words, message, bench, folder, capsys):
    words = [folder if word == "F" else word for word in words]
    try:
        status = bench(*words)
    except SystemExit as ended:
        status = ended.code
    assert status in (1, 2)
    assert message in capsys.readouterr().err
