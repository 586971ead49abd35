"""How the documentation is made of `docs/*.md` and of docstrings. `make docs` builds it; a warning is an error."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

import lowtide  # noqa: E402

project = "lowtide"
author = "the lowtide contributors"
copyright = author
version = release = lowtide.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "command_help", "house_docstrings"]
exclude_patterns = ["_extensions"]
myst_heading_anchors = 3

# A name in single backticks is code, and a link where it is a name of ours that is documented.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    ("py:class", r"(?!lowtide\.).*"),  # torch's and Python's: their pages are not to be had without a network
    ("py:class", r"lowtide\..*\.M"),  # a type variable
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_param = False  # "seed, work: ..." is one entry for two names
python_use_unqualified_type_names = True
maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"lowtide {release}"
html_show_copyright = html_show_sphinx = False
html_copy_source = html_show_sourcelink = False
