"""Reading and writing files safely: whole or not at all, and with an error that names the file and the reason.

Every touch of the disk by this room goes through here, so that nobody meets a bare OSError.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import WeightsError
from .limits import most_bytes

# What a file gets: its bytes, a function that writes them, or None: no such file shall be there.
Content = bytes | Callable[[IO[bytes]], object] | None

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
ZIP_MAGIC = b"PK\x03\x04"
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
LARGEST_TEXT = 256 * 2**20  # bytes; the largest published vocabulary has 8 MB
# Of JSON that is no vocabulary: in memory it may take 30 times as much. Published options have 1 kB.
LARGEST_OPTIONS = 2**20

# ".model.safetensors.1234-0a1b2c3d.tmp": the file it becomes, the process that writes it, the number of its save.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)-(?P<save>[0-9a-f]{8})\.tmp", re.DOTALL)
_ABANDONED_AFTER = 24 * 3600  # seconds; what nobody has written to for so long is no save under way
_our_temporaries: set[str] = set()  # names that this process is writing now


class DamagedError(Exception):
    """Bytes that are not what they should be. Whoever opened the file turns it into a WeightsError that names it."""


@contextmanager
def clear_errors(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into a WeightsError that says which file, what could not be done with it, and why.

    what: "cannot be read", "cannot be written", ...
    """
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise WeightsError(f"{str(path)!r}: {what}: no file can have this name")
    try:
        yield
    except OSError as error:
        raise WeightsError(f"{path}: {what}: {_reason(error, path)}") from error


def _reason(error: OSError, path: Path) -> str:
    if error.errno == errno.ENOENT:
        return f"there is no folder {path.parent}" if not os.path.isdir(path.parent) else "there is no such file"
    if error.errno == errno.ENOTDIR:
        return f"{path.parent} is not a folder"
    return error.strerror or str(error)


def as_path(path: Path | str) -> Path:
    """A path as it was given. WeightsError for what is none: None, bytes, an empty string."""
    try:
        if path != "":  # would be the working folder
            return Path(path)
    except TypeError:
        pass
    raise WeightsError(f"a path is a string that is not empty, or a pathlib.Path, not {path!r:.100}")


def exists(path: Path) -> bool:
    """Whether a file or folder is there. WeightsError if that cannot be found out."""
    with clear_errors(path, "cannot be read"):
        return path.exists()


def is_folder(path: Path) -> bool:
    """Whether a folder is there, for all that can be told: what is done with the path next says what is wrong."""
    return os.path.isdir(path)  # Path.is_dir raises for names that are too long or may not be looked at


def made_folder(path: Path | str) -> Path:
    """The folder, made if it is not there. WeightsError if it cannot be made."""
    folder = as_path(path)
    with clear_errors(folder, "cannot be made a folder"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise WeightsError(f"{folder}: cannot be made a folder, there is a file of that name") from error
    return folder


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was written there takes its place when the block ends well.

    A killed process leaves either the old file or the new one, never half of one. On an error the temporary file is
    removed and the old one stays. Raises WeightsError for any OSError, one in the block too.
    """
    with _beside(path) as temporary, clear_errors(path, "cannot be written"):
        yield temporary
        # Data before name: otherwise a power cut can leave the new name on an empty file.
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


def write_files(contents: Mapping[Path, Content]) -> None:
    """Replace files of one folder that belong together.

    contents: what each file gets, the most important one first; the others describe it and may be missing.
    All are written beside, in order, before any of the old ones is touched: on an error those stay as they were. Then
    the old ones go, the last first and all but the first, and the new ones come in order. So a process that is killed
    at any point leaves the old files, the new ones, or the first ones of either alone: never a mixture. The last file
    is there, or else all that are not in their places yet lie whole beside: `finish_writing` brings them there.
    Where the first alone differs from what is there, the others stay.
    Raises WeightsError naming the file and the reason.
    """
    for path in reversed(list(contents)):  # the last first: without it, nobody takes what is left for a whole save
        _remove_abandoned(path)
    first, *others = contents
    if all(holds(path, contents[path]) for path in others):
        contents, others = {first: contents[first]}, []
    save = secrets.token_hex(4)
    with ExitStack() as stack:
        temporaries: dict[Path, Path] = {}
        for path, content in contents.items():
            temporary = stack.enter_context(_beside(path, save))
            if content is None:
                continue
            temporaries[path] = temporary
            with clear_errors(path, "cannot be written"), temporary.open("wb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                file.flush()
                os.fsync(file.fileno())  # as in `replacing`
        for path in [*reversed(others), *([first] if contents[first] is None else [])]:
            with clear_errors(path, "cannot be removed"):
                path.unlink(missing_ok=True)
        for path, temporary in temporaries.items():
            with clear_errors(path, "cannot be written"):
                os.replace(temporary, path)


def finish_writing(first: Path, *others: Path, gone: Path) -> None:
    """Finish a call of `write_files` for these paths whose process was killed after it began to replace them.

    That is if the last one is not there, and lies, in JSON, whole beside its place: it was written after the others.
    Others that do not lie beside are in their places already. gone: what was to be removed.
    Never an error: who reads the files next says what is wrong.
    """
    last = others[-1]
    with suppress(OSError, ValueError):
        if os.path.lexists(last):
            return
        for name in os.listdir(last.parent):
            match = _TEMPORARY.fullmatch(name)
            left = last.with_name(name)
            if match is None or match["name"] != last.name or not _is_abandoned(left, match):
                continue
            with suppress(WeightsError):
                read_json(left)
                temporaries = {path: path.with_name(name.replace(last.name, path.name, 1)) for path in (first, *others)}
                if not (os.path.lexists(temporaries[first]) or os.path.lexists(first)):
                    continue
                if os.path.lexists(temporaries[first]):  # else it is gone, and what is there is newer
                    gone.unlink(missing_ok=True)
                for path, temporary in temporaries.items():
                    if os.path.lexists(temporary):
                        os.replace(temporary, path)
                return


def holds(path: Path, content: Content) -> bool:
    """Whether a file holds these bytes already, or, of one that is to go, is not there."""
    with suppress(OSError, ValueError):
        if content is None:
            return not os.path.lexists(path)
        if isinstance(content, bytes):
            found = path.lstat()
            return stat.S_ISREG(found.st_mode) and found.st_size == len(content) and path.read_bytes() == content
    return False


@contextmanager
def _beside(path: Path, save: str | None = None) -> Iterator[Path]:
    """A temporary path beside `path`, gone at the end; what killed processes left for the same file goes too."""
    if is_folder(path):
        raise WeightsError(f"{path}: is a folder where a file was expected")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{save or secrets.token_hex(4)}.tmp")
    _remove_abandoned(path)
    _our_temporaries.add(temporary.name)
    try:
        yield temporary
    finally:
        _our_temporaries.discard(temporary.name)
        with suppress(OSError, ValueError):
            temporary.unlink()


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files that killed saves of `path` left. Those of running ones stay."""
    # What cannot be listed or removed is in nobody's way; the save itself says what is wrong with the folder.
    with suppress(OSError, ValueError), os.scandir(path.parent) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name)
            if match is not None and match["name"] == path.name:
                with suppress(OSError):
                    if _is_abandoned(Path(entry.path), match):
                        os.unlink(entry.path)


