"""Writes down step by step how tokens were picked: one JSON object a line."""

import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dflash.decode.sampling.processors import Row
from dflash.decode.session import Session
from dflash.decode.step import Step
from dflash.errors import RequestError

TOP = 8
"""Likeliest tokens that are told at each place."""


class Dump:
    """A file that several texts are written down in; it is closed when the last of them has ended.

    Parameters
    ----------
    path : str or path
        What was there is overwritten.
    name : callable, optional
        Gives the text of a token, to be told beside its id.
    top : int
        Likeliest tokens to tell at each place.

    Raises
    ------
    RequestError
        If it can't be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: Callable[[int], str] | None = None, top: int = TOP) -> None:
        try:
            self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise RequestError(f"dump: {path}: {error.strerror}") from error
        self.name, self.top = name, top
        self._n_made = self._n_open = 0

    def recorder(self) -> "TraceRecorder":
        """Make the recorder of the next text."""
        self._n_made += 1
        self._n_open += 1
        return TraceRecorder(self, self._n_made - 1)

    def write(self, row: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def end(self) -> None:
        """A text has ended."""
        self._n_open -= 1
        if self._n_open == 0:
            self._file.close()


class TraceRecorder:
    """Writes down one text. The engine's thread calls it; see `dflash.decode.view.Recorder`.

    A line has ``text``, which text it is about, and is of one of three kinds: the first has ``prompt`` and how it is
    continued; a chunk of the prompt has ``prefilled``; a step has ``tokens``, ``draft`` with tokens and parents,
    ``accepted``, what each of its ``picks`` was made from, ``seconds``, and, if there is anything to say, ``by``, ``note``,
    ``injected``, ``finish``.

    Parameters
    ----------
    dump : Dump
        Where to.
    number : int
        Which of its texts this is.
    """

    def __init__(self, dump: Dump, number: int) -> None:
        self._dump, self._number = dump, number
        self._session: Session | None = None
        self._picks: deque[list[dict[str, Any]]] = deque()

    def started(self, session: Session) -> None:
        """Write the head."""
        self._session = session
        head = {
            "prompt": session.prompt_ids,
            "strategy": repr(session.strategy),
            "sampling": repr(session.sampling),
            "seed": session.seed,
        }
        self._dump.write({"text": self._number, **head})

    def picked(self, row: int, logits: Any, token: int) -> None:
        """Note what a token was picked from; a step may be told after the picks of another, so each has its own list."""
        if row == 0:
            self._picks.append([])
        plain = np.array(logits, np.float32)
        found = {"guess": row - 1, "token": token, **self._named(token), "top": self._top(plain)}
        rules = self._processed(plain)
        self._picks[-1].append(found | ({"rules": rules} if rules else {}))

    def told(self, step: Step) -> None:
        """Write a step."""
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
        said = {name: getattr(step, name) for name in ("by", "note", "injected", "finish") if getattr(step, name)}
        self._dump.write({**row, "seconds": times, **said})
        if step.finish is not None:
            self._dump.end()

    def _processed(self, row: Row) -> list[dict[str, Any]]:
        """What each rule makes of a row, one after another; noise comes after them."""
        session, told = self._session, []
        for processor in (*session.sampler.processors, *session.sampling.after):
            after = processor(row.copy(), session.history)
            changed = np.flatnonzero(after != row)
            told.append(
                {
                    "rule": repr(processor),
                    "changed": len(changed),
                    "masked": int((np.isneginf(after) & ~np.isneginf(row)).sum()),
                    "top": self._top(after),
                }
            )
            row = after
        return told

    def _top(self, row: Row) -> list[dict[str, Any]]:
        """Tokens with the largest logits, and their log-probabilities, without those that can't come."""
        ids = np.argsort(-row, kind="stable")[: self._dump.top]
        peak = float(row[ids[0]])
        total = peak + float(np.log(np.exp(row.astype(np.float64) - peak).sum()))
        return [
            {"token": int(i), **self._named(int(i)), "logprob": round(float(row[i]) - total, 6)}
            for i in ids
            if np.isfinite(row[i])
        ]

    def _named(self, token: int) -> dict[str, str]:
        return {} if self._dump.name is None else {"piece": self._dump.name(token)}
