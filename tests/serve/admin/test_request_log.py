"""Request ids, the access log and the debug log."""

import json
import os
import re
import stat

import pytest
from hang_guard import wait_until
from in_process import sent

from dflash.errors import RequestError
from dflash.serve.admin import debug_log as debug_logs
from dflash.serve.admin.debug_log import DebugLog

SECRET = "zebra"
KEY = "key-of-somebody"


@pytest.fixture
def lines(caplog):
    """Lines of the access log so far."""
    caplog.set_level("INFO", "dflash.access")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "dflash.access"]


def fields(line):
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def test_a_line_has_the_numbers_of_the_request(http, lines):
    body = {"prompt": f"1, 2, 3, 1, 2, 3, {SECRET}", "max_tokens": 24, "strategy": "lookup", "n": 2}
    answer = http.post("/v1/completions", json=body, headers={"X-Request-Id": "abc-1"})
    usage = answer.json()["usage"]
    details = usage["completion_tokens_details"]
    assert answer.headers["x-request-id"] == "abc-1"
    wait_until(lines)
    (line,) = lines()
    found = fields(line)
    drafted = sum(details.values())
    assert line.startswith("POST /v1/completions 200 id=abc-1 ")
    assert (found["prompt"], found["output"]) == (str(usage["prompt_tokens"]), str(usage["completion_tokens"]))
    assert found["accepted"] == f"{details['accepted_prediction_tokens']}/{drafted}"
    assert (found["cached"], found["finish"]) == ("0", "length")
    assert 0 < float(found["ttft"]) <= float(found["seconds"])
    assert SECRET not in line
    assert answer.json()["choices"][0]["text"] not in line


def test_a_stream_is_logged_once_at_its_end(http, lines):
    body = {"prompt": "import os", "max_tokens": 3, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        stream.read()
    wait_until(lines)
    (line,) = lines()
    assert fields(line)["output"] == "3"
    assert fields(line)["finish"] == "length"


def test_a_client_that_leaves_is_logged(http, lines, server):
    body = {"prompt": "import os", "max_tokens": 4000, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        next(stream.iter_lines())
    wait_until(lines)
    (line,) = lines()
    assert " 200 " in line
    assert fields(line)["finish"] == "cancelled"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "-a", 'a"b', "ä".encode(), "a;DROP"])
def test_other_ids_are_replaced(http, given):
    answer = http.get("/health", headers={"X-Request-Id": given})
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])


def test_the_messages_api_has_its_own_name_of_the_id(http):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    answers = [http.post("/v1/messages", json=each) for each in (body, {})]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert all(answer.headers["request-id"] == answer.headers["x-request-id"] for answer in answers)
    assert answers[1].json()["request_id"] == answers[1].headers["request-id"]


def test_every_response_has_an_id_of_its_own(http):
    requests = [("GET", "/nothing"), ("GET", "/v1/completions"), ("POST", "/v1/completions"), ("GET", "/metrics")]
    ids = {http.request(method, path).headers["x-request-id"] for method, path in requests}
    assert len(ids) == len(requests)


def test_paths_and_queries_of_clients_are_not_logged(http, lines):
    http.get(f"/{SECRET}?key={KEY}")
    http.get(f"/v1/models/{SECRET}")
    wait_until(lambda: len(lines()) == 2)
    assert [line.split()[:3] for line in lines()] == [["GET", "unmatched", "404"], ["GET", "/v1/models/{name:path}", "404"]]
    assert not any(SECRET in line or KEY in line for line in lines())


@pytest.fixture
def ask(app_of):
    """Sends requests to an app over a scripted engine that has a debug log; returns the responses after closing the log."""

    def send(debug_log, *requests):
        app = app_of("hello ", "world", api_key=KEY, debug_log=debug_log)
        answers = [sent(app, *request, **more) for *request, more in requests]
        debug_log.close()
        return answers

    return send


def post(key=KEY, **body):
    return "POST", "/v1/completions", {"json": body, "headers": {"Authorization": f"Bearer {key}"}}


def test_the_debug_log_holds_requests_and_responses(ask, tmp_path):
    path = tmp_path / "debug.jsonl"
    whole, stream = ask(DebugLog(path, 1 << 20), post(prompt=SECRET), post(prompt="b", stream=True))
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["method"], first["route"], first["status"]) == ("POST", "/v1/completions", 200)
    assert first["id"] == whole.headers["x-request-id"]
    assert json.loads(first["request"]) == {"prompt": SECRET}
    assert json.loads(first["answer"]) == whole.json()
    assert second["answer"] == stream.text
    assert KEY not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_clients_without_access_do_not_fill_the_debug_log(ask, tmp_path):
    path = tmp_path / "debug.jsonl"
    health = "GET", "/health", {}
    answers = ask(DebugLog(path, 1 << 20), post(key="wrong", prompt=SECRET), health)
    assert [answer.status_code for answer in answers] == [401, 200]
    assert path.read_text() == ""


def test_the_debug_log_ends_at_its_size(ask, tmp_path, caplog):
    path = tmp_path / "debug.jsonl"
    path.write_text("x" * 900 + "\n")
    path.chmod(0o644)
    answers = ask(DebugLog(path, 1800), *[post(prompt="a") for _ in range(4)])
    assert [answer.status_code for answer in answers] == [200] * 4
    lines = path.read_text().splitlines()
    assert path.stat().st_size <= 1800
    assert 2 <= len(lines) < 5
    assert all(json.loads(line)["status"] == 200 for line in lines[1:])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert caplog.text.count("the debug log is full") == 1


def test_long_bodies_are_cut_in_the_debug_log(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(debug_logs, "MAX_BODY", 20)
    path = tmp_path / "debug.jsonl"
    (answer,) = ask(DebugLog(path, 1 << 20), post(prompt="a" * 50))
    entry = json.loads(path.read_text())
    assert len(entry["request"]) == len(entry["answer"]) == 20
    assert entry["answer_bytes"] == len(answer.content)


def test_the_debug_log_opens_regular_files_only(tmp_path):
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("link", "is a symbolic link"),
        ("fifo", "can't be opened|is no regular file"),
        ("folder", "can't be opened"),
        ("no/file", "can't be opened: No such file"),
    ):
        with pytest.raises(RequestError, match=message):
            DebugLog(tmp_path / name, 1 << 20)
    assert target.read_text() == "untouched"


def test_a_dangling_link_creates_no_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match="is a symbolic link"):
        DebugLog(tmp_path / "link", 1 << 20)
    assert not (tmp_path / "elsewhere").exists()
