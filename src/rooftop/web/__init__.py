"""The page and its JSON API: the questions of the command line, asked over HTTP on this machine."""

from rooftop.web._app import application
from rooftop.web._serve import serve

__all__ = ["application", "serve"]
