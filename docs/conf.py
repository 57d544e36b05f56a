"""Sphinx configuration of the documentation."""

project = "triforce-chat"
author = "The triforce-chat authors"
copyright = "2026, The triforce-chat authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "triforce-chat"
html_copy_source = False
exclude_patterns = ["_build", "tools"]
myst_heading_anchors = 4
