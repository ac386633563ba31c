"""Access control of the server: keys, hosts, content types."""

import asyncio
import gzip
from types import MappingProxyType

import pytest
from in_process import sent
from serve_fakes import ScriptedEngine

from dflash.cli.serve import main
from dflash.errors import RequestError
from dflash.serve import limits
from dflash.serve.access import KEY, is_loopback, local_hosts, read_key
from dflash.serve.parsing import body as bodies


@pytest.fixture
def ask(app_of):
    """Sends one request to an app over a scripted engine."""

    def send(*, method="POST", path="/v1/completions", base="http://localhost:8000", **request):
        access = {name: request.pop(name) for name in ("api_key", "hosts", "origins") if name in request}
        return sent(app_of("hello", **access), method, path, base=base, **request)

    return send


BODY = b'{"prompt": "a"}'


BEARERS = {
    200: ("Bearer secret", "bearer secret", "BEARER  secret"),
    401: (
        "secret",
        "Basic secret",
        "Bearer",
        "Bearer wrong",
        "Bearer secretx",
        "Bearer  ",
        "Bearer s\u00e9cret",
        "Token secret",
    ),
}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        *(({"Authorization": value.encode()}, status) for status, values in BEARERS.items() for value in values),
        ({"x-api-key": "secret"}, 200),
        ({"x-api-key": "wrong", "Authorization": "Bearer secret"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_a_key_is_asked_for_and_may_stand_in_either_header(ask, headers, status):
    answer = ask(api_key="secret", json={"prompt": "a"}, headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        ("application/jsonx", 415),
    ],
)
def test_bodies_are_json(ask, kind, status):
    answer = ask(content=BODY, headers={"Content-Type": kind} if kind else {})
    assert (answer.status_code, "application/json" in answer.text) == (status, status == 415)


def test_compressed_bodies_are_refused(ask):
    answer = ask(content=gzip.compress(BODY), headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    assert (answer.status_code, "must be identity" in answer.text) == (415, True)


@pytest.mark.parametrize(
    ("base", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://127.0.0.1", 200),
        ("http://[::1]:8000", 200),
        ("http://evil.example:8000", 403),
        ("http://localhost.evil.example", 403),
        ("http://[::2]:8000", 403),
    ],
)
def test_a_local_server_answers_to_local_names(ask, base, status):
    hosts = local_hosts("127.0.0.1", None)
    for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/health")):
        body = {"json": {"prompt": "a"}} if method == "POST" else {}
        assert ask(hosts=hosts, base=base, method=method, path=path, **body).status_code == status
        assert ask(base=base, method=method, path=path, **body).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "[::1]evil.com",
        "[::1",
        "::1",
        "[::1]:80:80",
        "localhost:evil.com",
        "localhost:80@a.com",
        "[[::1]]",
        "a[::1]",
        "",
        ":80",
    ],
)
def test_a_malformed_host_is_no_local_name(ask, host):
    answer = ask(hosts=local_hosts("127.0.0.1", None), json={"prompt": "a"}, headers={"Host": host})
    assert answer.status_code == 403


def test_a_head_of_one_piece_has_the_same_limit(ask):
    for headers in ({"X-Long": "a" * limits.HEADER_BYTES}, {f"X-{i}": "a" * 1000 for i in range(80)}):
        answer = ask(json={"prompt": "a"}, headers=headers)
        assert (answer.status_code, "at most 65536 are allowed" in answer.text) == (431, True)
    assert ask(method="GET", path=f"/health?{'a' * 60_000}", headers={"X-Long": "a" * 6000}).status_code == 431
    assert ask(json={"prompt": "a"}, headers={"X-Long": "a" * (limits.HEADER_BYTES - 1000)}).status_code == 200


class Remembering(ScriptedEngine):
    def add_all(self, sessions):
        self.last = sessions[-1]
        super().add_all(sessions)


KEYS = [{"Authorization": f"Bearer {key}"} for key in ("alice", "bob")]


def test_a_stored_response_exists_for_its_key_only(app_of):
    app = app_of("hello", api_key="alice, bob")

    def send(user, method, path, **body):
        return sent(app, method, path, headers=KEYS[user], **({"json": body} if body else {}))

    first = send(0, "POST", "/v1/responses", input="secret").json()
    path = f"/v1/responses/{first['id']}"
    assert send(1, "POST", "/v1/responses", input="go on", previous_response_id=first["id"]).status_code == 400
    assert [send(1, method, path).status_code for method in ("GET", "DELETE")] == [404, 404]
    assert send(0, "GET", path).json() == first
    assert send(0, "POST", "/v1/responses", input="go on", previous_response_id=first["id"]).status_code == 200
    assert send(0, "DELETE", path).status_code == 200


