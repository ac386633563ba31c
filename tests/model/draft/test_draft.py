"""Draft models against their formulas in float64, and against themselves in other batches."""

from dataclasses import replace

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from draft_oracle import Oracle, log_softmax
from drafts import KINDS, SECOND, SMALL, SPARK, VOCAB, features, random_weights, target, write_folder, write_gguf

from dflash.errors import DFlashError, KernelError, PoolExhausted, RequestError
from dflash.kernels.sample import SampleParams, candidates
from dflash.model.draft import DraftRequest, load_draft
from dflash.model.draft.selector import drawn

GREEDY = SampleParams()
RATIO = 2e-5


class Bench:
    """A draft model of random weights, with access to all outputs of its block."""

    def __init__(self, folder, config, *, form="gguf", seed=0, own=(), n_head=None, sequences=4, edit=None, **settings):
        self.config, self.weights = config, random_weights(config, seed, n_head, own)
        if edit:
            edit(self.weights)
        self.target = target(config)
        name = f"draft{len(list(folder.iterdir()))}"  # a file that is mapped must not be written again
        if form == "gguf":
            self.path = write_gguf(folder / f"{name}.gguf", config, self.weights)
        else:
            self.path = write_folder(folder / name, config, self.weights, kind=form)
        self.draft = load_draft(self.path, self.target, sequences=sequences, **settings)

    def oracle(self, weights=None, **settings):
        tables, weights = self.target.tables, weights or self.weights
        embedding = weights.get("token_embd.weight", tables["token_embd.weight"])
        return Oracle(self.config, weights, embedding, weights.get("output.weight", tables["output.weight"]), **settings)

    def rows(self, asks):
        """Return the hidden rows and logits in `propose`, and the candidates that it returns."""
        seen, choose = [], self.draft._choose

        def look(asks, hidden, logits):
            seen.extend((hidden.copy(), logits.copy()))
            return choose(asks, hidden, logits)

        self.draft._choose = look
        try:
            found = self.draft.propose(asks)
        finally:
            self.draft._choose = choose
        return *seen, found


def begun(bench, n, seed=1, begin=0):
    """A state and an oracle that have read `n` positions."""
    state, oracle = bench.draft.state(begin), bench.oracle(begin=begin)
    by_layer, flat = features(bench.config, n, seed)
    bench.draft.read(state, by_layer, slice(0, n))
    oracle.read(flat)
    return state, oracle


