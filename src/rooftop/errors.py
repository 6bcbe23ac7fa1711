"""The errors that a user can meet. Each message is one sentence: what was given, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RooftopError(Exception):
    """Base of all errors that are shown to a user as one line.

    `field` names the input at fault, `exit_code` is the exit status of the command line.
    """

    exit_code = 2

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InputError(RooftopError):
    """What was asked is not well formed: unknown name, impossible size, broken file."""


class NoAnswer(RooftopError):
    """A well-formed question that has no answer, for instance a model that does not fit."""

    exit_code = 1


class MissingExtra(InputError):
    """An optional part of Rooftop is not installed."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return ' (did you mean a, b?)' for the known names closest to `name`, or ''."""
    close = difflib.get_close_matches(name.lower(), list(known), n=limit, cutoff=0.5)
    return f" (did you mean {', '.join(close)}?)" if close else ""
