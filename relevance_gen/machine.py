"""What this process may really use of the machine: cores and memory, in a container too.

Every function takes the root of the file system that describes the machine, so that tests can describe another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def usable_cpus(root: Path = _ROOT) -> int:
    """Return the processors (hardware threads) of this process's affinity, no more than its control groups' quota."""
    return _within_quota(len(_affinity()), root)


def usable_cores(root: Path = _ROOT) -> int:
    """Return the physical cores of this process's affinity, no more than its control groups' quota.

    Threads beyond them make every step of a model wait for the slowest.
    """
    cpus = root / "sys/devices/system/cpu"
    siblings = {
        _read(cpus / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in _affinity()
    }
    return _within_quota(len(siblings), root)


def available_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes that this process can still get; ``None`` where the machine does not tell."""
    lines = _read(root / "proc/meminfo").splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for group in _control_groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            # Files that were read and are not in use are counted as used, and given back when memory is wanted.
            lines = _read(group / "memory.stat").splitlines()
            cached = sum(
                int(line.split()[1]) for line in lines if line.split()[0] == "inactive_file"
            )
            free.append(max(0, int(limit) - int(used) + cached))
    return min(free, default=None)


def _affinity() -> set[int]:
    return (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )


def _within_quota(n: int, root: Path) -> int:
    """Return `n`, or the whole processors that the tightest quota allows if these are fewer; at least 1."""
    for group in _control_groups(root, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        quota = quota or _read(group / "cpu.cfs_quota_us")
        period = period or _read(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            n = min(n, int(quota) // int(period))
    return max(1, n)


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups from the innermost out, of version 2 and of version 1."""
    mounted = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = mounted / controllers
            group = top / path.lstrip("/")
            yield group
            yield from (parent for parent in group.parents if parent.is_relative_to(top))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
