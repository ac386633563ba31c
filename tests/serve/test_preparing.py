"""Preparing strategies beside the engine: nobody else waits, each is prepared once, and a refusal costs nothing again."""

import asyncio
import gc
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from weakref import ref

import pytest
from hang_guard import GUARD
from paced import GOOD
from toy import Toy

from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.adaptive.measuring import measures_of
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.loading import LoadingDrafter
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Drafter, Nothing, Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.errors import Cancelled, DFlashError, DownloadError, FormatError, NotFound, OutOfMemory, PoolExhausted
from dflash.generation import preparation as prepare
from dflash.generation import refusals
from dflash.generation.engine_thread import EngineThread
from dflash.kernels.cpu.jit import runs_in_several_threads
from dflash.kernels.ragged import PENDING
from dflash.model.draft.model import BlockDraft
from dflash.model.mtp import MtpHead
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend


class TimedToy(Toy):
    device = "cpu"

    def __init__(self):
        super().__init__(slots=6)
        self.clock = SimpleNamespace(now=0.0)

    def finish(self):
        pass


@pytest.fixture
def engine_thread():
    engine_thread = EngineThread(Engine(TimedToy()))
    yield engine_thread
    engine_thread.close()
    assert engine_thread.engine.model.leaked == (0, 0, 0)


class Loads:
    """Fake loading by name: blocks until released, then loads or fails."""

    def __init__(self):
        self.go, self.begun, self.errors = threading.Event(), threading.Event(), {}
        self.names, self.threads, self.warmed, self.closed = [], [], [], []
        self.lock = threading.Lock()


LOADS = Loads()


@pytest.fixture(autouse=True)
def loads(monkeypatch):
    loads = Loads()
    monkeypatch.setitem(globals(), "LOADS", loads)
    yield loads
    loads.go.set()


class Companion:
    device = "toy"

    def __init__(self, name):
        self.name = name

    def close(self):
        LOADS.closed.append(self.name)


@dataclass(frozen=True)
class Loaded(LoadingDrafter):
    """Drafts nothing, with a companion that takes its time."""

    name: str
    pieces: int = 2

    @property
    def source(self):
        return self.name

    def load(self, model):
        with LOADS.lock:
            LOADS.names.append(self.name)
            LOADS.threads.append(threading.current_thread().name)
        LOADS.begun.set()
        assert LOADS.go.wait(GUARD)
        if self.name in LOADS.errors:
            raise LOADS.errors[self.name]
        return Companion(self.name)

    def warm(self, companion):
        for _ in range(self.pieces):
            LOADS.warmed.append(threading.current_thread().name)
            yield

    def start(self, session, model, snapshot=None):
        return Nothing().start(session, model)


class Running:
    """A text that is written meanwhile."""

    def __init__(self, engine_thread, max_tokens=1900, strategy=None):
        self.session = Session([1, 2, 3], max_tokens=max_tokens, strategy=strategy or Strategy())
        self.steps = queue.SimpleQueue()
        engine_thread.submit(SimpleNamespace(session=self.session, delta=lambda step: step), self.steps.put)

    def wait_for(self, n_tokens):
        while n_tokens > 0:
            step = self.steps.get(timeout=GUARD)
            assert step.finish is None
            n_tokens -= len(step.tokens)

    def end(self):
        self.session.cancel()
        while self.steps.get(timeout=GUARD).finish is None:
            pass


def test_texts_go_on_while_a_draft_is_loaded(engine_thread, loads):
    job = engine_thread.preparing(Strategy(Loaded("slow")))
    assert loads.begun.wait(GUARD)
    running = Running(engine_thread)
    running.wait_for(20)
    loads.go.set()
    job.wait()
    running.end()
    assert loads.threads == ["dflash-prepare"]
    assert loads.warmed == ["dflash-engine"] * 2
    assert engine_thread.engine.model.attachments[Loaded("slow")].name == "slow"


@pytest.mark.parametrize("wrap", [lambda each: each, FirstOf, Adaptive], ids=["alone", "first", "adaptive"])
def test_concurrent_requests_share_one_preparation(engine_thread, loads, wrap):
    jobs = [engine_thread.preparing(Strategy(wrap(Loaded("one")))) for _ in range(5)]
    assert loads.begun.wait(GUARD)
    jobs += [engine_thread.preparing(Strategy(wrap(Loaded("one")))) for _ in range(5)]
    loads.go.set()
    for job in jobs:
        job.wait()
    engine_thread.prepare(Strategy(wrap(Loaded("one"))))
    assert loads.names == ["one"]


