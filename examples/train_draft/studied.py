"""Acceptance of a draft while it is trained, by a study of the model with the draft as it is."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import dflash
from dflash import Strategy

SETS = "code", "prose"


def studied(
    lm: dflash.LM,
    written: Callable[[str], tuple[Path, Strategy]],
    file: Path,
    *,
    prompts: int = 4,
    max_tokens: int = 48,
) -> Callable[[int], None]:
    """Return a function that measures a network after a step and adds a line to ``FILE-study.csv``.

    The line has the acceptance length on prompts that are not trained with, its 95 % interval, and the acceptance at each
    position given all before.

    written: writes the network as it is under a name; returns the file or folder, which is removed afterwards, and a
        strategy with it.
    """
    cases = [
        case._replace(name=f"{name} {case.name}") for name in SETS for case in dflash.load_prompts(name)[: -(-prompts // 2)]
    ]

    def study(step: int) -> None:
        path, strategy = written(f"{file.name}-{step}")
        try:
            found = dflash.study(lm, {"draft": strategy}, cases, max_tokens=max_tokens)
        finally:
            lm.call(lambda: lm.model.attachments.pop(strategy.drafter).close())  # the next step has a file of its own
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        measures = found.records[0]["measures"]
        values = [measures["acceptance_length"], *measures["interval"]]
        rates = " ".join(f"{rate:.3f}" for rate in measures["acceptance_by_position"])
        print(f"{file.name}: step {step}, {values[0]:.2f} tokens a step on {', '.join(SETS)}", flush=True)
        _add(file.with_name(f"{file.name}-study.csv"), [str(step), *(f"{value:.4f}" for value in values), rates])

    return study


def _add(path: Path, row: list[str]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.writer(lines)
        if new:
            writer.writerow(("step", "acceptance_length", "low", "high", "acceptance_by_position"))
        writer.writerow(row)
