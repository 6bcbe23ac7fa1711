"""Sphinx configuration."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import rooftop

project = "Rooftop"
author = "The Rooftop authors"
copyright = "The Rooftop authors"
version = release = rooftop.__version__
extensions = ["myst_parser", "rooftop_run", "mathml", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "Rooftop"
