"""The n-gram index against its definition, for sequences that grow in any steps."""

import time

import numpy as np
import pytest

from dflash.errors import KernelError
from dflash.kernels.lookup import Index, cpu, reference


@pytest.mark.parametrize(("name", "text", "shortest", "longest"), list(reference.cases()))
def test_the_longest_match_is_found(name, text, shortest, longest):
    index = Index(shortest, longest)
    for i, token in enumerate(text):
        index.append([token])
        assert index.match() == reference.match(text[: i + 1], shortest, longest), f"{name}: {text[: i + 1]}"
    whole = Index(shortest, longest)
    whole.append(text)
    assert whole.match() == index.match()


@pytest.mark.parametrize(("name", "text", "shortest", "longest"), list(reference.cases()))
def test_all_occurrences_of_the_end_of_this_and_of_another_text(name, text, shortest, longest):
    index = Index(shortest, longest, all_of_them=True)
    index.append(text)
    for query in (text, text[: len(text) // 2], [99, *text[:3]], text[-1:]):
        ends, lengths = index.occurrences(np.array(query, np.int32), len(text) + 1)
        assert (ends.tolist(), lengths.tolist()) == reference.occurrences(text, query, shortest, longest), name
        few, _ = index.occurrences(np.array(query, np.int32), 2)
        assert few.tolist() == ends.tolist()[:2]


@pytest.mark.parametrize(("name", "text", "shortest", "longest"), list(reference.cases()))
def test_continuations_share_their_weight(name, text, shortest, longest):
    """Nodes are those of the definition, each below its parent; a negative token ends a continuation."""
    text = [-1 if i % 11 == 10 else token for i, token in enumerate(text)]
    index = Index(shortest, longest, all_of_them=True)
    index.append(text)
    ends = np.arange(0, len(text) - 1, 3)
    weights = 0.5 ** np.arange(len(ends))
    tokens, parents, shares = index.continuations(ends, weights, 4)
    paths = []
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    want = reference.continuations(text, ends.tolist(), weights.tolist(), 4)
    assert dict(zip(paths, shares, strict=True)) == pytest.approx(want), name
    assert len(paths) == len(want)


def test_a_text_that_outgrows_its_tables():
    """N-grams entered before the tables are rebuilt are found afterwards."""
    rng = np.random.default_rng(3)
    text = [*rng.integers(0, 5, 5000).tolist(), *range(100, 120)]
    index, n = Index(2, 8), 0
    while n < len(text):
        some = text[n : n + int(rng.integers(1, 700))]
        index.append(some)
        n += len(some)
    index.append(text[:6])
    assert index.match()[0] >= 6
    assert index.match() == reference.match([*text, *text[:6]], 2, 8)


def test_what_follows_goes_round():
    index = Index(1, 4)
    index.append([9, 1, 2, 3, 1])
    length, follower = index.match()
    assert (length, follower) == (1, 2)
    assert index.following(follower, 7).tolist() == [2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("text", ["one token", "two letters", "many letters"])
def test_a_long_text_is_cheap(text):
    """A hundred thousand tokens take a tenth of a second of CPU time, even if all n-grams are equal."""
    n = 100_000
    tokens = np.zeros(n, int) if text == "one token" else np.random.default_rng(0).integers(0, 2, n)
    tokens = tokens if text != "many letters" else np.random.default_rng(0).integers(0, 50_000, n)
    warm = Index(2, 8)
    warm.append([1, 2, 3])
    warm.match()
    index, began = Index(2, 8), time.thread_time()
    for start in range(0, n, 512):
        index.append(tokens[start : start + 512])
        index.match()
    assert time.thread_time() - began < 2.0


OLD_FACTOR = np.uint64(0x9E3779B97F4A7C15)
N_PAIRS, ROOM = 500, 2048


def old_states(first, second):
    """Hash pairs of tokens with the former hash without keys: (tokens, ...) to uint64."""
    return ((second * OLD_FACTOR) ^ first) * OLD_FACTOR


def keyed_states(keys):
    """Hash pairs of tokens with known keys."""
    keys = keys.astype(np.uint64)
    return lambda first, second: keys[0] + keys[1] * second + keys[2] * first


def colliding_text(states):
    """Return a sequence of many different pairs that all hash to the first few places of a table of `ROOM` tokens."""
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 1 << 17, (2, 1 << 22), dtype=np.uint64)
    places = (states(first, second) >> np.uint64(32)) % np.uint64(2 * ROOM)
    found = np.flatnonzero(places < 2)[:N_PAIRS]
    assert len(found) == N_PAIRS
    return np.stack([first[found], second[found]], 1).ravel().astype(np.int32)


class Counting(np.ndarray):
    """Tables that count the places that are read."""

    probes = 0

    def __getitem__(self, place):
        Counting.probes += 1
        return super().__getitem__(place)


def probes(monkeypatch, text, keys):
    """Return the number of places read to enter all pairs of tokens of a sequence."""
    monkeypatch.setattr(cpu, "_find", getattr(cpu._find, "py_func", cpu._find))
    monkeypatch.setattr(Counting, "probes", 0)
    tables = np.full((1, 2 * ROOM), -1, np.int32).view(Counting)
    with np.errstate(over="ignore"):
        cpu.fill.py_func(text, 0, len(text), 2, tables, keys, np.empty((1, 0), np.int32))
    return Counting.probes


def random_keys(seed):
    return np.random.default_rng(seed).integers(-(1 << 63), 1 << 63, 3, dtype=np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_pairs_that_collide_without_a_key(monkeypatch, seed):
    """A crafted sequence costs as much as a random one: a few probes for each n-gram, not one for each earlier n-gram."""
    text = colliding_text(old_states)
    usual = np.random.default_rng(seed).integers(0, 1 << 17, len(text)).astype(np.int32)
    assert probes(monkeypatch, usual, random_keys(seed)) < 4 * len(text)
    assert probes(monkeypatch, text, random_keys(seed)) < 4 * len(text)


def test_pairs_that_collide_with_another_key(monkeypatch):
    """The count reveals an attack with known keys, and keys of another index do not help an attacker."""
    text = colliding_text(keyed_states(random_keys(1)))
    assert probes(monkeypatch, text, random_keys(1)) > N_PAIRS**2 // 4
    assert probes(monkeypatch, text, random_keys(2)) < 4 * len(text)


def test_keys_are_random():
    keys = [Index(2, 8)._keys for _ in range(8)]
    assert len({tuple(row.tolist()) for row in keys}) == len(keys)
    assert all(row.shape == (9,) and len(set(row.tolist())) == 9 for row in keys)


@pytest.mark.parametrize("states", [old_states, keyed_states(random_keys(1))], ids=["without a key", "known key"])
def test_results_do_not_depend_on_the_key(monkeypatch, states):
    """Results are right even if all n-grams collide."""
    pairs = colliding_text(states)[:120]
    rng = np.random.default_rng(4)
    text = np.concatenate([pairs, rng.permutation(pairs.reshape(-1, 2)).ravel(), pairs[:7], rng.integers(0, 3, 50)]).tolist()
    indices = [Index(2, 3, ROOM) for _ in range(3)]
    monkeypatch.setattr(indices[0], "_keys", np.append(random_keys(1), 0))
    monkeypatch.setattr(indices[1], "_keys", np.zeros(4, np.int64))
    for i, token in enumerate(text):
        expected = reference.match(text[: i + 1], 2, 3)
        for index in indices:
            index.append([token])
            assert index.match() == expected


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (4, 3)])
def test_lengths_that_make_no_sense(shortest, longest):
    with pytest.raises(KernelError, match=f"{shortest} and {longest}"):
        Index(shortest, longest)
