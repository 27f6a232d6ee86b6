"""Print the oldest version of every dependency that pyproject.toml allows, for `make lower-bounds`.

But any version of llama-cpp-python: the oldest would be compiled for minutes.
"""

import re
import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    groups = [
        project["project"]["dependencies"],
        *extras.values(),
        project["dependency-groups"]["test"],
    ]
    for requirement in (requirement for group in groups for requirement in group):
        if not requirement.startswith("llama-cpp-python"):
            requirement = re.sub(r">=([^,]+).*", r"==\1", requirement)
        sys.stdout.write(requirement + "\n")


if __name__ == "__main__":
    main()
