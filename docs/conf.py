"""Sphinx builds these pages: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from settings_page import settings_page  # noqa: E402

from pipeline import __version__  # noqa: E402

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


def fill_in_settings(app, page, source):
    """Put the table of all settings into the page of options, from the settings themselves."""
    if page == "options":
        source[0] = source[0].replace("<!-- all settings -->", settings_page())


def plain_bars(app, what, name, thing, options, lines):
    """Keep |x - z| as it reads: reStructuredText would look for a substitution of that name."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def setup(app):
    """Connect the two functions above."""
    app.connect("source-read", fill_in_settings)
    app.connect("autodoc-process-docstring", plain_bars)
