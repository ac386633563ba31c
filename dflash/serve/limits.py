"""Limits of one request, checked before anything is copied, built or tokenized.

The error for a request beyond a limit names the field, the value and the limit. Limits of strategy names are in
`dflash.decode.registry`, since they also hold on the command line.
"""

from dataclasses import dataclass
from math import inf

MAX_DEPTH = 64
"""Levels of arrays and objects in a body; schemas of real tools have up to about 20."""

MAX_DIGITS = 512
"""Characters of one number in a body; longer integers take quadratic time to convert."""

MAX_CHOICES = 64
"""Choices (`n`) of one prompt, and prompts of one completion request; OpenAI allows 128 choices."""

MAX_SEQUENCES = 128
"""Choices times prompts of one request; each is a separate sequence in the queue."""

MAX_STOPS = 16
"""Stop strings; OpenAI allows 4."""

MAX_STOP_LENGTH = 256
"""Characters of one stop string; the search table has one entry per character."""

MAX_STOP_IDS = 1024
"""Entries of `stop_token_ids`; benchmarks send a few."""

MAX_LOGPROBS = 20
"""Likeliest tokens at each position, as in OpenAI's API."""

MAX_PROMPT_LOGPROBS = 1 << 18
"""Log-probabilities of prompt tokens in one answer, over all prompts and choices: about 20 MB of JSON.

A batch of 64 prompts of 2,048 tokens with one likeliest token at each position has as many.
"""

MAX_SALT = 512
"""Characters of `cache_salt`; vLLM suggests 43."""

MAX_BIASES = 1024
"""Entries of `logit_bias`, as in OpenAI's API."""

MAX_OPTIONS = 1024
"""Texts of `guided_choice`; vLLM's examples have a few."""

MAX_REPORTED = 1 << 18
"""Log-probabilities in an answer: choices times `max_tokens` times tokens reported at a position. Each takes about 80
bytes of JSON, and 20 MB of JSON are encoded in 0.2 seconds, which hold the interpreter lock."""

MAX_RECOVERIES = 8
"""Recoveries of one request; each checks every step in the engine thread."""

MAX_RECOVERY_NAME = 200
"""Characters of one recovery's name, including the name of a tool."""

MAX_PREPARING = 256
"""Requests in parsing and tokenizing, or waiting for it; further ones get 503."""

MAX_WAITING = 256
"""Sequences that wait to start, over all requests: minutes of work at the default batch of 8. Further ones get 503."""

MAX_CONNECTIONS = 1024
"""Open connections. For a further one an unused one is closed; if all have requests, it gets 503, except for ``/health``."""

LAST_REQUEST_SECONDS = 1.0
"""Seconds that an idle connection stays open at shutdown, for a request that is under way."""

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, so that no new request meets a closed one."""

MAX_GRACE = 3600
"""Seconds that ``--grace`` may give open requests at shutdown."""

HEADER_BYTES = 64 << 10
"""Bytes of the request line and the headers of a request, h11's own limit; longer ones get 431. Agents send about 2 KiB."""

MAX_HEADERS = 128
"""Headers of a request; more get 431. Agents send up to about 30."""

HEADER_SECONDS = 60.0
"""Seconds for the headers of a request to arrive, from the connection or their first byte on; a slower client gets 408."""

BODY_SECONDS = 60.0
"""Seconds for a body to arrive; a slower client gets 408."""

SEND_SECONDS = 120.0
"""Seconds for a client to read one event from a full socket, or any of a whole response; then it counts as disconnected."""

LAST_SECONDS = 5.0
"""Seconds that a client with a full socket has for the error that ends its stream: enough for one that reads slowly."""

HEARTBEAT_SECONDS = 10.0
"""Seconds without an event after which a stream sends a heartbeat; the least patient clients leave after 120 seconds."""

STORED_BYTES = 64 << 20
"""Bytes of all stored responses as JSON; a conversation that fills a context of 131,072 tokens takes about 0.6 MB."""

STORED_SECONDS = 3600.0
"""Seconds after its last use for which a response is stored; longer than most pauses in a conversation."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that grow with the context of the model, and the time of a request.

    request_seconds: maximum seconds of a request from the end of its preparation; it ends with an error then.
    """

    context: int = 1 << 18
    request_seconds: float = inf

    @property
    def body_bytes(self) -> int:
        """Bytes of a body: 16 per token, at least 512 KiB. English takes 4 per token, JSON escapes of Chinese about 9."""
        return max(512 << 10, 16 * self.context)

    @property
    def values(self) -> int:
        """Values in a body; a prompt of token ids takes one per token."""
        return (1 << 16) + 2 * self.context

    @property
    def containers(self) -> int:
        """Arrays and objects in a body; Python needs 0.4 µs for each and holds the interpreter lock."""
        return 1 << 16

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens over all sequences of a request: 16 contexts."""
        return 16 * self.context
