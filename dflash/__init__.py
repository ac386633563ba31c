"""Run GGUF models with interchangeable decoding strategies.

::

    import dflash

    lm = dflash.load("demo")
    answer = lm.generate([{"role": "user", "content": "What is the capital of France?"}])
    print(answer.content)
    lm.generate("A text to continue", max_tokens=64)

`load` returns an `LM`. A strategy combines a drafter, a draft shape and recoveries, as in
``Strategy(DFlash("draft.gguf"), Tree(22)) | LoopGuard()``; `Plain` drafts nothing. Importing this package is cheap: kernels
and numba are imported at first use.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dflash.errors import DFlashError

if TYPE_CHECKING:
    from dflash.decode.drafters import (
        MTP,
        Adaptive,
        DDTree,
        DFlash,
        DraftModel,
        DSpark,
        Eagle3,
        FirstOf,
        Plain,
        PromptLookup,
        Strategy,
        SuffixDecoding,
    )
    from dflash.decode.drafting.shapes import Chain, Tree
    from dflash.decode.recoveries.empty_retry import EmptyRetry
    from dflash.decode.recoveries.loop_guard import LoopGuard
    from dflash.decode.recoveries.min_tokens import MinTokens
    from dflash.decode.recoveries.think_leak import ThinkLeak
    from dflash.decode.sampling.params import Sampling
    from dflash.decode.verifiers import (
        BlockVerification,
        Coupled,
        RejectionSampling,
        SyntheticAcceptance,
        Typical,
        golden,
    )
    from dflash.evaluation.compare import compare
    from dflash.evaluation.comparison import Comparison
    from dflash.evaluation.environment import environment
    from dflash.evaluation.features import capture, diagnose
    from dflash.evaluation.prompt_sets import load_prompts
    from dflash.evaluation.study import Study, study
    from dflash.generation.recovery.think_budget import ThinkBudget
    from dflash.generation.recovery.tool_stall import ToolStall
    from dflash.generation.result import Generation
    from dflash.lm import LM
    from dflash.model.export import export_draft

__all__ = [
    "LM",
    "MTP",
    "Adaptive",
    "BlockVerification",
    "Chain",
    "Comparison",
    "Coupled",
    "DDTree",
    "DFlash",
    "DFlashError",
    "DSpark",
    "DraftModel",
    "Eagle3",
    "EmptyRetry",
    "FirstOf",
    "Generation",
    "LoopGuard",
    "MinTokens",
    "Plain",
    "PromptLookup",
    "RejectionSampling",
    "Sampling",
    "Strategy",
    "Study",
    "SuffixDecoding",
    "SyntheticAcceptance",
    "ThinkBudget",
    "ThinkLeak",
    "ToolStall",
    "Tree",
    "Typical",
    "__version__",
    "capture",
    "compare",
    "diagnose",
    "environment",
    "export_draft",
    "golden",
    "load",
    "load_prompts",
    "study",
]

_LAZY = {
    "LM": "dflash.lm",
    "compare": "dflash.evaluation.compare",
    "capture": "dflash.evaluation.features",
    "diagnose": "dflash.evaluation.features",
    "environment": "dflash.evaluation.environment",
    "load_prompts": "dflash.evaluation.prompt_sets",
    "export_draft": "dflash.model.export",
    "Study": "dflash.evaluation.study",
    "study": "dflash.evaluation.study",
    "Comparison": "dflash.evaluation.comparison",
    "Generation": "dflash.generation.result",
    "Sampling": "dflash.decode.sampling.params",
    "Plain": "dflash.decode.drafters",
    "Strategy": "dflash.decode.drafters",
    "Adaptive": "dflash.decode.drafters",
    "DDTree": "dflash.decode.drafters",
    "DFlash": "dflash.decode.drafters",
    "DSpark": "dflash.decode.drafters",
    "DraftModel": "dflash.decode.drafters",
    "Eagle3": "dflash.decode.drafters",
    "FirstOf": "dflash.decode.drafters",
    "MTP": "dflash.decode.drafters",
    "PromptLookup": "dflash.decode.drafters",
    "SuffixDecoding": "dflash.decode.drafters",
    "BlockVerification": "dflash.decode.verifiers",
    "Coupled": "dflash.decode.verifiers",
    "RejectionSampling": "dflash.decode.verifiers",
    "SyntheticAcceptance": "dflash.decode.verifiers",
    "Typical": "dflash.decode.verifiers",
    "golden": "dflash.decode.verifiers",
    "Chain": "dflash.decode.drafting.shapes",
    "Tree": "dflash.decode.drafting.shapes",
    "EmptyRetry": "dflash.decode.recoveries.empty_retry",
    "LoopGuard": "dflash.decode.recoveries.loop_guard",
    "MinTokens": "dflash.decode.recoveries.min_tokens",
    "ThinkBudget": "dflash.generation.recovery.think_budget",
    "ThinkLeak": "dflash.decode.recoveries.think_leak",
    "ToolStall": "dflash.generation.recovery.tool_stall",
}


def load(
    name: str | os.PathLike[str],
    *,
    device: str = "auto",
    devices: Sequence[str | int] | None = None,
    split: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    sequences: int = 8,
    mmap: bool = True,
    kv: str = "f16",
    kv_bytes: int | None = None,
    prefill: str = "f16",
    unpacked_bytes: int | None = None,
    pending: int | None = None,
    prefix_cache: bool | int = False,
    prefix_cache_folder: str | os.PathLike[str] | None = None,
    prefix_cache_disk: int | None = None,
    prefix_cache_exact: bool = True,
    prefix_cache_reread: bool = False,
    swap_bytes: int | None = None,
    isolate: bool = True,
    chat_template: str | os.PathLike[str] | None = None,
    trusted_messages: bool = False,
    progress: bool | None = None,
) -> "LM":
    """Load a model.

    Parameters
    ----------
    name : str or path
        A GGUF file; ``demo``, the bundled model; or ``org/repo`` on the Hugging Face hub, in full
        ``hf:org/repo@revision:quant``. A file or folder named ``org/repo`` comes first.
    device : str
        ``"auto"``: the GPU if there is a usable one, else the CPU; ``"cuda"``, ``"cpu"``, or a GPU as ``"cuda:1"``.
    devices : sequence of str or int, optional
        GPUs to divide the model among, as ``["cuda:0", "cuda:1"]``; the output has the bits of one GPU.
    split : str, optional
        ``"tensor"`` divides every layer among the GPUs, for speed (default); ``"layer"`` gives each some consecutive layers,
        for models that do not fit one.
    threads : int, optional
        CPU threads; None is one for each core available to the process.
    context : int, optional
        Maximum tokens of a sequence, prompt and output together; None is the context in the model file.
    sequences : int
        Maximum sequences decoded at the same time; further requests wait.
    mmap : bool
        On a CPU, map the model file, which starts at once and shares its memory with other processes. False reads the file
        into memory of this process, on Linux in pages of 2 MiB, from which some machines decode faster. A GPU has its own
        copy of the weights and ignores this.
    kv : str
        Type of the KV cache: ``"f16"``, ``"f32"``, ``"q8_0"``, which takes a little more than half of f16, or ``"q4_0"``, a
        little more than a quarter. Two with a slash, as ``"q8_0/q4_0"``, store keys and values apart; on a GPU both must be
        quantized then.
    kv_bytes : int, optional
        Maximum bytes of the KV cache of all sequences together; None is a share of the free memory. Sequences that do
        not fit at the same time wait or are preempted.
    prefill : str
        Type of the products of prompts on a GPU: ``"f16"``, or ``"int8"`` on a Hopper GPU, which reads prompts faster, from
        tokens and quantized weights rounded to 8 bits, so that their states are less exact. Decoding is the same with both.
    unpacked_bytes : int, optional
        Maximum bytes of GPU memory for weights that stay unpacked, in the type of `prefill`, which prompts otherwise unpack
        each time; the bits are the same. None is half of the memory left beside weights and sequences if that holds at least
        half of them, else 0. Not used on a CPU.
    pending : int, optional
        Maximum rows of a sequence in a step, 1 to 64: its last token and draft tokens, so that drafts have at most one
        fewer. Every sequence has memory for that many in each gated DeltaNet layer (64 rows: three quarters of the memory
        of a 27B's sequence beside its KV cache). 1 is for plain decoding only. Prompts are not limited. None is 64; on one
        GPU 16 or 8 where more would take over a quarter of the memory beside the weights, as with many sequences.
    prefix_cache : bool or int
        Maximum bytes of states that are saved so that later prompts with the same beginning need not read it again. True is,
        on a GPU, all KV pages that no sequence needs, of which there are more then, and half of the memory that is left; on
        a CPU an eighth of the free memory. See `dflash.decode.prefix_cache`.
    prefix_cache_folder : str or path, optional
        Folder in which states that leave the memory of the prefix cache are saved, for this and later processes, and in
        which `LM.save_session` saves names. Created if missing; nobody else may be able to write to it.
    prefix_cache_disk : int, optional
        Maximum bytes of the files in that folder, of which the least recently used ones are removed; None is 16 GiB.
    prefix_cache_exact : bool
        Use only states that change no bit of a later output. On a GPU False lets a prompt begin at any saved state, also
        after generated text, whose last bits differ from those of a prompt; on a CPU there is no such difference.
    prefix_cache_reread : bool
        On a GPU with exact states: prefill answers again, those of conversations also beside others, so that the next turn
        begins after the last answer, not before it.
    swap_bytes : int, optional
        Bytes of the KV cache of running sequences, without the oldest one, beyond which no other sequence starts. If memory
        gets short, these sequences are preempted: their states move to host memory. None is the size of the KV cache; on a
        GPU half of the host's free memory if that is more.
    isolate : bool
        Compile the grammar, schema or pattern of a request in a small process of its own first, started beside the loading.
        So one that crashes, or takes too much memory or time, fails alone. False compiles in this process only, where the
        same limits of size hold; so do systems without `fork`, such as Windows.
    chat_template : str or path, optional
        Jinja source of a chat template, or a file with it, in place of the template in the model file.
    trusted_messages : bool
        Take control tokens that messages and tools spell out (``<|im_end|>``) for control tokens, as llama.cpp and
        Transformers do. Otherwise they are text, so that a file or a web page in a message can't end it or begin another.
    progress : bool, optional
        Show on stderr what is done while downloading, loading and compiling; None does so on a terminal and in a notebook.
        Nothing is shown if loading takes less than a second.

    Raises
    ------
    NotFound
        If there is no such file, name or repository.
    FormatError, Unsupported
        If the file is damaged, or dflash does not support its architecture or types.
    RequestError
        If an argument is out of range.
    DownloadError
        If the hub can't be reached.
    """
    given = dict(locals())
    from dflash.generation.load import start
    from dflash.generation.progress import progress_line
    from dflash.lm import LM
    from dflash.model.loading.settings import LoadSettings

    del given["name"], given["progress"]
    settings = LoadSettings(**given)
    with progress_line(os.fspath(name), shown=progress) as report:
        return LM(*start(name, settings, progress=report))


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from dflash.distribution import release

        return release()
    from dflash.distribution import mixture

    mixed = mixture()
    raise AttributeError(f"module 'dflash' has no attribute {name!r}{f': {mixed}' if mixed else ''}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
