"""Measure everything: ``python -m bench all [--quick] [--books FILE] [--judged DIR…] [--ngrams FILE…]``.

About an hour on 4 quiet cores, half of it for the encoder; with ``--quick``, which only shows that
everything works, at most ten minutes. In place of ``all`` some benches may be named; each runs
alone, too, as ``python -m bench.NAME``, and explains its own options. Without a FILE the text is
the source of Python's standard library; quality is measured only where judged collections are
given. Each bench leaves its record in bench/results, of which ``make results`` makes tables and
plots.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from bench import rendering

TEXTS = ("speed", "memory", "needle", "reranking")
JUDGED = ("quality", "encoder", "answerable", "passages", "asking", "compress", "citing")
OTHERS = (
    "generation",
    "constraints",
    "busy",
    "cluster",
    "serve_load",
    "peers",
    "attack",
)
_ONLY = {"passages": "covidqa", "asking": "xquad-en"}
"""Part of the collection name, for benchmarks that use only specific collections."""
BENCHES = (*TEXTS, *JUDGED, *OTHERS)


def run(name: str, arguments: list[str]) -> bool:
    """Run one benchmark and return whether it succeeded; a failure does not end the run."""
    print(f"\n── {name} {'─' * (100 - len(name))}", flush=True)
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", f"bench.{name}", *arguments], check=False)  # noqa: S603
    print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="only show that everything works")
    parser.add_argument("--books", help="a text of 8 MB or so, gzipped or not")
    parser.add_argument(
        "--judged", nargs="*", default=[], metavar="DIR", help="judged collections as BEIR has them"
    )
    parser.add_argument(
        "--ngrams", nargs="*", default=[], metavar="FILE", help="texts in Chinese, Thai …"
    )
    args = parser.parse_args()
    if unknown := set(args.names) - {"all", *BENCHES}:
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    wanted = [name for name in BENCHES if name in args.names or set(args.names) <= {"all"}]
    failed = [
        name
        for name in wanted
        if (given := options(name, args)) is not None and not run(name, given)
    ]
    rendering.main()
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


def options(name: str, args: argparse.Namespace) -> list[str] | None:
    """Return the arguments of one benchmark; ``None`` if its data set is missing."""
    given = ["--quick"] if args.quick else []
    if name in TEXTS:
        given += ["--books", args.books] if args.books else []
        return [*given, "--ngrams", *args.ngrams] if name == "speed" and args.ngrams else given
    if name in JUDGED:
        folders = [folder for folder in args.judged if _ONLY.get(name, "") in folder]
        return [*given, *(["--peers"] if name == "quality" else []), *folders] if folders else None
    return given


if __name__ == "__main__":
    sys.exit(main())
