"""Free memory of machines and containers, simulated by files."""

import pytest

from dflash.model.loading.free_memory import free_memory

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """Return a function that writes the files of a machine with 64 GiB free."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return tmp_path

    write("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {64 << 20} kB\nSwapFree: 0 kB\n")
    return write


def group(machine, folder, most, used, inactive=0, version=2):
    names = {2: ("memory.max", "memory.current", "inactive_file")}
    names[1] = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit, current, file = names[version]
    for name, value in ((limit, most), (current, used), ("memory.stat", f"anon 5\n{file} {inactive}")):
        root = machine(f"{folder}/{name}", f"{value}\n")
    return root


def test_a_machine_without_groups(machine):
    assert free_memory(machine("x", "")) == 64 * GIB


@pytest.mark.parametrize("path", ["/", "/docker/abc", "/../.."])
def test_a_container_whose_group_is_the_mount(machine, path):
    machine("proc/self/cgroup", f"0::{path}\n")
    assert free_memory(group(machine, "sys/fs/cgroup", 4 * GIB, 3 * GIB, GIB // 2)) == 1.5 * GIB


def test_the_tightest_of_nested_groups_counts(machine):
    machine("proc/self/cgroup", "0::/user/job/step\n")
    group(machine, "sys/fs/cgroup/user", 8 * GIB, 6 * GIB)
    group(machine, "sys/fs/cgroup/user/job", 20 * GIB, GIB)
    root = group(machine, "sys/fs/cgroup/user/job/step", "max", GIB)
    assert free_memory(root) == 2 * GIB


def test_a_group_without_limit_does_not_count(machine):
    machine("proc/self/cgroup", "0::/a\n")
    assert free_memory(group(machine, "sys/fs/cgroup/a", "max", GIB)) == 64 * GIB


def test_groups_of_version_one(machine):
    machine("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n")
    group(machine, "sys/fs/cgroup/memory/job", 3 * GIB, GIB, GIB // 4, version=1)
    root = group(machine, "sys/fs/cgroup/memory", 2**63 - 4096, GIB, version=1)
    assert free_memory(root) == 2.25 * GIB


def test_a_group_beyond_its_limit_has_nothing_left(machine):
    machine("proc/self/cgroup", "0::/\n")
    assert free_memory(group(machine, "sys/fs/cgroup", GIB, 2 * GIB)) == 0


def test_free_memory_of_this_machine_is_plausible():
    assert 0 < free_memory() < 1 << 50
