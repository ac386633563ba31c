"""Distil drafts from recorded texts: the drafts learn the distributions of the model that wrote the texts."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as fn

from dflash.model.config import Config
from dflash.model.draft.config import DraftConfig

from .networks import BlockDraftNet, MtpNet
from .recording import Text

RATE, WARM_UP = 2e-3, 0.1
"""Largest learning rate of AdamW, and the share of the steps in which it is reached; after that it falls as a cosine."""

DECAY = 3.0
"""Draft positions over which the weight of the loss falls by e: a row counts only if all rows before it were accepted."""

AT_ONCE, ANCHORS = 4, 8
"""Texts of a step, and blocks of each."""

Floats = NDArray[np.float32]
Losses = list[float]


class Teacher:
    """Recorded texts as tensors, and what the model predicted at each position.

    Parameters
    ----------
    texts : sequence of Text
    embedding, head : float32 (V, D)
        See `tables`. The loss compares only tokens that occur in the texts, which is much cheaper and loses little.
    """

    def __init__(self, texts: Sequence[Text], embedding: Floats, head: Floats, *, seed: int = 0) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.embedding = torch.from_numpy(embedding).to(self.device)
        seen = np.unique(np.concatenate([text.tokens for text in texts]))
        self.head = torch.from_numpy(head[seen]).to(self.device)
        self._texts, self._chance = texts, np.random.default_rng(seed)

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield tokens (S, T), lengths (S,), features (S, T, F * D) and hidden states (S, T, D), padded with zeros."""
        while True:
            order = self._chance.permutation(len(self._texts))
            for start in range(0, len(order) - len(order) % AT_ONCE or 1, AT_ONCE):
                some = [self._texts[i] for i in order[start : start + AT_ONCE]]
                parts = [[torch.from_numpy(array) for array in text] for text in some]
                tokens, features, hidden = (nn.utils.rnn.pad_sequence(each, True) for each in zip(*parts, strict=True))
                lengths = torch.tensor([len(text.tokens) for text in some])
                arrays = tokens.long(), lengths, features.float().flatten(2), hidden.float()
                yield tuple(array.to(self.device) for array in arrays)

    def anchors(self, lengths: Tensor) -> Tensor:
        """Return random positions (S, ANCHORS) of first rows, after the first token and before the last."""
        shares = torch.from_numpy(self._chance.random((len(lengths), ANCHORS))).to(self.device)
        return (1 + shares * (lengths[:, None] - 2)).long()

    def loss(self, student: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted divergence of a student's distributions from the model's; both as hidden states (..., D)."""
        chosen = weights > 0
        wanted = fn.log_softmax(hidden[chosen] @ self.head.T, -1)
        got = fn.log_softmax(student[chosen] @ self.head.T, -1)
        return (fn.kl_div(got, wanted, reduction="none", log_target=True).sum(-1) * weights[chosen]).sum() / weights.sum()


def untrained_draft(config: DraftConfig, *, seed: int = 0) -> BlockDraftNet:
    """Return a draft with random weights."""
    torch.manual_seed(seed)
    return BlockDraftNet(config)


def train_draft(net: BlockDraftNet, teacher: Teacher, *, steps: int) -> Losses:
    """Train a DFlash draft in place; return the loss of each step."""
    rows = torch.arange(net.config.block, device=teacher.device)
    mask = teacher.embedding[net.config.mask]

    def loss(tokens: Tensor, lengths: Tensor, features: Tensor, hidden: Tensor) -> Tensor:
        anchors = teacher.anchors(lengths)
        block = mask.expand(*anchors.shape, len(rows), -1).clone()
        block[:, :, 0] = teacher.embedding[tokens.gather(1, anchors)]
        before = anchors[..., None] + rows - 1  # row i predicts position anchor + i, as the model does at the one before
        weights = torch.exp((1 - rows) / DECAY) * (rows > 0) * (before < lengths[:, None, None] - 1)
        index = before.clamp(max=hidden.shape[1] - 1).flatten(1)[..., None].expand(-1, -1, hidden.shape[-1])
        wanted = hidden.gather(1, index).view(*before.shape, -1)
        return teacher.loss(net(features, anchors, block), wanted, weights)

    return _train(net, teacher, loss, steps)


def untrained_mtp(config: Config, *, seed: int = 0) -> MtpNet:
    """Return an MTP head with random weights for a model without experts."""
    torch.manual_seed(seed)
    return MtpNet(config)


def train_mtp(net: MtpNet, teacher: Teacher, *, steps: int) -> Losses:
    """Train an MTP head in place for its own prediction and the one after it; return the loss of each step."""

    def loss(tokens: Tensor, lengths: Tensor, _: Tensor, hidden: Tensor) -> Tensor:
        places, total = torch.arange(tokens.shape[1], device=tokens.device), torch.zeros((), device=tokens.device)
        state = hidden
        for depth in (1, 2):
            n = tokens.shape[1] - depth - 1
            state = net(teacher.embedding[tokens[:, depth : depth + n]], state[:, :n])
            weights = (places[:n] < lengths[:, None] - depth - 1).float()
            total = total + teacher.loss(state, hidden[:, depth : depth + n], weights)
        return total / 2

    return _train(net, teacher, loss, steps)


def _train(net: nn.Module, teacher: Teacher, loss: Callable[..., Tensor], steps: int) -> Losses:
    net.to(teacher.device)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.01)
    plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / steps))
    losses = []
    for _, batch in zip(range(steps), teacher.batches(), strict=False):
        found = loss(*batch)
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        plan.step()
        losses.append(found.item())
    return losses


def _rate(share: float) -> float:
    return min(1.0, share / WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * share))


def weights_of(net: nn.Module) -> dict[str, Floats]:
    """Return the weights of a network by their names in a GGUF file."""
    names = {"enc_output_norm": "enc.output_norm", "layer.ffn_norm": "post_attention_norm"}
    found = {}
    for name, value in net.named_parameters():
        name = names.get(name, name.removeprefix("layer.").replace("nextn_", "nextn."))
        found[f"{name}.weight"] = value.detach().float().cpu().numpy()
    return found
