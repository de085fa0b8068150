"""Sphinx builds these pages: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline import __version__

project, author, copyright = "slkl", "slkl developers", "2026, slkl developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "text"
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # they stand in the docstrings
html_theme, html_title = "furo", f"slkl {__version__}"
html_show_copyright = False
pygments_dark_style = "monokai"


def plain_bars(app, what, name, thing, options, lines):
    """Keep |x - z| as it reads: reStructuredText would look for a substitution of that name."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def setup(app):
    """Connect the function above."""
    app.connect("autodoc-process-docstring", plain_bars)
