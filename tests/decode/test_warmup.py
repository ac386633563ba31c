"""What a start compiles, so that no request has to while others wait."""

import numpy as np
from toy import Toy

from dflash.decode import warmup as module
from dflash.decode.drafting.shapes import Tree
from dflash.decode.engine import Engine
from dflash.decode.warmup import warm
from dflash.kernels.cpu import warm_marker
from dflash.kernels.lookup import Index
from dflash.kernels.lookup import cpu as lookup
from dflash.kernels.tree import cpu as tree
from dflash.model.candidates import Candidates

KERNELS = lookup.fill, lookup.match, tree.grow


class HostToy(Toy):
    device = "cpu"

    def __init__(self):
        super().__init__()
        self.config.width = 1 << 16


def test_lookups_and_trees_are_compiled_at_the_first_start(monkeypatch):
    known, stages = set(), []
    monkeypatch.setattr(warm_marker, "is_known", known.__contains__)
    monkeypatch.setattr(warm_marker, "remember", known.add)
    for _ in range(2):
        warm(Engine(HostToy()), "a kind", stages.append)
    assert stages.count("compiling drafts") == 1
    assert len(known) == 2


def test_what_is_compiled_is_what_requests_use():
    module._compile_drafts()
    before = [kernel.signatures[:] for kernel in KERNELS]
    assert all(before)
    index = Index(2, 8, 3000)
    index.append([5] * 40)
    assert index.match()[0] == 8
    ids, scores = np.zeros((7, 20), np.int32), np.zeros((7, 20), np.float32)
    for shape in (Tree(22), Tree(9, depth=4, width=3)):
        shape.draft(Candidates(ids, scores), 22)
        shape.draft(Candidates(ids, scores, np.zeros((7, 20, 20), np.float32)), 22)
    assert [kernel.signatures[:] for kernel in KERNELS] == before
