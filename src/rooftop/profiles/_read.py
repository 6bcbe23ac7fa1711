"""Any profile: what a file is, by its content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rooftop.profiles._chrome import read_chrome
from rooftop.profiles._events import Trace
from rooftop.profiles._nsight import read_nsight
from rooftop.profiles._source import blocks, expected, problem
from rooftop.profiles._xplane import read_xplane

#: What a folder may hold, in the order of preference: XLA writes the same profile twice.
_PATTERNS = (
    ("**/*.xplane.pb", "**/*.xplane.pb.gz"),
    ("**/*.json", "**/*.json.gz"),
    ("**/*.sqlite",),
)
_MOST_FILES = 4096


def read(path: str | Path) -> list[Trace]:
    """The profiles at a path: one file, or a folder with one file for each rank. Raises InputError for what is none."""
    where = Path(path)
    if where.is_dir():
        return [_one(file) for file in _files(where)]
    if not where.exists():
        raise problem(where, f"does not exist; {expected()}")
    return [_one(where)]


def _files(folder: Path) -> list[Path]:
    for patterns in _PATTERNS:
        found = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
        if len(found) > _MOST_FILES:
            raise problem(folder, f"holds more than {_MOST_FILES} profiles; name a folder of one run")
        if found:
            latest = max(file.parent for file in found)  # folders of XLA's profiler are named by their time
            return [file for file in found if file.parent == latest]
    raise problem(folder, f"holds no profile; {expected()}")


def _one(path: Path) -> Trace:
    try:
        return _reader(path)(path)
    except OverflowError:
        raise problem(path, "holds times that lie more than a hundred days apart; capture it again") from None


def _reader(path: Path) -> Callable[[Path], Trace]:
    """The reader of a file, by its first bytes."""
    head = b""
    for block in blocks(path):
        head = block[:64]
        break
    if not head:
        raise problem(path, f"is empty; {expected()}")
    if head.startswith(b"SQLite format 3\0"):
        return read_nsight
    if head.startswith(b"PK\x03\x04"):
        raise problem(path, f"is a zip archive; unpack it first, then {expected()}")
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise problem(path, "is a report of Nsight Systems; export it with nsys export --type sqlite")
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return read_chrome
    return read_xplane
