"""Measurements of a benchmark as JSON, with machine, versions, commit and date.

A bench opens a `Record` of its name, adds measurements, and at its end has
`bench/results/NAME.json`. `bench.rendering` makes all tables and plots from these files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from relevance_gen.machine import usable_cores, usable_cpus

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("numpy", "tiktoken", "gigatoken", "llama-cpp-python", "aiohttp"),
    *("scikit-learn", "bm25s", "tantivy", "fastapi", "ir-measures"),
)


class Record:
    """The measurements of one bench; entering it starts the clock, and leaving it writes the file.

    Args:
        name: the bench's.
        args: its arguments; ``quick`` marks a run that only tests the benchmark.
        is_whole: whether it measures all that it can; otherwise it is printed and not kept.
    """

    def __init__(self, name: str, args: argparse.Namespace, *, is_whole: bool = True) -> None:
        self.name = name
        self._is_whole = is_whole
        self.measurements: list[dict[str, Any]] = []
        self._is_quick = bool(getattr(args, "quick", False))
        self._started = time.perf_counter()

    def add(
        self,
        group: str,
        what: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        places: int = 2,
    ) -> None:
        """Keep and print one measurement.

        Args:
            group: the table that it belongs to.
            what: its row.
            value: the measured value.
            unit: its column; ``×`` for a ratio.
            at_most: the bar that it has to stay below, or
            at_least: to reach.
            places: decimals to show.
        """
        measured: dict[str, Any] = {
            "group": group,
            "what": what,
            "unit": unit,
            "value": round(float(value), 6),
        }
        measured["places"] = places
        bar = ""
        if at_most is not None or at_least is not None:
            holds = value <= at_most if at_most is not None else value >= (at_least or 0.0)
            measured["bar"] = f"≤ {at_most:g}" if at_most is not None else f"≥ {at_least:g}"
            measured["holds"] = bool(holds)
            bar = f"   {measured['bar']}: {'holds' if holds else 'MISSED'}"
        if not self.measurements or self.measurements[-1]["group"] != group:
            print(f"\n{group}")
        self.measurements.append(measured)
        print(f"  {what:<58} {value:>12,.{places}f} {unit}{bar}", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.measurements and self._is_whole:
            self.save(RESULTS)

    def save(self, folder: Path) -> None:
        """Write the file."""
        folder.mkdir(exist_ok=True)
        content = {
            "name": self.name,
            "command": shlex.join(
                ["python", "-m", f"bench.{self.name}", *map(_named, sys.argv[1:])]
            ),
            "quick": self._is_quick,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - self._started, 1),
            "commit": commit(),
            "machine": machine(),
            "versions": {"python": platform.python_version()} | versions(),
            "measurements": self.measurements,
        }
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\n→ {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def add_quick(parser: argparse.ArgumentParser) -> None:
    """Add the option that every bench has."""
    parser.add_argument(
        "--quick", action="store_true", help="only show that everything works, in a minute or so"
    )


def _named(argument: str) -> str:
    """Leave out of a path where it is on this machine."""
    return Path(argument).name if os.sep in argument else argument


def commit() -> str:
    """Return the commit that is checked out, with a ``+`` if the package or the benches differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", "relevance_gen", "bench/*.py"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + "+" * bool(changed)


def _git(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603
        ["git", *arguments],  # noqa: S607
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "processor": _processor(),
        "n_cpus": usable_cpus(),
        "n_cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def versions() -> dict[str, str]:
    """Return the versions of the installed libraries that are measured or compared."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
