"""A session has every member that the protocols promise to drafters, recoveries and verification."""

import pytest

from dflash.decode.session import Session
from dflash.decode.view import RecoveryView, SamplingView, SessionView


def members(protocol):
    kinds = [kind for kind in protocol.__mro__ if getattr(kind, "_is_protocol", False)]
    annotated = {name for kind in kinds for name in vars(kind).get("__annotations__", ())}
    return annotated | {name for kind in kinds for name, value in vars(kind).items() if isinstance(value, property)}


@pytest.mark.parametrize("protocol", [SessionView, RecoveryView, SamplingView])
def test_a_session_has_every_member(protocol):
    found = members(protocol)
    assert len(found) >= 7
    assert [name for name in sorted(found) if not hasattr(Session([1, 2, 3]), name)] == []


def test_recoveries_see_more_than_drafters():
    assert members(SessionView) < members(RecoveryView)