def test_a_part_that_several_wait_for_is_loaded_once(engine_thread, loads):
    made = Loaded("one"), FirstOf(PromptLookup(), Loaded("one")), FirstOf(Loaded("one"), Loaded("two"))
    made += FirstOf(Loaded("two"), Loaded("one")), Adaptive(Loaded("one"), PromptLookup())
    loads.go.set()
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(lambda drafter: engine_thread.prepare(Strategy(drafter)), made))
    assert sorted(loads.names) == ["one", "two"]


def test_one_that_fails_spoils_no_other(engine_thread, loads):
    loads.errors["bad"] = FormatError("bad: it is damaged")
    bad, both = (
        engine_thread.preparing(Strategy(Loaded("bad"))),
        engine_thread.preparing(Strategy(FirstOf(Loaded("good"), Loaded("bad")))),
    )
    good = engine_thread.preparing(Strategy(Loaded("good")))
    loads.go.set()
    good.wait()
    for job in (bad, both, bad):
        with pytest.raises(FormatError, match="bad: it is damaged"):
            job.wait()
    assert Loaded("bad") not in engine_thread.engine.model.attachments


def attempt(engine_thread, drafter, error):
    with pytest.raises(error):
        engine_thread.prepare(Strategy(drafter))


def test_a_refusal_is_remembered_until_the_file_changes(engine_thread, loads, tmp_path):
    path = tmp_path / "draft.gguf"
    drafter = Loaded(str(path))
    loads.errors[str(path)] = NotFound(f"{path}: there is no such file")
    loads.go.set()
    for _ in range(3):
        attempt(engine_thread, drafter, NotFound)
        attempt(engine_thread, FirstOf(PromptLookup(), drafter), NotFound)
    assert len(loads.names) == 1
    path.write_bytes(b"damaged")
    loads.errors[str(path)] = FormatError("it is damaged")
    for _ in range(3):
        attempt(engine_thread, drafter, FormatError)
    assert len(loads.names) == 2
    path.write_bytes(b"mended, and longer")
    del loads.errors[str(path)]
    engine_thread.prepare(Strategy(drafter))
    assert len(loads.names) == 3


