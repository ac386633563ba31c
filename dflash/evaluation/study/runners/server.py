"""Requests of a study to a server."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

from dflash.decode.drafting.drafter import Nothing, Strategy
from dflash.decode.registry import name as name_of
from dflash.decode.verifiers import COUPLED
from dflash.errors import DFlashError, RequestError
from dflash.evaluation.measuring import WARM_UP
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.server_connection import ServerConnection
from dflash.evaluation.study.runners.base import PARTS, steps_of
from dflash.evaluation.study.runners.context import FillerText, repeated
from dflash.evaluation.tables import Values
from dflash.evaluation.traces.filler import ordinary_text
from dflash.json_types import JsonMapping

_ENVIRONMENT = ("commit", "python", "system", "packages", "variables")
_MODEL = ("bytes", "pending", "threads", "prefix_cache", "sha256")
"""Values of a record that servers do not give."""

_STEP = ("tokens", "accepted", "depth", "seconds")
"""Values of a step in the columns of a row."""


class ServerRunner:
    """A server of dflash as a `Runner`. Requests are streams with records of their steps.

    Seconds of a request are those that its client sees, network and queue included.

    url: address, as ``http://127.0.0.1:8000``.
    """

    def __init__(self, url: str) -> None:
        self._server = ServerConnection(url)
        self._props, self._health = (self._server.json("GET", path) for path in ("/props", "/health"))
        if "model" not in self._props or "verifier" not in self._health:
            raise RequestError(f"study: {url} is no server of this dflash; others do not say what a step accepted")
        self.sequences = int(self._props["total_slots"])
        self._on_gpu = self._props["device"] != "cpu"

    def setup(self) -> Values:
        """Return model, device and versions; what the server does not give is None."""
        facts, processor = self._props["model"], self._props["processor"]
        on_cpu = processor.get("kind") == "cpu"
        return {
            "dflash": self._props["build_info"].removeprefix("dflash "),
            **dict.fromkeys(_ENVIRONMENT),
            "cpu": processor if on_cpu else None,
            "gpu": None if on_cpu else processor,
            "model": {
                **dict.fromkeys(_MODEL),
                **facts,
                "files": [facts["file"]],
                "quantization": [facts["quantization"]],
                "context": self._props["n_ctx"],
            },
            "server": {"fixed_drafts": self._props["fixed_drafts"], "sequences": self.sequences},
        }

    def prepare(self, strategy: Strategy) -> Values:
        """Check that requests can name a strategy and that the server has its verifier."""
        _name_of(strategy)
        wanted, has = repr(strategy.verifier), self._health["verifier"]
        if wanted != has and strategy.drafter != Nothing():
            raise RequestError(
                f"study: the server accepts draft tokens by {has}, the study wants {wanted}: "
                "start the server with --verifier or --synthetic-acceptance"
            )
        return {
            "expression": repr(strategy),
            "shape": repr(strategy.shape),
            "verifier": wanted,
            "guarantee": strategy.verifier.guarantee,
            "warning": strategy.verifier.warning,
            "drafts": None,
            "code": {},
        }

    def n_warm_up(self, max_tokens: int) -> int:
        """Return the output tokens of a warm-up request."""
        return max_tokens if self._on_gpu else min(WARM_UP, max_tokens)

    def filler(self, n: int) -> FillerText:
        """Return ordinary text of `n` tokens."""
        if not n:
            return FillerText([], "")
        ids = repeated(self._server.tokenize(ordinary_text(), ""), n)
        return FillerText(ids, self._server.json("POST", "/detokenize", {"tokens": ids})["content"])

    def answer(self, cases: Sequence[Case], strategy: Strategy, max_tokens: int, settings: JsonMapping) -> list[Values]:
        """Send some prompts at the same time."""
        body = {
            **settings,
            "strategy": _name_of(strategy),
            "recover": "none",
            "max_tokens": max_tokens,
            "cache_prompt": False,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "dflash": {"steps": True},
        }
        with ThreadPoolExecutor(len(cases)) as pool:
            return list(pool.map(lambda case: self._row(case, body), cases))

    def machine(self) -> None:
        """Return None: it is another machine, or may be."""

    def _row(self, case: Case, body: Values) -> Values:
        """Send one request and return its row."""
        is_chat = not isinstance(case.prompt, str) and not isinstance(case.prompt[0], int)
        path, field = ("/v1/chat/completions", "messages") if is_chat else ("/v1/completions", "prompt")
        began = perf_counter()
        times, token_ids, steps, usage, reason, n_interventions = [], list[int](), list[Values](), Values(), None, 0
        for event in self._server.events(path, {**body, field: case.prompt, **case.options}):
            usage = event.get("usage") or usage
            n_interventions += len(event.get("interventions") or ())
            for choice in event.get("choices") or ():
                token_ids += choice.get("token_ids") or ()
                reason = choice.get("finish_reason") or reason
            if (event.get("dflash") or {}).get("tokens"):
                steps.append(event["dflash"])
                times.append(perf_counter())
        if not usage or usage["completion_tokens"] != len(token_ids) or not steps:
            raise DFlashError(f"{self._server.url}: the answer to {case.name:.60} broke off")
        counts = {name: sum(step[name] for step in steps) for name in ("drafted", "accepted")}
        seconds = times[-1] - times[0]
        return {
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "tokens": len(token_ids),
            "steps": len(steps),
            "tokens_per_step": len(token_ids) / len(steps),
            **counts,
            "acceptance": counts["accepted"] / counts["drafted"] if counts["drafted"] else None,
            "first_token_seconds": times[0] - began,
            "decode_seconds": seconds,
            "tokens_per_second": sum(step["tokens"] for step in steps[1:]) / seconds if seconds else 0.0,
            "finish_reason": reason,
            "seed": body["seed"],
            "interventions": n_interventions,
            **steps_of(token_ids, [tuple(step[name] for name in _STEP) for step in steps]),
            **{f"{part}_seconds": sum(step[f"{part}_seconds"] for step in steps[1:]) for part in PARTS},
        }


def _name_of(strategy: Strategy) -> str:
    """Return the name by which a request asks for a strategy; its verifier is the server's."""
    bare = replace(strategy, verifier=COUPLED)
    name = name_of(bare)
    try:
        if Strategy.named(name) == bare:
            return name
    except RequestError:
        pass
    raise RequestError(f"study: {strategy!r:.80} has no name that a request can carry; files are the server's")
