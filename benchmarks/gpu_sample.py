"""Norm, embedding and sampling of a 27B model on a GPU, as a share of a plain copy in the same run.

``python benchmarks/gpu_sample.py [--json FILE]``. Launches of a round are one CUDA graph, one after the other on the same
arrays unless these are large; a result is the median of the rounds. PyTorch is measured too if it is installed.
"""

import argparse
import json
from contextlib import suppress
from pathlib import Path

import cupy
import numpy as np
from timing import copy_bandwidth, microseconds

from dflash.kernels.embed.cuda import Embed
from dflash.kernels.formats import Matrix
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu.jit import warm
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.sample.cuda import DeviceSampler
from dflash.kernels.sample.params import SampleParams, SampleRequest

WIDTH, VOCAB = 5120, 248_320
CALLS = 20
LAWS = {
    "largest": SampleParams(),
    "T 1": SampleParams(1.0, seed=1),
    "T 1, min-p 0.05": SampleParams(1.0, floor=-3.0, seed=1),
    "T 0.6, top-k 20, top-p 0.95": SampleParams(float(np.float32(1 / 0.6)), top_k=20, top_p=0.95, seed=1),
    "T 1, top-p 0.95": SampleParams(1.0, top_p=0.95, seed=1),
    "T 2, top-p 0.95, flat": SampleParams(0.5, top_p=0.95, seed=1),
}
RNG = np.random.default_rng(3)


def torch_times(rows):
    """Return microseconds of the same operations in eager PyTorch, by name."""
    try:
        import torch
    except ImportError:
        return {}
    x = torch.randn(rows, WIDTH, device="cuda")
    weight, logits = torch.ones(WIDTH, device="cuda"), torch.randn(rows, VOCAB, device="cuda")

    def took(run):
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(CALLS):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / CALLS

    found = {}
    with suppress(Exception):
        found["norm"] = took(lambda: torch.nn.functional.rms_norm(x, (WIDTH,), weight, 1e-6).half())
        if rows <= 64:
            found["largest"] = took(lambda: logits.argmax(-1))
            found["T 1"] = took(lambda: torch.multinomial(torch.softmax(logits, -1), 1))
            found["T 0.6, top-k 20, top-p 0.95"] = took(lambda: torch.topk(logits, 20))
    return found


def normals(rows):
    """Norm of the stream to halves."""
    x, weight = cupy.random.standard_normal((rows, WIDTH), cupy.float32), cupy.ones(WIDTH, np.float32)
    return RmsNorm(x, weight, 1e-6, half=cupy.empty(x.shape, np.float16)), 6 * WIDTH * rows


def embeddings(rows):
    """Rows of a Q4_K table."""
    table = PackedWeight(Matrix(RNG.integers(0, 256, (4096, WIDTH // 256 * 144), np.uint8), "Q4_K"))
    tokens = cupy.asarray(RNG.integers(0, 4096, rows), np.int32)
    return Embed(tokens, table, cupy.empty((rows, WIDTH), np.float32)), (4 * WIDTH + WIDTH // 256 * 144) * rows


def draws(rows, params):
    """Return the launches that sample from rows, without copies to and from the host."""
    logits = 2.5 * cupy.random.standard_normal((rows, VOCAB), cupy.float32)
    sampler = DeviceSampler(logits)
    sampler.sample_rows([SampleRequest(params, 0, range(rows))], rows).wait()

    def run(stream):
        if params.scale is None:
            sampler.largest(rows, stream)
        else:
            sampler.launch([params], rows, stream)

    return run, 4 * VOCAB * rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    out = parser.parse_args().json
    rate = copy_bandwidth()
    print(f"{cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}: a copy moves {rate:.0f} GB/s")
    print(f"{'':32}{'rows':>6}{'us':>9}{'GB/s':>8}{'of copy':>9}{'torch us':>10}")
    figures = []
    jobs = [("norm", rows, lambda rows=rows: normals(rows)) for rows in (1, 16, 64, 2048, 8192)]
    jobs += [("embed", rows, lambda rows=rows: embeddings(rows)) for rows in (1, 64, 2048)]
    jobs += [
        (name, rows, lambda rows=rows, params=params: draws(rows, params))
        for name, params in LAWS.items()
        for rows in (1, 16, 64)
    ]
    torch = {rows: torch_times(rows) for rows in (1, 16, 64, 2048, 8192)}
    for name, rows, make in jobs:
        run, n_bytes = make()
        warm()
        once = run if name not in ("norm", "embed") else lambda stream, run=run, rows=rows: run(rows, stream)
        took = microseconds(lambda stream, once=once: [once(stream) for _ in range(CALLS)], CALLS)
        beside = torch[rows].get(name)
        figures.append({"op": name, "rows": rows, "us": took, "bytes": n_bytes, "of_copy": n_bytes / took / 1e3 / rate})
        shown = f"{beside:10.1f}" if beside else ""
        print(
            f"{name:32}{rows:6}{took:9.2f}{n_bytes / took / 1e3:8.0f}{n_bytes / took / 1e3 / rate:9.1%}{shown}", flush=True
        )
    if out:
        out.write_text(json.dumps({"copy_gb_s": rate, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
