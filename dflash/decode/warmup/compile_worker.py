"""Compile kernels that a model needs into the cache on disk: run by `compile_ahead` as a process of its own.

Its argument is a JSON object: the arguments of `jobs_of`, and ``claims``, a folder. Several of these processes share the
work by files in that folder. Each writes the sizes of all kernels to stdout first, and
then a line for each kernel of its own: its number, and 0 if the cache had it.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from dflash.decode.warmup import decoding_jobs, prefill_lengths
from dflash.kernels.compiling import count
from dflash.kernels.cpu.dry_run import Job, dry_run, grouped
from dflash.model.batch import Span
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import CHUNK, Model

_CONTEXT = 2048
"""Tokens of the sequence of the dry run; types do not depend on it, memory does."""


def jobs_of(path: str, *, kv: str, pending: int, threads: int) -> list[Job]:
    """Return the kernels that a model needs on the CPU."""
    with GGUFFile.open(path) as file:
        config = Config.from_gguf(file.metadata, file.tensors, pending=pending)
        config = replace(config, context=min(config.context, _CONTEXT))
        with dry_run() as found:
            model = Model(file, config, pages=_CONTEXT // 256 + 1, slots=2, kv=kv, threads=threads, rows=CHUNK + pending)
            for n in prefill_lengths(model, model.prefill_chunk):
                _forwards(model, n)
        return [*found.values(), *decoding_jobs()]


def _forwards(model: Model, n: int) -> None:
    """Read a prompt of `n` tokens and two more tokens."""
    state = model.state()
    state.reserve(n + 2)
    model.forward([Span.chain(state, [0] * n, prefill=True, logits=False)])
    for _ in range(2):
        model.forward([Span.chain(state, [0])])
        state.commit([0])
    state.close()


def main(settings: str) -> None:
    """Compile; `settings` are those of `jobs_of`, and the folder of the claims."""
    given = json.loads(settings)
    claims = Path(given.pop("claims"))
    groups = grouped(jobs_of(**given))
    print(json.dumps([size for group in groups for _, size in group]), flush=True)
    first = 0
    for group in groups:
        try:
            (claims / str(first)).touch(exist_ok=False)
        except FileExistsError:  # another process compiles this group
            pass
        else:
            for number, (job, _) in enumerate(group, first):
                before = count().done
                job.compile()
                print(number, count().done - before, flush=True)
        first += len(group)


if __name__ == "__main__":
    main(sys.argv[1])
