"""Files from outside are read with a limit, whatever they claim to be."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def read_text(path: Path, most: int) -> str:
    """The text of a file of at most `most` bytes. A device or a pipe has no size to ask for, and may never end."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data.decode("utf-8")
