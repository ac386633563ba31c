"""Strategies side by side on the same prompts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode import registry
from dflash.decode.drafters import Strategy
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.sampling.params import check_whole
from dflash.errors import RequestError
from dflash.evaluation.comparison import Comparison, Row
from dflash.evaluation.prompt_sets import Case
from dflash.generation.prompts import Prompt, split

if TYPE_CHECKING:
    from dflash.generation.result import Generation
    from dflash.lm import LM

WARM_UP = 8
"""Tokens that each strategy writes before anything counts; on a GPU a whole text, since graphs are captured on the way."""

_NOT_TAKEN = {"strategy", "recover", "stream", "dump"}
"""What `LM.generate` takes beside sampling, and strategies side by side can't."""

Strategies = Sequence[str | Strategy | Drafter] | Mapping[str, str | Strategy | Drafter]


def compare(
    lm: "LM",
    prompts: Prompt | Sequence[Prompt | Case],
    strategies: Strategies,
    *,
    draft: str | None = None,
    draft_device: str | None = None,
    draft_vocab: int | None = None,
    max_tokens: int = 128,
    repeat: int = 1,
    progress: bool = False,
    **sampling: Any,
) -> Comparison:
    """Write the same texts with several strategies and tell what each took.

    One text at a time; the strategies take turns at every prompt, and who begins changes from prompt to prompt, so that
    whatever else the machine does meets all alike. Time counts from the first step that wrote to the last token; reading the
    prompt is told apart. Before anything counts, each strategy writes a prompt of each kind of sampling.

    Parameters
    ----------
    lm : LM
        Nobody else should use it meanwhile.
    prompts : prompt, or sequence of prompts and `Case`
        As `LM.generate` takes them, or from `load_prompts`. Where a case has several turns, each is a text of its own; the
        answers between them are those of the first strategy.
    strategies : sequence or mapping
        Names as ``"ddtree:22"`` (see `dflash.decode.registry`), strategies or drafters, or names of your own for these. The
        others are held against the first.
    draft : str, optional
        The draft model of strategies that are given by name, or the file of their MTP head where none has a draft.
    draft_device : str, optional
        Where it runs, ``"cpu"`` or ``"cuda"``; beside the target if None.
    draft_vocab : int, optional
        Tokens that it, or the MTP head, guesses from, as of `DFlash`.
    max_tokens : int
        Limit of each text.
    repeat : int
        How often everything is written; rates are then means with a deviation.
    progress : bool
        Draw a bar on stderr.
    **sampling
        Fields of `Sampling`, before those of a case. The seed is 0 unless one is given, since another seed is another text.

    Returns
    -------
    Comparison

    Raises
    ------
    RequestError
        If there is nothing to compare, or an argument is wrong, or says something of a draft that no strategy takes that is
        given by name.
    DFlashError
        What a strategy fails with.
    """
    for name in _NOT_TAKEN.intersection(sampling):
        raise RequestError(
            f"compare: takes no {name}: strategies alone differ, and recoveries belong to them, as Plain() | LoopGuard()"
        )
    check_whole("max_tokens", max_tokens, 1)
    check_whole("repeat", repeat, 1)
    told = {"draft_device": draft_device, "draft_vocab": draft_vocab}
    chosen = named(strategies, draft, {name: value for name, value in told.items() if value is not None})
    cases = list(_cases(prompts))
    if not chosen or not cases:
        raise RequestError(f"compare: {len(chosen)} strategies, {len(cases)} prompts: wanted at least 1 each")

    for strategy in chosen.values():
        lm.prepare(strategy)

    def write(case: Case, strategy: Strategy, n: int) -> "Generation":
        settings = {"seed": 0, **case.sampling, **sampling}
        return lm.generate(case.prompt, strategy=strategy, recover=(), max_tokens=n, **case.options, **settings)

    n = max_tokens if lm.model.device == "cuda" else min(WARM_UP, max_tokens)
    for case in {repr(case.sampling): case for case in reversed(cases)}.values():
        for strategy in chosen.values():
            write(case, strategy, n)
    first = next(iter(chosen.values()))
    cases = [turn for case in cases for turn in _turns(case, lambda case: write(case, first, max_tokens).text)]
    rows = {name: Row(name, strategy) for name, strategy in chosen.items()}
    truth: dict[int, list[int]] = {}
    with _bar(progress, len(chosen) * len(cases) * repeat) as bar:
        for round_ in range(repeat):
            for i, case in enumerate(cases):
                for name in _rotated(list(chosen), i + round_):
                    generation = write(case, chosen[name], max_tokens)
                    rows[name].add(round_, generation)
                    bar.update()
                for row in rows.values():
                    own = row.generations[-1].tokens
                    wanted = truth.setdefault(i, own)
                    if own != wanted:
                        row.differs.append((case.name, _parting(own, wanted)))
    return Comparison(list(rows.values()), [case.name for case in cases], max_tokens, dict(sampling), repr(lm))


def named(strategies: Strategies, draft: str | None, settings: dict[str, Any]) -> dict[str, Strategy]:
    """Make strategies, each with what to call it, of what `compare` takes and what it is told of their draft."""
    if not isinstance(strategies, Iterable) or isinstance(strategies, str):
        raise RequestError(f"compare: strategies must be a sequence, got {strategies!r}; wanted [{strategies!r}]")
    values = list(strategies.values() if isinstance(strategies, Mapping) else strategies)
    registry.check_draft_options([value for value in values if isinstance(value, str)], draft=draft, **settings)
    if isinstance(strategies, Mapping):
        return {name: _made(value, draft, settings) for name, value in strategies.items()}
    found: dict[str, Strategy] = {}
    for value in values:
        one = _made(value, draft, settings)
        name = value if isinstance(value, str) else " | ".join([registry.name(one), *map(repr, one.recoveries)])
        if name in found:
            raise RequestError(f"compare: {name} is there twice; a mapping gives names of your own")
        found[name] = one
    return found


def _made(value: str | Strategy | Drafter, draft: str | None, settings: dict[str, Any]) -> Strategy:
    return Strategy.named(value, draft, **settings) if isinstance(value, str) else Strategy.of(value)


def _cases(prompts: Prompt | Sequence[Prompt | Case]) -> Iterator[Case]:
    if isinstance(prompts, Sequence) and not isinstance(prompts, str) and any(isinstance(one, Case) for one in prompts):
        several: Sequence[Any] = prompts
    else:
        several, _ = split(prompts)
    for number, one in enumerate(several, 1):
        yield one if isinstance(one, Case) else Case(str(number), one)


def _turns(case: Case, answer: Any) -> Iterator[Case]:
    """The case itself, then one for each later turn, with the answers in between."""
    yield case
    for number, text in enumerate(case.later, 2):
        said = {"role": "assistant", "content": answer(case)}
        messages = [*case.prompt, said, {"role": "user", "content": text}]
        case = case._replace(prompt=messages, name=f"{case.name.split(' turn ')[0]} turn {number}")
        yield case


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _parting(own: Sequence[int], wanted: Sequence[int]) -> int:
    """The first token in which two texts differ."""
    pairs = enumerate(zip(own, wanted, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(own), len(wanted)))


def _bar(shown: bool, total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="texts", unit="", leave=False, disable=not shown)
