"""Microseconds of each kernel of a decode step on two GPUs, and of its wait for the other GPU.

    python benchmarks/gpu_two_profile.py FILE [--rows 1 16]

The step runs as it is, with signals for all row counts, without signals and waits, and with all results stored on one GPU
only. Logits are right only in the first two cases. As in `gpu_profile.py`, one thread of a kernel stores the time when its
wait for the kernel before it ends, here also when its wait for the other GPU ends. The stamps change sources in memory only;
set CUPY_CACHE_DIR to an empty folder.
"""

import argparse
import gc
from collections import defaultdict
from itertools import pairwise

import cupy
import numpy as np
from gpu_profile import CAPACITY, KERNELS, STAMP, WAIT

from dflash.kernels.attention import cuda as attention
from dflash.kernels.delta import cuda as delta
from dflash.kernels.exchange import links
from dflash.kernels.gpu import jit
from dflash.kernels.linear import cuda as linear
from dflash.model.batch import Span
from dflash.model.cuda.split import few_rows
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

GPUS, STEPS = (0, 1), 20
SIGNALS, TABLE = links.SIGNALS, links.PeerLink.table
OF_PEERS = "    __syncthreads();  // the results of all GPUs are visible to all threads"
OF_DATA = "    __syncthreads();  // the tokens of all GPUs are there"
PEER_STAMP = f"""{OF_PEERS}
    if (!(threadIdx.x | blockIdx.x | blockIdx.y | blockIdx.z)) {{
        unsigned long long stamp_time;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(stamp_time) :: "memory");
        const unsigned stamp = ((volatile unsigned*)PROFILE_AT)[PROFILE_KERNEL] - 1;
        volatile unsigned long long* const at = (volatile unsigned long long*)(PROFILE_AT + 4ull * KERNELS);
        at[(size_t)(KERNELS + PROFILE_KERNEL) * CAPACITY + stamp] = stamp_time;
    }}"""
NAMED = "QUANTS", "MODE", "NORM", "K_SLICES", "CLUSTER", "ROW_UNITS", "MT", "TOKENS"


class TwoStamps:
    """Stamps of the kernels of both GPUs that are compiled after this object was made."""

    def __init__(self):
        self.names, self._all = [], []
        for gpu in GPUS:
            with cupy.cuda.Device(gpu):
                self._all.append(cupy.zeros(4 * KERNELS + 16 * KERNELS * CAPACITY, np.uint8))
        source, compiled = jit.source, jit._kernel
        sized = [text.replace("KERNELS", str(KERNELS)).replace("CAPACITY", str(CAPACITY)) for text in (STAMP, PEER_STAMP)]
        stamped = OF_DATA + sized[1].removeprefix(OF_PEERS)
        jit.source = lambda path: (
            source(path).replace(WAIT, sized[0] % WAIT).replace(OF_PEERS, sized[1]).replace(OF_DATA, stamped)
        )
        jit._kernel = lambda path, entry, dependent, options, gpu, *rest: compiled(
            path, entry, dependent, (*options, *self._options(entry, options, gpu)), gpu, *rest
        )

    def _options(self, entry, options, gpu):
        name = " ".join([entry, *(option[2:] for option in sorted(options) if option[2:].split("=")[0] in NAMED)])
        if name not in self.names:
            self.names.append(name)
        return f"-DPROFILE_AT={self._all[gpu].data.ptr}ull", f"-DPROFILE_KERNEL={self.names.index(name)}"

    def clear(self):
        """Forget all stamps."""
        for gpu in GPUS:
            with cupy.cuda.Device(gpu) as device:
                self._all[gpu][:] = 0
                device.synchronize()

    def read(self, gpu):
        """Return (nanoseconds, nanoseconds after the wait for the other GPU or 0, name) of all stamps of a GPU in order."""
        with cupy.cuda.Device(gpu):
            raw = self._all[gpu].get()
        counts = raw[: 4 * KERNELS].view(np.uint32)
        times = raw[4 * KERNELS :].view(np.uint64).reshape(2, KERNELS, CAPACITY)
        return sorted((*map(int, times[:, i, j]), name) for i, name in enumerate(self.names) for j in range(counts[i]))


def table_on_one_gpu(link, first_row=0):
    """The table of a launch whose results all go to its own GPU."""
    made, n, rank = TABLE(link, first_row).get(), link._links.n, link._links.rank
    for outs in (made[5 + n : 5 + 2 * n], made[5 + 2 * n :]):
        outs[:] = outs[rank]
    return cupy.array(made)


def print_table(found):
    """Print the kernels of the stamps of a GPU."""
    spent, waited = defaultdict(list), defaultdict(list)
    for (start, after_wait, name), (end, _, following) in pairwise(found):
        if not following.startswith(("advance", "embed")):
            spent[name].append((end - start) / 1e3)
            waited[name].append((after_wait - start) / 1e3 if after_wait else 0.0)
    print(f"{'a step':>7} {'us':>8} {'waits us':>9} {'us a step':>10}  kernel")
    for name, each in sorted(spent.items(), key=lambda item: -sum(item[1])):
        print(
            f"{len(each) / STEPS:7.1f} {np.mean(each):8.2f} {np.mean(waited[name]):9.2f} {sum(each) / STEPS:10.1f}  {name}"
        )


def profile(path, stamps, rows):
    """Print the times of the kernels of a step of each number of rows."""
    loaded = load_model(path, LoadSettings(sequences=2, context=2048, devices=["cuda:0", "cuda:1"]))
    ids = np.random.default_rng(0).integers(0, 50_000, 128, dtype=np.int32)
    for n in rows:
        state = loaded.model.state()
        loaded.model.forward([Span.chain(state, ids, prefill=True)])
        for step in range(STEPS + 3):
            if step == 3:
                stamps.clear()
            loaded.model.forward([Span.chain(state, ids[:n])])
            loaded.model.finish()
        print(f"{n} rows, first GPU:")
        print_table(stamps.read(0))
        state.close()
    loaded.model.attachments.close()
    loaded.file.close()


def main():
    """Print tables for the step as it is and without its exchanges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    options, stamps = parser.parse_args(), TwoStamps()
    for title, few, signals, table in (
        ("as it is", few_rows.FEW_ROWS, SIGNALS, TABLE),
        ("with signals", 0, SIGNALS, TABLE),
        ("without signals", 0, 0, TABLE),
        ("on one GPU", 0, 0, table_on_one_gpu),
    ):
        few_rows.FEW_ROWS = few
        for module in (links, linear, delta, attention):
            module.SIGNALS = signals
        links.PeerLink.table = table
        print(f"\n{title}", flush=True)
        profile(options.file, stamps, options.rows)
        gc.collect()


if __name__ == "__main__":
    main()
