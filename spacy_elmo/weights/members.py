"""What zip and tar archives have in common: a list of members, each a name, a size and its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

CHUNK = 2**20  # bytes that are read at once


class Member(NamedTuple):
    """One entry of an archive, as the archive describes it: nothing is checked.

    name: its path. size: in bytes, as the archive claims. chunks: its bytes, as many as there are.
    unsafe: what it is, if it is neither a file nor a folder that can be read.
    """

    name: str
    size: int
    is_folder: bool
    chunks: Callable[[], Iterator[bytes]]
    unsafe: str = ""


def chunks_of(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The rest of a file, a chunk at a time. read: the file's method."""
    while chunk := read(CHUNK):
        yield chunk
