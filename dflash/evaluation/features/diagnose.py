"""The draft doctor: which features of a target keep a draft from being accepted?"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafters import Strategy
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.sampling.params import check_whole
from dflash.decode.shared_prefix import n_shared
from dflash.errors import RequestError
from dflash.evaluation.environment import environment
from dflash.evaluation.features.capture import read_layers, texts_of
from dflash.evaluation.features.diagnosis import Diagnosis, LayerFinding
from dflash.evaluation.features.recorded import recorded
from dflash.evaluation.features.swapped import Swapped
from dflash.evaluation.measuring import bar
from dflash.evaluation.prompt_sets import Case, load_prompts
from dflash.evaluation.row import Row
from dflash.generation.prompts import Prompt

if TYPE_CHECKING:
    from dflash.generation.result import Generation
    from dflash.lm import LM

PROMPTS = ("code:2", "prose:2", "agent:2", "copy:2")
"""Prompt sets of a diagnosis without prompts."""

Features: TypeAlias = Mapping[int, NDArray[np.floating]]


class _Text(NamedTuple):
    """A text that the target writes, and the reference's features at each of its tokens."""

    prompt: list[int]
    output: list[int]
    reference: Features


def diagnose(
    lm: "LM",
    draft: str | Strategy | Drafter,
    reference: "LM | str | os.PathLike[str]",
    prompts: Prompt | Sequence[Prompt | Case] | None = None,
    *,
    max_tokens: int = 64,
    progress: bool = False,
) -> Diagnosis:
    """Compare the features that a draft reads with those of a reference, layer by layer, and measure what each layer costs.

    A draft that was trained on one target loses acceptance on another quantization of it, if a layer that it reads has
    changed. The target writes texts greedily; for each layer, the draft then reads the reference's features of that layer in
    place of the target's, while it drafts the same tokens. Takes as many greedy generations of each text as the draft reads
    layers, and two more.

    Parameters
    ----------
    lm : LM
        Target.
    draft : str, Strategy or Drafter
        Strategy whose draft reads hidden states, as ``"dflash"``, ``"dflash:7"`` or ``"mtp:3"``.
    reference : LM, str or path
        Another file of the same model, loaded beside it; or a folder of `capture`, recorded with output (``max_tokens``),
        greedily. Of a recorded text the tokens count up to the first that this target writes differently: record both on
        the same texts (`capture` with a folder as prompts) to compare all.
    prompts : prompt, or sequence of prompts and `Case`, optional
        As for `compare`; of several turns the first. Two of each bundled set if None. Not with a folder.
    max_tokens : int
        Maximum number of output tokens of each text; those recorded, with a folder.
    progress : bool
        Draw a progress bar on stderr.

    Returns
    -------
    Diagnosis
        The layer whose features change tokens per step most stands first.

    Raises
    ------
    RequestError
        If the draft reads no hidden states, or the reference is of another model or has recorded other layers.
    NotFound, FormatError
        If the folder holds no records, or damaged ones.
    """
    check_whole("max_tokens", max_tokens, 2)
    strategy = Strategy.of(draft)
    layers = read_layers(lm, strategy)
    if isinstance(reference, str | os.PathLike):
        if prompts is not None:
            raise RequestError("prompts: the texts are those of the recorded reference; leave prompts out")
        texts = list(_of_records(lm, strategy, Path(reference), layers))
    else:
        given = [case for name in PROMPTS for case in load_prompts(name)] if prompts is None else prompts
        _check_same_model(lm, reference)
        texts = [_of_model(lm, strategy, reference, text.tokens.tolist(), max_tokens) for text in texts_of(lm, given)]
    if not texts:
        raise RequestError("reference: no recorded text has two output tokens that this target writes, too")
    swaps = {"own": (), **{str(layer): (layer,) for layer in layers}, "all": layers}
    rows = {name: Row(name, strategy) for name in swaps}
    with bar(progress, len(texts) * len(rows), "texts") as shown:
        for text in texts:
            for name, swapped in swaps.items():
                features = {layer: text.reference[layer] for layer in swapped}
                reading = Strategy(Swapped(strategy.drafter, features), strategy.shape)
                rows[name].add(0, _write(lm, text.prompt, reading, len(text.output)))
                shown.update()
    own = rows["own"].tokens_per_step
    likeness = _likeness(lm, texts, layers)
    findings = [
        LayerFinding(layer, *likeness[layer], found, found - own)
        for layer in layers
        for found in [rows[str(layer)].tokens_per_step]
    ]
    findings.sort(key=lambda one: (-abs(one.change), one.cosine))
    n_tokens = sum(len(text.prompt) + len(text.output) for text in texts)
    return Diagnosis(
        findings, own, rows["all"].tokens_per_step, len(texts), n_tokens, repr(strategy), repr(lm), str(reference),
        environment(lm),
    )  # fmt: skip


def _write(lm: "LM", prompt: list[int], strategy: Strategy, n: int) -> "Generation":
    return lm.generate(prompt, strategy=strategy, recover=(), max_tokens=n, temperature=0, seed=0, prefix_cache=False)


def _check_same_model(lm: "LM", reference: "LM") -> None:
    ours, theirs = lm.model.config, reference.model.config
    if (ours.n_layers, ours.width, ours.n_vocab) != (theirs.n_layers, theirs.width, theirs.n_vocab):
        raise RequestError(f"reference: {reference!r:.200} is another model than {lm!r:.200}")


def _of_model(lm: "LM", strategy: Strategy, reference: "LM", prompt: list[int], max_tokens: int) -> _Text:
    output = _write(lm, prompt, strategy, max_tokens).tokens
    return _Text(prompt, output, reference.hidden_states(prompt + output, read_layers(lm, strategy)))


def _of_records(lm: "LM", strategy: Strategy, folder: Path, layers: tuple[int, ...]) -> Iterator[_Text]:
    for record in recorded(folder):
        lacking = [layer for layer in layers if layer not in record.features]
        if lacking:
            raise RequestError(f"reference: {folder} lacks layer {lacking[0]}; it reads {', '.join(map(str, layers))}")
        if record.features[layers[0]].shape[1] != lm.model.config.width:
            raise RequestError(f"reference: {folder} was recorded with a model of another width")
        prompt, output = (part.tolist() for part in np.split(record.tokens, [record.n_prompt]))
        if len(output) > 1:
            n = n_shared(_write(lm, prompt, strategy, len(output)).tokens, output)
            if n > 1:
                yield _Text(prompt, output[:n], record.features)


def _likeness(lm: "LM", texts: Sequence[_Text], layers: tuple[int, ...]) -> dict[int, tuple[float, float]]:
    """Return the mean cosine and the mean ratio of norms of each layer, over the tokens of all texts."""
    sums = {layer: np.zeros(3) for layer in layers}
    for text in texts:
        own = lm.hidden_states(text.prompt + text.output, layers)
        for layer in layers:
            ours = own[layer].astype(np.float64)
            theirs = text.reference[layer][: len(ours)].astype(np.float64)
            norms = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
            cosines = (ours * theirs).sum(1) / (norms[0] * norms[1])
            sums[layer] += cosines.sum(), (norms[0] / norms[1]).sum(), len(ours)
    return {layer: (cosine / n, ratio / n) for layer, (cosine, ratio, n) in sums.items()}
