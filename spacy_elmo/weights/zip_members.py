"""The members of a zip archive."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..errors import WeightsError
from .files import DamagedError
from .members import CHUNK, Member, chunks_of

_LARGEST_LIST = 4 * CHUNK  # bytes of the list of members: some dozens each
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNIX = 3  # system on which an archive was made


@contextmanager
def zip_members(path: Path) -> Iterator[list[Member]]:
    """Open an archive, and list its members. Raises WeightsError for a file of PyTorch, which is a pickle in a zip."""
    with _CarefulFile(path) as raw, zipfile.ZipFile(raw) as archive:
        infos = archive.infolist()
        if any(info.filename.endswith("/data.pkl") for info in infos):
            raise WeightsError(f"{path}: is a pickle of PyTorch, which is never read: biLMs are not kept in them")
        yield [
            Member(info.filename, info.file_size, info.is_dir(), partial(_chunks, archive, info), _unsafe(info))
            for info in infos
        ]


class _CarefulFile(io.FileIO):
    """A file that does not give more at once than a list of members may take; the zip reader asks for it whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _LARGEST_LIST:
            raise DamagedError(f"its list of members claims {size} bytes")
        return super().read(size)


def _unsafe(info: zipfile.ZipInfo) -> str:
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "no plain file"
    if info.flag_bits & _ENCRYPTED:
        return "encrypted"
    if info.compress_type not in _METHODS:
        return f"compressed by method {info.compress_type}, where only deflate is read"
    return ""


def _chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(info) as file:
        yield from chunks_of(file.read)
