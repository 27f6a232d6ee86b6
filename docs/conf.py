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

# The type and the palette of the server's page, relevance_gen/serve/static/page.html.
_type = {
    "font-stack": "Charter, 'Bitstream Charter', 'Charis SIL', 'Iowan Old Style', Palatino, Georgia, serif",
    "font-stack--sans": "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    "font-stack--monospace": "ui-monospace, 'SF Mono', Menlo, Consolas, 'Liberation Mono', monospace",
}


def _palette(
    paper: str, raised: str, ink: str, quiet: str, line: str, accent: str
) -> dict[str, str]:
    return {
        "color-background-primary": paper,
        "color-background-secondary": raised,
        "color-background-hover": raised,
        "color-code-background": raised,
        "color-foreground-primary": ink,
        "color-foreground-secondary": quiet,
        "color-foreground-muted": quiet,
        "color-background-border": line,
        "color-foreground-border": line,
        "color-brand-primary": accent,
        "color-brand-content": accent,
        "color-brand-visited": accent,
        "color-api-name": accent,
        "color-api-pre-name": accent,
    }


_light = _palette("#fdfcf9", "#f6f3ec", "#24211c", "#6b6457", "#e5dfd3", "#8f4400")
_dark = _palette("#181715", "#211f1c", "#e8e3d8", "#a69e8f", "#37332c", "#f3b961")

html_theme = "furo"
html_title = f"{project} {version}"
html_logo = html_favicon = "pictures/logo.svg"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_theme_options = {"light_css_variables": _type | _light, "dark_css_variables": _dark}
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
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def link_own_name(
    app: Sphinx, env: BuildEnvironment, node: Element, content: Element
) -> Element | None:
    """Link `GenerationRequest`, which is documented as `relevance_gen.types.GenerationRequest`, if only one ends so."""
    objects: dict[str, Any] = env.get_domain("py").objects  # type: ignore[attr-defined]
    found = [
        name
        for name in objects
        if name.endswith(f".{node.get('reftarget')}") and not objects[name].aliased
    ]
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    entry = objects[found[0]]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, content, found[0]
    )


_ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    '<th class="head"><p></p></th>': "<td></td>",
    "<pre>": '<pre tabindex="0">',
}
"""What the theme writes, and what those who read by ear or by keyboard need in its place."""


def make_accessible(app: Sphinx, exception: Exception | None) -> None:
    """Mend what the theme leaves out in each page that was written."""
    for page in Path(app.outdir).rglob("*.html") if exception is None else ():
        text = page.read_text(encoding="utf-8")
        for written, needed in _ACCESSIBLE.items():
            text = text.replace(written, needed)
        page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect what is defined here."""
    app.connect("missing-reference", link_own_name)
    app.connect("build-finished", make_accessible)
