"""Cache of compiled code: a fault of a file or folder is a miss with one warning."""

import errno
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash.kernels.compile_cache import age as code_age
from dflash.kernels.compile_cache import folder as code_folder
from dflash.kernels.compile_cache.cache import CodeCache
from dflash.kernels.compile_cache.folder import cache_folder, check_owner

DAY = 86400
CODE = bytes(range(256)) * 3
SOMEBODY = 4321
ON_UNIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no user ids")


@pytest.fixture(autouse=True)
def spare(tmp_path, monkeypatch):
    """Replace this user's folder for temporary files by a folder of the test."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return code_folder.spare_folder("code")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "dflash" / "code"


@pytest.fixture
def filled(folder):
    """Return a folder with one entry, called a."""
    CodeCache(folder).put("a", CODE)
    return folder


def warnings(caplog):
    return [record.getMessage() for record in caplog.records]


def refuse_writes(monkeypatch, *folders, error=errno.EROFS):
    """Make file creation in the folders fail for every user; file modes would not stop root."""
    make = tempfile.mkstemp

    def mkstemp(**where):
        if Path(where["dir"]) in folders:
            raise OSError(error, os.strerror(error), str(where["dir"]))
        return make(**where)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)


def test_returns_what_was_put(folder, caplog):
    cache = CodeCache(folder)
    assert cache.get("a") is None
    assert not folder.exists()
    for content in (b"", b"x", CODE):
        cache.put("a", content)
        assert cache.get("a") == CodeCache(folder).get("a") == content
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert not warnings(caplog)


@ON_UNIX
def test_others_have_no_access_to_what_is_made(filled):
    assert stat.S_IMODE(filled.stat().st_mode) == stat.S_IMODE(filled.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((filled / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, len(CODE) - 1, len(CODE), len(CODE) + 31])
def test_a_file_that_is_cut_short(filled, caplog, length):
    whole = (filled / "a").read_bytes()
    assert len(whole) == len(CODE) + 32
    (filled / "a").write_bytes(whole[:length])
    cache = CodeCache(filled)
    assert cache.get("a") is None
    assert not (filled / "a").exists()
    assert len(warnings(caplog)) == 1
    assert f"checksum of its {length} bytes" in caplog.text
    cache.put("a", CODE)
    assert cache.get("a") == CODE
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("place", [0, len(CODE) // 2, len(CODE) - 1, len(CODE), len(CODE) + 31])
def test_a_flipped_bit(filled, caplog, place):
    data = bytearray((filled / "a").read_bytes())
    data[place] ^= 4
    (filled / "a").write_bytes(data)
    assert CodeCache(filled).get("a") is None
    assert len(warnings(caplog)) == 1


def test_many_damaged_files_make_one_warning(folder, caplog):
    cache = CodeCache(folder)
    for name in "abc":
        cache.put(name, CODE)
        (folder / name).write_bytes(b"")
    assert [cache.get(name) for name in "abc"] == [None] * 3
    assert len(warnings(caplog)) == 1


def test_an_entry_under_another_name_is_none(filled, tmp_path):
    shutil.copy(filled / "a", filled / "b")
    other = tmp_path / "other"
    shutil.copytree(filled, other)
    assert CodeCache(filled).get("b") is None
    assert CodeCache(other).get("a") is None
    assert CodeCache(filled).get("a") == CODE


def test_what_is_no_file_is_a_miss(folder, caplog):
    (folder / "a").mkdir(parents=True)
    folder.chmod(0o700)
    cache = CodeCache(folder)
    assert cache.get("a") is None
    cache.put("a", CODE)
    assert len(warnings(caplog)) <= 2


@ON_UNIX
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(filled, spare, caplog, mode):
    filled.chmod(mode)
    cache = CodeCache(filled)
    assert cache.get("a") is None
    cache.put("b", CODE)
    assert not (filled / "b").exists()
    assert (filled / "a").exists(), "nothing in somebody else's folder is touched"
    assert cache.get("b") == CodeCache(filled).get("b") == CODE
    assert (spare / "b").exists()
    assert stat.S_IMODE(spare.stat().st_mode) == 0o700
    assert len(warnings(caplog)) == 2, "one for each cache object"
    assert f"mode {mode:04o} lets others write" in caplog.text


@ON_UNIX
def test_a_file_that_others_may_write_to_is_not_used(filled, caplog):
    (filled / "a").chmod(0o666)
    assert CodeCache(filled).get("a") is None
    assert len(warnings(caplog)) == 1
    assert "lets others write" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", [".", "a"])
def test_what_belongs_to_another_user_is_not_used(filled, spare, caplog, what):
    os.chown(filled / what, SOMEBODY, SOMEBODY)
    cache = CodeCache(filled)
    assert cache.get("a") is None
    cache.put("a", b"mine")
    assert cache.get("a") == b"mine"
    assert spare.exists() == (what == ".")
    assert len(warnings(caplog)) == 1
    assert f"belongs to user {SOMEBODY}" in caplog.text


@ON_UNIX
@pytest.mark.parametrize("what", [".", "a"])
def test_what_seems_to_belong_to_another_user_is_not_used(filled, caplog, monkeypatch, what):
    """The test above with a faked owner, so that it also runs for users other than root."""
    inode = (filled / what).stat().st_ino

    def lie(call):
        def status(*args, **options):
            found = call(*args, **options)
            return os.stat_result((*found[:4], SOMEBODY, *found[5:])) if found.st_ino == inode else found

        return status

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lie(os.stat))
        patched.setattr(os, "fstat", lie(os.fstat))
        assert CodeCache(filled).get("a") is None
    assert len(warnings(caplog)) == 1
    assert f"belongs to user {SOMEBODY}" in caplog.text


@ON_UNIX
def test_owners_and_modes(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for owner, mode in ((1000, 0o40700), (1000, 0o100600), (1000, 0o40755), (0, 0o40755)):
        check_owner(SimpleNamespace(st_uid=owner, st_mode=mode))
    for owner, mode in ((1001, 0o40700), (1000, 0o40775), (0, 0o41777), (65534, 0o100644)):
        with pytest.raises(PermissionError):
            check_owner(SimpleNamespace(st_uid=owner, st_mode=mode))


def test_a_full_disk(filled, spare, caplog, monkeypatch):
    refuse_writes(monkeypatch, filled, spare, error=errno.ENOSPC)
    cache = CodeCache(filled)
    for name in "bcd":
        cache.put(name, CODE)
    assert cache.get("a") == CODE
    assert cache.get("b") is None
    assert len(warnings(caplog)) == 1
    assert "No space left" in caplog.text
    assert "compiled anew in every process" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_is_full_when_the_file_is_written(filled, caplog, monkeypatch):
    make = tempfile.mkstemp

    def mkstemp(**where):
        descriptor, path = make(**where)
        os.close(descriptor)
        return os.open("/dev/full", os.O_WRONLY), path

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    cache = CodeCache(filled)
    cache.put("b", CODE)
    cache.put("a", b"new")
    assert [path.name for path in filled.iterdir()] == ["a"], "what was half written is removed"
    assert cache.get("a") == CODE
    assert len(warnings(caplog)) == 1
    assert "No space left" in caplog.text


def test_a_read_only_folder_is_read_and_new_entries_go_elsewhere(filled, spare, caplog, monkeypatch):
    refuse_writes(monkeypatch, filled)
    cache = CodeCache(filled)
    assert cache.get("a") == CODE
    assert not warnings(caplog), "a warm cache needs no writing"
    assert not spare.exists()
    for name in "bc":
        cache.put(name, CODE)
    assert (filled / "a").exists()
    assert [CodeCache(filled).get(name) for name in "abc"] == [CODE] * 3
    assert sorted(path.name for path in spare.iterdir()) == ["b", "c"]
    assert len(warnings(caplog)) == 1
    assert str(spare) in caplog.text


@ON_UNIX
def test_a_spare_folder_of_another_user_changes_nothing(filled, spare, caplog, monkeypatch):
    CodeCache(spare).put("b", CODE)
    spare.chmod(0o777)
    cache = CodeCache(filled)
    assert (cache.get("a"), cache.get("b")) == (CODE, None)
    cache.put("c", CODE)
    assert cache.get("c") == CODE
    assert not warnings(caplog)
    refuse_writes(monkeypatch, filled)
    cache.put("d", CODE)
    assert cache.get("d") is None
    assert len(warnings(caplog)) == 1
    assert "compiled anew in every process" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write to everything")
def test_a_folder_without_the_right_to_write(filled, spare, caplog):
    filled.chmod(0o500)
    try:
        cache = CodeCache(filled)
        cache.put("b", CODE)
        assert (cache.get("a"), cache.get("b")) == (CODE, CODE)
        assert (spare / "b").exists()
        assert len(warnings(caplog)) == 1
    finally:
        filled.chmod(0o700)


def test_a_file_in_the_way_of_the_folder(folder, spare, caplog):
    folder.parent.parent.mkdir()
    folder.parent.write_text("no folder")
    cache = CodeCache(folder)
    assert cache.get("a") is None
    cache.put("a", CODE)
    assert cache.get("a") == CODE
    assert (spare / "a").exists()
    assert len(warnings(caplog)) == 1


def test_a_folder_that_is_removed_meanwhile(filled, caplog):
    cache = CodeCache(filled)
    shutil.rmtree(filled.parent)
    assert cache.get("a") is None
    cache.put("a", CODE)
    assert cache.get("a") == CODE
    shutil.rmtree(filled)
    assert cache.get("a") is None
    assert not warnings(caplog)


def test_a_folder_that_is_removed_as_a_file_is_written(filled, spare, caplog, monkeypatch):
    sync = os.fsync

    def remove(descriptor):
        shutil.rmtree(filled, ignore_errors=True)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", remove)
    cache = CodeCache(filled)
    cache.put("b", CODE)
    assert cache.get("b") == CODE
    assert len(warnings(caplog)) == 1


def test_what_the_driver_refuses_is_discarded(filled, caplog):
    cache = CodeCache(filled)
    cache.discard("a", "can't be loaded")
    assert cache.get("a") is None
    assert warnings(caplog) == [f"{filled / 'a'}: can't be loaded; it is compiled again"]


def aged(path, days):
    os.utime(path, (time.time() - days * DAY,) * 2)


def days_old(path):
    return (time.time() - path.stat().st_mtime) / DAY


@pytest.fixture
def versions(tmp_path):
    """Return the parent of folders of four versions, last used 40 days ago, now, 20 days ago and 90 days ago."""
    base = tmp_path / "versions"
    for name, days in {"v-old": 40, "v-current": 0, "v-young": 20, "other-old": 90}.items():
        CodeCache(base / name).put("a", CODE)
        aged(base / name / "a", days)
        aged(base / name, days)
    return base


def test_only_what_was_unused_for_a_month_is_removed(versions, caplog):
    for name, days in (("unused", 40), ("used", 20), ("new-abandoned", 2), ("new-now", 0)):
        (versions / "v-current" / name).write_bytes(b"")
        aged(versions / "v-current" / name, days)
    CodeCache(versions / "v-current", "v-*").put("b", CODE)
    assert sorted(path.name for path in versions.iterdir()) == ["other-old", "v-current", "v-young"]
    assert sorted(path.name for path in (versions / "v-current").iterdir()) == ["a", "b", "new-now", "used"]
    assert not warnings(caplog)


def test_use_is_noted_once_a_day(versions):
    old = versions / "v-old"
    assert CodeCache(old, "v-*").get("a") == CODE
    assert days_old(old / "a") < 0.5
    aged(old / "a", 0.5)
    before = (old / "a").stat().st_mtime_ns
    assert CodeCache(old, "v-*").get("a") == CODE
    assert (old / "a").stat().st_mtime_ns == before
    CodeCache(versions / "v-current", "v-*").put("b", CODE)
    assert old.exists(), "a folder that is only read is in use, too"


def test_a_clock_that_jumps_ahead_empties_nothing(versions, monkeypatch):
    for days in (45, 400, 20000):
        with monkeypatch.context() as patched:
            ahead = time.time() + days * DAY
            patched.setattr(code_age.time, "time", lambda ahead=ahead: ahead)
            CodeCache(versions / "v-next", "v-*").put("a", CODE)
        assert -7.5 < days_old(versions / "v-next" / "a") < -6.5, "the clock of the cache moved by a week"
        shutil.rmtree(versions / "v-next")
        assert sorted(path.name for path in versions.glob("v-*")) == ["v-current", "v-young"]


def test_stamps_that_make_no_sense_are_kept(tmp_path):
    """A container image may set all stamps to 1970; a wrong clock may have set them to next year."""
    folder = tmp_path / "v-image"
    for name in "abc":
        CodeCache(folder).put(name, CODE)
        os.utime(folder / name, (1, 1))
    aged(folder / "c", -365)
    cache = CodeCache(folder, "v-*")
    assert cache.get("c") == CODE
    os.utime(folder / "c", (1, 1))
    cache = CodeCache(folder, "v-*")
    assert cache.get("a") == CODE
    cache.put("d", CODE)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c", "d"]


def test_others_may_remove_the_same_at_the_same_time(versions, caplog, monkeypatch):
    """Every listed file disappears before it is inspected or removed."""
    (versions / "v-current" / "unused").write_bytes(b"")
    aged(versions / "v-current" / "unused", 50)
    unlink, remove, last_use = Path.unlink, shutil.rmtree, code_age.last_use

    def unlink_twice(path, **options):
        unlink(path, **options)
        unlink(path, **options)

    def remove_twice(path, **options):
        remove(path)
        remove(path, **options)

    def vanish(path, **options):
        if path.name == "v-old":
            remove(path, ignore_errors=True)
        return last_use(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink_twice)
    monkeypatch.setattr(shutil, "rmtree", remove_twice)
    CodeCache(versions / "v-current", "v-*").put("b", CODE)
    assert not (versions / "v-old").exists()
    assert not (versions / "v-current" / "unused").exists()
    monkeypatch.setattr(code_age, "last_use", vanish)
    CodeCache(versions / "v-young", "v-*").put("b", CODE)
    assert not warnings(caplog)


def test_where_caches_are(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("SOME_CACHE", raising=False)
    assert cache_folder("SOME_CACHE", "x") == tmp_path / "home" / ".cache" / "dflash" / "x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("SOME_CACHE", "x") == tmp_path / "xdg" / "dflash" / "x"
    monkeypatch.setenv("SOME_CACHE", str(tmp_path / "some"))
    assert cache_folder("SOME_CACHE", "x") == tmp_path / "some" / "dflash" / "x"


def test_a_user_without_a_home(tmp_path, monkeypatch, caplog):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    cache = CodeCache(cache_folder("SOME_CACHE", "code"))
    cache.put("a", CODE)
    assert cache.get("a") == CODE
    assert cache.folder == code_folder.spare_folder("code")
    assert not warnings(caplog)


def test_the_least_recently_used_entries_beyond_the_limit_are_removed(folder, monkeypatch):
    cache = CodeCache(folder)
    for age, name in enumerate("abcd"):
        cache.put(name, CODE)
        os.utime(folder / name, (time.time() - 2 * DAY + age,) * 2)
    size = (folder / "a").stat().st_size
    monkeypatch.setattr(code_age, "MAX_BYTES", 3 * size)
    CodeCache(folder).put("e", CODE)
    assert sorted(path.name for path in folder.iterdir()) == ["c", "d", "e"]
