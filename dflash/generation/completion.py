"""A session's ids as text: what a client sees of the one loop."""

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakMethod

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session, Step, TokenLogprobs
from dflash.generation.recovery.special_tokens import special_tokens_of
from dflash.model.text.detokenizer import TextStream
from dflash.model.text.tokenizer import Tokenizer


class Delta(NamedTuple):
    """What a step added to an answer.

    Parameters
    ----------
    text : str
        New text that nothing can change any more; often empty.
    logprobs : sequence of TokenLogprobs
        Of the tokens that `text` completes, where the request wanted them; the end token has none.
    step : Step
        What the loop did.
    """

    text: str
    logprobs: Sequence[TokenLogprobs]
    step: Step


class Answer:
    """One text on its way.

    Parameters
    ----------
    tokenizer : Tokenizer
        The model's.
    prompt : sequence of int or PromptIds
        Ids to continue; answers to the same prompt may share one `PromptIds`.
    sampling : Sampling
        How tokens are picked.
    strategy : Strategy
        How tokens are guessed, and what watches over that.
    max_tokens : int, optional
        Limit of new tokens; None goes on until the context is full.
    stop : sequence of str
        The text ends before the first of these; before the strategy's `MinTokens`, if there are any, they do not count.

    Attributes
    ----------
    session : Session
        The ids behind the text.
    text : str
        All text so far.
    pieces : list of str
        What each step added to it.

    Raises
    ------
    RequestError
        If the prompt is empty or an argument is out of range.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] | PromptIds,
        *,
        sampling: Sampling,
        strategy: Strategy | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        observe = WeakMethod(self._observe)  # the answer holds the session: both are to be gone when nobody wants them

        def observer(session: Session, tokens: list[int]) -> int | None:
            return observe()(session, tokens)

        self.session = Session(
            prompt,
            sampling=sampling,
            strategy=Strategy.of(strategy),
            max_tokens=max_tokens,
            eos=tokenizer.eos_ids,
            observer=observer,
            special_tokens=special_tokens_of(tokenizer),
        )
        self.pieces: list[str] = []
        least = max((part.n for part in self.session.strategy.recoveries if isinstance(part, MinTokens)), default=0)
        self._stream = TextStream(tokenizer, stop=stop, skip_special=True, min_tokens=least)
        self._ends = frozenset(tokenizer.eos_ids)
        self._new: list[str] = []
        self._n_told = 0

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.pieces)

    def delta(self, step: Step) -> Delta:
        """Tell what `step`, the session's latest, added; called once a step, in order."""
        if step.finish is not None:
            self._new.append(self._stream.finish())
        text = "".join(self._new)
        self._new.clear()
        self.pieces.append(text)
        logprobs = self.session.logprobs[self._n_told : self._stream.n_tokens]
        self._n_told += len(logprobs)
        return Delta(text, logprobs, step)

    def _observe(self, _: Session, tokens: list[int]) -> int | None:
        """Turn new ids into text, one by one, so that any way of decoding is cut at the same token."""
        for index, token in enumerate(tokens):
            if token in self._ends:
                break
            self._new.append(self._stream.push((token,)))
            if self._stream.stopped is not None:
                return index + 1
        return None
