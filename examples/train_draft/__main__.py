"""Train a DFlash draft and an MTP head for a model from its own outputs, and measure them.

python -m train_draft [--model demo] [--out FOLDER] [--copies 4] [--steps 200]      in the folder `examples`; needs torch
"""

import argparse
import time
from pathlib import Path

import dflash
from dflash.distribution import needed

from .recording import record, tables, write_texts

try:
    with needed("train_draft", "train"):
        from .training import Teacher, train_draft, train_mtp, untrained_draft, untrained_mtp
        from .written import draft_config, written
except dflash.DFlashError as error:
    raise SystemExit(f"{error}") from error


def main() -> None:
    """Record, train, export, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=Path("trained"), help="folder of the new files (trained)")
    parser.add_argument("--copies", type=int, default=4, metavar="N", help="texts of each beginning (4)")
    parser.add_argument(
        "--steps", type=int, default=200, metavar="N", help="steps of the draft's training; the head takes a third (200)"
    )
    parser.add_argument("--prompts", type=int, default=12, metavar="N", help="prompts of the comparison (12)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with dflash.load(arguments.model, device=arguments.device, context=2048) as lm:
        config, begin = draft_config(lm), time.perf_counter()
        texts = record(lm, write_texts(lm, copies=arguments.copies), config.target_layer_ids)
        print(f"{len(texts)} texts, {sum(len(text.tokens) for text in texts)} tokens, {time.perf_counter() - begin:.0f} s")
        teacher = Teacher(texts, *tables(lm))
        draft, head = untrained_draft(config), untrained_mtp(lm.model.config)
        strategies = {"plain": "plain"} | written(lm, draft, head, arguments.out, "untrained")
        for name, train, net in (("draft", train_draft, draft), ("head", train_mtp, head)):
            begin = time.perf_counter()
            losses = train(net, teacher, steps=arguments.steps // (3 if net is head else 1))
            shown = " ".join(f"{loss:.2f}" for loss in losses[:: max(1, len(losses) // 8)])
            print(f"{name}: {time.perf_counter() - begin:.0f} s, loss {shown}", flush=True)
        strategies |= written(lm, draft, head, arguments.out, "trained")
        strategies |= {"shipped draft": f"dflash:{config.max_draft}", "shipped head": "mtp:2"}
        print(dflash.compare(lm, dflash.load_prompts("code")[: arguments.prompts], strategies, max_tokens=64))


if __name__ == "__main__":
    main()
