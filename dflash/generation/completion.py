"""A request in progress: a decoding session and its detokenizer."""

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
    """Text and log-probabilities that one step added to a completion.

    Parameters
    ----------
    text : str
        New text, final; often empty.
    logprobs : sequence of TokenLogprobs
        Log-probabilities of the tokens that `text` completes, if requested; the end token has none.
    step : Step
        Record of the step.
    """

    text: str
    logprobs: Sequence[TokenLogprobs]
    step: Step


class Completion:
    """A completion in progress.

    Parameters
    ----------
    tokenizer : Tokenizer
        Tokenizer of the model.
    prompt : sequence of int or PromptIds
        Prompt token ids; completions of the same prompt may share one `PromptIds`.
    sampling : Sampling
        Sampling parameters.
    strategy : Strategy
        Drafter, draft shape and recoveries.
    max_tokens : int, optional
        Maximum number of output tokens; None is the rest of the context.
    stop : sequence of str
        Stop strings: the text ends before the first one. They are ignored until the strategy's `MinTokens` is reached.

    Attributes
    ----------
    session : Session
        Decoding session that produces the token ids.
    text : str
        Text so far.
    pieces : list of str
        Text that each step added.

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
        observe = WeakMethod(self._observe)  # weak: no reference cycle between the completion and its session

        def observer(session: Session, tokens: list[int]) -> int | None:
            observed = observe()
            assert observed is not None, "the completion outlives its session's steps"
            return observed(session, tokens)

        self.session = Session(
            prompt,
            sampling=sampling,
            strategy=Strategy.of(strategy),
            max_tokens=max_tokens,
            eos=tokenizer.eos_ids,
            observer=observer,
            special_tokens=special_tokens_of(tokenizer),
            detokenize=tokenizer.decode,
        )
        self.pieces: list[str] = []
        least = max((part.n for part in self.session.strategy.recoveries if isinstance(part, MinTokens)), default=0)
        self._stream = TextStream(tokenizer, stop=stop, skip_special=True, min_tokens=least)
        self._ends = frozenset(tokenizer.eos_ids)
        self._new: list[str] = []
        self._n_reported = 0

    @property
    def text(self) -> str:
        """Text so far."""
        return "".join(self.pieces)

    def delta(self, step: Step) -> Delta:
        """Return what `step` added. Called once per step, in order, with the session's latest step."""
        if step.finish is not None:
            self._new.append(self._stream.finish())
        text = "".join(self._new)
        self._new.clear()
        self.pieces.append(text)
        logprobs = self.session.logprobs[self._n_reported : self._stream.n_tokens]
        self._n_reported += len(logprobs)
        return Delta(text, logprobs, step)

    def _observe(self, _: Session, tokens: list[int]) -> int | None:
        """Detokenize new ids one by one, so that a stop string ends every strategy at the same token."""
        for index, token in enumerate(tokens):
            if token in self._ends:
                break
            self._new.append(self._stream.push((token,)))
            if self._stream.stopped is not None:
                return index + 1
        return None
