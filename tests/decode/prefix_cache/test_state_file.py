"""Files of saved states: what was written is read, and processes that write one name at once leave a whole file."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dflash
from dflash.decode.prefix_cache.disk.state_file import TEMPORARY, read_file, write_file
from dflash.decode.prefix_cache.disk.state_folder import StateFolder
from dflash.errors import FormatError
from dflash.model.draft.files.safetensors import SafeTensors

WRITER = """
import sys
from pathlib import Path
import numpy as np
from dflash.decode.prefix_cache.disk.state_file import write_file
number = int(sys.argv[2])
print(flush=True)
sys.stdin.readline()
for _ in range(15):
    write_file(Path(sys.argv[1]), {"number": str(number)}, {"a": np.full((50_000 + number,), number, np.float32)})
"""


def test_it_returns_what_was_written(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "halves": rng.integers(0, 1 << 16, (3, 1, 5)).astype(np.uint16),
        "ids": rng.integers(0, 9, 7).astype(np.int32),
        "floats": rng.standard_normal((2, 3)).astype(np.float32),
        "none": np.zeros((0, 4), np.float32),
        "length": np.array([1 << 40]),
        "transposed": rng.standard_normal((4, 3)).astype(np.float32).T,
    }
    path = tmp_path / "file"
    n_bytes = write_file(path, {"identity": "model ü"}, arrays)
    assert n_bytes == path.stat().st_size
    metadata, found = read_file(path, n_bytes)
    assert metadata == {"identity": "model ü"}
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].flags.aligned
        np.testing.assert_array_equal(found[name], array)
    assert set(SafeTensors.open(path).tensors) == {*arrays, "sha256"}
    with pytest.raises(FormatError, match="at most"):
        read_file(path, n_bytes - 1)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(FormatError, match="no regular file"):
        read_file(tmp_path / "pipe", 100)


def test_two_processes_write_one_name(tmp_path):
    path = tmp_path / "file"
    start = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": Path(dflash.__file__).parents[1]}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(i)], **start) for i in (1, 2)]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            check(path)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    check(path)
    assert list(tmp_path.iterdir()) == [path]


def check(path):
    metadata, arrays = read_file(path, 1 << 20)
    number = int(metadata["number"])
    assert arrays["a"].shape == (50_000 + number,)
    assert (arrays["a"] == number).all()


def test_left_temporary_files_are_removed(tmp_path):
    for name, age in (("old", 1e9), ("new", None)):
        path = tmp_path / f"{TEMPORARY}{name}"
        path.write_bytes(b"part")
        if age:
            os.utime(path, (age, age))
    StateFolder(tmp_path, "any").trim(None)
    assert [path.name for path in tmp_path.iterdir()] == [f"{TEMPORARY}new"]
