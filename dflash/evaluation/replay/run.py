"""Replay of a session: each prompt is answered without the prefix cache and with it, in turns."""

from collections.abc import Sequence
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from dflash.decode.drafters import Strategy
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.sampling.params import check_whole
from dflash.errors import DFlashError, EngineFailed, RequestError
from dflash.evaluation.measuring import bar, n_warm_up
from dflash.evaluation.replay.replies import Reply, TurnReplies
from dflash.evaluation.replay.report import Replay
from dflash.evaluation.replay.turn import Turn
from dflash.generation.parsers import OutputFormat, ParsedOutput
from dflash.generation.prompts import encode

if TYPE_CHECKING:
    from dflash.generation.result import Generation
    from dflash.lm import LM

_PROMPT_END = 8
"""Prompt tokens that the parser of an answer sees."""


def replay(
    lm: "LM",
    turns: Sequence[Turn],
    *,
    strategy: Strategy | Drafter | str | None = None,
    max_tokens: int = 32,
    repeat: int = 1,
    progress: bool = False,
    **sampling: Any,
) -> Replay:
    """Send each prompt of a session to a model, cold and warm.

    A cold request does without the prefix cache; a warm one begins with what earlier warm requests of the round have left
    in it. Cold and warm requests take turns, and which comes first alternates, so that other load on the machine affects
    both alike. The cache is cleared before each round. Requests run one at a time.

    lm: model with a chat template, loaded with ``prefix_cache=True`` and at least two sequences. Other requests at the same
        time distort the measurement.
    turns: from `load_session` or `synthetic`. The recorded answers stand in the prompts, those of the model do not.
    strategy: as for `LM.generate`; recoveries count only as a part of it.
    **sampling: fields of `Sampling`. The default is greedy with seed 0.
    """
    check_whole("max_tokens", max_tokens, 1)
    check_whole("repeat", repeat, 1)
    if lm.prefix_cache is None:
        raise RequestError("replay: the model has no prefix cache: load it with prefix_cache=True")
    if not turns:
        raise RequestError("replay: got no turns, needs at least 1")
    chosen = Strategy.of(strategy)
    lm.prepare(chosen)
    settings = {"strategy": chosen, "recover": (), "seed": 0, **sampling}
    results = [TurnReplies(turn.name) for turn in turns]
    prompts = [_prompt_ids(lm, turn, result) for turn, result in zip(turns, results, strict=True)]
    first = next((ids for ids in prompts if ids), None)
    if first is not None:
        lm.generate(first, max_tokens=n_warm_up(lm, max_tokens), prefix_cache=False, **settings)
    with bar(progress, 2 * len(turns) * repeat, "requests") as shown:
        for round_ in range(repeat):
            lm.call(lm.prefix_cache.clear)
            for i, (turn, ids, result) in enumerate(zip(turns, prompts, results, strict=True)):
                for warm in (False, True) if (i + round_) % 2 == 0 else (True, False):
                    if ids:
                        _answer(lm, turn, ids, result, prefix_cache=warm, max_tokens=max_tokens, **settings)
                    shown.update()
    return Replay(results, chosen, max_tokens, dict(sampling), repr(lm))


def _prompt_ids(lm: "LM", turn: Turn, result: TurnReplies) -> list[int]:
    """Return the token ids of a turn's prompt; if the template or the context refuses it, note the error and return none."""
    try:
        model = lm.tokenizer, lm.template
        return encode(turn.messages, *model, tools=turn.tools, settings=turn.settings, max_tokens=lm.context - 1)
    except RequestError as error:
        result.errors.append(str(error))
        return []


def _answer(lm: "LM", turn: Turn, ids: list[int], result: TurnReplies, *, prefix_cache: bool, **settings: Any) -> None:
    began, used = perf_counter(), process_time()
    try:
        generation = lm.generate(ids, prefix_cache=prefix_cache, **settings)
    except EngineFailed:
        raise
    except DFlashError as error:
        result.errors.append(f"{'warm' if prefix_cache else 'cold'}: {error}")
        return
    seconds, processor = perf_counter() - began, process_time() - used
    timings, usage = generation.timings, generation.usage
    reply = Reply(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        first_token=timings.queued + timings.first_token,
        seconds=seconds,
        processor=processor,
        tokens=generation.tokens,
        tokens_per_step=generation.tokens_per_step,
        finish_reason=generation.finish_reason,
        empty=_is_empty(lm, turn, ids, generation),
    )
    (result.warm if prefix_cache else result.cold).append(reply)


def _is_empty(lm: "LM", turn: Turn, ids: list[int], generation: "Generation") -> bool:
    """Return True if the model has ended its answer without content or a tool call."""
    if generation.finish_reason != "stop":
        return False
    output_format = OutputFormat.of(lm.template, turn.tools)
    if output_format is None:
        return not generation.text.strip()
    parser = output_format.parser(lm.tokenizer.decode(ids[-_PROMPT_END:]))
    output = ParsedOutput.of(parser.push(generation.text) + parser.finish())
    return not output.content.strip() and not output.tool_calls
