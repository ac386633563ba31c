"""Stored responses: chains, the limits in bytes and time."""

import json

from dflash.serve.responses.store import ResponseStore, as_json


def body(id_, text="x"):
    return {"id": id_, "output": [text]}


def filled(n, **settings):
    """A store with a chain of `n` responses; each has the items qN (input) and aN (output)."""
    store = ResponseStore(**settings)
    for number in range(n):
        add(store, number)
    return store


def add(store, number, previous=None):
    before = f"r{number - 1}" if previous is None and number else previous
    store.add(body(f"r{number}", f"a{number}"), as_json([f"q{number}"]), before)


def items(store, id_, user=""):
    return json.loads(store.conversation(id_, user))


def test_a_chain_is_its_whole_conversation():
    store = filled(3)
    assert items(store, "r2") == ["q0", "a0", "q1", "a1", "q2", "a2"]
    assert items(store, "r0") == ["q0", "a0"]
    assert json.loads(store.body("r1")) == body("r1", "a1")
    assert store.conversation("r9") is None


def test_stored_conversations_may_branch():
    store = filled(2)
    add(store, 7, previous="r0")
    assert items(store, "r7") == ["q0", "a0", "q7", "a7"]
    assert items(store, "r1") == ["q0", "a0", "q1", "a1"]


def test_a_deleted_response_ends_what_follows():
    store = filled(2)
    assert store.delete("r0")
    assert not store.delete("r0")
    assert store.body("r0") is None
    assert json.loads(store.body("r1")) == body("r1", "a1")
    assert store.conversation("r1") is None


def test_bytes_are_bounded_and_the_least_recently_used_goes_first():
    size = len(as_json(body("r0", "a0"))) + 2 * len(as_json(["q0"]))
    store = ResponseStore(max_bytes=3 * size)
    for name in "abc":
        store.add(body(f"{name}0", "a0"), as_json(["q0"]), None)
    assert store.conversation("a0") is not None
    store.add(body("d0", "a0"), as_json(["q0"]), "a0")
    assert [store.body(f"{name}0") is not None for name in "abcd"] == [True, False, True, True]


def test_a_conversation_loses_its_end_first():
    size = len(as_json(body("r0", "a0"))) + 2 * len(as_json(["q0"]))
    store = filled(3, max_bytes=3 * size)
    store.add(body("x0", "a0"), as_json(["q0"]), None)
    assert store.conversation("r2") is None
    assert items(store, "r1") == ["q0", "a0", "q1", "a1"]


def test_what_is_too_long_is_not_stored_and_drops_nothing():
    store = filled(1, max_bytes=200)
    store.add(body("big", "x" * 300), as_json([]), None)
    assert store.body("big") is None
    assert store.body("r0") is not None


def test_space_is_freed_by_delete():
    size = len(as_json(body("r0", "a0"))) + 2 * len(as_json(["q0"]))
    store = ResponseStore(max_bytes=size)
    for number in range(5):
        store.add(body(f"r{number}", "a0"), as_json(["q0"]), None)
        assert store.body(f"r{number}") is not None
        assert store.delete(f"r{number}")


def test_responses_are_forgotten_after_their_last_use():
    now = 0.0
    store = ResponseStore(seconds=10, clock=lambda: now)
    add(store, 0)
    add(store, 9, previous="r0")
    store.add(body("alone"), as_json([]), None)
    now = 9.0
    assert store.conversation("r9") is not None
    now = 15.0
    assert store.body("alone") is None
    assert items(store, "r9") == ["q0", "a0", "q9", "a9"]
    now = 26.0
    assert store.body("r0") is None
    assert not store.delete("r9")


def test_a_response_exists_for_its_user_only():
    store = ResponseStore()
    store.add(body("a"), as_json(["q"]), None, "alice")
    store.add(body("b"), as_json(["q"]), "a", "bob")
    for user in ("", "bob"):
        assert (store.body("a", user), store.conversation("a", user), store.delete("a", user)) == (None, None, False)
    assert store.conversation("b", "bob") is None  # what it continues belongs to another user
    assert items(store, "a", "alice") == ["q", "x"]
    assert store.delete("a", "alice")


def test_a_turn_without_items_leaves_valid_json():
    store = ResponseStore()
    store.add({"id": "r0", "output": []}, as_json([]), None)
    store.add({"id": "r1", "output": []}, as_json(["q"]), "r0")
    assert items(store, "r1") == ["q"]
    assert items(store, "r0") == []


def test_text_is_kept_as_it_is():
    store = ResponseStore()
    store.add(body("r", 'é"\n😀'), as_json([{"text": "ü"}]), None)
    assert items(store, "r") == [{"text": "ü"}, 'é"\n😀']
    assert json.loads(as_json({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}
