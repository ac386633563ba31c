"""Sockets before the model, responses while it loads, the line at the end, and the options of the server."""

import asyncio
import json
import os
import shlex
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from hang_guard import GUARD, wait_until
from in_process import sent
from loops import BOTH_LOOPS
from processes import process

from dflash.cli import serve
from dflash.cli.model_arguments import load_settings
from dflash.cli.serve_arguments import parse, sampling_defaults
from dflash.errors import RequestError
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.openai.dialects import parse_completion
from dflash.serve.page.document import document
from dflash.serve.parsing.sampling_defaults import filled
from dflash.serve.responses.request import parse_responses
from dflash.serve.responses.store import ResponseStore
from dflash.serve.server import Server
from dflash.serve.startup.loading import LoadingServer
from dflash.serve.startup.sockets import listening, url_of
from dflash.serve.startup.start_lines import ready_line
from dflash.serve.strategy_choice import Defaults


@BOTH_LOOPS
def test_requests_get_503_while_the_model_loads_and_answers_afterwards(app_of):
    app = app_of("hello")
    with listening("127.0.0.1", 0) as sockets, httpx.Client(base_url=url_of(sockets), timeout=GUARD) as http:
        with LoadingServer(sockets) as waiting:
            health, page = http.get("/health"), http.get("/")
            refused = http.post("/v1/completions", json={"prompt": "a" * 100_000})
            assert http.head("/health").status_code == 503
            waiting.report("memory")
            staged = http.get("/health").json()
        assert (page.status_code, page.text) == (503, document()[0])
        assert "content-security-policy" in page.headers
        assert (health.status_code, health.json()) == (503, {"status": "loading model"})
        assert (staged.pop("seconds") >= 0, staged) == (True, {"status": "loading model", "stage": "memory"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
        assert refused.headers["retry-after"]
        with ThreadPoolExecutor(1) as pool:
            early = pool.submit(http.post, "/v1/completions", json={"prompt": "a"})  # no server accepts yet: it waits
            served = Server(app, app.engine_thread, grace=1, ready=lambda: early.add_done_callback(leave))

            def leave(_):
                served.should_exit = True

            served.run(sockets)
            assert early.result().json()["choices"][0]["text"] == "hello"
    assert app.engine_thread.ended


@BOTH_LOOPS
def test_a_load_that_fails_before_the_server_has_started(monkeypatch):
    """The loop of uvloop can't be closed while a socket listens."""
    startup, ended = uvicorn.Server.startup, threading.Event()

    async def late(server, sockets=None):
        await startup(server, sockets)
        assert await asyncio.to_thread(ended.wait, GUARD)

    monkeypatch.setattr(uvicorn.Server, "startup", late)
    with listening("127.0.0.1", 0) as sockets:
        server = LoadingServer(sockets)
        server.__enter__()
        leaving = threading.Thread(target=server.__exit__, args=(None, None, None), daemon=True)
        leaving.start()
        wait_until(lambda: server._server.is_over or server._server.should_exit)
        ended.set()
        leaving.join(GUARD)
        assert not leaving.is_alive()


def test_a_failed_load_closes_the_socket(monkeypatch, capsys):
    seen = []

    def fail(*_, **__):
        with urllib.request.urlopen(urllib.request.Request(f"{seen[0]}/health"), timeout=GUARD):
            pass

    @contextmanager
    def noted(host, port):
        with listening(host, port) as sockets:
            seen.append(url_of(sockets))
            yield sockets

    monkeypatch.setattr("dflash.serve.startup.sockets.listening", noted)
    monkeypatch.setattr("dflash.generation.load.start", fail)
    with pytest.raises(urllib.error.HTTPError) as refused:
        serve.main(["demo", "--port", "0"])
    with refused.value as answer:
        assert json.load(answer) == {"status": "loading model"}
    with socket.socket() as again, pytest.raises(ConnectionRefusedError):
        again.connect(("127.0.0.1", int(seen[0].rpartition(":")[2])))


def test_a_taken_port_is_one_sentence(capsys):
    with listening("127.0.0.1", 0) as sockets:
        port = sockets[0].getsockname()[1]
        assert serve.main(["/no/such.gguf", "--port", str(port)]) == 1
    assert capsys.readouterr().err == f"dflash: --host 127.0.0.1 --port {port}: can't listen there: Address already in use\n"


def test_addresses_that_the_machine_lacks_are_left_out(monkeypatch):
    missing, own = (socket.AF_INET, ("192.0.2.1", 0)), (socket.AF_INET, ("127.0.0.1", 0))
    monkeypatch.setattr("dflash.serve.startup.sockets._addresses", lambda *_: [missing, own])
    with listening("name", 0) as sockets:
        assert [each.getsockname()[0] for each in sockets] == ["127.0.0.1"]
    monkeypatch.setattr("dflash.serve.startup.sockets._addresses", lambda *_: [missing])
    with pytest.raises(RequestError, match="can't listen there"), listening("name", 0):
        pass


def test_two_addresses_share_a_port(monkeypatch):
    addresses = [(socket.AF_INET, (host, 0)) for host in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr("dflash.serve.startup.sockets._addresses", lambda *_: addresses)
    with listening("name", 0) as sockets:
        assert len({each.getsockname()[1] for each in sockets}) == 1
        assert len(sockets) == 2


def test_errors_in_the_block_are_not_those_of_the_socket():
    with pytest.raises(FileNotFoundError), listening("127.0.0.1", 0):
        raise FileNotFoundError("another file")


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")])
def test_the_url_is_one_that_a_client_can_use(host, url):
    with listening(host, 0) as sockets:
        assert url_of(sockets).startswith(url)


def test_a_key_is_never_printed():
    line = ready_line("http://h:1", name="demo", context=8, strategy="plain", has_key=True, has_template=True)
    assert line.endswith("try: curl http://h:1/health")


def test_the_process_ends_its_start_with_a_command_that_works():
    """The command is run with `curl` replaced: its words are split as a shell splits them."""
    with process("-m", "dflash.serve", "-m", "demo", "--port", "0", "-c", "512", "-t", "1", "--alias", "pet") as child:
        lines = []
        while not (lines and "try: curl" in lines[-1]):
            lines.append(child.stderr.readline())
            assert lines[-1], lines
        about, _, command = lines[-1].partition("; try: ")
        _, url, *options = shlex.split(command)
        assert options[0] == "-H" and options[2] == "-d"
        request = urllib.request.Request(url, options[3].encode(), dict([options[1].split(": ")]))
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            body = json.load(answer)
            given_id = answer.headers["X-Request-Id"]
        assert (body["model"], body["object"]) == ("pet", "chat.completion")
        (memory,) = (line for line in lines if "at a time" in line)
        assert memory.startswith("dflash: 8 sequences at a time fit with 512 tokens each; KV cache of 4,096 tokens in all, ")
        assert "drafts of at most 63 tokens" in memory
        assert about.startswith("dflash: http://127.0.0.1:") and about.endswith("serves pet, context 512, strategy plain")
        access = child.stderr.readline()
        assert f"POST /v1/chat/completions 200 id={given_id}" in access
        child.terminate()
        assert child.wait(timeout=GUARD) == 0


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ([], "model", "demo"),
        (["a.gguf"], "model", "a.gguf"),
        (["-m", "a.gguf"], "model", "a.gguf"),
        (["--model", "a.gguf"], "model", "a.gguf"),
        (["a.gguf", "-m", "a.gguf"], "model", "a.gguf"),
        (["-c", "512"], "context", 512),
        (["--ctx-size", "0"], "context", None),
        (["--context", "7"], "context", 7),
        (["-np", "3"], "sequences", 3),
        (["--parallel", "3"], "sequences", 3),
        (["-t", "3"], "threads", 3),
        (["--alias", "a", "--model-name", "b"], "model_name", ["a", "b"]),
        (["--cache-type-k", "f32", "-ctv", "f32"], "kv", "f32"),
        (["--kv", "f32", "-ctk", "f32"], "kv", "f32"),
        (["-ctk", "q8_0", "-ctv", "q8_0"], "kv", "q8_0"),
        (["-ctk", "q8_0"], "kv", "q8_0/f16"),
        (["--jinja", "--metrics"], "kv", "f16"),
        (["--model-draft", "d.gguf"], "draft", "d.gguf"),
        (["-md", "d.gguf"], "draft", "d.gguf"),
        (["-hf", "org/repo:Q4_K_M"], "model", "hf:org/repo:Q4_K_M"),
        (["-n", "64"], "max_tokens", 64),
        (["--kv-bytes", "4G"], "kv_bytes", 4 << 30),
        (["--kv-bytes", "1.5 MiB"], "kv_bytes", 3 << 19),
        (["--kv-bytes", "1048576"], "kv_bytes", 1 << 20),
        (["--pending", "16"], "pending", 16),
        ([], "pending", None),
        (["--no-context-shift", "-kvu", "--cache-prompt"], "kv", "f16"),
        (["--enable-auto-tool-choice", "--enable-prefix-caching", "--served-model-name", "a"], "model_name", ["a"]),
        (["--max-model-len", "4096"], "context", 4096),
        (["--max-num-seqs", "3"], "sequences", 3),
        (["--target-gpu", "1", "--draft-gpu", "2"], "device", "cuda:1"),
        (["--target-gpu", "1", "--draft-gpu", "2"], "draft_device", "cuda:2"),
        (["-mg", "0"], "device", "cuda:0"),
        (["-dev", "CUDA3", "-devd", "none"], "device", "cuda:3"),
        (["-dev", "CUDA3", "-devd", "none"], "draft_device", "cpu"),
        (["--device-draft", "CUDA1"], "draft_device", "cuda:1"),
        (["--draft-device", "cuda"], "draft_device", "cuda"),
        ([], "device", "auto"),
        ([], "draft_device", None),
        (["--chat-template-file", "own.jinja"], "chat_template_file", Path("own.jinja")),
        ([], "trusted_messages", False),
        (["--trusted-messages"], "trusted_messages", True),
    ],
)
def test_options_of_other_servers(words, field, value):
    arguments = parse(words)
    assert {**vars(arguments), **load_settings(arguments)}[field] == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-ngl", "99"],
            "-ngl: a model runs on GPUs or on the CPU as a whole; use --device cuda, --device cpu, or --devices",
        ),
        (["demo", "--n-gpu-layers", "all", "-c", "8"], "--n-gpu-layers: a model runs on GPUs or on the CPU"),
        *(([option, "2"], f"{option}: use --devices 0,1 with --split") for option in ("-sm", "-tp", "--tp-size")),
        (["--tensor-split", "51,49"], "--tensor-split: parts have equal sizes; use --devices 0,1 with --split"),
        (["--gpu-memory-utilization", "0.9"], "--gpu-memory-utilization: the memory of the KV cache is set by --kv-bytes"),
        (["--speculative-config", "{}"], "--speculative-config: speculative decoding is set by --strategy"),
        (["-fa"], "-fa: attention and loading have one implementation"),
        (["--chat-template", "chatml"], "--chat-template: names no template here; give a file to --chat-template-file"),
        (["--mmproj", "x.gguf"], "--mmproj: is not supported"),
        (["a.gguf", "-m", "b.gguf"], "--model b.gguf: another model is given already, a.gguf"),
        (["--temp", "-1"], "--temp: "),
        (["-n", "0"], "-n: must be -1 or 1 to "),
        (["--timeout", "600"], "--timeout: limits reading and writing there; a request is limited by --request-timeout"),
        (["--reasoning-budget", "0"], "--reasoning-budget: is a field of requests here, thinking_token_budget"),
        (["--kv-bytes", "many"], "--kv-bytes: must be a number of bytes, as 4G, 512M or 1048576, got 'many'"),
        (["--kv-bytes", "0"], "--kv-bytes: must be a number of bytes"),
        (["--kv-bytes", "9" * 400], "--kv-bytes: must be a number of bytes"),
        (["--kv-bytes", "-1"], "--kv-bytes: must be a number of bytes"),
        (["--top-p", "7"], "--top-p: "),
        (["--debug-log-mib", "-1"], "--debug-log-mib: must be at least 0"),
        (["--debug-log", os.devnull], f"--debug-log {os.devnull}: is no regular file"),
    ],
)
def test_refused_options_are_one_sentence(capsys, words, message):
    assert serve.main(["--port", "0", *words]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"dflash: {message}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pending", "65"], "pending is 65, must be 1 to 64"),
        (["--pending", "1", "--strategy", "lookup"], "strategy: Strategy(PromptLookup()) drafts, but the model was loaded"),
    ],
)
def test_pending_rows_that_do_not_serve_are_an_error_at_start(capsys, words, message):
    assert serve.main(["--port", "0", "--threads", "1", *words]) == 1
    errors = capsys.readouterr().err
    assert errors.splitlines()[-1].startswith(f"dflash: {message}")


