"""Train a DFlash draft, an MTP head and an EAGLE-3 head for a model from its own outputs, and measure them.

In the folder `examples`; needs torch:

python -m train_draft                                      the demo, a few minutes on two cores
python -m train_draft --model FILE --device cuda --sequences 128 --write-seconds 100 --seconds 220 --head-seconds 80

A second start with the same folder continues from its texts and checkpoints.
"""

import argparse
import math
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import dflash
from dflash.distribution import needed

from .measure import chains, measure
from .prompts import mixed
from .recording import Written, load_texts, record, save_texts, tables, write_until

try:
    with needed("train_draft", "train"):
        from .studied import studied
        from .training import Teacher, train_draft, train_mtp, untrained_draft, untrained_eagle, untrained_mtp
        from .written import draft_config, eagle_config, exported, written_chain
except dflash.DFlashError as error:
    raise SystemExit(f"{error}") from error

DRAFTS = "draft", "head", "eagle"


def main() -> None:
    """Write texts, read them, train, export, compare."""
    a = _arguments()
    a.until = time.perf_counter() + a.part_seconds
    a.out.mkdir(parents=True, exist_ok=True)
    with dflash.load(a.model, device=a.device, context=2048, sequences=a.sequences) as lm:
        texts = _texts(lm, a)
        files = {name: _trained(lm, a, texts, name) for name in a.drafts}
    if a.prompts and files:
        with dflash.load(a.model, device=a.device, context=4096) as lm:
            measure(lm, chains(**files), a.out / "measured.jsonl", prompts=a.prompts)


def _trained(lm: dflash.LM, a: argparse.Namespace, texts: list[Written], name: str) -> Path:
    """Train a draft or a head, or take up its checkpoint; return the file."""
    net: Any
    if name == "draft":
        net = untrained_draft(draft_config(lm, n_layers=a.layers, n_features=a.features, block=a.block))
        train, layers, limits = train_draft, net.config.target_layer_ids, (a.steps, a.seconds)
    else:
        net = untrained_mtp(lm.model.config) if name == "head" else untrained_eagle(eagle_config(lm))
        train, layers, limits = train_mtp, getattr(net.config, "target_layer_ids", ()), (a.steps // 3, a.head_seconds)
    begin = time.perf_counter()
    teacher = Teacher(record(lm, texts, layers), *tables(lm))
    read = time.perf_counter()
    print(f"{name}: {len(texts)} texts read in {read - begin:.0f} s", flush=True)
    study = studied(lm, partial(written_chain, lm, net, a.out), a.out / name)
    ends = {"steps": limits[0], "seconds": limits[1], "until": a.until}
    losses = train(net, teacher, file=a.out / name, study=study, study_every=a.study_every, **ends)
    shown = " ".join(f"{loss:.2f}" for loss in losses[:: max(1, len(losses) // 8)])
    print(f"{name}: {len(losses)} steps, {time.perf_counter() - read:.0f} s, loss {shown}", flush=True)
    return exported(lm, net, a.out, "trained", kind=a.type)


def _texts(lm: dflash.LM, a: argparse.Namespace) -> list[Written]:
    """Write texts, or take those of an earlier start, of this process and of others that write beside it."""
    begin, files = time.perf_counter(), [a.out / f"texts-{a.seed + i}.npz" for i in range(a.writers)]
    if not files[0].exists():
        own = f"--writers 1 --texts {-(-a.texts // a.writers)} --drafts --seed".split()
        mine = [sys.executable, "-m", "train_draft", *sys.argv[1:], *own]
        others = [subprocess.Popen([*mine, str(a.seed + i)]) for i in range(1, a.writers)]

        def enough(n: int) -> bool:
            return n * a.writers >= a.texts or time.perf_counter() - begin > a.write_seconds

        prompts, at_once = mixed(lm, seed=a.seed, at_once=a.sequences), min(a.texts, 8 * a.sequences)
        found = write_until(lm, prompts, enough, at_once=at_once, max_tokens=a.tokens, seed=a.seed << 24)
        for other in others:
            if other.wait():
                raise SystemExit("a process that writes texts failed")
        save_texts(files[0], found)
    texts = {tuple(text.tokens): text for file in files for text in load_texts(file)}
    n = sum(map(len, texts))
    print(f"{len(texts)} texts of {n} tokens: written in {time.perf_counter() - begin:.0f} s", flush=True)
    return list(texts.values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="demo")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--out", type=Path, default=Path("trained"), help="folder of texts, checkpoints, logs and new files (trained)")
    add("--sequences", type=int, default=8, metavar="N", help="texts that are written at the same time (8)")
    add("--texts", type=int, default=48, metavar="N", help="most texts (48)")
    add("--tokens", type=int, default=128, metavar="N", help="most tokens that the model adds to a text (128)")
    add("--seed", type=int, default=0, help="of the texts (0)")
    add("--writers", type=int, default=1, metavar="N", help="processes that write texts, on the same device (1)")
    add("--drafts", nargs="*", choices=DRAFTS, default=DRAFTS, help=f"what to train ({' '.join(DRAFTS)})")
    add("--write-seconds", type=float, default=math.inf, metavar="S", help="no round of texts begins after S seconds")
    add("--steps", type=int, default=200, metavar="N", help="most steps of the draft; a head takes a third (200)")
    add("--seconds", type=float, default=math.inf, metavar="S", help="most seconds of the draft's training")
    add("--head-seconds", type=float, default=math.inf, metavar="S", help="most seconds of a head's training")
    add("--part-seconds", type=float, default=math.inf, metavar="S", help="no step after S seconds of this start")
    add("--layers", type=int, default=2, metavar="N", help="layers of the draft (2)")
    add("--features", type=int, default=3, metavar="N", help="layers of the model that the draft reads (3)")
    add("--block", type=int, default=8, metavar="N", help="rows of a block, one more than draft tokens (8)")
    add("--type", default="F16", help="type of the matrices in the files, as Q8_0 (F16)")
    add("--study-every", type=int, default=0, metavar="N", help="steps between two studies of the draft (0: none)")
    add("--prompts", type=int, default=3, metavar="N", help="prompts of each set in the comparison; 0 for none (3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
