"""Reading and writing single files safely: whole or not at all, and with an error that names the file."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import WeightsError

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
ZIP_MAGIC = b"PK\x03\x04"
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was written there takes its place when the block ends well.

    A killed process leaves either the old file or the new one, never half of one. On an error the temporary file is
    removed and the old one stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        # Data before name: otherwise a power cut can leave the new name on an empty file.
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def check_weights_file(path: Path) -> bytes:
    """First bytes of a file of weights. WeightsError if it is missing, empty, a folder or a git-LFS pointer."""
    if not path.exists():
        raise WeightsError(f"{path}: no such file")
    if path.is_dir():
        raise WeightsError(f"{path}: is a folder where a file was expected")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    if not head:
        raise WeightsError(f"{path}: the file is empty")
    if head.startswith(_LFS_MAGIC):
        raise WeightsError(
            f"{path}: is a git-LFS pointer, not the file itself: run `git lfs pull` where it was cloned, "
            "or download the file"
        )
    return head


def read_json(path: Path) -> Any:
    """What a JSON file holds. WeightsError if it is missing or broken."""
    check_weights_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: is not valid JSON: {error}") from error
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error


def write_json(value: Any, path: Path) -> None:
    """Write JSON in ASCII, so that any string survives, lone surrogates included."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="ascii")
