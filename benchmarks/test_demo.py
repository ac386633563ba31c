"""The demo model as a whole: prefill, decode, wider forwards, start-up. ``pytest benchmarks/test_demo.py``.

A figure that can be wrong has its own test: `tests/model/test_demo.py` holds the recorded tokens.
"""

import subprocess
import sys

import pytest

from dflash.cli.rates.measure import Bench
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

THREADS = 2


@pytest.fixture(scope="module")
def bench():
    return Bench(load_model("demo", LoadSettings(threads=THREADS, sequences=2)).model, repeat=5)


def measure(benchmark, capsys, name, n, run):
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    with capsys.disabled():
        print(f"\n{name}: {n / benchmark.stats.stats.median:,.0f} tokens/s")


@pytest.mark.parametrize("n", [512, 2048])
def test_prompt(benchmark, capsys, bench, n):
    measure(benchmark, capsys, f"pp{n}", n, lambda: bench.read(n))


@pytest.mark.parametrize("depth", [0, 4096])
def test_generation(benchmark, capsys, bench, depth):
    rate = benchmark.pedantic(lambda: bench.writing(128, depth), rounds=1)
    with capsys.disabled():
        print(f"\ntg128 @ d{depth}: {rate['mean']:,.0f} ± {rate['std']:.0f} tokens/s")


def test_wider_forwards(benchmark, capsys, bench):
    costs = benchmark.pedantic(bench.forward_costs, rounds=1)
    with capsys.disabled():
        print("\nforward:", ", ".join(f"{cost['tokens']}: {cost['relative']:.2f}" for cost in costs))


def test_second_start(benchmark, capsys):
    words = [sys.executable, "-m", "dflash", "demo", "hi", "--raw", "--max-tokens", "1", "--threads", str(THREADS)]
    benchmark.pedantic(lambda: subprocess.run(words, check=True, capture_output=True), rounds=3, warmup_rounds=1)
    with capsys.disabled():
        print(f"\nfrom nothing to the first token: {benchmark.stats.stats.median:.2f} s")
