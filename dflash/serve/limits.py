"""Bounds on what one request may ask for, checked before anything is copied, built or tokenized.

A request beyond a bound is refused with a sentence that names the field, the value and the bound. Bounds of strategy names
stand in `dflash.decode.registry`, since they hold on the command line, too.
"""

from dataclasses import dataclass

MAX_DEPTH = 64
"""Levels of arrays and objects in a body; schemas of real tools have up to about 20."""

MAX_DIGITS = 512
"""Characters of one number in a body; longer integers take quadratic time to convert."""

MAX_CHOICES = 64
"""Choices (`n`) of one prompt, and prompts of one completion request; OpenAI allows 128 choices."""

MAX_SEQUENCES = 128
"""Choices times prompts of one request: each is a sequence of its own in the queue."""

MAX_STOPS = 16
"""Stop strings; OpenAI allows 4."""

MAX_STOP_LENGTH = 256
"""Characters of one stop string: the search table has an entry for each."""

MAX_BIASES = 1024
"""Entries of `logit_bias`, as in OpenAI's API."""

MAX_RECOVERIES = 8
"""Recoveries of one request: each of them checks every step in the engine's thread."""

MAX_RECOVERY_NAME = 200
"""Characters of one recovery's name, of which the name of a tool may be a part."""

MAX_PREPARING = 256
"""Requests that are parsed and tokenized at a time, counted with those that wait for it; more are refused with 503."""

MAX_WAITING = 256
"""Sequences that wait to start, over all requests: minutes of work for the default 8 at a time. More get 503."""

MAX_CONNECTIONS = 1024
"""Open connections, idle ones included; more are refused with 503."""

KEEP_ALIVE_SECONDS = 75
"""Time that an idle connection stays open: longer than clients keep theirs, so that none is closed under a new request."""

MAX_GRACE = 3600
"""Seconds that ``--grace`` may give open requests at shutdown."""

BODY_SECONDS = 60.0
"""Time for a body to arrive. A client that stalls for longer gets 408."""

SEND_SECONDS = 120.0
"""Time for a client to take one event off a full socket. After it the client counts as gone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that grow with the context of the model.

    Parameters
    ----------
    context : int
        Tokens that a sequence may have.
    """

    context: int = 1 << 18

    @property
    def body_bytes(self) -> int:
        """Bytes of a body: 16 a token, at least 512 KiB. English text takes 4 a token, JSON escapes of Chinese about 9."""
        return max(512 << 10, 16 * self.context)

    @property
    def values(self) -> int:
        """Values in a body: a prompt as token ids takes one each."""
        return (1 << 16) + 2 * self.context

    @property
    def containers(self) -> int:
        """Arrays and objects in a body: Python needs 0.4 µs for each, with the interpreter locked."""
        return 1 << 16

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens over all sequences of a request: 16 contexts."""
        return 16 * self.context
