"""Detector of tool calls that do not end, that repeat, or that are followed by too much text."""

from dflash.decode.output_part import OutputPart

_MAX_CALLS = 256
"""Different tool calls that are remembered; the one that was made longest ago is forgotten first."""

_CALL = OutputPart.OPENING, OutputPart.CALL


class CallLimits:
    """Follows the tool calls of an output, in constant time for each token.

    body: number of tokens to report in a call that is still open; 0 for no bound.
    calls: number of equal calls to report, whether or not others lie between; 0 for no bound.
    prose: number of tokens to report after a call and before the next, without reasoning; 0 for no bound.
    """

    def __init__(self, body: int, calls: int, prose: int) -> None:
        self._body, self._calls, self._prose = body, calls, prose
        self._n_body = self._key = 0
        self._n_prose: int | None = None
        self._counts: dict[int, int] = {}

    def feed(self, token: int, before: OutputPart, after: OutputPart) -> str:
        """Add a token between two parts of the output; return the limit that it reaches, or an empty string."""
        if after in _CALL and before not in _CALL:
            self._n_body = self._key = 0
        elif after in _CALL:
            self._key = hash((self._key, token))
            self._n_body += 1
            if self._body and self._n_body >= self._body:
                return f"a tool call was still open after {self._n_body} tokens"
        elif before is OutputPart.CALL:
            self._n_prose = 0
            return self._end_call()
        elif self._n_prose is not None and before is after is OutputPart.CONTENT:
            self._n_prose += 1
            if self._prose and self._n_prose >= self._prose:
                return f"{self._n_prose} tokens of text followed a tool call"
        return ""

    def _end_call(self) -> str:
        n = self._counts.pop(self._key, 0) + 1
        self._counts[self._key] = n
        if len(self._counts) > _MAX_CALLS:
            del self._counts[next(iter(self._counts))]
        return f"the same tool call was made {n} times" if self._calls and n >= self._calls else ""
