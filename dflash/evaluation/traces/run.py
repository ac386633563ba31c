"""Replay of traces by several clients at once, each with one session at a time."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from time import perf_counter

from dflash.decode.sampling.params import check_whole
from dflash.errors import DFlashError, EngineFailed, RequestError
from dflash.evaluation.traces.filler import Filler, vocabulary
from dflash.evaluation.traces.sent import SentRequest
from dflash.evaluation.traces.session_prompts import SessionPrompts
from dflash.evaluation.traces.trace_file import AgentTrace
from dflash.evaluation.traces.transport import Transport
from dflash.json_types import JsonObject


class RunClock:
    """Seconds since a run began. Waits end early once the run is over.

    seconds: duration of the run; infinity if it ends with its work.
    """

    def __init__(self, seconds: float = float("inf")) -> None:
        self._seconds, self._began = seconds, perf_counter()
        self._stopped = threading.Event()

    def now(self) -> float:
        """Return the seconds since the run began."""
        return perf_counter() - self._began

    @property
    def is_over(self) -> bool:
        """True if no further request is to begin."""
        return self._stopped.is_set() or self.now() >= self._seconds

    def sleep(self, seconds: float) -> None:
        """Wait, at most until the run is over."""
        self._stopped.wait(max(min(seconds, self._seconds - self.now()), 0.0))

    def stop(self) -> None:
        """End the run; wakes those that wait."""
        self._stopped.set()


MAX_FAILURES = 10
"""Failed requests in a row after which a run ends: the server is gone, or refuses all."""

_WARM_UP = 32, 4
"""Tokens of the prompt and of the answer of a request before the run, which is not measured."""


@dataclass(frozen=True)
class TraceLimits:
    """Parts of the traces that a run leaves out or makes shorter.

    seconds: seconds after which no request begins. Sessions are replayed until then; without it each trace is replayed once,
        or as often as gives every client a session.
    max_context: most tokens of a prompt with its answer: a session ends before the first request that has more.
    think_max: longest pause in seconds, after the factor.
    """

    turns: int | None = None
    requests: int | None = None
    seconds: float | None = None
    max_context: int | None = None
    think_scale: float = 1.0
    think_max: float | None = None
    scale: int = 1

    def __post_init__(self) -> None:
        for name in ("turns", "requests", "max_context"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        check_whole("scale", self.scale, 1)
        for name in ("seconds", "think_scale", "think_max"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < inf:
                raise RequestError(f"{name}: must be a number of at least 0, got {value!r}")

    def pause(self, think: float) -> float:
        """Return the seconds for which a client pauses, from those of the trace."""
        return min(think * self.think_scale, inf if self.think_max is None else self.think_max)

    def as_dict(self) -> JsonObject:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class TraceRun:
    """Requests of a run in the order of their ends.

    seconds: time from the first request to the end of the last one.
    n_left_out: sessions that ended early since a request did not fit the context.
    """

    n_clients: int
    seconds: float
    requests: list[SentRequest]
    is_exact: bool
    n_left_out: int


def replay_traces(
    transport: Transport,
    traces: Sequence[AgentTrace],
    n_clients: int = 1,
    limits: TraceLimits = TraceLimits(),
    *,
    seed: int = 0,
    clock: RunClock | None = None,
    on_request: Callable[[SentRequest], object] | None = None,
) -> TraceRun:
    """Replay sessions against a model or a server, and measure what their clients see.

    A client sends the requests of a session one after the other, each after the end of the one before and its pause.
    Sessions share no text. Prompts depend on the traces, the seed, the number of clients and the answers alone, so that runs
    can be repeated; a second run against one server needs another seed, else it finds all of its prompts in the cache.

    on_request: called in the thread of a client when a request has ended.
    """
    check_whole("clients", n_clients, 1)
    if not traces:
        raise RequestError("traces: got none, needs at least 1")
    transport.start()
    load = _Load(transport, traces, n_clients, limits, seed=seed, clock=clock, on_request=on_request)
    threads = [threading.Thread(target=load.client, args=(i,), daemon=True) for i in range(n_clients)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        load.clock.stop()
        raise
    return load.result()


def n_planned(traces: Sequence[AgentTrace], n_clients: int, limits: TraceLimits) -> int | None:
    """Return the number of requests of a run, at most; None if time ends it."""
    if limits.seconds is not None:
        return limits.requests
    sessions = (traces[number % len(traces)] for number in range(max(len(traces), n_clients)))
    n = sum(len(trace.requests[: limits.turns]) for trace in sessions)
    return n if limits.requests is None else min(n, limits.requests)


class _Load:
    """The state that the clients of a run share."""

    def __init__(
        self,
        transport: Transport,
        traces: Sequence[AgentTrace],
        n_clients: int,
        limits: TraceLimits,
        *,
        seed: int,
        clock: RunClock | None,
        on_request: Callable[[SentRequest], object] | None,
    ) -> None:
        self._traces = [trace.scaled(limits.scale) for trace in traces]
        self._transport, self._limits, self._n_clients, self._on_request = transport, limits, n_clients, on_request
        self._filler = Filler(vocabulary(transport.encode), seed)
        self._lock = threading.Lock()
        endless = limits.seconds is not None
        self._sessions: Iterator[int] = itertools.count() if endless else iter(range(max(len(traces), n_clients)))
        self._n_begun, self._n_left_out, self._n_failed, self._is_exact = 0, 0, 0, True
        self._failure: BaseException | None = None
        self._requests: list[SentRequest] = []
        contexts = [most for most in (limits.max_context, transport.context) if most is not None]
        self._most = min(contexts, default=inf)
        shortest = min(trace.requests[0].n_prompt + trace.requests[0].n_output for trace in self._traces)
        if shortest > self._most:
            raise RequestError(
                f"traces: the shortest first request has {shortest} tokens, at most {self._most} fit; see scale"
            )
        name = f"warm-up {n_clients}"
        transport.send(self._filler.tokens(name, _WARM_UP[0]), _WARM_UP[1], lambda: None, name)
        self.clock = clock or RunClock(inf if limits.seconds is None else limits.seconds)

    def client(self, client: int) -> None:
        """Replay sessions until there are none, or the run is over."""
        try:
            while not self.clock.is_over:
                with self._lock:
                    number = next(self._sessions, None)
                if number is None:
                    return
                self._session(client, number)
        except BaseException as error:
            self._failure = error
            self.clock.stop()

    def _session(self, client: int, number: int) -> None:
        trace = self._traces[number % len(self._traces)]
        name = f"{trace.name} {self._n_clients}.{number}"
        prompts = SessionPrompts(trace, self._filler, name)
        for turn, request in enumerate(trace.requests[: self._limits.turns]):
            if request.n_prompt + request.n_output > self._most:
                with self._lock:
                    self._n_left_out += 1
                return
            if turn:
                self.clock.sleep(self._limits.pause(request.think))
            if not self._begins():
                return
            token_ids, n_before, n_own = prompts.prompt(turn)
            n_answered = 0 if request.extends is None else trace.requests[request.extends].n_output
            sent = SentRequest(
                client, name, turn, request.n_prompt, request.n_output, n_before, n_own, n_answered, self.clock.now()
            )
            self._send(sent, prompts, token_ids)
            if sent.error is not None:
                return

    def _begins(self) -> bool:
        """Return True if another request may begin, and count it."""
        with self._lock:
            most = self._limits.requests
            if self.clock.is_over or (most is not None and self._n_begun >= most):
                return False
            self._n_begun += 1
            return True

    def _send(self, sent: SentRequest, prompts: SessionPrompts, token_ids: list[int]) -> None:
        def arrived() -> None:
            sent.arrivals.append(self.clock.now())

        try:
            answered = self._transport.send(token_ids, sent.n_output, arrived, sent.session)
        except EngineFailed:
            raise
        except DFlashError as error:
            sent.error = str(error)
            self._n_failed += 1
            if self._n_failed >= MAX_FAILURES:
                raise
        else:
            prompts.answered(sent.turn, answered.token_ids)
            sent.n_received, sent.n_cached = sent.n_output, answered.n_cached
            self._is_exact &= answered.is_exact
            self._n_failed = 0
        with self._lock:
            self._requests.append(sent)
        if self._on_request is not None:
            self._on_request(sent)

    def result(self) -> TraceRun:
        """Return what was measured."""
        if self._failure is not None:
            raise self._failure
        began = min(sent.began for sent in self._requests)
        ended = max(sent.arrivals[-1] if sent.arrivals else sent.began for sent in self._requests)
        return TraceRun(self._n_clients, ended - began, self._requests, self._is_exact, self._n_left_out)
