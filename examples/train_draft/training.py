"""Distil drafts from recorded texts: the drafts learn the distributions of the model that wrote the texts."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as fn

from dflash.model.config import Config
from dflash.model.draft.config import DraftConfig
from dflash.model.eagle import EagleConfig
from dflash.model.gguf.architectures import BIASES
from dflash.model.weights import row_order

from .networks import BlockDraftNet, EagleNet, MtpNet
from .recording import Text
from .run import Run

DECAY = 3.0
"""Draft positions of a head over which the weight of the loss falls by e: a row counts only if all before it were accepted.

For a block it is half the block, since one pass makes all rows."""

PASSES = 3
"""Draft tokens that the head is trained to make one after the other."""

AT_ONCE, ANCHORS = {"cpu": 4, "cuda": 64}, {"cpu": 8, "cuda": 32}
"""Texts of a step, and blocks of each, by device."""

ROWS = {"cpu": 512, "cuda": 16_384}
"""Most rows of a step whose distributions are compared; a random part of the rows if there are more."""

NEAR_LENGTH = 16
"""Batches whose texts are sorted by length before they are divided, so that few rows are padding."""

HELD_OUT = 32
"""Every n-th text is held out from training."""

Floats = NDArray[np.float32]
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Rows = tuple[Tensor, Tensor, Tensor]
"""Hidden states of a draft and of the model (S, M, P, D), P draft tokens after each of M positions; weights (S, M, P)."""


class Teacher:
    """Recorded texts as tensors, and what the model predicted at each position.

    Parameters
    ----------
    texts : sequence of Text
    embedding, head : float32 (V, D)
        See `tables`. On a CPU the loss compares only tokens that occur in the texts, which is much cheaper and loses little.
    """

    def __init__(self, texts: Sequence[Text], embedding: Floats, head: Floats, *, seed: int = 0) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.embedding = torch.from_numpy(embedding).to(self.device)
        seen = np.unique(np.concatenate([text.tokens for text in texts]))
        self.head = torch.from_numpy(head[seen] if self.device.type == "cpu" else head).to(self.device)
        lengths = [len(text.tokens) for text in texts]
        self._lengths, self._prompts = (torch.tensor(each) for each in (lengths, [text.prompt for text in texts]))
        self._starts = self._lengths.cumsum(0) - self._lengths
        self._tokens, self._features, self._hidden = (self._flat(texts, name) for name in ("tokens", "features", "hidden"))
        self._chance, self._at_once, self._anchors = (
            np.random.default_rng(seed),
            AT_ONCE[self.device.type],
            ANCHORS[self.device.type],
        )

    def _flat(self, texts: Sequence[Text], name: str) -> Tensor:
        """Return an array of all texts, one after the other, on the device; text by text, since they may be many GB."""
        first = torch.from_numpy(getattr(texts[0], name))
        whole = torch.empty(int(self._lengths.sum()), *first.shape[1:], dtype=first.dtype, device=self.device)
        for text, start in zip(texts, self._starts.tolist(), strict=True):
            whole[start : start + len(text.tokens)] = torch.from_numpy(getattr(text, name)).to(self.device)
        return whole.flatten(1) if whole.ndim > 1 else whole.long()

    def batches(self, *, held_out: bool = False) -> Iterator[Batch]:
        """Yield tokens (S, T), prompt lengths and lengths (S,), features (S, T, F * D) and hidden states (S, T, D)."""
        every = np.arange(len(self._lengths))
        mine = every[every % HELD_OUT == HELD_OUT - 1] if held_out else every[every % HELD_OUT != HELD_OUT - 1]
        while len(mine):
            order = mine if held_out else self._chance.permutation(mine)
            sorted_together = self._at_once * (1 if held_out else NEAR_LENGTH)
            for start in range(0, len(order), sorted_together):
                near = order[start : start + sorted_together]
                near = near[self._lengths[near].numpy().argsort(kind="stable")]
                starts = range(0, len(near) - len(near) % self._at_once or 1, self._at_once)
                for first in starts if held_out else self._chance.permutation(starts):
                    yield self._batch(torch.from_numpy(near[first : first + self._at_once]))

    def _batch(self, some: Tensor) -> Batch:
        lengths = self._lengths[some]
        places = torch.arange(int(lengths.max()))
        index = self._starts[some, None] + torch.minimum(places, lengths[:, None] - 1)  # a text's last row as padding
        index, prompts, lengths = (each.to(self.device) for each in (index, self._prompts[some], lengths))
        return self._tokens[index], prompts, lengths, self._features[index].float(), self._hidden[index].float()

    def anchors(self, prompts: Tensor, lengths: Tensor) -> Tensor:
        """Return random positions (S, M) of first rows: tokens that the model wrote, but for the last."""
        first = prompts.clamp(min=1)
        shares = torch.from_numpy(self._chance.random((len(lengths), self._anchors))).to(self.device)
        return (first[:, None] + shares * (lengths - 1 - first).clamp(min=1)[:, None]).long()

    def loss(self, student: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted divergence of a student's distributions from the model's; both as hidden states (..., D)."""
        chosen = weights.flatten().nonzero()[:, 0]
        chosen = chosen[torch.randperm(len(chosen), device=self.device)[: ROWS[self.device.type]]]
        weights = weights.flatten()[chosen]
        got, wanted = (fn.log_softmax(fn.linear(x.flatten(0, -2)[chosen], self.head).float(), -1) for x in (student, hidden))
        return (fn.kl_div(got, wanted, reduction="none", log_target=True).sum(-1) * weights).sum() / weights.sum()

    @torch.no_grad()
    def tokens_per_step(self, student: Tensor, hidden: Tensor, weights: Tensor) -> float:
        """Return the mean number of tokens that greedy verification would add, for drafts (S, M, P, D) of P tokens each."""
        best = [[fn.linear(each, self.head).argmax(-1) for each in x] for x in (student, hidden)]  # a text at a time
        agree = torch.stack([a == b for a, b in zip(*best, strict=True)]) & (weights > 0)
        return 1 + agree.int().cumprod(-1).sum(-1)[weights[..., 0] > 0].float().mean().item()


