"""What a machine can give, from descriptions of machines."""

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


def test_threads_of_one_core_count_once(tmp_path):
    """Hyperthreads share a core: processors that are all siblings of each other are one core."""
    machine = describe(tmp_path, processors(lambda _: "0-63"))
    assert usable_cores(machine) == 1
    assert usable_cpus(machine) == N_CPUS


def test_cores_of_their_own_count_each(tmp_path):
    """Without hyperthreads every processor is a core."""
    assert usable_cores(describe(tmp_path, processors(lambda cpu: cpu))) == N_CPUS


@pytest.mark.parametrize("count", [usable_cores, usable_cpus])
@pytest.mark.parametrize(
    ("quota", "cores"),
    [("100000 100000", 1), ("50000 100000", 1), ("0 0", None), ("max 100000", None), ("x", None)],
)
def test_a_quota_bounds_them(tmp_path, count, quota, cores):
    """A control group's quota of one processor is one, however many the machine has; at least one is left."""
    assert count(describe(tmp_path, {"sys/fs/cgroup/cpu.max": quota})) == (cores or N_CPUS)


def test_the_quota_of_an_outer_group_counts(tmp_path):
    """A process deep in a tree of control groups is bound by the quotas of all of them."""
    files = {
        "proc/self/cgroup": "0::/system.slice/server.service",
        "sys/fs/cgroup/system.slice/cpu.max": "100000 100000",
        "sys/fs/cgroup/system.slice/server.service/cpu.max": "max 100000",
    }
    assert usable_cpus(describe(tmp_path, files)) == 1


def test_a_quota_of_version_1_counts(tmp_path):
    """Version 1 of control groups keeps a tree for each controller, and quota and period apart."""
    group = "sys/fs/cgroup/cpu,cpuacct/docker"
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/docker\n1:name=systemd:/docker",
        f"{group}/cpu.cfs_quota_us": "100000",
        f"{group}/cpu.cfs_period_us": "100000",
    }
    assert usable_cpus(describe(tmp_path, files)) == 1


def test_a_machine_that_tells_nothing_has_as_many_as_it_may_use(tmp_path):
    """Without any description every processor counts."""
    assert usable_cores(tmp_path) == usable_cpus(tmp_path) == N_CPUS


def test_memory_is_what_is_free_or_what_the_container_has_left(tmp_path):
    """The smaller of what the machine has and what the control group's limit leaves; unknown stays unknown."""
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
