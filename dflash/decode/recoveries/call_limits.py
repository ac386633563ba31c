"""Detector of tool calls that do not end, that repeat, or that are followed by too much text."""

_MAX_CALLS = 256
"""Different tool calls that are remembered; the one that was made longest ago is forgotten first."""


class CallLimits:
    """Follows the tool calls of an output, in constant time for each token.

    Parameters
    ----------
    call : (int, int)
        Tokens that open and close a tool call.
    think : (int, int) or None
        Tokens that open and close reasoning.
    body : int
        Number of tokens to report in a call that is still open; 0 for no bound.
    calls : int
        Number of equal calls to report, whether or not others lie between; 0 for no bound.
    prose : int
        Number of tokens to report after a call and before the next, without reasoning; 0 for no bound.
    """

    def __init__(self, call: tuple[int, int], think: tuple[int, int] | None, body: int, calls: int, prose: int) -> None:
        self._call, self._think = call, think or (None, None)
        self._body, self._calls, self._prose = body, calls, prose
        self._n_body: int | None = None
        self._n_prose: int | None = None
        self._thinks = False
        self._key = 0
        self._counts: dict[int, int] = {}

    def feed(self, token: int) -> str:
        """Add a token; return the limit that it reaches, or an empty string."""
        if token == self._call[0]:
            self._n_body, self._n_prose, self._key = 0, None, 0
        elif token == self._call[1]:
            is_open, self._n_body, self._n_prose = self._n_body is not None, None, 0
            return self._end_call() if is_open else ""
        elif token in self._think:
            self._thinks = token == self._think[0]
        elif self._n_body is not None:
            self._key = hash((self._key, token))
            self._n_body += 1
            if self._body and self._n_body >= self._body:
                return f"a tool call was still open after {self._n_body} tokens"
        elif self._n_prose is not None and not self._thinks:
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
