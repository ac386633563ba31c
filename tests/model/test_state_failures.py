"""Pages and slots are returned if copying or clearing them fails."""

import pytest

from dflash.errors import KernelError

N = 300
"""Tokens that fill one page and a part of another."""


class Fails:
    """An array that can't be written to."""

    def __setitem__(self, *_):
        raise KernelError("the device said no")


@pytest.fixture
def text(lm, pools):
    """A state whose text ends within its second page."""
    state = lm.call(lm.model.state)
    state.reserve(N)
    state.length = N
    yield state
    state.close()


def fails(*_):
    raise KernelError("the device said no")


def test_a_slot_that_can_not_be_cleared(lm, pools, monkeypatch):
    free = pools.free_slots
    monkeypatch.setattr(pools, "slot_views", lambda _: [Fails()])
    with pytest.raises(KernelError):
        lm.model.state()
    assert pools.free_slots == free


def test_a_page_that_can_not_be_copied_to_a_snapshot(text, pools, monkeypatch):
    free = pools.free_pages
    monkeypatch.setattr(pools, "copy_page", fails)
    with pytest.raises(KernelError):
        text.snapshot()
    assert pools.free_pages == free


def test_a_page_that_can_not_be_copied_from_a_snapshot(text, lm, pools, monkeypatch):
    snapshot = text.snapshot()
    try:
        other = lm.model.state()
        try:
            free = pools.free_pages
            monkeypatch.setattr(pools, "copy_page", fails)
            with pytest.raises(KernelError):
                other.restore(snapshot)
            assert pools.free_pages == free
            assert (other.length, other.pages) == (0, [])
        finally:
            other.close()
    finally:
        snapshot.close()


def test_a_recurrent_state_that_can_not_be_restored(text, lm, pools, monkeypatch):
    snapshot, other = text.snapshot(), lm.model.state()
    try:
        monkeypatch.setattr(pools, "slot_views", lambda _: [Fails()] * len(snapshot.recurrent))
        with pytest.raises(KernelError):
            other.restore(snapshot)
    finally:
        other.close()
        snapshot.close()
