"""Measure everything: ``python -m bench [--books FILE] [--judged DIR…] [--ngrams FILE…]``, about ten minutes.

Each part is a module of its own and runs alone, too: ``python -m bench.speed``, ``.memory``, ``.needle``,
``.quality``, ``.answerable``, ``.passages``, ``.generation``, ``.busy``, ``.serve_load``. Without a FILE the text is
the source of Python's standard library; quality is measured only where judged collections are given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys


def run(module: str, *arguments: str) -> None:
    print(f"\n── {module} {'─' * (100 - len(module))}", flush=True)
    subprocess.run([sys.executable, "-m", f"bench.{module}", *arguments], check=True)  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", help="a text of 8 MB or so, gzipped or not")
    parser.add_argument("--judged", nargs="*", default=[], metavar="DIR", help="judged collections as BEIR has them")
    parser.add_argument("--ngrams", nargs="*", default=[], metavar="FILE", help="texts in Chinese, Thai …")
    args = parser.parse_args()
    books = ["--books", args.books] if args.books else []
    run("speed", *books, *(["--ngrams", *args.ngrams] if args.ngrams else []))
    run("memory", *books)
    run("needle", *books)
    if args.judged:
        run("quality", "--peers", *args.judged)
        run("answerable", *args.judged)
        run("passages", *(folder for folder in args.judged if "covidqa" in folder))
    run("generation")
    run("busy")
    run("serve_load")


if __name__ == "__main__":
    main()
