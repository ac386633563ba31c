"""The device's arrays, batches and graphs."""

import numpy as np
import pytest
from batches import chain, ragged, tree
from compare import assert_same_bits

from dflash.errors import KernelError, OutOfMemory
from dflash.kernels.copy.cuda_transfer import Transfer
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.staging import Staging

cupy = pytest.importorskip("cupy")
RNG = np.random.default_rng(0)


def some_batch(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    return ragged([(int(rng.integers(0, 600)), tree(rng, int(rng.integers(1, 17))), False) for _ in range(n)])


def assert_holds(here, tokens, batch):
    n, s = len(tokens), len(batch.slot)
    assert here.counts.get().tolist() == [n, s]
    assert_same_bits("tokens", here.tokens.get()[:n], tokens)
    assert_same_bits("position", here.position.get()[:n], batch.length[batch.sequence] + batch.depth)
    assert_same_bits("row_starts", here.row_starts.get()[: s + 1], batch.row_starts)
    for name in ("sequence", "parent", "depth"):
        assert_same_bits(name, getattr(here, name).get()[:n], getattr(batch, name))
    for name in ("length", "slot", "prefill", "accepted", "n_accepted", "buffer"):
        assert_same_bits(name, getattr(here, name).get()[:s], getattr(batch, name))
    assert_same_bits("pages", here.pages.get()[:s, : batch.pages.shape[1]], batch.pages)


def test_a_batch_on_the_device():
    here = DeviceBatch(64, 5, 9)
    for seed in range(20):
        batch = some_batch(seed)
        tokens = RNG.integers(0, 1000, len(batch.sequence), dtype=np.int32)
        here.upload(tokens, batch)
        assert_holds(here, tokens, batch)
    here.clear()
    assert here.counts.get().tolist() == [0, 0]


def test_uploads_follow_each_other():
    """None overwrites what the device has not read yet."""
    here, seen = DeviceBatch(64, 5, 9), []
    batches = [some_batch(seed) for seed in range(40)]
    for i, batch in enumerate(batches):
        here.upload(np.full(len(batch.sequence), i, np.int32), batch)
        seen.append((here.tokens.copy(), here.length.copy()))
    for i, (batch, (tokens, length)) in enumerate(zip(batches, seen, strict=True)):
        assert tokens.get()[0] == i
        assert_same_bits("length", length.get()[: len(batch.slot)], batch.length)


def test_refuses_what_has_no_room():
    here = DeviceBatch(4, 1, 1)
    for sequences in ([(0, chain(5), False)], [(0, chain(1), False)] * 2, [(300, chain(1), False)]):
        batch = ragged(sequences)
        with pytest.raises(KernelError, match="exceed the capacity"):
            here.upload(np.zeros(len(batch.sequence), np.int32), batch)


def test_a_graph_reads_the_batch_of_its_launch():
    here, out = DeviceBatch(16, 2, 4), cupy.zeros(16, np.int32)
    stream = device.new_stream()

    def launch():
        device.copy(out, here.tokens)

    graph = device.captured(launch, stream)
    assert device.launches(graph) == 1
    for value in (3, 5):
        batch = ragged([(0, chain(7), False)])
        here.upload(np.full(7, value, np.int32), batch)
        graph.launch(device.current_stream())
        assert out.get()[:7].tolist() == [value] * 7


def test_too_much_memory():
    with pytest.raises(OutOfMemory, match="MiB"):
        device.empty(1 << 50)
    assert device.free_memory() > 0


def test_description():
    about = device.description()
    assert about["kind"] == "cuda"
    assert about["memory"] > 1 << 30
    assert device.trouble() is None


@pytest.mark.parametrize("threads", [1, 5])
def test_staging(threads):
    parts = [RNG.integers(0, 256, (n, 16), dtype=np.uint8) for n in (1, 4000, 65536, 7, 65536, 1000, 65535)]
    targets = [cupy.zeros(part.shape, np.uint8) for part in parts]
    with Staging(threads, 1 << 20) as staging:
        for part, target in zip(parts, targets, strict=True):
            staging.send(part, lambda raw, stream, target=target: device.copy(target, raw, stream))
    for part, target in zip(parts, targets, strict=True):
        assert_same_bits("part", target.get(), part)


def test_arrays_come_back_as_they_were():
    """Many copies are begun before anybody looks at one."""
    arrays, copies = DeviceArrays(a=(3,), b=(2, 40)), []
    for i in range(11):
        host = arrays.host
        host.a[:], host.b[:] = i, np.arange(80).reshape(2, 40) + i
        arrays.upload()
        copies.append(arrays.download())
    for i, copy in enumerate(copies):
        got = copy.wait()
        assert got.a.tolist() == [i] * 3
        np.testing.assert_array_equal(got.b, np.arange(80).reshape(2, 40) + i)
    assert_same_bits("b", arrays.b.get(), np.arange(80, dtype=np.int32).reshape(2, 40) + 10)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 1023, 1024, 1029, 70000])
