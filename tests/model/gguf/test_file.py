import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from compare import assert_same_bits
from gguf_bytes import ARRAY, BOOL, F32, FORMATS, I32, STRING, U8, U16, U32, array, key, number, string, tensor, write
from gguf_bytes import gguf as header
from gguf_writing import write_all

from dflash.errors import FormatError, ModelError, NotFound, OutOfMemory, Unsupported
from dflash.kernels.formats.types import BLOCKS
from dflash.model.gguf.file import GGUFFile, part_names
from dflash.model.gguf.part import in_memory

DATA = Path(__file__).parents[2] / "data" / "golden"
PACKAGED = Path(__file__).parents[3] / "dflash" / "data"
FILES = sorted([*DATA.glob("*/*.gguf"), *PACKAGED.glob("*.gguf")])


def oracle_value(field):
    value = field.contents()
    return bool(value) if field.types[0] == gguf.GGUFValueType.BOOL else value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reads_what_the_gguf_package_reads(path):
    oracle = gguf.GGUFReader(path)
    with GGUFFile.open(path) as file:
        fields = {name: field for name, field in oracle.fields.items() if not name.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for name, field in fields.items():
            got = file.metadata[name]
            assert (got.tolist() if isinstance(got, np.ndarray) else got) == oracle_value(field), name
        assert list(file.tensors) == [tensor.name for tensor in oracle.tensors]
        for want in oracle.tensors:
            got = file.tensors[want.name]
            assert got.shape == tuple(want.shape.tolist())[::-1]
            assert (got.type, got.offset, got.n_bytes) == (want.tensor_type.name, want.data_offset, want.n_bytes)
            assert_same_bits(want.name, file.data(want.name).ravel(), want.data.view(np.uint8).ravel())


def test_shapes_of_data():
    with GGUFFile.open(DATA / "qwen35moe-r2" / "qwen35moe-r2-F16.gguf") as file:
        experts = file.tensors["blk.0.ffn_gate_exps.weight"]
        assert file.data(experts.name).shape == (*experts.shape[:2], experts.row_bytes)
        assert experts.row_bytes == experts.shape[-1] * BLOCKS[experts.type].n_bytes
        assert file.data("output_norm.weight").shape == (64 * 4,)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_array_is_the_numbers_as_float32(kind, tmp_path):
    want = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 12)
    raw = gguf.quants.quantize(want, gguf.GGMLQuantizationType[kind])
    content = header(tensors=[tensor("x", (12, 2), BLOCKS[kind].id)], data=raw.tobytes())
    with GGUFFile.open(write(tmp_path / "x.gguf", content)) as file:
        got = file.array("x")
    assert_same_bits("x", got, gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]))
    got[:] = 0


def test_array_refuses_blocks(tmp_path):
    content = header(tensors=[tensor("x", (32,), BLOCKS["Q8_0"].id)], data=bytes(34))
    with GGUFFile.open(write(tmp_path / "x.gguf", content)) as file, pytest.raises(FormatError, match=r"'x'.*Q8_0"):
        file.array("x")


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value(version, tmp_path):
    values = {kind: number(kind, 1) for kind in FORMATS}
    keys = [key(f"one.{kind}", kind, value) for kind, value in values.items()]
    keys += [key(f"many.{kind}", ARRAY, array(kind, [value] * 3)) for kind, value in values.items()]
    keys += [key("text", STRING, string("Grüße\n")), key("texts", ARRAY, array(STRING, [string("ä"), string("")]))]
    keys += [key("empty", ARRAY, array(I32, [])), key("no texts", ARRAY, array(STRING, []))]
    metadata = GGUFFile.open(write(tmp_path / "x.gguf", header(keys, version=version))).metadata
    for kind, code in FORMATS.items():
        want = bool if kind == BOOL else float if code in "fd" else int
        assert type(metadata[f"one.{kind}"]) is want
        assert metadata[f"one.{kind}"] == 1
        assert metadata[f"many.{kind}"].tolist() == [1, 1, 1]
        assert metadata[f"many.{kind}"].dtype == np.dtype("?" if kind == BOOL else code)
    assert (metadata["text"], metadata["texts"], metadata["no texts"]) == ("Grüße\n", ["ä", ""], [])
    assert metadata["empty"].shape == (0,)
    with pytest.raises(TypeError):
        metadata["text"] = ""


