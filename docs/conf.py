"""Sphinx settings; a warning is an error in `make docs`."""

import tomllib
from pathlib import Path
from typing import Any

from docutils.nodes import Element
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

_project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = _project["name"]
version = release = _project["version"]
author = "the relevance_gen authors"
copyright = author  # noqa: A001 Sphinx's name

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"{project} {version}"
html_logo = html_favicon = "pictures/logo.svg"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def link_own_name(app: Sphinx, env: BuildEnvironment, node: Element, content: Element) -> Element | None:
    """Link `GenerationRequest`, which is documented as `relevance_gen.types.GenerationRequest`, if only one ends so."""
    objects: dict[str, Any] = env.get_domain("py").objects  # type: ignore[attr-defined]
    found = [name for name in objects if name.endswith(f".{node.get('reftarget')}") and not objects[name].aliased]
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    entry = objects[found[0]]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, found[0])


def setup(app: Sphinx) -> None:
    """Connect what is defined here."""
    app.connect("missing-reference", link_own_name)
