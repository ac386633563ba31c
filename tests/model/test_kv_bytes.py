"""A given number of bytes for the KV cache."""

from pathlib import Path

import pytest

from dflash.errors import RequestError
from dflash.generation.load import start
from dflash.kernels.ragged import PAGE
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.settings import LoadSettings
from dflash.model.state import budget
from dflash.model.state.budget import Need, n_pages

MODEL = Path(__file__).parents[1] / "data" / "golden" / "qwen35-r2-mtp" / "qwen35-r2-mtp-F16.gguf"


@pytest.fixture(scope="module")
def config():
    with GGUFFile.open(MODEL) as file:
        return Config.from_gguf(file.metadata, file.tensors)


def chosen(config, kv_bytes, context=None, room=1 << 40):
    return n_pages(config, LoadSettings(context=context, sequences=4, kv_bytes=kv_bytes), room)


def test_as_many_pages_as_fit_and_a_context_within_them(config):
    page = Need.of(config, "f16").page
    assert chosen(config, 3 * page) == chosen(config, 4 * page - 1) == (3, min(config.context, 3 * PAGE))
    assert chosen(config, 3 * page, context=PAGE + 1) == (3, PAGE + 1)
    many = 10 * config.context // PAGE
    assert chosen(config, many * page) == (many, config.context)


@pytest.mark.parametrize("context", [None, 1, PAGE, PAGE + 1])
def test_the_error_names_the_least_that_works(config, context):
    with pytest.raises(RequestError, match=r"^kv_bytes is 1: .* takes \d+ bytes, give at least that$") as raised:
        chosen(config, 1, context)
    least = int(str(raised.value).split(" takes ")[1].split()[0])
    assert chosen(config, least, context)[1] >= (context or 1)
    with pytest.raises(RequestError):
        chosen(config, least - 1, context)


@pytest.mark.parametrize("room", [1 << 24, None])
def test_more_than_there_is(config, room, monkeypatch):
    monkeypatch.setattr(budget, "free_memory", lambda: 1 << 24)
    with pytest.raises(RequestError, match=r"kv_bytes is 1073741824: only \d+ bytes are free beside the weights") as raised:
        chosen(config, 1 << 30, room=room)
    most = int(str(raised.value).split("only ")[1].split()[0])
    assert chosen(config, most, room=room)[0] >= 1


@pytest.mark.parametrize(("swap_pages", "max_swap"), [(None, 2), (0, 0), (5, 5)])
def test_a_model_is_loaded_with_them(config, swap_pages, max_swap):
    page = Need.of(config, "f16").page
    swap_bytes = None if swap_pages is None else swap_pages * page
    loaded, engine_thread = start(MODEL, LoadSettings(device="cpu", threads=1, kv_bytes=2 * page, swap_bytes=swap_bytes))
    try:
        assert (loaded.model.pools.pages, loaded.model.pools.page_bytes) == (2, page)
        assert loaded.model.config.context == min(config.context, 2 * PAGE)
        assert engine_thread.engine.starter.max_swap == max_swap
    finally:
        engine_thread.close()
        loaded.file.close()
    with pytest.raises(RequestError, match="swap_bytes is -1, must be at least 0"):
        start(MODEL, LoadSettings(swap_bytes=-1))
