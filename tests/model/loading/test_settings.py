"""Settings of loading: listed once, passed whole by library and command line."""

import inspect
from dataclasses import fields

import pytest

import dflash
from dflash.cli import serve
from dflash.cli.serve_arguments import parse
from dflash.model.loading.settings import LoadSettings
from dflash.serve.limits import MAX_WAITING

OF_SERVERS = {"max_waiting", "max_step_ms", "draft_budget"}
GIVEN = {
    "devices": ["cuda:0", "cuda:1"],
    "split": "layer",
    "kv": "q8_0/q4_0",
    "prefill": "int8",
    "prefix_cache_folder": "f",
    "chat_template": "t",
}


class Started(Exception):
    """Ends a load that has its settings."""


@pytest.fixture
def started(monkeypatch):
    """Settings that loading was given; it loads nothing."""
    found = []

    def start(name, settings, *, progress):
        found.append(settings)
        raise Started

    monkeypatch.setattr("dflash.generation.load.start", start)
    return found


def test_load_has_the_defaults_of_its_settings_and_those_of_servers_alone_are_missing():
    defaults = {field.name: field.default for field in fields(LoadSettings)}
    parameters = inspect.signature(dflash.load).parameters
    got = {name: each.default for name, each in parameters.items() if name not in ("name", "progress")}
    assert got == {name: default for name, default in defaults.items() if name not in OF_SERVERS}


def test_load_passes_every_setting_on(started):
    defaults = {field.name: field.default for field in fields(LoadSettings) if field.name not in OF_SERVERS | {"device"}}
    changed = {name: not value if isinstance(value, bool) else 7 for name, value in defaults.items()} | GIVEN
    with pytest.raises(Started):
        dflash.load("demo", device="cuda", **changed)
    assert started == [LoadSettings(device="cuda", **changed)]


def test_server_options_become_settings(started):
    words = "--devices 0,1 --split layer -t 7 -c 7 -np 7 --kv q8_0 -ctv q4_0 --kv-bytes 7 --pending 7 --swap-bytes 7 "
    words += "--prefix-cache-mib 7 --prefix-cache-folder f --prefix-cache-disk-mib 7 --prefix-cache-inexact --fixed-drafts "
    words += "--no-prefix-cache-reread --chat-template-file t --trusted-messages --max-step-ms 7 --prefill-type int8 "
    words += "--no-mmap"
    sizes = dict.fromkeys(("threads", "context", "sequences", "kv_bytes", "pending", "swap_bytes", "max_step_ms"), 7)
    cache = {"prefix_cache": 7 << 20, "prefix_cache_disk": 7 << 20, "prefix_cache_exact": False}
    with pytest.raises(Started):
        serve.load_backend(parse(words.split()), None)
    (got,) = started
    assert str(got.chat_template) == "t"
    more = {"devices": ["0", "1"], "chat_template": got.chat_template, "trusted_messages": True, "max_waiting": MAX_WAITING}
    assert got == LoadSettings(**GIVEN | sizes | cache | more, mmap=False)


def test_the_server_loads_with_its_own_defaults(started):
    with pytest.raises(Started):
        serve.load_backend(parse([]), None)
    server = {"max_waiting": MAX_WAITING, "max_step_ms": True, "draft_budget": True}
    assert started == [LoadSettings(prefix_cache=True, prefix_cache_reread=True, **server)]


def test_a_file_that_is_read_may_change_after_the_load(lm, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(lm.file.path.read_bytes())
    with dflash.load(path, device="cpu", threads=1, context=256, sequences=1, mmap=False) as read:
        path.write_bytes(b"")  # weights of a mapped file would end the process now
        assert read.generate("def add(a, b):", max_tokens=12).tokens == lm.generate("def add(a, b):", max_tokens=12).tokens
