"""The metadata of GGUF files, read without llama.cpp."""

from __future__ import annotations

from pathlib import Path

import gguf

from relevance_gen.llama.model_files.gguf_metadata import read_metadata
from relevance_gen.llama.model_files.resolve import EMBEDDED_MODEL


def test_metadata_equals_the_metadata_that_was_written(tmp_path: Path) -> None:
    """Numbers, flags and strings are returned; arrays of all types are skipped."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_array("a.strings", ["one", "zwei", "三"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.lists", [["a"], ["b"]])
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_uint64("a.large", 1 << 40)
    writer.add_string("a.text", "größer")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_metadata(path, 0)
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 4096
    assert {name: value for name, value in metadata.items() if name.startswith("a.")} == {
        "a.float": 0.5,
        "a.flag": True,
        "a.large": 1 << 40,
        "a.text": "größer",
    }


def test_metadata_of_incomplete_file_is_empty(tmp_path: Path) -> None:
    """A truncated file, an empty file and a missing file have no metadata."""
    content = EMBEDDED_MODEL.read_bytes()
    for n_bytes in (0, 10, 100, 1000):
        path = tmp_path / f"{n_bytes}.gguf"
        path.write_bytes(content[:n_bytes])
        assert read_metadata(path, 0) == {}
    assert read_metadata(tmp_path / "missing.gguf", 0) == {}
    assert "tokenizer.chat_template" in read_metadata(EMBEDDED_MODEL, 0)
