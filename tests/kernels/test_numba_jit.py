"""Where compiled kernels are kept."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import numba
from dflash.kernels import numba_jit
print(numba.config.CACHE_DIR)
"""


def folder_for(**environment):
    clean = {k: v for k, v in os.environ.items() if k not in {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=clean | environment, capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout.strip(), run.stderr


def test_the_users_cache(tmp_path):
    folder, _ = folder_for(XDG_CACHE_HOME=str(tmp_path))
    assert folder.startswith(str(tmp_path / "dflash" / "numba-"))
    assert Path(folder).is_dir()


def test_another_folder_may_be_named(tmp_path):
    assert folder_for(NUMBA_CACHE_DIR=str(tmp_path))[0] == str(tmp_path)


def test_old_folders_are_forgotten(tmp_path):
    old, young = tmp_path / "dflash" / "numba-old", tmp_path / "dflash" / "numba-young"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    folder_for(XDG_CACHE_HOME=str(tmp_path))
    assert not old.exists()
    assert young.exists()


def test_a_cache_that_cannot_be_written_to(tmp_path):
    (tmp_path / "dflash").write_text("a file where the folder should be")
    folder, log = folder_for(XDG_CACHE_HOME=str(tmp_path))
    assert not folder.startswith(str(tmp_path / "dflash"))
    assert not Path(folder).exists()
    assert "compiled anew" in log


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="compiles for another x86 processor")
def test_other_processors_give_the_same_bits(tmp_path):
    """The packed multiply, compiled for a processor without 512-bit vectors; each way to unpack, none that takes long."""
    script = """
import hashlib, numpy as np
from matrices import random_matrix
from dflash.kernels.linear import linear
digest = hashlib.sha256()
for kind in ("Q4_K", "Q6_K", "IQ4_NL", "MXFP4", "F16"):
    weight = random_matrix(20, 512, kind)
    x = np.random.default_rng(0).standard_normal((5, 512)).astype(np.float32)
    for tokens in (1, 5):
        out = np.empty((tokens, 20), np.float32)
        linear(x[:tokens], [weight], [out])
        digest.update(out.tobytes())
print(digest.hexdigest())
"""
    features = "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2"
    other = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    digests = []
    for environment in ({}, other):
        run = subprocess.run(
            [sys.executable, "-c", script],
            env=dict(os.environ) | paths | environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        digests.append(run.stdout)
    assert digests[0] == digests[1]
