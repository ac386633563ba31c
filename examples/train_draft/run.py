"""The loop of a training: optimizer, learning rate, limits, log and checkpoint."""

import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

RATE, WARM_UP = 2e-3, 0.05
"""Largest learning rate of AdamW, and the share of the training in which it is reached; after that it falls as a cosine."""

EVERY = 100
"""Steps between two lines of the log, for which held-out texts are tried."""

SAVE = 30.0
"""Seconds between two checkpoints."""


@dataclass
class Run:
    """A training with limits, which continues from its checkpoint if there is one.

    Parameters
    ----------
    steps : int
        Most steps, those before the checkpoint included.
    seconds : float
        Most seconds, in the same way; the learning rate falls by the limit that is nearer.
    until : float
        Value of `time.perf_counter` at which a part of a training ends; the next start continues.
    file : path, optional
        Name of the log (``.csv``) and of the checkpoint (``.pt``) without its end; neither is written if None.
    study : callable, optional
        Called after every `study_every` steps with their number; see `train_draft.studied`. Its time is not training time.
    """

    steps: int = 1 << 40
    seconds: float = math.inf
    until: float = math.inf
    file: Path | None = None
    study: Callable[[int], None] | None = None
    study_every: int = 0

    def train(
        self,
        net: nn.Module,
        batches: Iterator[Sequence[Tensor]],
        loss: Callable[..., Tensor],
        tokens_per_step: Callable[[], float],
    ) -> list[float]:
        """Train a network in place; return the loss of each step after the checkpoint.

        Parameters
        ----------
        batches : iterator of sequence of Tensor
        loss : callable
            Takes the tensors of a batch.
        tokens_per_step : callable
            Returns tokens per step on held-out texts, for the log.
        """
        cuda = torch.cuda.is_available()
        torch.backends.cuda.matmul.allow_tf32 = True  # precise enough for logits, and no scaling of gradients
        net.to("cuda" if cuda else "cpu")
        optimizer = torch.optim.AdamW(net.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=cuda)
        step, before = self._restored(net, optimizer)
        losses: list[Tensor] = []
        begin, saved = time.perf_counter() - before, time.perf_counter()
        while step < self.steps and (now := time.perf_counter()) < self.until and (seconds := now - begin) < self.seconds:
            share = max(step / self.steps, seconds / self.seconds)
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, share / WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * share))
            found = loss(*next(batches))
            optimizer.zero_grad()
            found.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            losses.append(found.detach())
            step += 1
            if self.study is not None and self.study_every and step % self.study_every == 0:
                paused = time.perf_counter()
                self.study(step)
                begin += time.perf_counter() - paused
            if self.file and step % EVERY == 0:
                with torch.no_grad():
                    good = tokens_per_step()
                mean = torch.stack(losses[-EVERY:]).mean().item()
                self._log(step, time.perf_counter() - begin, optimizer.param_groups[0]["lr"], mean, good)
            if self.file and time.perf_counter() - saved > SAVE:
                saved = time.perf_counter()
                self._save(net, optimizer, step, saved - begin)
        if self.file:
            self._save(net, optimizer, step, time.perf_counter() - begin)
        return [float(each) for each in losses]

    def _restored(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
        """Take up the checkpoint if there is one; return its steps and seconds."""
        if self.file is None or not self.file.with_suffix(".pt").exists():
            return 0, 0.0
        state = torch.load(self.file.with_suffix(".pt"), map_location="cpu", weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"], state["seconds"]

    def _save(self, net: nn.Module, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "seconds": seconds}
        torch.save(state, self.file.with_suffix(".tmp"))
        self.file.with_suffix(".tmp").replace(self.file.with_suffix(".pt"))

    def _log(self, *values: float) -> None:
        path = self.file.with_suffix(".csv")
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(("step", "seconds", "rate", "loss", "held_out_tokens_per_step"))
            writer.writerow([f"{value:.6g}" for value in values])
        step, seconds, _, loss, good = values
        print(f"{self.file.name}: step {step}, {seconds:.0f} s, loss {loss:.3f}, held out {good:.2f}", flush=True)