def test_keys_and_salts_separate_the_prefix_cache(app_of):
    """The salt of a session is what `PrefixCache` finds its snapshots by."""
    app = app_of("hello", engine=Remembering, api_key="alice, bob")

    def salt(user, path="/v1/completions", **fields):
        body = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}.get(
            path, {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}
        )
        answer = sent(app, "POST", path, headers=KEYS[user], json={**body, **fields})
        assert answer.status_code == 200, answer.text
        return app.engine_thread.engine.last.cache_salt

    paths = ["/v1/completions", "/v1/responses", "/v1/chat/completions", "/v1/messages"]
    found = [[salt(user, path) for path in paths] for user in (0, 1)]
    assert found == [[found[0][0]] * 4, [found[1][0]] * 4]
    assert found[0][0] != found[1][0]
    assert "alice" not in found[0][0]
    shared = {salt(user, path, cache_salt="team") for user in (0, 1) for path in paths}
    assert len(shared) == 1
    assert shared.isdisjoint({found[0][0], found[1][0]})
    for wrong in ("", "x" * 513, 7):
        answer = sent(app, "POST", "/v1/completions", headers=KEYS[0], json={"prompt": "a", "cache_salt": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")
    assert salt_without_key(app_of) == ""


def test_cache_prompt_turns_the_prefix_cache_off(app_of):
    app = app_of("hello", engine=Remembering)
    for fields, used in (({}, True), ({"cache_prompt": True}, True), ({"cache_prompt": False}, False)):
        assert sent(app, "POST", "/v1/completions", json={"prompt": "a", **fields}).status_code == 200
        assert app.engine_thread.engine.last.use_prefix_cache is used
    assert sent(app, "POST", "/v1/completions", json={"prompt": "a", "cache_prompt": 1}).status_code == 400


def salt_without_key(app_of):
    app = app_of("hello", engine=Remembering)
    sent(app, "POST", "/v1/completions", json={"prompt": "a"})
    return app.engine_thread.engine.last.cache_salt


def test_other_servers_answer_to_any_name():
    assert local_hosts("127.0.0.1", "key") is None
    assert local_hosts("0.0.0.0", None) is None
    assert local_hosts("127.0.0.5", None) == {"localhost", "127.0.0.1", "::1", "127.0.0.5"}
    assert [is_loopback(host) for host in ("::1", "LOCALHOST", "127.3.2.1", "::", "10.0.0.1", "example.org")] == (
        [True] * 3 + [False] * 3
    )


def test_where_the_key_comes_from(tmp_path, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    file = tmp_path / "key"
    file.write_text("from file\n")
    assert read_key(None, None) is None
    assert read_key("from option", None) == "from option"
    assert read_key(None, str(file)) == "from file"
    monkeypatch.setenv(KEY, "from environment")
    assert read_key(None, None) == "from environment"
    assert read_key("from option", None) == "from option"
    with pytest.raises(RequestError, match="give one of them"):
        read_key("a", str(file))
    with pytest.raises(RequestError, match="can't be read"):
        read_key(None, str(tmp_path / "none"))


@pytest.mark.parametrize(("header", "status"), [("one", 200), ("two", 200), ("one, two", 401), ("three", 401), ("", 401)])
def test_a_server_may_have_several_keys(ask, header, status, tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    for keys in (read_key("one, two", None), read_key(None, str(file))):
        assert ask(api_key=keys, json={"prompt": "a"}, headers={"Authorization": f"Bearer {header}"}).status_code == status


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}


def test_pages_of_other_origins_are_refused_unless_allowed(ask):
    page = {"Origin": "https://chat.example"}
    assert "access-control-allow-origin" not in ask(method="OPTIONS", headers={**page, **PREFLIGHT}).headers
    assert "access-control-allow-origin" not in ask(json={"prompt": "a"}, headers=page).headers
    for origins in (["https://chat.example"], ["*"]):
        preflight = ask(method="OPTIONS", headers={**page, **PREFLIGHT}, origins=origins, api_key="secret")
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, origins[0])
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        refused = ask(json={"prompt": "a"}, headers=page, origins=origins, api_key="secret")
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origins[0])
    other = ask(json={"prompt": "a"}, headers={"Origin": "https://evil.example"}, origins=["https://chat.example"])
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("source", ["option", "file", "environment"])
def test_an_empty_key_opens_no_server(source, tmp_path, monkeypatch, capsys):
    file = tmp_path / "key"
    file.write_text(" \n")
    monkeypatch.setenv(KEY, "" if source == "environment" else "good")
    flags = {"option": ["--api-key", ""], "file": ["--api-key-file", str(file)], "environment": []}[source]
    assert main(["/no/such.gguf", *flags]) == 1
    assert "the key is empty" in capsys.readouterr().err


def test_a_body_that_never_comes(monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.01)

    class Silent:
        headers = MappingProxyType({"content-type": "application/json"})

        async def stream(self):
            yield b"{"
            await asyncio.Event().wait()

    with pytest.raises(bodies.Problem) as raised:
        asyncio.run(bodies.read_body(Silent(), 100))
    assert raised.value.status == 408


def test_a_length_beyond_the_limit_is_refused_before_the_body():
    class Long:
        headers = MappingProxyType({"content-type": "application/json", "content-length": "101"})

        def stream(self):
            raise AssertionError("the body was read")

    with pytest.raises(bodies.Problem) as raised:
        asyncio.run(bodies.read_body(Long(), 100))
    assert raised.value.status == 413