def test_what_the_gguf_package_writes(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "qwen35")
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(1)
    weights = {f"w{rank}": rng.normal(size=(2, 3, 5, 64)[4 - rank :]).astype(np.float32) for rank in (1, 2, 3, 4)}
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    packed = gguf.quants.quantize(weights["w3"], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    write_all(writer)
    with GGUFFile.open(tmp_path / "x.gguf") as file:
        assert file.metadata["general.alignment"] == 64
        for name, weight in weights.items():
            assert_same_bits(name, file.array(name), weight)
        assert (file.tensors["q"].shape, file.tensors["q"].type) == ((3, 5, 64), "Q8_0")
        assert_same_bits("q", file.data("q"), packed)


def test_data_outlives_the_file_and_is_read_only(tmp_path):
    content = header(tensors=[tensor("x", (4,), BLOCKS["I8"].id)], data=b"abcd")
    file = GGUFFile.open(write(tmp_path / "x.gguf", content))
    data = file.data("x")
    file.close()
    file.close()
    assert data.tobytes() == b"abcd"
    assert not data.flags.writeable
    with pytest.raises(ModelError, match="closed"):
        file.data("x")


def test_unknown_tensor_names_itself(tmp_path):
    file = GGUFFile.open(write(tmp_path / "x.gguf", header()))
    with pytest.raises(FormatError, match=r"no tensor 'blk\.7'"):
        file.data("blk.7")


def test_a_large_vocabulary_is_read_quickly(tmp_path):
    tokens = array(STRING, [string(f"Ġtoken{i}") for i in range(248_320)])
    merges = array(STRING, [string(f"Ġto ken{i}") for i in range(247_587)])
    path = write(tmp_path / "x.gguf", header([key("tokens", ARRAY, tokens), key("merges", ARRAY, merges)]))
    calls = {"call": 0, "c_call": 0}

    def count(frame, event, argument):
        if event in calls:
            calls[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        metadata = GGUFFile.open(path).metadata
    finally:
        sys.setprofile(before)
    # no Python function for each string, and of those in C its length, its text and a place in the list
    assert calls["call"] < 10_000
    assert calls["c_call"] < 3.1 * (248_320 + 247_587)
    assert (metadata["tokens"][248_319], len(metadata["merges"])) == ("Ġtoken248319", 247_587)


def page_faults():
    """Return how many page faults this process had; reading a mapped file makes one for every 4 to 64 KiB."""
    usage = pytest.importorskip("resource").getrusage(0)
    return usage.ru_minflt + usage.ru_majflt


def test_16_gigabytes_open_without_being_read(tmp_path):
    rows, width, count = 1 << 16, 5120, 86
    size = rows * width // 256 * 144
    tensors = [tensor(f"blk.{i}.w", (width, rows), BLOCKS["Q4_K"].id, i * size) for i in range(count)]
    path = write(tmp_path / "x.gguf", header(tensors=tensors, data=b"\0"))
    with path.open("r+b") as file:
        file.truncate(len(header(tensors=tensors, data=b"\0")) - 1 + count * size)
    assert path.stat().st_size > 16e9
    before = page_faults()
    with GGUFFile.open(path) as file:
        assert file.data("blk.85.w").shape == (rows, width // 256 * 144)
        assert file.data("blk.85.w")[-1, -1] == 0
    assert page_faults() - before < 2000


def u32(name, value):
    return key(name, U32, number(U32, value))


F32_ROW = tensor("w", (8,))
HUGE = 1 << 63
DAMAGE = {
    "no file at all": (b"", "not a GGUF file"),
    "another format": (header(magic=b"GGML"), r"begins with b'GGML'.*offset 0x0"),
    "a pointer to a file": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "version 0": (header(version=0), r"version 0, .*offset 0x4"),
    "version of 32 bits": (header(version=0xABCDEF01), "version 2882400001"),
    "no counts": (header()[:12], "number of tensors needs 8 bytes, only 4 are left"),
    "tensors": (header(n_tensors=HUGE), f"number of tensors is {HUGE}"),
    "keys": (header(n_keys=HUGE), f"number of keys is {HUGE}"),
    "one key more": (header([u32("a", 1)], n_keys=2) + bytes(4), "number of keys is 2"),
    "length of a name": (header([struct.pack("<Q", 1 << 60) + bytes(20)]), f"string of {1 << 60} bytes"),
    "name cut off": (header([u32("general.name", 1)])[:40], "key 0|name of key 0|number of keys"),
    "name of 5 bytes": (header([key(b"a\xff\xfe..", U8, b"1")]), r"key 0 is not UTF-8: byte 0xff.*offset 0x21"),
    "text not UTF-8": (header([key("k", STRING, string(b"abc\x80"))]), "'k' is not UTF-8: byte 0x80"),
    "texts not UTF-8": (header([key("k", ARRAY, array(STRING, [string("a"), string(b"\xc3")]))]), "'k' is not UTF-8"),
    "value type": (header([key("k", 13, bytes(8))]), "'k' has value type 13"),
    "element type": (header([key("k", ARRAY, array(99, [], 0))]), "'k' is an array of value type 99"),
    "elements": (header([key("k", ARRAY, array(U16, [], HUGE))]), f"elements of key 'k' is {HUGE}"),
    "texts": (header([key("k", ARRAY, array(STRING, [], HUGE))]), f"elements of key 'k' is {HUGE}"),
    "text in texts": (header([key("k", ARRAY, array(STRING, [struct.pack("<Q", HUGE)]))]), f"string of {HUGE} bytes"),
    "array cut off": (header([key("k", ARRAY, array(F32, [number(F32, 1)] * 3, 4))]), "elements of key 'k' is 4"),
    "bool of 2": (header([key("k", BOOL, b"\2")]), "'k' is a bool of value 2"),
    "bools": (header([key("k", ARRAY, array(BOOL, [b"\0", b"\7"]))]), "'k' is a bool of value 7"),
    "key twice": (header([u32("a", 1), u32("a", 1)]), "key 'a' is there twice"),
    "alignment 0": (header([u32("general.alignment", 0)]), "'general.alignment' is 0"),
    "alignment 48": (header([u32("general.alignment", 48)]), "'general.alignment' is 48, must be a power of two"),
    "alignment of text": (header([key("general.alignment", STRING, string("32"))]), "must be a power of two"),
    "no dimension": (header(tensors=[tensor("w", ()) + bytes(8)]), "'w' has 0 dimensions"),
    "5 dimensions": (header(tensors=[tensor("w", (1, 1, 1, 1, 1))]), "'w' has 5 dimensions"),
    "dimension 0": (header(tensors=[tensor("w", (4, 0))]), r"'w' has shape \(0, 4\)"),
    "product": (header(tensors=[tensor("w", (1 << 62, 1 << 62, 1 << 62, 4))], data=bytes(32)), "'w' is cut off"),
    "product of 2^64": (header(tensors=[tensor("w", (1 << 32, 1 << 32))], data=bytes(32)), "'w' is cut off"),
    "tensor type": (header(tensors=[tensor("w", (8,), 4)]), "'w' has the unknown tensor type 4"),
    "part of a block": (header(tensors=[tensor("w", (1000, 2), 12)]), "'w': Q4_K rows must be a multiple of 256, got 1000"),
    "offset": (header(tensors=[tensor("w", (8,), 0, 16)], data=bytes(64)), "'w' is at 16 .* multiple of 32"),
    "huge offset": (header(tensors=[tensor("w", (8,), 0, HUGE)], data=bytes(64)), "'w' is cut off"),
    "overlap": (
        header(tensors=[F32_ROW, tensor("v", (16,), 0, 32), tensor("u", (8,), 0, 64)], data=bytes(128)),
        "'u' overlaps 'v'",
    ),
    "same place": (header(tensors=[F32_ROW, tensor("v", (8,))], data=bytes(64)), "'v' overlaps 'w'"),
    "tensor twice": (header(tensors=[F32_ROW, F32_ROW], data=bytes(64)), "tensor 'w' is there twice"),
    "data cut off": (header(tensors=[F32_ROW], data=bytes(31)), "'w' is cut off: it ends at 96, the file at 95"),
    "no data": (header(tensors=[F32_ROW]), "'w' is cut off"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(what, tmp_path):
    content, message = DAMAGE[what]
    with pytest.raises(FormatError, match=message) as caught:
        GGUFFile.open(write(tmp_path / "x.gguf", content))
    assert "x.gguf" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(version=1), "version 1, supported are 2 and 3"),
        (header(version=4), "version 4"),
        (header([key("k", ARRAY, array(ARRAY, []))]), "'k' is an array of arrays"),
    ],
    ids=["big-endian", "version 1", "version 4", "array of arrays"],
)
def test_sound_files_of_other_kinds_are_unsupported(content, message, tmp_path):
    with pytest.raises(Unsupported, match=message):
        GGUFFile.open(write(tmp_path / "x.gguf", content))


def test_no_such_file(tmp_path):
    with pytest.raises(NotFound, match="no such file"):
        GGUFFile.open(tmp_path / "x.gguf")
    for name in "cbaed":
        with pytest.raises(NotFound, match="a folder, wanted a GGUF file"):
            GGUFFile.open(tmp_path)
        (tmp_path / f"{name}.gguf").touch()
    with pytest.raises(NotFound, match=r"it holds a\.gguf, b\.gguf, c\.gguf, d\.gguf, \.\.\."):
        GGUFFile.open(tmp_path)
    with pytest.raises(ModelError, match="can't be read"):
        GGUFFile.open(tmp_path / ("x" * 5000))


class TestSplit:
    NAMES = tuple(f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3))

    def part(self, number, *, count=3, tensors=3, name=None):
        split = [key("split.no", U16, struct.pack("<H", number)), key("split.count", U16, struct.pack("<H", count))]
        split.append(key("split.tensors.count", I32, struct.pack("<i", tensors)))
        first = [key("general.name", STRING, string("split"))] if number == 0 else []
        return header(split + first, [tensor(name or f"w{number}", (8,))], bytes([number]) * 32)

    def write(self, folder, **changes):
        for i, name in enumerate(self.NAMES):
            write(folder / name, self.part(i, **changes))

    @pytest.mark.parametrize("given", range(3))
    def test_any_part_opens_all(self, given, tmp_path):
        self.write(tmp_path)
        seen = []
        with GGUFFile.open(tmp_path / self.NAMES[given], progress=lambda *done: seen.append(done)) as file:
            assert file.path.name == self.NAMES[0]
            assert [path.name for path in file.parts] == list(self.NAMES)
            assert file.metadata["general.name"] == "split"
            assert [file.data(f"w{i}")[0] for i in range(3)] == [0, 1, 2]
            assert [file.tensors[f"w{i}"].part for i in range(3)] == [0, 1, 2]
        assert seen == [(1, 3), (2, 3), (3, 3)]

    def test_what_the_gguf_package_splits(self, tmp_path):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen35", split_max_tensors=2)
        for i in range(5):
            writer.add_tensor(f"w{i}", np.full((2, 32), i, np.float32))
        writer.write_header_to_file(tmp_path / "m.gguf")
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with GGUFFile.open(tmp_path / self.NAMES[1]) as file:
            assert [file.array(f"w{i}")[0, 0] for i in range(5)] == [0, 1, 2, 3, 4]

    def test_parts_that_were_read_no_longer_need_their_files(self, tmp_path):
        self.write(tmp_path)
        with GGUFFile.open(tmp_path / self.NAMES[0]) as file:
            fingerprint = file.fingerprint()
            with pytest.raises(OutOfMemory, match="mmap=False reads 0 MiB into memory, 0 MiB are free; map the file"):
                file.read(file.path.stat().st_size)
            file.read(1 << 20)
            for name in self.NAMES:
                write(tmp_path / name, b"")  # a mapped file would end the process now
            assert [file.data(f"w{i}").tobytes() for i in range(3)] == [bytes([i]) * 32 for i in range(3)]
            assert not file.data("w0").flags.writeable
            assert file.fingerprint() == fingerprint
        with pytest.raises(FormatError, match=r"00001-of-00003\.gguf: ended after 0 of 64 bytes while it was read"):
            in_memory(tmp_path / self.NAMES[0], 64)
        with pytest.raises(ModelError, match=r"gone\.gguf: can't be read: No such file"):
            in_memory(tmp_path / "gone.gguf", 64)

    def test_missing_parts_are_named(self, tmp_path):
        self.write(tmp_path)
        (tmp_path / self.NAMES[1]).unlink()
        with pytest.raises(NotFound, match=f"1 of 3 parts are missing: {self.NAMES[1]}"):
            GGUFFile.open(tmp_path / self.NAMES[2])
        with pytest.raises(NotFound, match="there is no such file"):
            GGUFFile.open(tmp_path / "m-00004-of-00003.gguf")

    @pytest.mark.parametrize("count", [0, 1])
    @pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00001-of-00001.gguf"])
    @pytest.mark.parametrize("number", [0, 2])
    def test_a_merged_file_is_whole_whatever_its_other_keys_say(self, name, number, count, tmp_path):
        with GGUFFile.open(write(tmp_path / name, self.part(number, count=count, tensors=77))) as file:
            assert (len(file.parts), file.path.name, list(file.tensors)) == (1, name, [f"w{number}"])

    def test_a_part_under_another_name(self, tmp_path):
        for name in ("m.gguf", "m-00001-of-00002.gguf", "m-00004-of-00003.gguf"):
            with pytest.raises(
                FormatError, match=r"'split\.count' is 3: the parts must be named \.\.\.-00001-of-00003\.gguf"
            ):
                GGUFFile.open(write(tmp_path / name, self.part(0)))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"count": 4}, r"'split\.count' is 4: the parts must be named"),
            ({"tensors": 5}, r"'split\.tensors\.count' is 5, the parts hold 3"),
            ({"name": "w"}, "'w' is in an earlier part"),
        ],
        ids=["count", "tensors", "name twice"],
    )
    def test_parts_must_agree(self, changes, message, tmp_path):
        self.write(tmp_path, **changes)
        with pytest.raises(FormatError, match=message):
            GGUFFile.open(tmp_path / self.NAMES[0])

    def test_parts_in_the_wrong_order(self, tmp_path):
        self.write(tmp_path)
        write(tmp_path / self.NAMES[1], self.part(2))
        with pytest.raises(FormatError, match=r"'split\.no' is 2, its name says 1"):
            GGUFFile.open(tmp_path / self.NAMES[0])

    def test_split_keys_of_any_kind(self, tmp_path):
        content = header([key("split.count", ARRAY, array(U8, [b"\1", b"\1"]))])
        with pytest.raises(FormatError, match=r"'split\.count' is array"):
            GGUFFile.open(write(tmp_path / "m.gguf", content))

    def test_one_part_of_one(self, tmp_path):
        assert GGUFFile.open(write(tmp_path / "m-00001-of-00001.gguf", header())).tensors == {}
        assert part_names("m-00002-of-00002.gguf") == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
        assert part_names("m.gguf") == ["m.gguf"]
