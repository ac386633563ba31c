"""Train a DFlash draft and an MTP head for a model from its own outputs, and measure them.

python -m train_draft [--model demo] [--out FOLDER] [--copies 4] [--steps 200]      in the folder `examples`; needs torch
"""

import argparse
import time
from pathlib import Path

import dflash
from dflash import Strategy
from dflash.model.draft.config import DraftConfig

from .gguf_files import write_draft, write_mtp
from .networks import BlockDraftNet, MtpNet
from .recording import record, tables, write_texts
from .training import Teacher, train_draft, train_mtp, untrained_draft, untrained_mtp, weights_of


def draft_config(lm: dflash.LM, *, n_layers: int = 2, block: int = 8) -> DraftConfig:
    """Return sizes of a small draft that reads three layers of a model."""
    of, heads = lm.model.config, 4
    layers = tuple(of.n_layers * share // 4 for share in (1, 2, 3))
    return DraftConfig(
        kind="dflash", width=of.width, ffn=2 * of.width, n_layers=n_layers, heads=heads, kv_heads=2, head_size=64,
        n_vocab=of.n_vocab, norm_eps=1e-6, rope_base=10_000.0, rope_scaling=None, block=block, mask=mask_token(lm),
        target_layer_ids=layers, windows=(0,) * n_layers, causal=(False,) * n_layers,
    )  # fmt: skip


def mask_token(lm: dflash.LM) -> int:
    """Return an id that no text has: the last row of the embedding."""
    return lm.model.n_vocab - 1


def main() -> None:
    """Record, train, export, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=Path("trained"), help="folder of the new files (trained)")
    parser.add_argument("--copies", type=int, default=4, metavar="N", help="texts of each beginning (4)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps of training (200)")
    parser.add_argument("--prompts", type=int, default=12, metavar="N", help="prompts of the comparison (12)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with dflash.load(arguments.model, device=arguments.device, context=2048) as lm:
        config, begin = draft_config(lm), time.perf_counter()
        texts = record(lm, write_texts(lm, copies=arguments.copies), config.target_layer_ids)
        print(f"{len(texts)} texts, {sum(len(text.tokens) for text in texts)} tokens, {time.perf_counter() - begin:.0f} s")
        teacher = Teacher(texts, *tables(lm))
        draft, head = untrained_draft(config), untrained_mtp(lm.model.config, config.ffn)
        strategies = {"plain": "plain"} | written(lm, draft, head, arguments.out, "untrained")
        for name, train, net in (("draft", train_draft, draft), ("head", train_mtp, head)):
            begin = time.perf_counter()
            losses = train(net, teacher, steps=arguments.steps)
            shown = " ".join(f"{loss:.2f}" for loss in losses[:: max(1, len(losses) // 8)])
            print(f"{name}: {time.perf_counter() - begin:.0f} s, loss {shown}", flush=True)
        strategies |= written(lm, draft, head, arguments.out, "trained")
        strategies |= {"shipped draft": f"dflash:{config.max_draft}", "shipped head": "mtp:2"}
        print(dflash.compare(lm, dflash.load_prompts("code")[: arguments.prompts], strategies, max_tokens=64))


def written(lm: dflash.LM, draft: BlockDraftNet, head: MtpNet, folder: Path, name: str) -> dict[str, Strategy]:
    """Write the files of a draft and a head; return strategies with them by name."""
    draft_file = write_draft(folder / f"{name}-draft.gguf", draft.config, weights_of(draft))
    head_file = write_mtp(folder / f"{name}-mtp.gguf", lm.file.path, weights_of(head))
    return {
        f"{name} draft": Strategy(dflash.DFlash(draft=str(draft_file)), dflash.Chain(draft.config.max_draft)),
        f"{name} head": Strategy(dflash.MTP(file=str(head_file)), dflash.Chain(2)),
    }


if __name__ == "__main__":
    main()