def test_a_refusal_of_the_hub_is_remembered_for_a_while(engine_thread, loads, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    loads.errors["hf:org/repo"] = DownloadError("org/repo: the hub could not be read")
    loads.go.set()
    for now[0] in (0.0, 10.0, 50.0):
        attempt(engine_thread, Loaded("hf:org/repo"), DownloadError)
    assert len(loads.names) == 1
    now[0] = 70.0
    attempt(engine_thread, Loaded("hf:org/repo"), DownloadError)
    assert len(loads.names) == 2


def test_memory_that_is_short_now_is_no_refusal(engine_thread, loads):
    loads.errors["large"] = OutOfMemory("the GPU is full")
    loads.go.set()
    attempt(engine_thread, Loaded("large"), OutOfMemory)
    del loads.errors["large"]
    engine_thread.prepare(Strategy(Loaded("large")))
    assert len(loads.names) == 2


def test_a_thousand_names_leave_nothing_behind(engine_thread, loads):
    loads.go.set()
    loads.errors = {f"draft-{number}.gguf": NotFound("none") for number in range(200)}
    for name in loads.errors:
        attempt(engine_thread, Loaded(name), NotFound)
    assert len(engine_thread._preparation._refused) == refusals._CAPACITY
    drafters = [PromptLookup(n_draft=1 + number) for number in range(1000)]
    for drafter in drafters:
        engine_thread.prepare(Strategy(drafter))
        engine_thread.prepare(Strategy(FirstOf(drafter, PromptLookup(min_ngram=3))))
    assert not engine_thread._preparation._jobs
    assert not engine_thread.engine.model.attachments
    left = [ref(drafter) for drafter in drafters]
    del drafter, drafters
    gc.collect()
    assert not any(each() for each in left)


def test_names_of_adaptive_leave_what_was_measured(engine_thread):
    for number in range(200):
        engine_thread.prepare(Strategy(Adaptive(PromptLookup(n_draft=1 + number))))
    assert len(engine_thread.engine.model.attachments) == 1
    measures = measures_of(engine_thread.engine.model)
    assert len(measures) == measures.capacity


def test_measuring_lets_others_have_every_other_step(engine_thread):
    """Between two steps of a text lie at most a prompt of one token and the forward that is measured."""
    engine, running, ended = engine_thread.engine, Running(engine_thread), threading.Event()
    running.wait_for(1)
    between, longest = [], [[]]

    def before_forward(spans):
        if any(span.state is running.session.state for span in spans):
            longest[0] = max(longest[0], between[:], key=len)
            between.clear()
            # the text goes on once there is more to measure, so it neither ends early nor depends on how threads take turns
            while not engine.errands and not ended.wait(0.001):
                pass
        else:
            between.append(sum(len(span.tokens) for span in spans))

    n_before = running.session.n_tokens
    engine.model.before_forward = before_forward
    try:
        engine_thread.prepare(Strategy(Adaptive(GOOD, PromptLookup())))
    finally:
        ended.set()
    engine.model.before_forward = lambda spans: None
    n_written = running.session.n_tokens - n_before
    running.end()
    assert n_written > 30
    assert len(longest[0]) <= 2
    assert len(longest[0]) < 2 or longest[0][0] == 1
    assert sum(longest[0]) <= PENDING


def test_no_more_than_so_many_at_a_time(engine_thread, loads, monkeypatch):
    monkeypatch.setattr(prepare, "MAX_JOBS", 3)
    jobs = [engine_thread.preparing(Strategy(Loaded(str(number)))) for number in range(3)]
    with pytest.raises(PoolExhausted, match="3 strategies are already being prepared"):
        engine_thread.preparing(Strategy(Loaded("more")))
    engine_thread.prepare(Strategy())
    engine_thread.prepare(Strategy(PromptLookup()))
    assert engine_thread.preparing(Strategy(Loaded("0"))) is jobs[0]
    loads.go.set()
    for job in jobs:
        job.wait()
    engine_thread.prepare(Strategy(Loaded("more")))


def test_a_request_that_gives_up_waiting_ends_nothing(engine_thread, loads):
    async def leave():
        waiting = [asyncio.ensure_future(engine_thread.preparing(Strategy(Loaded("slow"))).arrive()) for _ in range(2)]
        await asyncio.to_thread(loads.begun.wait, GUARD)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1], timeout=GUARD)
        assert waiting[0].cancelled()
        assert not waiting[1].done()
        loads.go.set()
        await asyncio.wait_for(waiting[1], GUARD)

    asyncio.run(leave())
    assert loads.names == ["slow"]
    engine_thread.prepare(Strategy(Loaded("slow")))


def test_only_so_many_requests_wait(engine_thread, loads, monkeypatch):
    """Further requests are refused at once; requests that need no preparation continue."""
    monkeypatch.setattr(engine_thread._preparation, "_crowd", threading.Semaphore(2))

    async def ask():
        waiting = [asyncio.ensure_future(engine_thread.preparing(Strategy(Loaded("slow"))).arrive()) for _ in range(2)]
        await asyncio.to_thread(loads.begun.wait, GUARD)
        with pytest.raises(PoolExhausted, match="requests already wait for drafts"):
            await engine_thread.preparing(Strategy(Loaded("slow"))).arrive()
        await engine_thread.preparing(Strategy(PromptLookup())).arrive()
        waiting.pop().cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.ensure_future(engine_thread.preparing(Strategy(Loaded("slow"))).arrive()))
        await asyncio.sleep(0)
        loads.go.set()
        await asyncio.wait_for(asyncio.gather(*waiting), GUARD)

    asyncio.run(ask())


def test_the_engines_own_thread_does_not_wait_for_itself(engine_thread, loads):
    with pytest.raises(DFlashError, match="engine thread"):
        engine_thread.call(lambda: engine_thread.prepare(Strategy(Loaded("slow"))))
    assert not loads.names


def test_closing_while_a_draft_is_loaded(loads):
    engine_thread = EngineThread(Engine(TimedToy()))
    job = engine_thread.preparing(Strategy(Loaded("slow")))
    assert loads.begun.wait(GUARD)
    engine_thread.close()
    loads.go.set()
    with pytest.raises(Cancelled):
        job.wait()
    assert loads.closed == ["slow"]
    assert not engine_thread.engine.model.attachments
    with pytest.raises(Cancelled):
        engine_thread.preparing(Strategy(Loaded("slow")))


