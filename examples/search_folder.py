"""Search a folder repeatedly while it changes: only changed files are read again."""

import tempfile
from pathlib import Path

from relevance_gen import FolderIndex

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "orchard.md").write_text(
        "# Harvest\n\nApples ripen in September.\nPears are picked earlier.\n"
    )
    (folder / "press.py").write_text("def press(apples):\n    return juice(apples)\n")
    index = FolderIndex(folder, cache=False)

    def show(question: str) -> None:
        """Print the location of the best result, and its first line."""
        for result in index.search(question, top_n=1):
            place = result.metadata
            lines = index.read(place["path"], place["first_line"], place["last_line"])
            print(
                f"{lines.path}:{lines.first_line}-{lines.last_line}  {lines.text.splitlines()[0]}"
            )

    show("function that makes juice of apples")
    (folder / "orchard.md").unlink()
    (folder / "cellar.txt").write_text("Juice is kept in the cellar until it is cider.\n")
    show("Where is juice kept?")
