"""A page as PDF, printed by a browser of the Chromium family that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rooftop.errors import InputError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")


def browser() -> str | None:
    """The path of an installed browser that can print: `ROOFTOP_BROWSER`, or the first known name."""
    named = os.environ.get("ROOFTOP_BROWSER")
    return shutil.which(named) if named else next((path for name in _NAMES if (path := shutil.which(name))), None)


def write_pdf(page: str, path: str) -> None:
    """Print a page. Raises InputError, in a line, where there is no browser or it fails."""
    found = browser()
    if found is None:
        raise InputError(
            "--pdf: no Chromium or Chrome is installed to print with; install one, name it in ROOFTOP_BROWSER, or use --html",
            field="pdf",
        )
    with tempfile.TemporaryDirectory(prefix="rooftop-") as folder:
        source, target = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(page, encoding="utf-8")
        root = (
            ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        )  # it refuses to run as root otherwise
        command = [
            found, "--headless", "--disable-gpu", *root, f"--user-data-dir={folder}/profile", "--no-pdf-header-footer",
            "--virtual-time-budget=20000", f"--print-to-pdf={target}", source.as_uri(),
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(
                f"--pdf: {Path(found).name} did not print: {type(error).__name__}; use --html", field="pdf"
            ) from None
        if not target.exists():
            raise InputError(f"--pdf: {Path(found).name} made no file; use --html", field="pdf")
        try:
            shutil.copyfile(target, path)
        except OSError as error:
            raise InputError(f"--pdf: cannot write {path}: {error.strerror or error}", field="pdf") from None
