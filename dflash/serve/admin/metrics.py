"""Metrics of the server for Prometheus."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from dflash.distribution import release
from dflash.generation.engine_thread import EngineThread
from dflash.serve.admin.access_log import LOST
from dflash.serve.admin.engine_counters import BucketCounts, EngineCounters
from dflash.serve.admin.model_facts import ModelFacts
from dflash.serve.admin.request_record import RequestCounts

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Labels = dict[str, str]
Sample = tuple[Labels, float]


class ServerMetrics(Collector):
    """Metrics of one application, read when they are requested."""

    def __init__(
        self,
        engine_thread: EngineThread,
        engine: EngineCounters,
        requests: RequestCounts,
        model_name: str,
        facts: ModelFacts | None,
    ) -> None:
        self._engine_thread, self._engine, self._requests = engine_thread, engine, requests
        self._model_name, self._facts = model_name, facts
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics as text and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> "Iterator[Metric]":
        """Yield all metrics. Called by the registry for each exposition."""
        yield from self._gauges()
        yield from self._tokens()
        yield from self._drafts()
        yield from self._ends()
        if self._engine_thread.engine.prefix_cache is not None:
            yield from self._prefix_cache()
        lost = [({**self._label, "log": log}, n) for log, n in LOST.items()]
        yield _family(CounterMetricFamily, "log_lines_lost", "Lines of the logs that could not be written.", lost)
        counters = self._engine
        for name, buckets, text in (
            ("time_to_first_token_seconds", counters.first_token_seconds, "From submission to the first token."),
            ("inter_token_latency_seconds", counters.between_seconds, "Between two steps of a sequence that emit tokens."),
            ("request_queue_time_seconds", counters.queue_seconds, "From submission to the start of the prefill."),
            ("e2e_request_latency_seconds", counters.request_seconds, "From submission to the end of a sequence."),
            ("step_seconds", counters.step_seconds, "Duration of a step of the engine."),
            ("step_sequences", counters.batch, "Sequences that emitted tokens in a step."),
            ("step_rows", counters.rows, "Rows of a step's forward: tokens of prompts, last tokens and draft tokens."),
        ):
            yield self._histogram(name, text, buckets)

    def _gauges(self) -> "Iterator[Metric]":
        engine, sessions = self._engine_thread.engine, self._engine_thread.sessions
        # pages that several sequences share count once; a sequence that waits or has just ended has no state
        pages = {page for session in sessions for page in tuple(getattr(session.state, "pages", ()))}
        yield self._gauge("num_requests_running", "Sequences that hold memory.", engine.active)
        yield self._gauge(
            "num_requests_waiting", "Sequences that wait to start, or to go on after a preemption.", engine.waiting
        )
        usage = len(pages) / engine.model.pools.pages
        yield self._counter("num_preemptions", "Preemptions of sequences for others.", engine.n_preempted)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV pages that running sequences hold, 0 to 1.", usage)
        if self._facts is not None:
            about = {"version": release(), "fingerprint": self._facts.fingerprint, "file": self._facts.file}
            about |= {"device": self._facts.device, "kv_cache_dtype": self._facts.kv}
            yield _family(
                GaugeMetricFamily, "model_info", "Facts about the model as labels.", [({**self._label, **about}, 1)]
            )

    def _tokens(self) -> "Iterator[Metric]":
        counters = self._engine
        yield self._counter(
            "prompt_tokens", "Prompt tokens of sequences that reached their first token.", counters.prompt_tokens
        )
        yield self._counter("prompt_tokens_cached", "Those of them from the prefix cache.", counters.cached_tokens)
        yield self._counter("generation_tokens", "Emitted tokens.", counters.output_tokens)

    def _drafts(self) -> "Iterator[Metric]":
        counters = self._engine
        accepted = dict(counters.accepted)
        by_length = [accepted.get(length, 0) for length in range(max(accepted, default=0), 0, -1)]
        n_accepted = list(accumulate(by_length))[::-1]  # at each position: drafts accepted up to it or further
        yield self._counter("spec_decode_num_drafts", "Drafts.", counters.drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Draft tokens.", counters.drafted)
        yield self._counter("spec_decode_num_accepted_tokens", "Accepted draft tokens.", sum(n_accepted))
        yield _family(
            CounterMetricFamily,
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by their position in the draft.",
            [({**self._label, "position": str(position)}, n) for position, n in enumerate(n_accepted)],
        )

    def _ends(self) -> "Iterator[Metric]":
        finished, label = self._engine.finished, self._label
        yield _family(
            CounterMetricFamily,
            "request_success",
            "Sequences that ended with a finish reason.",
            [({**label, "finished_reason": reason}, finished[reason]) for reason in ("stop", "length")],
        )
        yield self._counter("request_cancelled", "Sequences that were cancelled.", finished["cancelled"])
        yield self._counter("request_failed", "Sequences that ended with an error.", finished["error"])
        recoveries = [
            ({**label, "recovery": recovery, "action": action}, n)
            for (recovery, action), n in self._engine.recoveries.copy().items()
        ]
        yield _family(CounterMetricFamily, "recoveries", "Interventions of recoveries.", recoveries)
        responses = [
            ({**label, "route": route, "method": method, "status": str(status)}, n)
            for (route, method, status), n in self._requests.responses.items()
        ]
        yield _family(CounterMetricFamily, "http_requests", "HTTP responses.", responses)

    def _prefix_cache(self) -> "Iterator[Metric]":
        cache = self._engine_thread.engine.prefix_cache
        assert cache is not None, "collect has checked it"
        stats = cache.stats
        yield self._counter("prefix_cache_queries", "Prompt tokens that were looked up.", stats.query_tokens)
        yield self._counter("prefix_cache_hits", "Those of them that were found.", stats.hit_tokens)
        yield self._counter(
            "prefix_cache_drafter_misses",
            "Prompt tokens whose state was found, but read again since it lacked that of the drafter.",
            stats.drafter_miss_tokens,
        )
        yield self._counter("prefix_cache_reread_tokens", "Tokens of answers prefilled again.", stats.reread_tokens)
        yield self._counter("prefix_cache_reread_seconds", "Time of these prefills.", stats.reread_seconds)
        yield self._counter("prefix_cache_reread_hits", "Prompts that began with a state of one.", stats.reread_hits)
        yield self._counter("prefix_cache_evictions", "Snapshots removed from memory.", stats.evictions)
        yield self._gauge("prefix_cache_conversations", "Named conversations with snapshots.", cache.n_conversations)
        yield self._gauge("prefix_cache_bytes", "Bytes of the snapshots in memory.", stats.n_bytes)
        yield self._gauge("prefix_cache_capacity_bytes", "Maximum of these bytes.", stats.capacity)
        if cache.disk is not None:
            disk = cache.disk.stats
            yield self._counter("prefix_cache_disk_hits", "Prompt tokens that were read from files.", disk.hit_tokens)
            yield self._counter("prefix_cache_disk_writes", "Snapshots written to files.", disk.writes)
            yield self._counter("prefix_cache_disk_lost", "Snapshots that could not be written.", disk.dropped)
            yield self._gauge("prefix_cache_disk_bytes", "Bytes of all files.", disk.n_bytes)

    @property
    def _label(self) -> Labels:
        return {"model_name": self._model_name}

    def _gauge(self, name: str, text: str, value: float) -> "Metric":
        return _family(GaugeMetricFamily, name, text, [(self._label, value)])

    def _counter(self, name: str, text: str, value: float) -> "Metric":
        return _family(CounterMetricFamily, name, text, [(self._label, value)])

    def _histogram(self, name: str, text: str, buckets: BucketCounts) -> "Metric":
        bounds = [*(str(float(bound)) for bound in buckets.bounds), "+Inf"]
        family = HistogramMetricFamily(f"dflash:{name}", text, labels=["model_name"])
        counts = list(zip(bounds, accumulate(tuple(buckets.counts)), strict=True))
        family.add_metric([self._model_name], counts, buckets.total)
        return family


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, text: str, samples: Sequence[Sample]
) -> "Metric":
    names = list(samples[0][0]) if samples else []
    family = kind(f"dflash:{name}", text, labels=names)
    for labels, value in samples:
        family.add_metric(list(labels.values()), value)
    return family