@pytest.mark.parametrize("form", ["gguf", "F32", "BF16", "F16"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_logits_equal_the_definition(tmp_path, kind, form):
    config = KINDS[kind]
    bench = Bench(tmp_path, config, form=form)
    if form in {"BF16", "F16"}:
        stored = {"BF16": lambda x: (x.view(np.uint32) & 0xFFFF0000).view(np.float32), "F16": np.float16}[form]
        bench.weights = {name: np.asarray(stored(value), np.float32) for name, value in bench.weights.items()}
    state, oracle = begun(bench, 33)
    hidden, logits, _ = bench.rows([DraftRequest(state, 17, config.max_draft, GREEDY, 4)])
    want_hidden, want_logits = oracle.block(17, config.block)
    assert_close("hidden", hidden, want_hidden[config.lead :], RATIO)
    assert_close("logits", logits, want_logits[config.lead :], RATIO)


@pytest.mark.parametrize("n", [0, 1, 19, 20, 21, 64, 65, 100, 200])
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_context_of_any_length(tmp_path, kind, n):
    """Lengths around the window of 20, and beyond the ring of 64 positions (128 in all)."""
    config = KINDS[kind]
    bench = Bench(tmp_path, config, context=64)
    state = bench.draft.state()
    oracle = bench.oracle(keeps=64)
    by_layer, flat = features(config, n)
    for start in range(0, n, 37):
        bench.draft.read(state, by_layer, slice(start, min(start + 37, n)))
    oracle.read(flat)
    assert state.length == n
    hidden, _, _ = bench.rows([DraftRequest(state, 5, config.max_draft, GREEDY, 1)])
    assert_close("hidden", hidden, oracle.block(5, config.block)[0][1:], RATIO)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_at_once_or_row_by_row(tmp_path, kind):
    bench = Bench(tmp_path, KINDS[kind])
    by_layer, _ = features(bench.config, 90)
    answers = []
    for rows in ([range(90)], [range(40), range(40, 41), range(41, 90)], [[i] for i in range(90)]):
        state = bench.draft.state()
        for part in rows:
            bench.draft.read(state, by_layer, list(part))
        answers.append(bench.rows([DraftRequest(state, 3, bench.config.max_draft, GREEDY, 3)])[0])
        state.close()
    for other in answers[1:]:
        assert_same_bits("hidden", other, answers[0])


def test_a_context_that_begins_later(tmp_path):
    bench = Bench(tmp_path, SMALL)
    state, oracle = begun(bench, 12, begin=100)
    assert (state.begin, state.length) == (100, 112)
    hidden, _, _ = bench.rows([DraftRequest(state, 3, 5, GREEDY, 1)])
    assert_close("hidden", hidden, oracle.block(3, 6)[0][1:], RATIO)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "params", [GREEDY, SampleParams(scale=0.9, top_k=20, top_p=0.95, seed=5)], ids=["greedy", "sampled"]
)
def test_a_sequence_has_the_same_bits_in_a_batch(tmp_path, kind, params):
    bench = Bench(tmp_path, KINDS[kind], trim_block=True)
    states = [begun(bench, n, seed=n)[0] for n in (40, 3, 77, 0)]
    asks = [DraftRequest(state, i, 1 + i, params, 2 + i) for i, state in enumerate(states)]
    together = bench.draft.propose(asks)
    for ask, want in zip(asks, together, strict=True):
        (alone,) = bench.draft.propose([ask])
        for name, mine, other in zip(want._fields, alone, want, strict=True):
            if mine is not None:
                assert_same_bits(name, np.ascontiguousarray(mine), np.ascontiguousarray(other))


def test_reading_several_texts_of_one_forward(tmp_path):
    bench = Bench(tmp_path, SMALL)
    by_layer, _ = features(SMALL, 60)
    parts = [slice(0, 20), [20, 22, 25], slice(30, 60)]
    together, alone = ([bench.draft.state() for _ in parts], [])
    bench.draft.read_many(list(zip(together, parts, strict=True)), by_layer)
    got = [bench.rows([DraftRequest(state, 1, 5, GREEDY, 1)])[0] for state in together]
    for state in together:
        state.close()
    for part in parts:
        state = bench.draft.state()
        bench.draft.read(state, by_layer, part)
        alone.append(bench.rows([DraftRequest(state, 1, 5, GREEDY, 1)])[0])
        state.close()
    for mine, other in zip(got, alone, strict=True):
        assert_same_bits("hidden", mine, other)


def test_arrays_of_a_device_are_fetched(tmp_path):
    class Away:
        def __init__(self, array):
            self.array = array

        def __len__(self):
            return len(self.array)

        def __getitem__(self, rows):
            return Away(self.array[rows])

        def get(self):
            return self.array

    bench = Bench(tmp_path, SMALL)
    by_layer, _ = features(SMALL, 9)
    one, other = bench.draft.state(), bench.draft.state()
    bench.draft.read(one, by_layer, slice(2, 9))
    bench.draft.read(other, {tap: Away(array) for tap, array in by_layer.items()}, slice(2, 9))
    rows = [bench.rows([DraftRequest(state, 1, 5, GREEDY, 1)])[0] for state in (one, other)]
    assert_same_bits("hidden", *rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_block_gives_the_same_first_positions(tmp_path, kind):
    """Layers that are not causal need the whole block; with causal layers a shorter block gives the same rows."""
    config = KINDS[kind]
    whole = Bench(tmp_path, config)
    state, oracle = begun(whole, 25)
    hidden, _, _ = whole.rows([DraftRequest(state, 9, 2, GREEDY, 1)])
    lead = config.lead
    assert_close("whole", hidden, oracle.block(9, config.block)[0][lead : lead + 2], RATIO)
    short = Bench(tmp_path, config, trim_block=True)
    state, oracle = begun(short, 25)
    assert_close("short", short.rows([DraftRequest(state, 9, 2, GREEDY, 1)])[0], oracle.block(9, 2 + lead)[0][lead:], RATIO)
    causal = Bench(tmp_path, config, causal=True)
    assert causal.draft.config.causal == (True,) * config.n_layers
    state, _ = begun(causal, 25)
    few, all_of_them = (causal.rows([DraftRequest(state, 9, n, GREEDY, 1)])[0] for n in (2, config.max_draft))
    assert_same_bits("causal", few, all_of_them[:2])


def test_candidates_are_the_likeliest_tokens(tmp_path):
    bench = Bench(tmp_path, SMALL)
    state, oracle = begun(bench, 30)
    (found,) = bench.draft.propose([DraftRequest(state, 11, 5, GREEDY, 7)])
    want = log_softmax(oracle.block(11, 6)[1][1:])
    order = np.argsort(-want, axis=1, kind="stable")[:, :7]
    assert found.edges is None
    np.testing.assert_array_equal(found.ids, order)
    np.testing.assert_allclose(found.scores, np.take_along_axis(want, order, axis=1), atol=2e-4)


def test_scale_cap_and_factor(tmp_path):
    config = replace(SMALL, logit_scale=0.25, logit_cap=3.0)
    bench = Bench(tmp_path, config)
    state, oracle = begun(bench, 30)
    assert_close("logits", bench.rows([DraftRequest(state, 11, 5, GREEDY, 7)])[1], oracle.block(11, 6)[1][1:], RATIO)
    inner = {"mask_token_id": config.mask, "target_layer_ids": list(config.target_layer_ids), "output_multiplier": 0.25}
    inner |= {"final_logit_softcapping": 3.0, "input_embedding_scale": 1.5}
    path = write_folder(tmp_path / "folder", config, bench.weights, dflash_config=inner)
    bench.draft, bench.config = load_draft(path, bench.target, sequences=1), replace(config, embed_scale=1.5)
    state, oracle = begun(bench, 30)
    assert_close("logits", bench.rows([DraftRequest(state, 11, 5, GREEDY, 7)])[1], oracle.block(11, 6)[1][1:], RATIO)


def test_own_embedding_and_head(tmp_path):
    own = "token_embd.weight", "output.weight"
    for form in ("gguf", "F32"):
        bench = Bench(tmp_path, SMALL, own=own, form=form)
        state, oracle = begun(bench, 8)
        assert_close(form, bench.rows([DraftRequest(state, 11, 5, GREEDY, 2)])[1], oracle.block(11, 6)[1][1:], RATIO)


def test_states_are_counted_and_refused_once_closed(tmp_path):
    bench = Bench(tmp_path, SMALL, sequences=2)
    states = [bench.draft.state() for _ in range(2)]
    assert bench.draft.free_slots == 0
    with pytest.raises(PoolExhausted, match="2 texts"):
        bench.draft.state()
    for state in states * 2:
        state.close()
    assert bench.draft.free_slots == 2
    with pytest.raises(KernelError, match="closed"):
        bench.draft.propose([DraftRequest(states[0], 0, 1, GREEDY, 1)])
    with pytest.raises(DFlashError, match="closed"):
        bench.draft.read(states[0], features(SMALL, 3)[0], slice(0, 3))
    with pytest.raises(DFlashError, match="closed"):
        states[0].snapshot()


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_a_restored_snapshot_drafts_the_same(tmp_path, kind):
    bench = Bench(tmp_path, KINDS[kind], context=64)
    by_layer, _ = features(bench.config, 200)
    for n in (0, 5, 64, 150):
        state = bench.draft.state()
        bench.draft.read(state, by_layer, slice(0, n))
        want = bench.rows([DraftRequest(state, 1, 5, GREEDY, 1)])[0]
        kept = state.snapshot()
        bench.draft.read(state, by_layer, slice(n, n + 40))
        other = bench.draft.state()
        for place in (state, other):
            place.restore(kept)
            assert place.length == n
            assert_same_bits("restored", bench.rows([DraftRequest(place, 1, 5, GREEDY, 1)])[0], want)
        kept.close()
        kept.close()
        with pytest.raises(DFlashError, match="closed"):
            other.restore(kept)
        state.close(), other.close()


def test_nothing_is_kept_of_a_proposal(tmp_path):
    bench = Bench(tmp_path, SMALL)
    state, _ = begun(bench, 30)
    before = bench.draft._rings.k.tobytes(), bench.draft._rings.v.tobytes(), state.length
    first = bench.rows([DraftRequest(state, 1, 5, GREEDY, 1)])[0]
    assert (bench.draft._rings.k.tobytes(), bench.draft._rings.v.tobytes(), state.length) == before
    assert_same_bits("again", bench.rows([DraftRequest(state, 1, 5, GREEDY, 1)])[0], first)


def test_requests_out_of_range(tmp_path):
    bench = Bench(tmp_path, SMALL)
    state, _ = begun(bench, 3)
    for bad, text in (
        (DraftRequest(state, VOCAB, 1, GREEDY), "not in the vocabulary"),
        (DraftRequest(state, -1, 1, GREEDY), "not in the vocabulary"),
        (DraftRequest(state, 0, 6, GREEDY), "must be 1 to 5"),
        (DraftRequest(state, 0, 0, GREEDY), "must be 1 to 5"),
    ):
        with pytest.raises(RequestError, match=text):
            bench.draft.propose([bad])
    with pytest.raises(KernelError, match="have the same state"):
        bench.draft.propose([DraftRequest(state, 0, 1, GREEDY)] * 2)
    assert bench.draft.propose([]) == []


def grown(found):
    """Tokens of the greedy path through candidates with edges."""
    at, tokens = 0, []
    for t in range(len(found)):
        at = int(found.edges[t, at].argmax())
        tokens.append(int(found.ids[t, at]))
    return tokens


@pytest.mark.parametrize("form", ["gguf", "F32"])
def test_the_selector_equals_the_definition(tmp_path, form):
    bench = Bench(tmp_path, SECOND, form=form)
    state, oracle = begun(bench, 40)
    walks_off = 0
    for anchor in range(0, VOCAB, 9):
        (found,) = bench.draft.propose([DraftRequest(state, anchor, 5, GREEDY, 1)])
        tokens, scores = oracle.select(anchor, 6)
        assert found.ids.shape == (5, SECOND.selector_top)
        assert grown(found) == tokens
        at = 0
        for t, step in enumerate(scores):
            got = dict(zip(found.ids[t].tolist(), found.edges[t, at].tolist(), strict=True))
            assert got == pytest.approx(step, abs=1e-3)
            at = found.ids[t].tolist().index(tokens[t])
        walks_off += tokens != found.ids[:, 0].tolist()
    assert walks_off > 5, "the selector must matter here"


def test_selector_without_codebooks_takes_the_likeliest(tmp_path):
    def empty(weights):
        weights["selector_predecessor.weight"] *= 0

    bench = Bench(tmp_path, SECOND, edit=empty)
    state, _ = begun(bench, 40)
    _, logits, (found,) = bench.rows([DraftRequest(state, 3, 5, GREEDY, 1)])
    assert grown(found) == logits.argmax(axis=1).tolist()


def test_selector_that_breaks_takes_the_likeliest(tmp_path):
    def broken(weights):
        weights["selector_hidden.weight"][:] = np.inf

    bench = Bench(tmp_path, SECOND, edit=broken)
    state, _ = begun(bench, 40)
    _, logits, (found,) = bench.rows([DraftRequest(state, 3, 5, GREEDY, 1)])
    assert grown(found) == logits.argmax(axis=1).tolist()


def test_identity_convolutions_change_no_bit(tmp_path):
    def identity(weights):
        for name, value in weights.items():
            if "_conv_" in name:
                value[:] = 0
            if name.endswith("conv_base"):
                value[:, 0] = 1

    second = Bench(tmp_path, SECOND, edit=identity)
    first = Bench(tmp_path, replace(SMALL, windows=SECOND.windows, causal=SECOND.causal), causal=False)
    plain = {name: value for name, value in second.weights.items() if "conv" not in name and "selector" not in name}
    write_gguf(tmp_path / "plain.gguf", first.config, plain)
    first.draft = load_draft(tmp_path / "plain.gguf", first.target, sequences=4, causal=False)
    assert first.draft.config.kind == "dflash"
    rows = [bench.rows([DraftRequest(begun(bench, 40)[0], 3, 5, GREEDY, 1)])[:2] for bench in (second, first)]
    for name, one, other in zip(("hidden", "logits"), *rows, strict=True):
        assert_same_bits(name, one, other)


@pytest.mark.parametrize("from_anchor", [True, False])
@pytest.mark.parametrize("form", ["gguf", "F32"])
def test_markov_heads_equal_the_definition(tmp_path, form, from_anchor):
    config = replace(SPARK, from_anchor=from_anchor)
    bench = Bench(tmp_path, config, form=form, edit=lambda weights: weights["markov_w1.weight"].__imul__(4))
    assert bench.draft.config.max_draft == (6 if from_anchor else 5)
    state, oracle = begun(bench, 40)
    for anchor in range(0, VOCAB, 29):
        (found,) = bench.draft.propose([DraftRequest(state, anchor, config.max_draft, GREEDY, 4)])
        tokens, steps, _ = oracle.walk(anchor, config.block)
        assert found.ids[:, 0].tolist() == tokens
        assert grown(found) == tokens
        np.testing.assert_array_equal(found.ids, [np.argsort(-step)[:4] for step in steps])
        want = [step[ids] for step, ids in zip(steps, found.ids, strict=True)]
        np.testing.assert_allclose(found.scores, want, atol=1e-3)
        np.testing.assert_allclose(found.edges[:, 0], want, atol=1e-3)
        off = oracle.block(anchor, config.block)[1][config.lead + 1]
        off = off + bench.weights["markov_w2.weight"] @ bench.weights["markov_w1.weight"][found.ids[0, 2]]
        got, base = found.edges[1, 2], off[found.ids[1]]
        np.testing.assert_allclose(got - got[0], base - base[0], atol=1e-3)


def test_markov_of_a_vocabulary_of_its_own(tmp_path):
    own = "output.weight", "d2t"
    for form in ("gguf", "F32"):
        bench = Bench(tmp_path, SPARK, form=form, own=own, n_head=61)
        targets = bench.weights["d2t"]
        state, oracle = begun(bench, 12)
        (found,) = bench.draft.propose([DraftRequest(state, 100, 6, GREEDY, 3)])
        tokens, steps, _ = oracle.walk(100, 6, targets)
        assert found.ids[:, 0].tolist() == tokens
        assert grown(found) == tokens
        np.testing.assert_array_equal(found.ids, [targets[np.argsort(-step)[:3]] for step in steps])
        np.testing.assert_allclose(found.scores, [-np.sort(-step)[:3] for step in steps], atol=1e-3)


def test_likeliest_of_a_vocabulary_of_its_own(tmp_path):
    bench = Bench(tmp_path, SMALL, own=("output.weight", "d2t"), n_head=61)
    targets = bench.weights["d2t"]
    state, oracle = begun(bench, 12)
    (found,) = bench.draft.propose([DraftRequest(state, 100, 5, GREEDY, 61)])
    want = oracle.block(100, 6)[1][1:]
    np.testing.assert_array_equal(found.ids[:, :9], targets[np.argsort(-want, axis=1)[:, :9]])
    assert set(found.ids[0].tolist()) == set(targets.tolist())


def test_drafts_end_where_confidence_is_too_low(tmp_path):
    bench = Bench(tmp_path, SPARK)
    _, oracle = begun(bench, 40)
    _, _, trust = oracle.walk(8, 6)
    survival = np.cumprod(trust)
    for least in (0.0, float(survival[2]) * 1.01, float(survival[2]) * 0.99, 1.0):
        draft = load_draft(bench.path, bench.target, sequences=1, min_confidence=least)
        place = draft.state()
        place_of = features(SPARK, 40)[0]
        draft.read(place, place_of, slice(0, 40))
        (found,) = draft.propose([DraftRequest(place, 8, 6, GREEDY, 2)])
        assert len(found) == np.count_nonzero(survival >= least)


@pytest.mark.parametrize(
    "params",
    [
        SampleParams(scale=1.3, seed=9),
        SampleParams(scale=0.7, top_k=5, seed=2),
        SampleParams(scale=1.0, top_p=0.8, seed=3),
        SampleParams(scale=2.0, top_k=7, top_p=0.9, seed=4),
        SampleParams(scale=1.0, floor=-1.5, seed=5),
    ],
    ids=str,
)
def test_edges_are_drawn_as_candidates_are(params):
    """Edges are sampled like candidates: a row of edges is a small vocabulary."""
    rng, n, width = np.random.default_rng(1), 6, 16
    scores = 2 * rng.standard_normal((n, width, width), dtype=np.float32)
    tokens = np.tile(np.arange(width, dtype=np.int32), (n, 1))
    got = drawn(scores, tokens, params, 40)
    ids, want = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
    for before in range(width):
        rows = np.ascontiguousarray(scores[:, before])
        candidates(rows, [params] * n, range(40, 40 + n), width, ids=ids, scores=want)
        by_token = np.full((n, width), -np.inf)
        for row, of_row, value in zip(by_token, ids, want, strict=True):
            row[of_row[of_row >= 0]] = value[of_row >= 0]
        np.testing.assert_allclose(got[:, before], by_token, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_the_law(tmp_path, kind):
    """Sampled candidates differ from greedy ones only by noise: they agree with tokens sampled from the same rows."""
    bench = Bench(tmp_path, KINDS[kind])
    state, _ = begun(bench, 40)
    greedy, seen = bench.draft.propose([DraftRequest(state, 3, 5, GREEDY, 4)])[0], set()
    for seed in range(8):
        params = SampleParams(scale=0.5, seed=seed)
        one, again = (bench.draft.propose([DraftRequest(state, 3, 5, params, 4)])[0] for _ in range(2))
        assert_same_bits("again", one.ids, again.ids)
        path = one.ids[:, 0].tolist() if one.edges is None else grown(one)
        seen.add(tuple(path))
    cold = bench.draft.propose([DraftRequest(state, 3, 5, SampleParams(scale=1e4, seed=1), 4)])[0]
    paths = [found.ids[:, 0].tolist() if found.edges is None else grown(found) for found in (cold, greedy)]
    assert paths[0] == paths[1]
    assert len(seen) > 4