def test_words_go_up_across_and_down(n):
    transfer, here, there = Transfer(), *(cupy.full(n + 8, 7, np.int32) for _ in range(2))
    up, down = (device.pinned(n + 8, dtype=np.int32) for _ in range(2))
    words, down[:] = RNG.integers(-(1 << 31), 1 << 31, n + 8, dtype=np.int32), 9
    up[:] = words
    transfer(here.data.ptr, up.ctypes.data, n)
    transfer(there.data.ptr, here.data.ptr, n)
    transfer(down.ctypes.data, there.data.ptr, n)
    device.synchronize()
    assert_same_bits("down", down, np.append(words[:n], np.full(8, 9, np.int32)))
    assert_same_bits("there", there.get(), np.append(words[:n], np.full(8, 7, np.int32)))


@pytest.mark.parametrize(("first", "n_taken"), [(0, 1), (32, 3), (5, 9), (1000, 29), (1028, 1)])
def test_some_words_come_from_a_second_place(first, n_taken):
    transfer, here, up = Transfer(), cupy.full(1037, 7, np.int32), device.pinned(1032, dtype=np.int32)
    up[:], second = RNG.integers(0, 1 << 31, 1032), cupy.arange(n_taken, dtype=np.int32)
    transfer(here.data.ptr, up.ctypes.data, 1029, from_host=True, taken=(second.data.ptr, first, n_taken))
    want = np.append(up[:1029], np.full(8, 7, np.int32))
    want[first : first + n_taken] = np.arange(n_taken)
    assert_same_bits("here", here.get(), want)


def test_tokens_of_a_batch_that_are_on_the_device():
    tokens, rows = np.arange(5, 8, dtype=np.int32), ragged([(9, chain(1), False) for _ in range(3)])
    batch = DeviceBatch.of(rows, tokens)
    want = batch.uploaded().get()
    batch.upload(tokens + 1, rows)
    batch.upload(cupy.asarray(tokens), rows)
    assert_same_bits("words", batch.uploaded().get(), want)


def test_words_that_the_host_writes_again():
    """No launch may see what an earlier one has read from the same pinned memory."""
    transfer, host, seen = Transfer(), device.pinned(600, dtype=np.int32), cupy.zeros((40, 640), np.int32)
    for i in range(40):
        host[:] = i
        transfer(seen[i].data.ptr, host.ctypes.data, 600)
        device.synchronize(device.current_stream())
    assert_same_bits("seen", seen[:, :600].get(), np.repeat(np.arange(40, dtype=np.int32)[:, None], 600, axis=1))


def test_a_transfer_of_addresses_that_are_not_aligned():
    words = cupy.zeros(64, np.int32)
    with pytest.raises(KernelError, match="multiples of 16"):
        Transfer()(words.data.ptr + 4, words.data.ptr + 128, 4)
