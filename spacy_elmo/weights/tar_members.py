"""The members of a tar archive (POSIX ustar and pax, GNU).

The standard library's reader goes round in circles on sizes below zero (seen in Python 3.11.7), and takes extended
headers of any size into memory. Here its parser of one header block is used, and the walk is our own.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from functools import partial
from typing import IO

from .files import DamagedError
from .members import CHUNK, Member

_BLOCK = tarfile.BLOCKSIZE
_LARGEST_HEADER = 2**16  # bytes of an extended header: a name or two
_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LINK_TYPES = (tarfile.SYMTYPE, tarfile.LNKTYPE)


def tar_members(file: IO[bytes]) -> Iterator[Member]:
    """List the members of an archive that is not compressed. DamagedError if it is not whole.

    file: open as long as the members' bytes are asked for.
    """
    end = file.seek(0, 2)
    position = 0
    name = ""  # from the extended header before a member
    while True:
        file.seek(position)
        block = file.read(_BLOCK)
        if len(block) < _BLOCK:
            raise DamagedError("it ends before its end mark: it is cut short")
        if not any(block):
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise DamagedError(f"a header is damaged: {error}") from error
        start = position + _BLOCK
        if not 0 <= header.size <= end - start:
            raise DamagedError(f"{header.name!r:.300} claims {header.size} bytes, and {end - start} follow")
        position = start + -(-header.size // _BLOCK) * _BLOCK
        if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            if header.size > _LARGEST_HEADER:
                raise DamagedError(f"an extended header has {header.size} bytes")
            data = file.read(header.size)
            name = _pax_path(data) or name if header.type != tarfile.GNUTYPE_LONGNAME else _text(data.rstrip(b"\0"))
        elif header.type != tarfile.XGLTYPE:  # which is about all members: times, a comment
            yield Member(
                name or header.name,
                header.size,
                header.type == tarfile.DIRTYPE,
                partial(_chunks, file, start, header.size),
                _unsafe(header),
            )
            name = ""


def _unsafe(header: tarfile.TarInfo) -> str:
    if header.type in _LINK_TYPES:
        return "a link"
    return "" if header.type in (*_FILE_TYPES, tarfile.DIRTYPE) else "no plain file"


def _pax_path(data: bytes) -> str:
    """The path of an extended header, whose records are `length key=value\\n`. Empty if it has none.

    Only what is above 8 GiB has its size there too, and is not read.
    """
    path = ""
    while data:
        length, found, _ = data.partition(b" ")
        size = int(length) if found and length.isdigit() and len(length) < 8 else 0
        record = data[len(length) + 1 : size]
        if not record.endswith(b"\n"):
            raise DamagedError("an extended header is damaged")
        key, _, value = record[:-1].partition(b"=")
        if key == b"path":
            path = _text(value)
        elif key == b"size" or key.startswith(b"GNU.sparse."):
            raise DamagedError(f"it has members with {_text(key)!r}, which is not read")
        data = data[size:]
    return path


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _chunks(file: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    file.seek(start)
    while size and (chunk := file.read(min(size, CHUNK))):
        size -= len(chunk)
        yield chunk
