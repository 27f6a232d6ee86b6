"""CPU cores and memory that this process may use, in a container, too.

Every function takes the root of the file system that describes the machine, so that tests can
describe other machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def usable_cpus(root: Path = _ROOT) -> int:
    """Return the number of hardware threads that this process may use; at least 1.

    These are the threads of its CPU affinity, limited by cgroup quotas.
    """
    return _within_quota(len(_affinity()), root)


def usable_cores(root: Path = _ROOT) -> int:
    """Return the number of physical cores that this process may use; at least 1.

    These are the cores of its CPU affinity, limited by cgroup quotas.
    With more threads than cores, every step of a model waits for the slowest thread.
    """
    cpus = root / "sys/devices/system/cpu"
    siblings = {
        _read(cpus / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in _affinity()
    }
    return _within_quota(len(siblings), root)


def available_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes that this process can still allocate; ``None`` if that is unknown.

    It is the available memory of the machine, limited by the free memory of its cgroups.
    """
    available: list[int] = []
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available.append(int(line.split()[1]) * 1024)
    for group in _cgroups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        usage = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdecimal() and usage.isdecimal():
            free_bytes = int(limit) - int(usage) + _reclaimable_bytes(group)
            available.append(max(0, free_bytes))
    return min(available, default=None)


def _reclaimable_bytes(group: Path) -> int:
    """Return the bytes of a cgroup's inactive file cache; 0 if they are unknown.

    They are counted as used, but freed when memory is required.
    """
    for line in _read(group / "memory.stat").splitlines():
        name, value = line.split()
        if name == "inactive_file":
            return int(value)
    return 0


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _within_quota(count: int, root: Path) -> int:
    """Return `count`, limited to the tightest cgroup CPU quota, rounded down; at least 1."""
    for group in _cgroups(root, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        quota = quota or _read(group / "cpu.cfs_quota_us")
        period = period or _read(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            count = min(count, int(quota) // int(period))
    return max(1, count)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the cgroups of this process, each followed by its parents.

    Args:
        root: root of the file system.
        controller: the controller whose cgroups of version 1 to include; cgroups of version 2 are
            always included.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = mount / controllers
            group = top / path.lstrip("/")
            yield group
            for parent in group.parents:
                if parent.is_relative_to(top):
                    yield parent


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
