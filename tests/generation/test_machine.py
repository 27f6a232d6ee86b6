"""What a machine can give, from descriptions of machines."""

import os

import pytest

from relevance_gen.generation.machine import available_memory, usable_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")


def machine(tmp_path, siblings, quota="max 100000"):
    """Describe a machine: for each CPU that this process may use, its siblings."""
    for cpu in os.sched_getaffinity(0):
        directory = tmp_path / "cpus" / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(f"{siblings(cpu)}\n")
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    return {"topology": tmp_path / "cpus", "control_group": tmp_path}


def test_threads_of_one_core_count_once(tmp_path):
    """Hyperthreads share a core: all CPUs siblings of each other are one core."""
    assert usable_cores(**machine(tmp_path, lambda _: "0-63")) == 1


def test_cores_of_their_own_count_each(tmp_path):
    """Without hyperthreads every CPU is a core."""
    assert usable_cores(**machine(tmp_path, lambda cpu: cpu)) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("0 0", None), ("garbage", None)]
)
def test_a_quota_bounds_them(tmp_path, quota, cores):
    """A control group's quota of one core is one core, however many the machine has; at least one is left."""
    assert usable_cores(**machine(tmp_path, lambda cpu: cpu, quota)) == (cores or len(os.sched_getaffinity(0)))


def test_a_machine_that_tells_nothing_has_as_many_as_it_may_use(tmp_path):
    """Without any description every CPU counts."""
    assert usable_cores(topology=tmp_path, control_group=tmp_path) == len(os.sched_getaffinity(0))


def test_memory_is_what_is_free_or_what_the_container_has_left(tmp_path):
    """The smaller of what the machine has and what the control group's limit leaves; unknown stays unknown."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")
    described = {"meminfo": meminfo, "control_group": tmp_path}
    assert available_memory(**described) == 3000 * 1024
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(**described) == 3000 * 1024
    (tmp_path / "memory.max").write_text("600000\n")
    assert available_memory(**described) == 100_000
    assert available_memory(meminfo=tmp_path / "none", control_group=tmp_path / "none") is None
