"""Try an installed package: search, saved indexes, folders and, with the extra `mcp`, the server for agents."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import relevance_gen as rg

CHUNKS = ["Apples are red.", "Bananas are yellow."]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "try_package", "version": "1"},
    },
}


def run(*arguments: str, stdin: str = "") -> str:
    """Run the installed command `relevance-gen`, and return its output."""
    suffix = ".exe" if sys.platform == "win32" else ""
    command = Path(sys.executable).with_name(f"relevance-gen{suffix}")
    done = subprocess.run(
        [command, *arguments], input=stdin, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def main() -> None:
    """Raise an error if a part of the package does not work."""
    found = rg.search("Which fruit is red?", CHUNKS)
    assert [result.original_index for result in found] == [0], found
    assert found.metadata.num_query_tokens == 5, found
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        saved = Path(folder, "fruit.index")
        rg.ChunkIndex(CHUNKS).save(saved)
        assert rg.ChunkIndex.load(saved).search("Which fruit is red?") == found
        documents = Path(folder, "documents")
        documents.mkdir()
        (documents / "fruit.md").write_text("# Fruit\n\nApples are red.\n", encoding="utf-8")
        assert "fruit.md" in run("search", "Which fruit is red?", str(documents))
        if importlib.util.find_spec("mcp"):
            response = json.loads(run("mcp", str(documents), stdin=json.dumps(INITIALIZE) + "\n"))
            assert response["result"]["serverInfo"]["version"] == rg.__version__, response
    print("the package works in", rg.__file__)


if __name__ == "__main__":
    main()
