"""Compare decoding strategies on the same prompts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from dflash.decode import registry
from dflash.decode.drafters import Strategy
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.sampling.params import check_whole
from dflash.decode.shared_prefix import n_shared
from dflash.decode.verifiers import COUPLED
from dflash.errors import RequestError
from dflash.evaluation.comparison import Comparison
from dflash.evaluation.measuring import bar, n_warm_up
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.row import Row
from dflash.generation.prompts import Prompt, split

if TYPE_CHECKING:
    from dflash.generation.result import Generation
    from dflash.lm import LM

_NOT_TAKEN = {"strategy", "recover", "stream", "dump"}
"""Arguments of `LM.generate` that `compare` refuses."""

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
    """Generate the same completions with several strategies and measure each.

    Requests run one at a time, without the prefix cache. The strategies take turns at every prompt, and their order rotates
    from prompt to prompt, so that other load on the machine affects all alike. The measured time is that from the first
    output token to the last; prefill is reported separately. Before that, each strategy runs one warm-up prompt of each kind
    of sampling.

    Parameters
    ----------
    lm : LM
        Model to run. Other requests at the same time distort the measurement.
    prompts : prompt, or sequence of prompts and `Case`
        Prompts as for `LM.generate`, or cases from `load_prompts`. Each turn of a case is a request of its own; the
        assistant messages between the turns are those of the first strategy.
    strategies : sequence or mapping
        Names as ``"ddtree:22"`` (see `dflash.decode.registry`), strategies or drafters; a mapping gives them names of your
        own. The first one is the baseline.
    draft : str, optional
        Draft model, or file of the MTP head, for strategies given by name.
    draft_device : str, optional
        Device of the draft model: ``"cpu"``, ``"cuda"``, or a GPU as ``"cuda:1"``; that of the target if None.
    draft_vocab : int, optional
        Size of the draft vocabulary, as in `DFlash` and `MTP`.
    max_tokens : int
        Maximum number of output tokens of each request.
    repeat : int
        Number of measured rounds; rates are means over the rounds, with standard deviation.
    progress : bool
        Draw a progress bar on stderr.
    **sampling
        Fields of `Sampling`; they override those of a case. The default seed is 0, so that all strategies give one text.

    Raises
    ------
    RequestError
        If there are no strategies or prompts, an argument is out of range, or a draft argument is given that none of the
        named strategies uses.
    DFlashError
        If a strategy fails; the error is that of the strategy.
    """
    for name in _NOT_TAKEN.intersection(sampling):
        raise RequestError(
            f"compare: takes no {name}; add a recovery to the strategy it belongs to, as in Plain() | LoopGuard()"
        )
    check_whole("max_tokens", max_tokens, 1)
    check_whole("repeat", repeat, 1)
    draft_options = {"draft_device": draft_device, "draft_vocab": draft_vocab}
    chosen = named(strategies, draft, {name: value for name, value in draft_options.items() if value is not None})
    cases = list(cases_of(prompts))
    if not chosen or not cases:
        raise RequestError(f"compare: {len(chosen)} strategies, {len(cases)} prompts: need at least 1 of each")

    for strategy in chosen.values():
        lm.prepare(strategy)

    def write(case: Case, strategy: Strategy, n: int) -> "Generation":
        settings = {"seed": 0, **case.sampling, **sampling}
        settings = {"prefix_cache": False, **settings}
        return lm.generate(case.prompt, strategy=strategy, recover=(), max_tokens=n, **case.options, **settings)

    for case in {repr(case.sampling): case for case in reversed(cases)}.values():
        for strategy in chosen.values():
            write(case, strategy, n_warm_up(lm, max_tokens))
    first = next(iter(chosen.values()))
    cases = [turn for case in cases for turn in _turns(case, lambda case: write(case, first, max_tokens).text)]
    rows = {name: Row(name, strategy) for name, strategy in chosen.items()}
    truth: dict[int, list[int]] = {}
    with bar(progress, len(chosen) * len(cases) * repeat, "texts") as shown:
        for round_ in range(repeat):
            for i, case in enumerate(cases):
                for name in _rotated(list(chosen), i + round_):
                    generation = write(case, chosen[name], max_tokens)
                    rows[name].add(round_, generation)
                    shown.update()
                for row in rows.values():
                    if not row.is_judged(row.generations[-1]):
                        continue
                    own = row.generations[-1].tokens
                    wanted = truth.setdefault(i, own)
                    if own != wanted:
                        row.differs.append((case.name, n_shared(own, wanted)))
    names, categories = [case.name for case in cases], [case.category for case in cases]
    return Comparison(list(rows.values()), names, max_tokens, dict(sampling), repr(lm), categories)


def named(strategies: Strategies, draft: str | None, settings: dict[str, Any]) -> dict[str, Strategy]:
    """Return the strategies of `compare` by display name; `settings` are the draft options of those given by name."""
    if not isinstance(strategies, Iterable) or isinstance(strategies, str):
        raise RequestError(f"compare: strategies must be a sequence, got {strategies!r}; write [{strategies!r}]")
    values = list(strategies.values() if isinstance(strategies, Mapping) else strategies)
    registry.check_draft_options([value for value in values if isinstance(value, str)], draft=draft, **settings)
    if isinstance(strategies, Mapping):
        return {name: _made(value, draft, settings) for name, value in strategies.items()}
    found: dict[str, Strategy] = {}
    for value in values:
        one = _made(value, draft, settings)
        bare = replace(one, recoveries=(), verifier=COUPLED)
        name = value if isinstance(value, str) else " | ".join([registry.name(bare), *map(repr, one.recoveries)])
        name += f", {one.verifier}" if one.verifier != COUPLED else ""
        if name in found:
            raise RequestError(f"compare: {name} is given twice; use a mapping to name the strategies yourself")
        found[name] = one
    return found


def _made(value: str | Strategy | Drafter, draft: str | None, settings: dict[str, Any]) -> Strategy:
    return Strategy.named(value, draft, **settings) if isinstance(value, str) else Strategy.of(value)


def cases_of(prompts: Prompt | Sequence[Prompt | Case]) -> Iterator[Case]:
    """Yield a case for each prompt; those without a name are numbered."""
    if isinstance(prompts, Sequence) and not isinstance(prompts, str) and any(isinstance(one, Case) for one in prompts):
        several: Sequence[Any] = prompts
    else:
        several, _ = split(cast("Prompt | Sequence[Prompt]", prompts))
    for number, one in enumerate(several, 1):
        yield one if isinstance(one, Case) else Case(str(number), one)


def _turns(case: Case, answer: Callable[[Case], str]) -> Iterator[Case]:
    """Yield the case, then one case for each later turn, with the assistant messages in between."""
    yield case
    for number, text in enumerate(case.later, 2):
        reply = {"role": "assistant", "content": answer(case)}
        messages = [*case.prompt, reply, {"role": "user", "content": text}]
        case = case._replace(prompt=messages, name=f"{case.name.split(' turn ')[0]} turn {number}")
        yield case


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]
