"""Train a DFlash draft and an MTP head for a model from its own outputs, and measure them.

In the folder `examples`; needs torch:

python -m train_draft                                      the demo, a few minutes on two cores
python -m train_draft --model FILE --device cuda --sequences 128 --write-seconds 100 --seconds 220 --head-seconds 80

A second start with the same folder continues from its texts and checkpoints.
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path

import dflash
from dflash.distribution import needed

from .measure import chains, measure
from .prompts import mixed
from .recording import Text, load_texts, record, save_texts, tables, write_until

try:
    with needed("train_draft", "train"):
        from .studied import studied
        from .training import Teacher, train_draft, train_mtp, untrained_draft, untrained_mtp
        from .written import draft_config, exported, written_chain
except dflash.DFlashError as error:
    raise SystemExit(f"{error}") from error


def main() -> None:
    """Write texts, read them, train, export, compare."""
    a = _arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    with dflash.load(a.model, device=a.device, context=2048, sequences=a.sequences) as lm:
        config = draft_config(lm, n_layers=a.layers, n_features=a.features, block=a.block)
        teacher = Teacher(_texts(lm, a, config.target_layer_ids), *tables(lm))
        plans = (
            ("draft", train_draft, untrained_draft(config), a.steps, a.seconds),
            ("head", train_mtp, untrained_mtp(lm.model.config), a.steps // 3, a.head_seconds),
        )
        files = []
        for name, train, net, steps, seconds in plans:
            begin = time.perf_counter()
            study = studied(lm, partial(written_chain, lm, net, a.out), a.out / name)
            limits = {"steps": steps, "seconds": seconds, "study": study, "study_every": a.study_every}
            losses = train(net, teacher, file=a.out / name, **limits)
            files.append(exported(lm, net, a.out, "trained", kind=a.type))
            shown = " ".join(f"{loss:.2f}" for loss in losses[:: max(1, len(losses) // 8)])
            print(f"{name}: {len(losses)} steps, {time.perf_counter() - begin:.0f} s, loss {shown}", flush=True)
        del teacher
    if a.prompts:
        with dflash.load(a.model, device=a.device, context=4096) as lm:
            measure(lm, chains(*files), a.out / "measured.jsonl", prompts=a.prompts)


def _texts(lm: dflash.LM, a: argparse.Namespace, layers: tuple[int, ...]) -> list[Text]:
    """Write texts, or take those of an earlier start; read them."""
    begin, file = time.perf_counter(), a.out / "texts.npz"
    if not file.exists():

        def enough(n: int) -> bool:
            return n >= a.texts or time.perf_counter() - begin > a.write_seconds

        save_texts(file, write_until(lm, mixed(lm), enough, at_once=min(a.texts, 8 * a.sequences), max_tokens=a.tokens))
    texts, wrote = load_texts(file), time.perf_counter()
    found, n = record(lm, texts, layers), sum(len(text.tokens) for text in texts)
    read = time.perf_counter() - wrote
    print(f"{len(texts)} texts of {n} tokens: written in {wrote - begin:.0f} s, read in {read:.0f} s", flush=True)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="demo")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--out", type=Path, default=Path("trained"), help="folder of texts, checkpoints, logs and new files (trained)")
    add("--sequences", type=int, default=8, metavar="N", help="texts that are written at the same time (8)")
    add("--texts", type=int, default=48, metavar="N", help="most texts (48)")
    add("--tokens", type=int, default=128, metavar="N", help="most tokens that the model adds to a text (128)")
    add("--write-seconds", type=float, default=math.inf, metavar="S", help="no round of texts begins after S seconds")
    add("--steps", type=int, default=200, metavar="N", help="most steps of the draft; the head takes a third (200)")
    add("--seconds", type=float, default=math.inf, metavar="S", help="most seconds of the draft's training")
    add("--head-seconds", type=float, default=math.inf, metavar="S", help="most seconds of the head's training")
    add("--layers", type=int, default=2, metavar="N", help="layers of the draft (2)")
    add("--features", type=int, default=3, metavar="N", help="layers of the model that the draft reads (3)")
    add("--block", type=int, default=8, metavar="N", help="rows of a block, one more than draft tokens (8)")
    add("--type", default="F16", help="type of the matrices in the files, as Q8_0 (F16)")
    add("--study-every", type=int, default=0, metavar="N", help="steps between two studies of the draft (0: none)")
    add("--prompts", type=int, default=3, metavar="N", help="prompts of each set in the comparison; 0 for none (3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
