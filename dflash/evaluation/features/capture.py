"""Record the features of a target on texts."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dflash.decode.drafters import MTP, Strategy
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.sampling.params import check_whole
from dflash.errors import RequestError
from dflash.evaluation.compare import cases_of
from dflash.evaluation.features.recorded import TYPES, Recorded, n_bytes, read, recorded, write
from dflash.evaluation.measuring import bar
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.tables import Values
from dflash.generation.prompts import Prompt

if TYPE_CHECKING:
    from dflash.lm import LM


class Captured(NamedTuple):
    """Result of `capture`.

    texts, tokens, n_bytes: number of recorded texts, of their tokens, and bytes of their files.
    complete: false if the next text would have exceeded ``max_bytes``.
    """

    folder: Path
    texts: int
    tokens: int
    n_bytes: int
    complete: bool


def capture(
    lm: "LM",
    prompts: Prompt | Sequence[Prompt | Case] | Path,
    layers: int | Sequence[int] | str | Strategy | Drafter,
    *,
    folder: str | os.PathLike[str],
    max_bytes: int,
    max_tokens: int = 0,
    dtype: str = "f16",
    progress: bool = False,
    **sampling: Any,
) -> Captured:
    """Record hidden states of some layers with the token ids, one safetensors file a text.

    A recording that was interrupted continues with the first text that has no file.

    Parameters
    ----------
    lm : LM
        Target.
    prompts : prompt, sequence of prompts and `Case`, or Path
        As for `compare`; of several turns the first. A `pathlib.Path` is a folder of records: their texts are read again, so
        that two targets are recorded on the same tokens.
    layers : int, sequence of int, or strategy
        Layers, 0 to L - 1; L is the output of the last norm. Or a strategy, drafter or name as ``"dflash"``: the layers that
        its draft reads.
    folder : str or path
        Created if missing.
    max_bytes : int
        Maximum bytes of all files of the folder; no text is recorded in part.
    max_tokens : int
        Output tokens that the target writes after each prompt, and which are recorded with it.
    dtype : str
        Type of stored features: ``"f16"`` or ``"f32"``.
    progress : bool
        Draw a progress bar on stderr.
    **sampling
        Fields of `Sampling`; greedy without.

    Returns
    -------
    Captured
        Number of texts, tokens and bytes in the folder, and whether all texts are there.

    Raises
    ------
    RequestError
        If an argument is out of range, or the folder holds records of other texts or settings.
    """
    check_whole("max_bytes", max_bytes, 0)
    check_whole("max_tokens", max_tokens, 0)
    if dtype not in TYPES:
        raise RequestError(f"dtype: must be one of {', '.join(TYPES)}, got {dtype!r:.40}")
    chosen = _layers(lm, layers)
    shared = {"model": lm.file.path.name, "layers": chosen, "max_tokens": max_tokens, "dtype": dtype, "sampling": sampling}
    settings = json.dumps(shared, sort_keys=True, default=repr)
    texts = [text._replace(settings=settings) for text in texts_of(lm, prompts)]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    used, n_tokens = sum(path.stat().st_size for path in folder.glob("*.safetensors")), 0
    with bar(progress, len(texts), "texts") as shown:
        for number, text in enumerate(texts):
            path = folder / f"{number:06}.safetensors"
            if path.exists():
                n_tokens += len(_known(path, text).tokens)
            else:
                n = len(text.tokens) + max_tokens
                if used + n_bytes(text, n, len(chosen), lm.model.config.width, dtype) > max_bytes:
                    return Captured(folder, number, n_tokens, used, False)
                found = _recorded(lm, text, chosen, max_tokens, sampling)
                write(path, found, dtype)
                used, n_tokens = used + path.stat().st_size, n_tokens + len(found.tokens)
            shown.update()
    return Captured(folder, len(texts), n_tokens, used, True)


def read_layers(lm: "LM", strategy: Strategy) -> tuple[int, ...]:
    """Return the layers that the draft of a strategy reads; L, the output of the last norm, for an MTP head."""
    if isinstance(strategy.drafter, MTP):
        return (lm.model.config.n_layers,)
    lm.prepare(strategy)
    config = getattr(lm.model.attachments.get(strategy.drafter), "config", None)
    found: tuple[int, ...] = getattr(config, "target_layer_ids", ())
    if not found:
        raise RequestError(f"layers: {strategy!r:.80} reads no hidden states; take dflash, eagle3 or mtp, or name layers")
    return tuple(sorted(found))


def _layers(lm: "LM", layers: int | Sequence[int] | str | Strategy | Drafter) -> tuple[int, ...]:
    if isinstance(layers, int):
        return (layers,)
    if isinstance(layers, Sequence) and not isinstance(layers, str):
        return tuple(sorted(set(layers)))
    return read_layers(lm, Strategy.of(layers))


def texts_of(lm: "LM", prompts: Prompt | Sequence[Prompt | Case] | Path) -> Iterator[Recorded]:
    """Yield prompts, or the texts of a folder of records, without features."""
    if isinstance(prompts, Path):
        for record in recorded(prompts):
            yield record._replace(features={})
        return
    for case in cases_of(prompts):
        settings = case.options.get("chat_template_kwargs") or {}
        ids = np.array(lm.encode(case.prompt, tools=case.options.get("tools"), **settings), np.int32)
        yield Recorded(ids, len(ids), {}, case.name, case.category)


def _known(path: Path, wanted: Recorded) -> Recorded:
    """Return the record of a file that was written earlier, for the same text and settings."""
    found = read(path)
    same = np.array_equal(found.tokens[: len(wanted.tokens)], wanted.tokens) and found.n_prompt == wanted.n_prompt
    if not same or found.settings != wanted.settings:
        raise RequestError(f"{path}: was recorded with another {'setting' if same else 'text'}; use another folder")
    return found


def _recorded(lm: "LM", text: Recorded, layers: tuple[int, ...], max_tokens: int, sampling: Values) -> Recorded:
    """Return a text, continued by the target, with its features."""
    tokens = text.tokens.tolist()
    if max_tokens:
        settings = {"temperature": 0, "seed": 0, "prefix_cache": False, **sampling}
        tokens += lm.generate(tokens, recover=(), max_tokens=max_tokens, **settings).tokens
    return text._replace(tokens=np.array(tokens, np.int32), features=lm.hidden_states(tokens, layers))
