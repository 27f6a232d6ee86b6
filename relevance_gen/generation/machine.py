"""What this process may really use of the machine: cores and memory, in a container too."""

from __future__ import annotations

import os
from pathlib import Path

_CONTROL_GROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores(*, topology: Path = _TOPOLOGY, control_group: Path = _CONTROL_GROUP) -> int:
    """Return the physical cores in this process's affinity, no more than its control group's quota allows.

    Threads beyond them make every step of a model wait for the slowest.

    Args:
        topology: where Linux describes the processors.
        control_group: directory of ``cpu.max``, a container's "quota period", or "max period".
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(topology / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in allowed}
    quota, _, period = _read(control_group / "cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, min(len(siblings), int(quota) // int(period)))
    return len(siblings)


def available_memory(*, meminfo: Path = _MEMINFO, control_group: Path = _CONTROL_GROUP) -> int | None:
    """Return the bytes that this process can still get; ``None`` where the machine does not tell.

    Args:
        meminfo: Linux's account of the machine's memory.
        control_group: directory of ``memory.max`` and ``memory.current``, a container's limit and use.
    """
    lines = _read(meminfo).splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limit, used = _read(control_group / "memory.max"), _read(control_group / "memory.current")
    if limit.isdecimal() and used.isdecimal():
        free.append(max(0, int(limit) - int(used)))
    return min(free, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
