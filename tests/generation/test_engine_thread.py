"""The engine's thread: failures around it, and an end for all that wait: closing, forks, a thread that waits for itself."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hang_guard import GUARD, wait_until
from python_run import run_python
from serve_fakes import ScriptedEngine
from toy import Toy

from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.scheduling.reread import RereadQueue
from dflash.decode.session import Step
from dflash.errors import Cancelled, DFlashError, EngineFailed, KernelError, RequestError
from dflash.generation.completion import Completion
from dflash.generation.engine_thread import EngineThread
from dflash.generation.stream import Stream, finish_all


@pytest.fixture
def toy(lm):
    return Toy(lm.tokenizer.n_vocab, slots=4)


@pytest.fixture
def engine_thread(toy):
    engine_thread = EngineThread(Engine(toy))
    yield engine_thread
    engine_thread.close(GUARD)
    assert engine_thread.ended


@pytest.fixture
def held(toy):
    """Stops the engine inside a forward; what is under way is `held.reached`, and `held.go` lets it go on."""
    toy.reached, toy.go = threading.Event(), threading.Event()

    def before_forward(_):
        toy.reached.set()
        assert toy.go.wait(GUARD)

    toy.before_forward = before_forward
    yield toy
    toy.go.set()


def answer_of(lm, **settings):
    return Completion(lm.tokenizer, [1, 2, 3], sampling=Sampling(), **settings)


def ended(deltas):
    while True:
        delta = deltas.get(timeout=GUARD)
        if delta.step.finish is not None:
            return delta


def dies(*_, **__):
    raise SystemExit("killed")


def test_all_get_an_end_though_the_sink_of_one_fails(lm, toy, engine_thread, held, monkeypatch, caplog):
    def fails(_):
        raise OSError("nobody there")

    deltas = queue.SimpleQueue()
    answers = [answer_of(lm) for _ in range(3)]
    engine_thread.submit_all([(answers[0], fails), (answers[1], deltas.put), (answers[2], deltas.put)])
    assert held.reached.wait(GUARD)
    monkeypatch.setattr(engine_thread.engine, "_advance", dies)
    held.go.set()
    assert {ended(deltas).step.finish for _ in range(2)} == {"error"}
    engine_thread.close(GUARD)
    assert isinstance(answers[1].session.error, EngineFailed)
    assert toy.leaked == (0, 0, 0)


def test_pending_calls_end_though_closing_fails(lm, toy, engine_thread, held, monkeypatch, caplog):
    def fails():
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine_thread.engine, "close", fails)
    engine_thread.submit(answer_of(lm), lambda _: None)
    assert held.reached.wait(GUARD)
    with ThreadPoolExecutor(2) as pool:
        size = engine_thread._calls.qsize()
        calls = [pool.submit(engine_thread.call, lambda: 5) for _ in range(2)]
        while engine_thread._calls.qsize() < size + 2:
            assert not any(call.done() for call in calls)
        monkeypatch.setattr(engine_thread.engine, "_admit", dies)
        monkeypatch.setattr(engine_thread, "_answer_calls", once_not(engine_thread._answer_calls))
        held.go.set()
        for call in calls:
            with pytest.raises(EngineFailed, match="killed"):
                call.result(GUARD)
    assert "could not be closed" in caplog.text


def once_not(function):
    """The same function, but not the first time that it is called."""
    calls = []

    def later(**settings):
        calls.append(1)
        return function(**settings) if len(calls) > 1 else None

    return later


def test_an_answer_whose_text_fails_at_its_end_has_an_end(lm, engine_thread, monkeypatch, caplog):
    answer, deltas = answer_of(lm, max_tokens=2), queue.SimpleQueue()

    def fails(step):
        raise ValueError("no text")

    monkeypatch.setattr(answer, "delta", fails)
    engine_thread.submit(answer, deltas.put)
    assert ended(deltas).step.finish == "error"
    assert isinstance(answer.session.error, ValueError)


@pytest.mark.parametrize("wait", ["stream", "finish_all"])
def test_waiting_ends_with_a_worker_that_dies_silently(lm, toy, engine_thread, held, monkeypatch, wait):
    monkeypatch.setattr("dflash.generation.engine_thread._LOOK", 0.01)
    with ThreadPoolExecutor(1) as pool:
        if wait == "stream":
            waiting = pool.submit(list, Stream(engine_thread, answer_of(lm)))
        else:
            waiting = pool.submit(finish_all, engine_thread, [answer_of(lm), answer_of(lm)])
        assert held.reached.wait(GUARD)
        monkeypatch.setattr(engine_thread, "_step", dies)
        monkeypatch.setattr(engine_thread, "_finish", engine_thread.engine.close)
        held.go.set()
        with pytest.raises(EngineFailed, match="before this request ended"):
            waiting.result(GUARD)


@pytest.mark.parametrize("fails", ["step", "close"])
def test_submitting_beside_the_end_of_the_worker_gets_an_end(lm, toy, engine_thread, monkeypatch, fails):
    """Clients that come in turn while the engine thread ends: each gets a text or an error, none waits for ever."""
    results, stop = [[] for _ in range(4)], threading.Event()

    def client(own):
        while not stop.is_set():
            try:
                own.append(finish_all(engine_thread, [answer_of(lm, max_tokens=2)]))
            except DFlashError as error:
                own.append(error)

    def all_get(n):
        """Each client has got n more results; of two more, it has asked for the second after this call."""
        before = [len(own) for own in results]
        wait_until(lambda: all(len(own) >= had + n for own, had in zip(results, before, strict=True)))

    threads = [threading.Thread(target=client, args=(own,), daemon=True) for own in results]
    for thread in threads:
        thread.start()
    all_get(5)
    if fails == "step":
        monkeypatch.setattr(engine_thread.engine, "_advance", dies)
    else:
        engine_thread.close(GUARD)
    engine_thread._thread.join(GUARD)
    all_get(2)
    stop.set()
    for thread, own in zip(threads, results, strict=True):
        thread.join(GUARD)
        assert not thread.is_alive()
        assert isinstance(own[-1], DFlashError)


def test_answers_are_started_all_or_none(lm, engine_thread, toy):
    deltas = queue.SimpleQueue()
    good, bad = answer_of(lm, max_tokens=1), Completion(lm.tokenizer, [10**6], sampling=Sampling())
    with pytest.raises(RequestError):
        engine_thread.submit_all([(good, deltas.put), (bad, deltas.put)])
    assert not engine_thread.holds(good)
    assert not engine_thread.holds(bad)
    engine_thread.submit(good, deltas.put)
    assert ended(deltas).step.finish == "length"


USES = {
    "generate": lambda lm: lm.generate("a", max_tokens=1),
    "stream": lambda lm: lm.stream("a", max_tokens=1),
    "logits": lambda lm: lm.logits("a"),
    "perplexity": lambda lm: lm.perplexity("a b"),
    "call": lambda lm: lm.call(int),
}


@pytest.mark.parametrize("use", USES)
def test_the_engines_thread_does_not_wait_for_itself(lm, pools, use):
    with pytest.raises(DFlashError, match="from the engine thread"):
        lm.call(lambda: USES[use](lm))


def test_an_observer_that_asks_the_model_fails_alone(lm, pools):
    answer = Completion(lm.tokenizer, lm.tokenizer.encode("a"), sampling=Sampling(), max_tokens=4)
    answer.session.observer = lambda session, tokens: lm.generate("b", max_tokens=1)
    with pytest.raises(DFlashError, match="from the engine thread"):
        finish_all(lm._engine_thread, [answer])
    assert lm.generate("a", max_tokens=1).usage.completion_tokens == 1


def test_a_stream_that_is_closed_in_the_engines_thread_does_not_wait(lm, pools):
    stream = lm.stream("import os", max_tokens=5000)
    lm.call(stream.close)
    wait_until(lambda: not lm._engine_thread.holds(stream._completion))


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
import dflash
from dflash.errors import DFlashError

lm = dflash.load("demo", device="cpu", threads=1, context=512)
stream = lm.stream("import os", max_tokens=5)
pid = os.fork()
if not pid:
    refused = []
    for use in (
        lambda: lm.generate("a", max_tokens=1), lambda: lm.logits("a"), lambda: lm.call(int), lambda: next(stream),
        lambda: lm.stream("a"), lambda: lm.perplexity("a b"),
        lambda: dflash.load("demo", device="cpu", threads=1, context=512),  # threads of OpenMP would end the process
    ):
        try:
            use()
        except DFlashError as error:
            refused.append('multiprocessing.get_context("spawn")' in str(error))
    stream.close()
    lm.close()
    os._exit(0 if refused == [True] * 7 else 3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), lm.generate("a", max_tokens=1).usage.completion_tokens)
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork here")
def test_a_forked_process_must_load_the_model_itself():
    done = run_python("-c", FORK, check=False)
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_a_sink_that_fails_ends_its_answer_alone(lm, pools, caplog):
    def fail(_):
        raise OSError("nobody there")

    deltas, good, bad = queue.SimpleQueue(), answer_of(lm, max_tokens=50), answer_of(lm, max_tokens=5000)
    lm._engine_thread.submit(bad, fail)
    lm._engine_thread.submit(good, deltas.put)
    assert ended(deltas).step.finish == "length"
    wait_until(lambda: bad.session.finished)
    assert bad.session.finish_reason == "cancelled"
    assert "nobody there" in caplog.text


def test_calls_run_in_the_engines_thread_and_hand_errors_back(lm):
    assert lm.call(lambda: threading.current_thread().name) == "dflash-engine"
    with pytest.raises(ZeroDivisionError):
        lm.call(lambda: 1 // 0)


def test_interrupting_a_caller_frees_its_sequences(lm, pools, monkeypatch):
    class Interrupted(queue.SimpleQueue):
        def get(self, **_):
            Interrupted.get = queue.SimpleQueue.get
            raise KeyboardInterrupt

    monkeypatch.setattr("dflash.generation.stream.queue.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        lm.generate(["import os", "import sys"], max_tokens=4000)


class Broken:
    """An engine whose second step fails."""

    rereads = RereadQueue(None, 1)

    def __init__(self):
        self.sessions, self.closed, self.n_steps = [], False, 0

    @property
    def busy(self):
        return bool(self.sessions)

    def add_all(self, sessions):
        self.sessions += sessions

    def step(self):
        self.n_steps += 1
        if self.n_steps == 2:
            raise MemoryError("the device is gone")
        return [(session, Step([])) for session in self.sessions]

    def close(self):
        self.sessions, self.closed = [], True


def test_an_engine_that_fails_tells_everyone(lm, caplog):
    engine = Broken()
    engine_thread, deltas, answer = EngineThread(engine), queue.SimpleQueue(), answer_of(lm)
    engine_thread.submit(answer, deltas.put)
    assert ended(deltas).step.finish == "error"
    engine_thread.close()
    assert engine.closed
    assert not engine_thread.alive
    with pytest.raises(DFlashError, match="the device is gone"):
        engine_thread.submit(answer_of(lm), deltas.put)
    assert "the device is gone" in caplog.text


def test_closing_ends_what_runs_and_what_waits():
    class Idle(Broken):
        def step(self):
            ended = [(session, Step([], finish="cancelled")) for session in self.sessions]
            self.sessions = []
            return ended

    engine_thread = EngineThread(Idle())
    engine_thread.close()
    engine_thread.close()
    with pytest.raises(Cancelled):
        engine_thread.call(lambda: None)


def test_an_error_may_be_raised_where_it_was_received(lm):
    """The engine's thread clears the frames of an error that sequences share before any thread has it."""

    def holding(error):
        try:
            raise error
        except KernelError:
            yield "held"
        yield "resumed"

    engine_thread = EngineThread(ScriptedEngine(lm.tokenizer, [KernelError("the device said no")]))
    held, completions = [], [answer_of(lm), answer_of(lm)]

    def sink_of(completion):
        def receive(delta):
            held.append(holding(completion.session.error))
            next(held[-1])

        return receive

    engine_thread.submit_all([(completion, sink_of(completion)) for completion in completions])
    wait_until(lambda: all(completion.session.finished for completion in completions))
    engine_thread.close(GUARD)
    assert [next(each) for each in held] == ["resumed"] * 2