def untrained_draft(config: DraftConfig, *, seed: int = 0) -> BlockDraftNet:
    """Return a draft with random weights."""
    torch.manual_seed(seed)
    return BlockDraftNet(config)


def train_draft(net: BlockDraftNet, teacher: Teacher, **limits: Any) -> list[float]:
    """Train a DFlash draft in place; return the loss of each step. `limits` are the parameters of `Run`."""

    def rows(batch: Batch) -> Rows:
        tokens, prompts, lengths, features, hidden = batch
        row = torch.arange(1, net.config.block, device=tokens.device)
        anchors = teacher.anchors(prompts, lengths)
        block = teacher.embedding[net.config.mask].expand(*anchors.shape, net.config.block, -1).clone()
        block[:, :, 0] = teacher.embedding[tokens.gather(1, anchors)]
        before = anchors[..., None] + row - 1  # row i predicts position anchor + i, as the model does at the one before
        weights = torch.exp((1 - row) * 2 / net.config.block) * (before < lengths[:, None, None] - 1)
        index = before.clamp(max=hidden.shape[1] - 1).flatten(1)[..., None].expand(-1, -1, hidden.shape[-1])
        return net(features, anchors, block)[:, :, 1:], hidden.gather(1, index).view(*before.shape, -1), weights

    return _train(net, teacher, rows, Run(**limits))


def untrained_mtp(config: Config, *, seed: int = 0) -> MtpNet:
    """Return an MTP head with random weights for a model without experts."""
    torch.manual_seed(seed)
    return MtpNet(config)


def untrained_eagle(config: EagleConfig, *, seed: int = 0) -> EagleNet:
    """Return an EAGLE-3 head with random weights."""
    torch.manual_seed(seed)
    return EagleNet(config)


def train_mtp(net: MtpNet | EagleNet, teacher: Teacher, **limits: Any) -> list[float]:
    """Train a head in place for the draft tokens that it makes one after the other; see `train_draft`."""

    def rows(batch: Batch) -> Rows:
        tokens, prompts, lengths, features, hidden = batch
        passes: list[tuple[Tensor, Tensor]] = []
        embedded, state, found = teacher.embedding[tokens[:, 1:]], net.first(features, hidden)[:, :-1], []
        for _ in range(PASSES):
            found.append(net(embedded, state, passes))
            state = fn.pad(found[-1][:, :-1], (0, 0, 1, 0))  # the next pass is one position further
        n = tokens.shape[1] - PASSES
        after = torch.arange(n, device=tokens.device)[:, None] + torch.arange(PASSES, device=tokens.device) + 2
        weights = torch.exp((after[:, :1] - after) / DECAY)
        weights = weights * (after < lengths[:, None, None]) * (after[:, :1] >= prompts[:, None, None])
        chains = torch.stack([each[:, depth : depth + n] for depth, each in enumerate(found)], 2)
        return chains, hidden[:, after - 1], weights

    return _train(net, teacher, rows, Run(**limits))


def _train(net: nn.Module, teacher: Teacher, rows: Callable[[Batch], Rows], run: Run) -> list[float]:
    tried, kind = next(teacher.batches(held_out=True), None), teacher.device.type

    def drafted(batch: Batch) -> Rows:
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):  # the draft; not its loss
            return rows(batch)

    return run.train(
        net,
        teacher.batches(),
        lambda *batch: teacher.loss(*drafted(batch)),
        lambda: math.nan if tried is None else teacher.tokens_per_step(*drafted(tried)),
    )


def weights_of(net: nn.Module) -> dict[str, Floats]:
    """Return the weights of a network by their names in a GGUF file, with rows in the file's order."""
    names, order, layer = {"enc_output_norm": "enc.output_norm"}, {}, "blk.0." if isinstance(net, EagleNet) else ""
    if isinstance(net, MtpNet):
        names |= {"layer.ffn_norm": net.config.blocks.ffn_norm.removesuffix(".weight")}
        order = row_order(net.config)
    found = {}
    for name, value in net.named_parameters():
        short = layer + name.removeprefix("layer.") if name.startswith("layer.") else name
        name = f"{names.get(name, short.replace('nextn_', 'nextn.'))}.weight"
        array = value.detach().float().cpu().numpy()
        found[name] = array[np.argsort(order[name])] if name in order else array
    if isinstance(net, MtpNet):  # a head needs no biases, but files of some architectures have them
        biases = [name for name in BIASES if name in net.config.blocks.full]
        found |= {name: np.zeros(len(found[name.replace("bias", "weight")]), np.float32) for name in biases}
    return found
