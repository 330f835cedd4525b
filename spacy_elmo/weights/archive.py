"""Archives: `.zip`, `.tar`, `.tar.gz`, `.tar.bz2`, unpacked into a temporary folder that goes away again.

An archive may come from anywhere, so all members are listed and checked before one is written: plain files and folders
with relative names that stay inside, each once, no links or devices, at most 1,000 of them, and together at most 20
times as large as the archive (64 MiB in any case, 16 GiB at most). That counts the bytes that really come out, whatever
the archive says of itself.
"""

from __future__ import annotations

import bz2
import gzip
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import WeightsError
from .files import ZIP_MAGIC, DamagedError, check_weights_file, clear_errors, is_hidden
from .limits import most_bytes
from .members import Member, chunks_of
from .tar_members import tar_members
from .zip_members import zip_members

_MOST_MEMBERS = 1_000
_MOST_BYTES = 16 * 2**30
_LONGEST_NAME, _DEEPEST = 255, 32  # characters of one part; parts
_DECOMPRESSORS: dict[bytes, type[gzip.GzipFile] | type[bz2.BZ2File]] = {b"\x1f\x8b": gzip.GzipFile, b"BZh": bz2.BZ2File}
_NOT_READ = {b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf\x27\x1c": "7-Zip", b"Rar!\x1a\x07": "RAR"}
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
# What the standard library raises for damaged archives, depending on where the damage lies.
_ERRORS = (
    *(OSError, RuntimeError, LookupError, ValueError, ArithmeticError, EOFError),
    *(DamagedError, zipfile.BadZipFile, zlib.error),
)
# Windows: a drive, or a stream of a file; names that it would silently change.
_UNSAFE_NAME = re.compile(r"[\x00-\x1f:]|[. ]$")


def is_archive(path: Path) -> bool:
    """Whether a file is an archive, or compressed, by its content."""
    head = check_weights_file(path)
    if head.startswith((ZIP_MAGIC, *_DECOMPRESSORS, *_NOT_READ)):
        return True
    with clear_errors(path, "cannot be read"), path.open("rb") as file:
        file.seek(_TAR_MAGIC_AT)
        return file.read(len(_TAR_MAGIC)) == _TAR_MAGIC


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A folder in which the members of an archive lie, until the block ends.

    WeightsErrors of the block name files by where they lie in the archive.
    Raises WeightsError for an archive that is damaged, unsafe or of another kind, or if there is no room for it.
    """
    with _writing(path):
        temporary = Path(tempfile.mkdtemp(prefix="spacy-elmo-"))
    try:
        folder = temporary / "members"
        _unpack(path, folder, temporary / "decompressed")
        yield folder
    except WeightsError as error:
        raise WeightsError(str(error).replace(str(temporary / "members"), str(path))) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unpack(path: Path, folder: Path, decompressed: Path) -> None:
    """Unpack an archive into a new folder. decompressed: a file for what a compressed one holds, for the time being."""
    head = check_weights_file(path)
    for magic, kind in _NOT_READ.items():
        if head.startswith(magic):
            raise WeightsError(f"{path}: is compressed with {kind}, which is not read: unpack it, load its folder")
    with clear_errors(path, "cannot be read"):
        most = min(most_bytes(path.stat().st_size), _MOST_BYTES)
    with _clear_errors(path):
        if head.startswith(ZIP_MAGIC):
            with zip_members(path) as members:
                _extract(members, path, folder, most)
            return
        tar = path
        for magic, opened in _DECOMPRESSORS.items():
            if head.startswith(magic):
                # To the disk first: listing and extracting would decompress it twice.
                tar = decompressed
                with opened(path) as file:
                    _write(chunks_of(file.read), tar, path, most)
        with tar.open("rb") as file:
            _extract(tar_members(file), path, folder, most)
    decompressed.unlink(missing_ok=True)


def _extract(members: Iterable[Member], archive: Path, folder: Path, most: int) -> None:
    """Check the whole list of members, and then write the files among them."""
    checked: dict[tuple[str, ...], Member] = {}
    seen: dict[tuple[str, ...], bool] = {}
    total = 0
    for number, member in enumerate(members, 1):
        if number > _MOST_MEMBERS:
            raise WeightsError(f"{archive}: has more than {_MOST_MEMBERS} members: it is no archive of a model")
        if member.unsafe:
            raise WeightsError(f"{archive}: its member {member.name!r:.300} is {member.unsafe}: it is not unpacked")
        parts = _checked_parts(member.name, archive)
        if not parts:  # the archive's own folder
            continue
        total += member.size
        if total > most:
            raise WeightsError(f"{archive}: would be more than {most} bytes unpacked: it is no archive of a model")
        _check_once(parts, member, seen, archive)
        if not member.is_folder and not any(is_hidden(part) or part == "__MACOSX" for part in parts):
            checked[parts] = member
    with _writing(archive):
        folder.mkdir()
        for parts in checked:
            folder.joinpath(*parts[:-1]).mkdir(parents=True, exist_ok=True)
    for parts, member in checked.items():
        if _write(member.chunks(), folder.joinpath(*parts), archive, member.size) != member.size:
            raise WeightsError(f"{archive}: its member {member.name!r:.300} is cut short")


def _checked_parts(name: str, archive: Path) -> tuple[str, ...]:
    """The parts of a member's name, "/" and "\\" alike. WeightsError for one that is not safely inside a folder."""
    parts = tuple(part for part in re.split(r"[/\\]", name) if part not in ("", "."))
    reason = ""
    if name.startswith(("/", "\\")) or re.match("[A-Za-z]:", name):
        reason = "an absolute path"
    elif ".." in parts:
        reason = "a path that leads out of the archive"
    elif any(_UNSAFE_NAME.search(part) for part in parts):
        reason = "a name that not every system takes as it is"
    elif len(parts) > _DEEPEST or any(len(part) > _LONGEST_NAME for part in parts):
        reason = "a name that is too long"
    if reason:
        raise WeightsError(f"{archive}: its member {name!r:.300} has {reason}: it is not unpacked")
    return parts


def _check_once(parts: tuple[str, ...], member: Member, seen: dict[tuple[str, ...], bool], archive: Path) -> None:
    """WeightsError for a second file of the same name, or a file in the place of a folder.

    seen: whether it is a folder, by the name as Windows and macOS compare names.
    """
    names = tuple(part.casefold() for part in parts)
    twice = names in seen and not (seen[names] and member.is_folder)
    inside_file = any(not seen.setdefault(names[:depth], True) for depth in range(1, len(names)))
    if twice or inside_file:
        raise WeightsError(
            f"{archive}: has {member.name!r:.300} twice, or in the place of a folder: it is not unpacked"
        )
    seen[names] = member.is_folder


def _write(chunks: Iterator[bytes], target: Path, archive: Path, most: int) -> int:
    """Write a new file. RETURNS: its size. WeightsError for more than `most` bytes, or if there is no room."""
    size = 0
    with _writing(archive):
        file = target.open("xb")
    with file:
        for chunk in chunks:
            size += len(chunk)
            if size > most:
                raise WeightsError(f"{archive}: more than {most} bytes come out of it: it is no archive of a model")
            with _writing(archive):
                file.write(chunk)
        with _writing(archive):
            file.flush()
    return size


@contextmanager
def _writing(archive: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(
            f"{archive}: cannot be unpacked into the folder for temporary files, {tempfile.gettempdir()}: {reason} "
            "(the environment variable TMPDIR names another one)"
        ) from error


@contextmanager
def _clear_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except WeightsError:
        raise
    except _ERRORS as error:
        raise WeightsError(f"{archive}: is not a whole archive (cut short, or damaged): {error}") from error
