"""Damaged files open or raise an error of dflash, quickly and without allocating the sizes that they claim."""

import time
import tracemalloc
from pathlib import Path

import pytest
from gguf_bytes import ARRAY, F64, FORMATS, STRING, array, key, number, string, tensor, write
from gguf_bytes import gguf as header
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.errors import FormatError, ModelError
from dflash.kernels.formats.types import BY_ID
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.tensor_check import match_tensors

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "qwen35-r2-mtp" / "qwen35-r2-mtp-F16.gguf"
WHOLE = GOLDEN.read_bytes()
with GGUFFile.open(GOLDEN) as _file:
    N_HEADER = min(_tensor.offset for _tensor in _file.tensors.values())
SECONDS = 1.0
"""CPU time of this thread for one file; the typical one takes some milliseconds."""

MEMORY = 4 << 20


def fuzz(max_examples):
    return settings(max_examples=max_examples, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "x.gguf"


def open_or_refuse(path, content, *, size=0):
    """Open a file that holds `content` and zeros up to `size`; True if it was valid."""
    write(path, content)
    if size:
        with path.open("r+b") as file:
            file.truncate(size)
    start = time.thread_time()
    sound = is_sound(path)
    assert time.thread_time() - start < SECONDS
    return sound


def is_sound(path):
    try:
        with GGUFFile.open(path) as file:
            for name in file.tensors:
                data = file.data(name).reshape(-1)
                assert data[[0, -1]].max() >= 0
            match_tensors(Config.from_gguf(file.metadata, file.tensors), file.tensors)
        return True
    except ModelError as error:
        assert len(str(error)) < 1000
        return False


def test_the_whole_file_is_sound(path):
    assert open_or_refuse(path, WHOLE)


@fuzz(800)
@given(size=st.one_of(st.integers(0, N_HEADER), st.integers(0, len(WHOLE) - 1)))
def test_truncated_files_are_refused(path, size):
    assert not open_or_refuse(path, WHOLE[: min(size, N_HEADER)], size=size)


@fuzz(1000)
@given(flips=st.lists(st.integers(0, 8 * N_HEADER - 1), min_size=1, max_size=8, unique=True))
def test_flipped_bits_never_crash(path, flips):
    content = bytearray(WHOLE[:N_HEADER])
    for bit in flips:
        content[bit // 8] ^= 1 << bit % 8
    open_or_refuse(path, content, size=len(WHOLE))


@fuzz(1000)
@given(at=st.integers(0, N_HEADER - 8), value=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]))
def test_absurd_numbers_never_crash(path, at, value):
    content = WHOLE[:at] + value.to_bytes(8, "little") + WHOLE[at + 8 : N_HEADER]
    open_or_refuse(path, content, size=len(WHOLE))


@fuzz(500)
@given(at=st.integers(24, N_HEADER), cut=st.integers(0, 40), more=st.binary(max_size=40))
def test_shifted_headers_never_crash(path, at, cut, more):
    open_or_refuse(path, WHOLE[:at] + more + WHOLE[at + cut : N_HEADER], size=len(WHOLE))


@fuzz(500)
@given(content=st.binary(max_size=200))
def test_noise_behind_a_sound_start(path, content):
    open_or_refuse(path, header(n_keys=2, n_tensors=1) + content)


LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from([2**31, 2**32, 2**60, 2**63, 2**64 - 1]))
NAMES = st.text(max_size=8)


@st.composite
def keys(draw):
    name, kind = draw(NAMES), draw(st.sampled_from([*FORMATS, STRING, ARRAY, 13, 2**32 - 1]))
    if kind == STRING:
        return key(name, kind, string(draw(st.binary(max_size=8))))
    if kind == ARRAY:
        inner = draw(st.sampled_from([*FORMATS, STRING, ARRAY, 13]))
        items = [number(inner, 1) if inner in FORMATS else string(b"x")] * draw(st.integers(0, 5))
        return key(name, kind, array(inner, items, draw(st.one_of(st.none(), LENGTHS))))
    return key(name, kind, number(kind, 1) if kind in FORMATS else bytes(4))


@st.composite
def tensors(draw):
    dims = draw(st.lists(st.one_of(st.sampled_from([0, 1, 2, 32, 256, 2**31, 2**62, 2**64 - 1])), max_size=5))
    kind = draw(st.sampled_from([*BY_ID, 4, 38, 2**32 - 1]))
    return tensor(draw(NAMES), dims, kind, draw(st.sampled_from([0, 1, 32, 64, 2**40, 2**63, 2**64 - 32])))


@fuzz(600)
@given(st.lists(keys(), max_size=4), st.lists(tensors(), max_size=3), st.integers(0, 2000))
def test_crafted_headers_never_crash(path, keys, tensors, n_data):
    open_or_refuse(path, header(keys, tensors, bytes(n_data)))


CLAIMS = {
    "tensors": header(n_tensors=2**63),
    "keys": header(n_keys=2**40),
    "numbers": header([key("k", ARRAY, array(F64, [], 2**60))]),
    "numbers of 16 GB": header([key("k", ARRAY, array(F64, [], 2**31))]),
    "texts": header([key("k", ARRAY, array(STRING, [], 2**31))]),
    "text": header([key("k", STRING, (2**60).to_bytes(8, "little"))]),
    "text of 8 GB": header([key("k", STRING, (2**33).to_bytes(8, "little"))]),
    "text in texts": header([key("k", ARRAY, array(STRING, [(2**33).to_bytes(8, "little")]))]),
    "name": header([(2**33).to_bytes(8, "little")]),
    "dimensions": header(tensors=[tensor("w", (2**62, 2**62))]),
    "alignment": header([key("general.alignment", 10, (2**62).to_bytes(8, "little"))], [tensor("w", (8,))]),
}


@pytest.mark.parametrize("what", CLAIMS)
@pytest.mark.parametrize("size", [0, 1 << 34], ids=["short", "16 GB"])
def test_claims_take_no_memory(what, size, path):
    write(path, CLAIMS[what])
    if size:
        with path.open("r+b") as file:
            file.truncate(size)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            GGUFFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
