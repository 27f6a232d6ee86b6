"""Count the processor cores this process may really use: threads beyond them make every step wait for the slowest."""

from __future__ import annotations

import os
from pathlib import Path

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores(*, topology: Path = _TOPOLOGY, cpu_quota: Path = _CPU_QUOTA) -> int:
    """Return the physical cores in this process's affinity, no more than its control group's quota allows.

    Args:
        topology: where Linux describes the processors.
        cpu_quota: the control group's ``cpu.max``: "quota period", or "max period".
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(topology / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in allowed}
    quota, _, period = _read(cpu_quota).partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, min(len(siblings), int(quota) // int(period)))
    return len(siblings)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
