"""Tests of detecting processors and memory from descriptions of machines."""

import os

import pytest

from relevance_gen.machine import available_memory, usable_cores, usable_cpus

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")

N_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def describe(root, files):
    """Write files below `root`, by their paths."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root


def processors(siblings):
    """Describe, for each processor that this process may use, its siblings."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {topology.format(cpu): siblings(cpu) for cpu in os.sched_getaffinity(0)}


def test_hyperthreads_count_as_one_core(tmp_path):
    """Processors that are all siblings of each other are one core."""
    machine = describe(tmp_path, processors(lambda _: "0-63"))
    assert usable_cores(machine) == 1
    assert usable_cpus(machine) == N_CPUS


def test_processors_without_siblings_are_cores(tmp_path):
    """Without hyperthreads each processor is a core."""
    assert usable_cores(describe(tmp_path, processors(lambda cpu: cpu))) == N_CPUS


@pytest.mark.parametrize("count", [usable_cores, usable_cpus])
@pytest.mark.parametrize(
    ("quota", "cores"),
    [("100000 100000", 1), ("50000 100000", 1), ("0 0", None), ("max 100000", None), ("x", None)],
)
def test_cgroup_quota_limits_cores(tmp_path, count, quota, cores):
    """A quota of one processor allows one core; the result is at least one."""
    assert count(describe(tmp_path, {"sys/fs/cgroup/cpu.max": quota})) == (cores or N_CPUS)


def test_outer_cgroup_quota_applies(tmp_path):
    """The quotas of all enclosing control groups apply."""
    files = {
        "proc/self/cgroup": "0::/system.slice/server.service",
        "sys/fs/cgroup/system.slice/cpu.max": "100000 100000",
        "sys/fs/cgroup/system.slice/server.service/cpu.max": "max 100000",
    }
    assert usable_cpus(describe(tmp_path, files)) == 1


def test_cgroup_v1_quota_applies(tmp_path):
    """Version 1 has one tree per controller and separate files for quota and period."""
    group = "sys/fs/cgroup/cpu,cpuacct/docker"
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/docker\n1:name=systemd:/docker",
        f"{group}/cpu.cfs_quota_us": "100000",
        f"{group}/cpu.cfs_period_us": "100000",
    }
    assert usable_cpus(describe(tmp_path, files)) == 1


def test_machine_without_description_counts_processors(tmp_path):
    """Without a description each usable processor counts."""
    assert usable_cores(tmp_path) == usable_cpus(tmp_path) == N_CPUS


def test_available_memory_is_minimum_of_machine_and_cgroup(tmp_path):
    """The result is the smaller of free memory and remaining cgroup memory, None if unknown."""
    assert available_memory(tmp_path) is None
    describe(tmp_path, {"proc/meminfo": "MemTotal: 4000 kB\nMemAvailable: 3000 kB"})
    assert available_memory(tmp_path) == 3000 * 1024
    describe(
        tmp_path, {"sys/fs/cgroup/memory.current": "500000", "sys/fs/cgroup/memory.max": "max"}
    )
    assert available_memory(tmp_path) == 3000 * 1024
    describe(tmp_path, {"sys/fs/cgroup/memory.max": "600000"})
    assert available_memory(tmp_path) == 100_000
    describe(
        tmp_path, {"sys/fs/cgroup/memory.stat": "anon 300000\ninactive_file 50000\nactive_file 7"}
    )
    assert available_memory(tmp_path) == 150_000