def test_defaults_hold_the_given_parameters_only():
    words = ["--temp", "0.5", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.1", "--seed", "7", "--repeat-penalty", "1.1"]
    given = {"temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "seed": 7, "repetition_penalty": 1.1}
    assert sampling_defaults(parse(words)) == given
    assert sampling_defaults(parse(["--seed", "-1"])) == sampling_defaults(parse([])) == {}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_limit_of_the_server_holds_where_a_body_has_none(name):
    sampling = sampling_defaults(parse(["-n", "7", "--temp", "0.5"]))
    assert filled({name: 3}, sampling) == {name: 3, "temperature": 0.5}
    assert parse_chat(filled({"messages": [{"role": "user", "content": "a"}], name: None}, sampling)).options.max_tokens == 7
    assert parse_completion(filled({"prompt": "a"}, sampling)).options.max_tokens == 7
    assert parse_responses(filled({"input": "a"}, sampling), ResponseStore()).options.max_tokens == 7
    assert sampling_defaults(parse(["-n", "-1"])) == {}


def test_requests_take_the_defaults_of_the_server(server, serving, client):
    defaults = Defaults(sampling={"temperature": 0.9, "seed": 5})
    loaded = server.loaded
    app = build_app(Backend(server.engine_thread, loaded.tokenizer, loaded.template, ["demo"], defaults))
    body = {"prompt": "Once upon", "max_tokens": 12}
    bodies = [body, {**body, "temperature": None}, {**body, "temperature": 0}, {**body, "seed": 6}]
    answers = [sent(app, "POST", "/v1/completions", json=each).json() for each in bodies]
    plain, null, greedy, other = (answer["choices"][0]["text"] for answer in answers)
    props = sent(app, "GET", "/props").json()
    same = client.completions.create(model="demo", prompt="Once upon", max_tokens=12, temperature=0.9, seed=5)
    cold = client.completions.create(model="demo", prompt="Once upon", max_tokens=12, temperature=0)
    assert plain == null == same.choices[0].text
    assert greedy == cold.choices[0].text
    assert other not in (plain, greedy)
    assert props["default_generation_settings"]["params"]["temperature"] == 0.9
    assert props["default_generation_settings"]["params"]["top_p"] == 1.0
