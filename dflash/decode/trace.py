"""Trace of picked tokens as a JSON Lines file, one object for each step."""

import json
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.sampling.processors import Row
from dflash.decode.step import Step
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.view import RecordedSession

TOP = 8
"""Default number of likeliest tokens in the trace of each pick."""


class Dump:
    """A trace file of several sessions. It is closed when the last session has ended."""

    def __init__(self, path: str | os.PathLike[str], *, top: int = TOP) -> None:
        try:
            self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise RequestError(f"dump: {path}: {error.strerror}") from error
        self.top = top
        self._n_made = self._n_open = 0

    def recorder(self) -> "TraceRecorder":
        """Return the recorder of the next session."""
        self._n_made += 1
        self._n_open += 1
        return TraceRecorder(self, self._n_made - 1)

    def write(self, row: dict[str, Any]) -> None:
        """Write one line."""
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def end(self) -> None:
        """Count a session as ended."""
        self._n_open -= 1
        if self._n_open == 0:
            self._file.close()


class TraceRecorder:
    """Writes the trace of one session. Called in the engine's thread; see `dflash.decode.view.Recorder`.

    Each line has ``text``, the number of the session, and is of one of three kinds. The first line has ``prompt``,
    ``strategy``, ``sampling`` and ``seed``. A chunk of the prompt has ``prefilled``. A step has ``tokens``, ``draft`` with
    tokens and parents, ``accepted``, ``picks`` and ``seconds``, and ``by``, ``note``, ``injected`` and ``finish`` unless
    they are empty. A pick has ``node``, the index of the draft token that it follows or -1, ``token``, the likeliest tokens
    ``top``, and the effect of each processor in ``rules``. The text of each token is its ``piece``, if the session has a
    tokenizer.
    """

    def __init__(self, dump: Dump, number: int) -> None:
        self._dump, self._number = dump, number
        self._session: RecordedSession | None = None
        self._picks: deque[list[dict[str, Any]]] = deque()

    def started(self, session: "RecordedSession") -> None:
        """Write the first line."""
        self._session = session
        head = {
            "prompt": session.prompt_ids,
            "strategy": repr(session.strategy),
            "sampling": repr(session.sampling),
            "seed": session.seed,
        }
        self._dump.write({"text": self._number, **head})

    def picked(self, row: int, logits: Row, token: int) -> None:
        """Store a pick. A step may be emitted after the picks of later ones, so each step has its own list."""
        if row == 0:
            self._picks.append([])
        plain = np.array(logits, np.float32)
        found = {"node": row - 1, "token": token, **self._named(token), "top": self._top(plain)}
        rules = self._processed(plain)
        self._picks[-1].append(found | ({"rules": rules} if rules else {}))

    def emitted(self, step: Step) -> None:
        """Write the line of a step."""
        times = {part: getattr(step, part) for part in ("propose", "forward", "verify", "commit")}
        row: dict[str, Any] = {"text": self._number}
        if step.prefilled:
            row["prefilled"] = step.prefilled
        else:
            row |= {
                "tokens": step.tokens,
                "draft": {"tokens": step.draft.tokens.tolist(), "parents": step.draft.parents.tolist()},
                "accepted": step.accepted,
                "picks": self._picks.popleft() if step.batch else [],
            }
        extra = {name: getattr(step, name) for name in ("by", "note", "injected", "finish") if getattr(step, name)}
        self._dump.write({**row, "seconds": times, **extra})
        if step.finish is not None:
            self._dump.end()

    def _processed(self, row: Row) -> list[dict[str, Any]]:
        """Return the effect of each processor on a row, in order. Noise is added after them."""
        session, effects = self._session, list[dict[str, Any]]()
        assert session is not None, "`started` is called first"
        for processor in (*session.sampler.processors, *session.sampling.after):
            after = processor(row.copy(), session.history)
            changed = np.flatnonzero(after != row)
            effects.append(
                {
                    "rule": repr(processor),
                    "changed": len(changed),
                    "masked": int((np.isneginf(after) & ~np.isneginf(row)).sum()),
                    "top": self._top(after),
                }
            )
            row = after
        return effects

    def _top(self, row: Row) -> list[dict[str, Any]]:
        """Return the likeliest tokens with their log-probabilities, without masked ones."""
        ids = np.argsort(-row, kind="stable")[: self._dump.top]
        peak = float(row[ids[0]])
        total = peak + float(np.log(np.exp(row.astype(np.float64) - peak).sum()))
        return [
            {"token": int(i), **self._named(int(i)), "logprob": round(float(row[i]) - total, 6)}
            for i in ids
            if np.isfinite(row[i])
        ]

    def _named(self, token: int) -> dict[str, str]:
        assert self._session is not None, "`started` is called first"
        detokenize = self._session.detokenize
        return {} if detokenize is None else {"piece": detokenize([token])}
