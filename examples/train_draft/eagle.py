"""Train an EAGLE-3 head for a model from its own outputs, write it as speculators does, and measure it.

python -m train_draft.eagle [--model FILE] [--seconds S]                                       in the folder `examples`
"""

import argparse
import json
from pathlib import Path

import numpy as np

import dflash
from dflash import Chain, Eagle3, Strategy
from dflash.model.draft.files.names import published
from dflash.model.draft.files.safetensors import Entry, write_safetensors
from dflash.model.eagle import EagleConfig
from dflash.model.export.settings import of_eagle

from .measure import measure
from .networks import EagleNet
from .prompts import mixed
from .recording import load_texts, record, save_texts, tables, write_until
from .studied import studied
from .training import PASSES, Teacher, train_mtp, untrained_eagle, weights_of
from .written import draft_config


def eagle_config(lm: dflash.LM) -> EagleConfig:
    """Return sizes of a head that reads three layers of a model, the last one included."""
    of = draft_config(lm, n_features=3)
    return EagleConfig(
        width=of.width, target_width=of.width, ffn=of.ffn, heads=of.heads, kv_heads=of.kv_heads, head_size=of.head_size,
        head_norms=False, n_rot=of.head_size, rope_base=of.rope_base, rope_scaling=None, n_vocab=of.n_vocab,
        norm_eps=of.norm_eps, target_layer_ids=of.target_layer_ids, feature_norm="layers", normed_output=True,
    )  # fmt: skip


def write_eagle(net: EagleNet, folder: Path, context: int) -> Path:
    """Write a head that uses the embedding and the LM head of its target, as float16."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = of_eagle(net.config, nested=True, context=context, n_head=net.config.n_vocab)
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    halves = {published(name): value.astype(np.float16) for name, value in weights_of(net).items()}
    entries = {name: Entry(value.shape, "F16", value.reshape(-1).view(np.uint8)) for name, value in halves.items()}
    write_safetensors(folder / "model.safetensors", entries, {"format": "pt"})
    return folder


def main() -> None:
    """Write texts, or take those of an earlier start; read them, train, write the head, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=Path("trained"), help="folder of texts and head (trained)")
    parser.add_argument("--texts", type=int, default=48, metavar="N", help="texts (48)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="most tokens that are added to a text (128)")
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="most seconds of the training (300)")
    parser.add_argument("--study-every", type=int, default=0, metavar="N", help="steps between two studies (0: none)")
    parser.add_argument("--prompts", type=int, default=3, metavar="N", help="prompts of each set in the comparison (3)")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    with dflash.load(a.model, device=a.device, context=2048, sequences=8) as lm:
        file, config = a.out / "texts.npz", eagle_config(lm)
        if not file.exists():
            save_texts(file, write_until(lm, mixed(lm), lambda n: n >= a.texts, at_once=8, max_tokens=a.tokens))
        teacher = Teacher(record(lm, load_texts(file), config.target_layer_ids), *tables(lm))
        net = untrained_eagle(config)

        def written(name: str) -> tuple[Path, Strategy]:
            folder = write_eagle(net, a.out / name, lm.model.config.context)
            return folder, Strategy(Eagle3(str(folder)), Chain(PASSES))

        study = studied(lm, written, a.out / "eagle")
        limits = {"seconds": a.seconds, "study": study, "study_every": a.study_every}
        losses = train_mtp(net, teacher, file=a.out / "eagle", **limits)
        folder = write_eagle(net, a.out / "eagle3", lm.model.config.context)
        print(f"{folder}: {len(losses)} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}" if losses else folder, flush=True)
        strategies = {f"eagle3:{n}": Strategy(Eagle3(str(folder)), Chain(n)) for n in (1, 2, 3)}
        measure(lm, strategies, a.out / "measured.jsonl", prompts=a.prompts)


if __name__ == "__main__":
    main()
