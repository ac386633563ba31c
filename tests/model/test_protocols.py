"""Models, sequences and drafters on a device satisfy their protocols. A type checker reads this file in ``make lint``."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import pytest
from ahead_toy import AheadToy
from toy import Toy

from dflash.model.protocols.sequence import SequenceSnapshot, SequenceState
from dflash.model.protocols.target import MemoryPools, ModelSizes, OverlappingModel, TargetModel, overlaps

if TYPE_CHECKING:
    from dflash.generation.result import Generation
    from dflash.generation.stream import Stream
    from dflash.lm import LM
    from dflash.model.cuda.draft import DeviceBlockDraft
    from dflash.model.cuda.heads import DeviceEagleHead, DeviceMtpHead
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model
    from dflash.model.protocols.device_drafter import DeviceDrafter


def targets(cpu: Model, gpu: DeviceModel, toy: Toy, ahead: AheadToy) -> list[TargetModel]:
    """Only a type checker calls this: each of the four is a target."""
    return [cpu, gpu, toy, ahead]


def overlapping(gpu: DeviceModel, ahead: AheadToy) -> list[OverlappingModel]:
    """Only a type checker calls this: both can launch a forward ahead."""
    return [gpu, ahead]


def device_drafters(block: DeviceBlockDraft, head: DeviceMtpHead, eagle: DeviceEagleHead) -> list[DeviceDrafter]:
    """Only a type checker calls this: all can be launched ahead."""
    return [block, head, eagle]


def results(lm: LM) -> None:
    """Only a type checker calls this: the result of `generate` depends on the prompt and on `stream`."""
    assert_type(lm.generate("text", max_tokens=1), Generation)
    assert_type(lm.generate([1, 2]), Generation)
    assert_type(lm.generate([{"role": "user", "content": "text"}]), Generation)
    assert_type(lm.generate(["one", "two"]), list[Generation])
    assert_type(lm.generate([[1], [2]]), list[Generation])
    assert_type(lm.generate("text", stream=True), Stream)


def members(protocol):
    return {
        name for kind in protocol.__mro__ for name in vars(kind) if kind.__module__ == protocol.__module__ and name[0] != "_"
    }


def missing(thing, protocol):
    return sorted(name for name in members(protocol) if not hasattr(thing, name))


@pytest.mark.parametrize(("toy", "protocol"), [(Toy(), TargetModel), (AheadToy(), OverlappingModel)], ids=["toy", "ahead"])
def test_a_toy_has_every_member_of_a_model(toy, protocol):
    assert len(members(protocol)) >= 12
    assert missing(toy, protocol) == []
    assert overlaps(toy) is (protocol is OverlappingModel)
    assert missing(toy.config, ModelSizes) == []
    assert missing(toy.pools, MemoryPools) == []


@pytest.mark.parametrize("toy", [Toy(), AheadToy()], ids=["toy", "ahead"])
def test_a_toy_sequence_has_every_member_of_a_sequence(toy):
    state = toy.state()
    snapshot = state.snapshot()
    assert len(members(SequenceState)) >= 8
    assert missing(state, SequenceState) == []
    assert missing(snapshot, SequenceSnapshot) == []
    snapshot.close()
    state.close()
    assert toy.leaked == (0, 0, 0)
