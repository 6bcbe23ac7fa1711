"""Bytes of a profile: plain or gzipped, streamed, with limits that a hostile file meets before the machine does."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from rooftop.errors import InputError

BLOCK = 1 << 22
#: What a profile may hold once decompressed; the largest that people have are a few gigabytes.
MOST_BYTES = 16 << 30
#: Profiles compress by 10 to 60; deflate's limit, and what bombs come near, is 1032.
MOST_RATIO = 400


def problem(path: Path, what: str) -> InputError:
    """One line that names the file."""
    return InputError(f"{path}: {what}", field="path")


def expected() -> str:
    """What the reader takes, for the end of a sentence."""
    return "give an xplane.pb, a Chrome trace (.json, also .gz), an Nsight Systems .sqlite, or a folder of them"


def blocks(path: Path, most: int = MOST_BYTES) -> Iterator[bytes]:
    """The decompressed bytes of a file, a block at a time."""
    if not path.is_file():  # a device or a pipe may never end
        raise problem(path, f"not a file; {expected()}")
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            source = _unzipped(path, iter(lambda: file.read(BLOCK), b"")) if head == b"\x1f\x8b" else iter(
                lambda: file.read(BLOCK), b""
            )  # fmt: skip
            total = 0
            for block in source:
                total += len(block)
                if total > most:
                    raise problem(path, f"holds more than {most >> 20:,} MiB; capture fewer steps")
                yield block
    except OSError as error:
        raise problem(path, f"cannot be read: {error.strerror or error}") from None


def _unzipped(path: Path, source: Iterator[bytes]) -> Iterator[bytes]:
    unzip = zlib.decompressobj(31)
    taken = given = 0
    for block in source:
        taken += len(block)
        while block:
            try:
                out = unzip.decompress(block, BLOCK)
            except zlib.error as error:
                raise problem(path, f"its gzip data are corrupt ({error}); copy or capture it again") from None
            given += len(out)
            if given > (64 << 20) and given > taken * MOST_RATIO:
                raise problem(path, f"unpacks to more than {MOST_RATIO} times its size, which no profile does")
            if out:
                yield out
            block = unzip.unconsumed_tail
            if unzip.eof:  # gzip files may be joined; zeros may pad them
                block = unzip.unused_data
                if not block.startswith(b"\x1f\x8b"):
                    return
                unzip = zlib.decompressobj(31)
    if not unzip.eof:
        raise problem(path, "ends in the middle of its gzip data; copy or capture it again")