def _is_abandoned(temporary: Path, match: re.Match[str]) -> bool:
    """Whether nobody writes a temporary file any more. match: of its name."""
    if temporary.name in _our_temporaries:
        return False
    return time.time() - temporary.lstat().st_mtime > _ABANDONED_AFTER or not _may_run(int(match["process"]))


def _may_run(process: int) -> bool:
    """Whether another process of this number may be running."""
    if process == os.getpid():  # an earlier one: in containers every run may have the same number
        return False
    if os.name == "nt":  # os.kill would end it there
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def is_temporary(name: str) -> bool:
    """Whether a file of that name is what a save that was killed, or one that goes on, left."""
    return _TEMPORARY.fullmatch(name) is not None


def is_hidden(name: str) -> bool:
    """Whether a file is none of the user's making: macOS puts a "._weights.hdf5" beside each file of an archive."""
    return name.startswith(".")


def names_in(folder: Path) -> list[str]:
    """Names of all that lies in a folder, sorted. WeightsError if it cannot be read."""
    with clear_errors(folder, "cannot be read"):
        return sorted(os.listdir(folder))


def check_weights_file(path: Path) -> bytes:
    """First bytes of a file of weights.

    WeightsError if it is missing, empty, a folder, a device or a pipe (which may never end), or a git-LFS pointer.
    """
    if not exists(path):
        raise WeightsError(f"{path}: no such file")
    if is_folder(path):
        raise WeightsError(f"{path}: is a folder where a file was expected")
    with clear_errors(path, "cannot be read"):
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise WeightsError(f"{path}: is a device, a pipe or a socket where a file was expected")
        with path.open("rb") as file:
            head = file.read(64)
    if not head:
        raise WeightsError(f"{path}: the file is empty")
    if head.startswith(_LFS_MAGIC):
        raise WeightsError(
            f"{path}: is a git-LFS pointer, not the file itself: run `git lfs pull` where it was cloned, "
            "or download the file"
        )
    return head


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Text in UTF-8, line ends as they are.

    WeightsError if it is missing, empty, not UTF-8 or has more than ``most`` bytes.
    """
    check_weights_file(path)
    with clear_errors(path, "cannot be read"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:  # before it is read: a file with holes in it takes no room on the disk
            raise WeightsError(f"{path}: has {size} bytes, but a text here has {most} at most")
        data = file.read(most + 1)
    if len(data) > most:
        raise WeightsError(f"{path}: never ends, or grows while it is read")
    return decoded(data, path)


def decoded(data: bytes, path: Path) -> str:
    """Text in UTF-8. path: of the file, for the error. WeightsError if it is something else."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WeightsError(f"{path}: is not text in UTF-8: {error}") from error


def read_gzip(path: Path) -> bytes:
    """What a file holds that was compressed with gzip. WeightsError if it is missing, broken, or grows too much."""
    check_weights_file(path)
    with clear_errors(path, "cannot be read"):
        most = most_bytes(path.stat().st_size)
        try:
            with gzip.open(path) as file:
                data = file.read(most + 1)
        except (EOFError, zlib.error) as error:
            raise WeightsError(f"{path}: is not a whole gzip file (cut short, or damaged): {error}") from error
    if len(data) > most:
        raise WeightsError(f"{path}: grows to more than {most} bytes when it is decompressed")
    return data


def read_json(path: Path, most: int = LARGEST_OPTIONS) -> Any:
    """What a JSON file holds. WeightsError if it is missing, broken or has more than ``most`` bytes."""
    text = read_text(path, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: is not valid JSON: {error}") from error


def json_bytes(value: Any) -> bytes:
    """JSON in ASCII, so that any string survives, lone surrogates included."""
    return json.dumps(value, indent=2).encode("ascii") + b"\n"
