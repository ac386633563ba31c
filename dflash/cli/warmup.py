"""`warmup`: compile the kernels of a model, for images of containers and for continuous integration."""

import argparse
from time import monotonic

from dflash.cli import arguments as common
from dflash.cli.model_arguments import add_context, add_model
from dflash.cli.terminal import put

HELP = "compile the kernels that a model needs, so that no later start has to"
USAGE = "[options] [MODEL]"
EXAMPLES = (
    ("demo --device cpu", "for an image of a container, or before tests"),
    ("model.gguf --strategy dflash --draft auto", "with those of a strategy"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser, default="demo")
    add_context(parser)
    parser.add_argument(
        "--sequences", type=int, default=1, metavar="N", help="sequences at a time of a later server on a GPU (1)"
    )
    common.add_strategy(parser)


def main(arguments: argparse.Namespace) -> int:
    """Load the model, generate some tokens with the strategy, and print what was compiled."""
    from dflash.generation.progress import progress_line
    from dflash.kernels.compiling import count
    from dflash.model.model import Model

    strategy, began, before = common.strategy(arguments), monotonic(), count().done
    with common.load(arguments, sequences=arguments.sequences) as lm:
        if isinstance(lm.model, Model) and not lm.model.compiled.is_set():
            with progress_line(arguments.model) as tell:
                if tell is not None:
                    tell("kernels")
                lm.model.compiled.wait()
        common.prepare(lm, strategy["strategy"])
        for temperature in (0.0, 1.0):
            settings = {**strategy, "temperature": temperature, "top_p": 0.9, "seed": 0}
            lm.generate([0] * 8, max_tokens=8, ignore_eos=True, stream=False, **settings)
        device, folder = lm.model.device, _folder(lm.model.device)
    n = count().done - before
    what = f"{n} kernel{'s' * (n != 1)} compiled in {monotonic() - began:.0f} s" if n else "nothing to compile"
    put(f"{arguments.model} on the {'GPU' if device == 'cuda' else 'CPU'}: {what}; the cache of kernels is {folder}")
    return 0


def _folder(device: str) -> str:
    """Return the folder in which compiled code is kept."""
    if device == "cuda":
        from dflash.kernels.gpu.cubin import code_cache, folder

        return str(code_cache(folder()).used_folder)
    from dflash.kernels.cpu.jit import CACHE

    return str(CACHE.used_folder)