def test_one_that_can_not_be_warmed_is_closed(engine_thread, loads, monkeypatch):
    def warm(self, companion):
        yield
        raise OutOfMemory("no room for a graph")

    monkeypatch.setattr(Loaded, "warm", warm)
    loads.go.set()
    attempt(engine_thread, Loaded("large"), OutOfMemory)
    assert loads.closed == ["large"]
    assert not engine_thread.engine.model.attachments


class Own(Drafter):
    """A drafter of somebody's own, which knows `prepare` alone."""

    def __init__(self, error=None):
        self.error, self.threads = error, []

    def prepare(self, model):
        self.threads.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, NotFound("none"), KeyError("odd")], ids=["fine", "refused", "a bug"])
def test_a_custom_drafter_is_prepared_by_the_engine(engine_thread, error):
    own = Own(error)
    if error is None:
        engine_thread.prepare(Strategy(own))
    else:
        attempt(engine_thread, own, type(error))
    assert own.threads == ["dflash-engine"]


class Extended(Loaded):
    """Does more than what it extends, in `prepare` alone."""

    def prepare(self, model):
        super().prepare(model)
        LOADS.threads.append(threading.current_thread().name)


def test_what_a_subclass_does_is_done(engine_thread, loads):
    loads.go.set()
    engine_thread.prepare(Strategy(Extended("one")))
    engine_thread.prepare(Strategy(FirstOf(PromptLookup(), Extended("two"))))
    assert loads.names == ["one", "two"]
    assert set(loads.threads) == {"dflash-engine"}
    assert len(loads.threads) == 4


def test_one_that_only_looks_like_a_drafter(engine_thread):
    own = Own()
    duck = SimpleNamespace(prepare=own.prepare, start=None, propose=None)
    found = SimpleNamespace(drafter=Hashed(duck))
    engine_thread._preparation.begin(found).wait()
    assert own.threads == ["dflash-engine"]


class Hashed:
    """Passes on what another has, and can be a key."""

    def __init__(self, other):
        self.prepare = other.prepare


def test_kernels_of_a_draft_are_compiled_beside_the_engine(lm, monkeypatch):
    """On a CPU a draft model runs once in the thread that loaded it, before its first use."""
    threads = []

    def noted(original):
        def run(self):
            threads.append(threading.current_thread().name)
            original(self)

        return run

    lm.generate("import os", max_tokens=2)
    for kind in (BlockDraft, MtpHead):
        monkeypatch.setattr(kind, "compile", noted(kind.compile))
    drafters = DFlash(context=64), MTP(draft_vocab=512)
    for drafter in drafters:
        lm.prepare(drafter)
    assert threads == (["dflash-prepare"] * 2 if runs_in_several_threads() else [])
    draft, head = (lm.model.attachments.pop(drafter) for drafter in drafters)
    assert draft.free_slots == lm.model.pools.slots
    assert (head.pools.free_pages, head.pools.free_slots) == (head.pools.pages, head.pools.slots)
    draft.close()
    head.close()


def test_a_client_that_leaves_while_its_draft_is_loaded(server, loads, monkeypatch):
    """Its request ends at once; the draft is there for the next."""
    monkeypatch.setattr("dflash.serve.strategy_choice.named", lambda name, draft, **_: Strategy(Loaded("slow", pieces=0)))
    body = b'{"prompt": "a", "max_tokens": 2, "strategy": "lookup"}'
    app = build_app(Backend(server.engine_thread, server.loaded.tokenizer, server.loaded.template, ["demo"]))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
    }

    async def ask(leaves):
        sent, messages = [], iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive():
            message = next(messages, None)
            if message is not None:
                return message
            if not leaves:
                await asyncio.Event().wait()
            await asyncio.to_thread(loads.begun.wait, GUARD)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await asyncio.wait_for(app(scope, receive, send), GUARD)
        return sent[0]["status"]

    assert asyncio.run(ask(leaves=True)) == 499
    assert not loads.go.is_set()
    loads.go.set()
    assert asyncio.run(ask(leaves=False)) == 200
    assert loads.names == ["slow"]
    server.loaded.model.attachments.pop(Loaded("slow", pieces=0)).close()
