"""Print the oldest version of every dependency that pyproject.toml allows, for `make lower-bounds`.

Without llama-cpp-python, which would be compiled for minutes: generation is tested with the version that is installed.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]
requirements = [*project["project"]["dependencies"], *extras["server"], *extras["redis"], *extras["fast"]]
for requirement in [*requirements, *project["dependency-groups"]["test"]]:
    if not requirement.startswith("llama-cpp-python"):
        sys.stdout.write(re.sub(r">=([^,]+).*", r"==\1", requirement) + "\n")
