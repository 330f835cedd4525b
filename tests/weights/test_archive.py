"""Archives: what is unsafe is refused before a file is written, what comes out is bounded, nothing is left behind."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import archive, load_bilm
from spacy_elmo.weights.archive import unpacked
from spacy_elmo.weights.limits import most_bytes

from .writers import Model, files_of, write_hdf5_model, write_tar, write_zip

FILES = {"a/options.json": b"{}", "a/weights.hdf5": b"\x89HDF" * 1000}


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files: a new one for each test."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(params=["zip", "tar", "tar.gz"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    if request.param == "zip":
        return lambda files: write_zip(tmp_path / "model.zip", files)
    mode = {"tar": "w", "tar.gz": "w:gz"}[request.param]
    return lambda files: write_tar(tmp_path / f"model.{request.param}", files, mode)


def content(path: Path) -> dict[str, bytes]:
    with unpacked(path) as folder:
        return files_of(folder)


def refused(path: Path, message: str, temporary: Path) -> None:
    """Refused before a member was written, naming the archive."""
    written: list[str] = []
    real = archive._write

    def watched(chunks: Iterator[bytes], target: Path, *rest: Any) -> int:
        written.append(target.name)
        return real(chunks, target, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "_write", watched)
        with pytest.raises(WeightsError, match=message) as info:
            content(path)
    assert str(info.value).startswith(str(path))
    assert written in ([], ["decompressed"])  # a .tar.gz becomes a .tar before its members can be listed
    assert not list(temporary.iterdir())


def test_all_plain_files_come_out_and_nothing_stays(write: Callable[..., Path], temporary: Path) -> None:
    long = "x" * 120 + "/" + "y" * 150 + ".txt"
    files = {**FILES, long: b"long", "é/日本語.txt": "ü".encode(), "empty": b""}
    assert content(write(files)) == files
    assert not list(temporary.iterdir())


def test_hidden_files_and_those_of_macos_stay_inside(write: Callable[..., Path]) -> None:
    assert content(write({**FILES, "__MACOSX/a/._options.json": b"x", "a/.DS_Store": b"x", "./._a": b"x"})) == FILES


def test_names_of_other_systems(write: Callable[..., Path]) -> None:
    assert content(write({"./a\\b.json": b"{}", "./c//d.txt": b"1"})) == {"a/b.json": b"{}", "c/d.txt": b"1"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../evil", "leads out"),
        ("a/../../evil", "leads out"),
        ("a\\..\\..\\evil", "leads out"),
        ("/etc/evil", "absolute"),
        ("\\evil", "absolute"),
        ("C:\\evil", "absolute"),
        ("c:evil", "absolute"),
        ("a/b:stream", "not every system"),
        ("a/.. /evil", "not every system"),
        ("a/b\nc", "not every system"),
        ("a/" * 40 + "b", "too long"),
        ("a/" + "b" * 300, "too long"),
    ],
)
def test_names_that_do_not_stay_inside(name: str, reason: str, write: Callable[..., Path], temporary: Path) -> None:
    refused(write({**FILES, name: b"x"}), reason, temporary)


@pytest.mark.parametrize("name", ["a/options.json", "./a//options.json", "A/OPTIONS.JSON", "a", "a/options.json/b"])
def test_names_twice_or_a_file_in_the_place_of_a_folder(name: str, tmp_path: Path, temporary: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as zipped, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of names that are the same to the letter
        for one in (*FILES, name):
            zipped.writestr(one, b"x")
    refused(tmp_path / "model.zip", "twice, or in the place of a folder", temporary)
    with tarfile.open(tmp_path / "model.tar", "w") as tar:
        for one in (*FILES, name):
            tar.addfile(tarfile.TarInfo(one))
    refused(tmp_path / "model.tar", "twice, or in the place of a folder", temporary)


def test_folders_may_be_listed_often(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "model.tar", "w") as tar:
        for name in ("./", "a/", "a", "./a/b"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        tar.addfile(tarfile.TarInfo("a/b/c"))
    assert content(tmp_path / "model.tar") == {"a/b/c": b""}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"S", b"Z"]
)
def test_links_and_devices_in_tar(kind: bytes, tmp_path: Path, temporary: Path) -> None:
    info = tarfile.TarInfo("a/link")
    info.type = kind
    info.linkname = "/etc/passwd"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in FILES:
            tar.addfile(tarfile.TarInfo(name))
        tar.addfile(info)
    (tmp_path / "model.tar").write_bytes(buffer.getvalue())
    refused(tmp_path / "model.tar", "is a link" if kind in (b"1", b"2") else "no plain file", temporary)


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_zip(mode: int, tmp_path: Path, temporary: Path) -> None:
    info = zipfile.ZipInfo("a/link")
    info.create_system = 3
    info.external_attr = (mode | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as zipped:
        zipped.writestr(info, "/etc/passwd")
    refused(tmp_path / "model.zip", "is a link" if mode == stat.S_IFLNK else "no plain file", temporary)


def test_encrypted_and_oddly_compressed_members(tmp_path: Path, temporary: Path) -> None:
    path = write_zip(tmp_path / "model.zip", FILES)
    data = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        data[data.index(signature) + at] |= 1
    path.write_bytes(data)
    refused(path, "is encrypted", temporary)
    refused(write_zip(path, FILES, method=zipfile.ZIP_LZMA), "compressed by method 14", temporary)


def test_too_many_members(write: Callable[..., Path], temporary: Path) -> None:
    assert len(content(write({f"{i}.txt": b"" for i in range(1_000)}))) == 1_000
    refused(write({f"{i}.txt": b"" for i in range(1_001)}), "more than 1000 members", temporary)


def test_a_list_of_members_that_is_too_long(tmp_path: Path, temporary: Path) -> None:
    path = write_zip(tmp_path / "model.zip", {f"{'x' * 200}{i}": b"" for i in range(20_000)})
    refused(path, "its list of members claims", temporary)


def test_the_bound_lets_models_through_and_stops_bombs() -> None:
    compressed, original = 346_000_000, 374_434_792  # the published original model, and what zip makes of such
    assert original < most_bytes(compressed)
    assert most_bytes(42_374) == 64 * 2**20  # 42.zip, which holds petabytes
    assert most_bytes(10 * 2**20) == 200 * 2**20


def test_more_than_the_bound_is_refused_by_the_list(write: Callable[..., Path], temporary: Path) -> None:
    path = write({"zeros": bytes(65 * 2**20)})
    if path.suffix == ".tar":
        pytest.skip("not compressed")
    refused(path, rf"more than {64 * 2**20} bytes", temporary)


def test_more_than_the_list_claims_is_stopped(tmp_path: Path, temporary: Path) -> None:
    path = write_zip(tmp_path / "model.zip", {"weights.hdf5": bytes(10 * 2**20)})
    data = path.read_bytes()
    path.write_bytes(data.replace((10 * 2**20).to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    with pytest.raises(WeightsError, match=r"model\.zip: .*(bytes come out of it|is not a whole archive)"):
        content(path)
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.93])
def test_cut_short(share: float, write: Callable[..., Path], temporary: Path) -> None:
    path = write({f"{i}.bin": os.urandom(10_000) for i in range(9)})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match="cut short"):
        content(path)
    assert not list(temporary.iterdir())


def test_a_tar_that_ends_between_two_members(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "model.tar", {"a": bytes(512), "b": bytes(512)})
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(WeightsError, match="ends before its end mark"):
        content(path)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_formats_of_tar(format: int, tmp_path: Path) -> None:
    files = {"x" * 90 + "/" + "y" * 95: b"long", "é.txt": b"1", **FILES}
    assert content(write_tar(tmp_path / "model.tar", files, format=format)) == files


def test_sizes_below_zero_do_not_go_in_circles(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "model.tar", FILES)
    data = bytearray(path.read_bytes())
    header = memoryview(data)[1024:1536]  # of the second member: Python 3.11.7's tarfile reads it for ever
    header[124:136] = (-512 & (1 << 96) - 1).to_bytes(12, "big")  # a negative number, as GNU writes it
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"'a/weights\.hdf5' claims -512 bytes"):
        content(path)


@pytest.mark.parametrize("name", ["size", "GNU.sparse.realsize"])
def test_extended_headers_that_are_not_read(name: str, tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {name: "12"}
    with tarfile.open(tmp_path / "model.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    with pytest.raises(WeightsError, match=name):
        content(tmp_path / "model.tar")


@pytest.mark.parametrize(
    ("data", "kind"), [(b"\xfd7zXZ\0", "xz"), (b"7z\xbc\xaf\x27\x1c", "7-Zip"), (b"Rar!\x1a\x07\x01", "RAR")]
)
def test_other_archives_are_named(data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "model.x").write_bytes(data + bytes(1000))
    with pytest.raises(WeightsError, match=rf"model\.x: is compressed with {kind}.*unpack it"):
        load_bilm(tmp_path / "model.x")


def test_a_compressed_file_that_is_no_tar(tmp_path: Path) -> None:
    (tmp_path / "weights.hdf5.gz").write_bytes(gzip.compress(b"\x89HDF\r\n\x1a\n" + bytes(1000)))
    with pytest.raises(WeightsError, match=r"weights\.hdf5\.gz: is not a whole archive"):
        load_bilm(tmp_path / "weights.hdf5.gz")


def test_no_room_names_the_folder_and_how_to_choose_another(
    write: Callable[..., Path], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(FILES)
    temporary.rmdir()
    with pytest.raises(WeightsError, match=r"cannot be unpacked into the folder.*No such file.*TMPDIR"):
        content(path)
    temporary.mkdir()


def test_errors_name_files_by_their_place_in_the_archive(tmp_path: Path, temporary: Path) -> None:
    pytest.importorskip("h5py")
    files = files_of(write_hdf5_model(tmp_path / "model", Model()), "elmo")
    path = write_zip(tmp_path / "model.zip", {**files, "elmo/weights.hdf5": files["elmo/weights.hdf5"][:5000]})
    with pytest.raises(WeightsError, match=r"model\.zip.elmo.weights\.hdf5: not a whole HDF5 file") as info:
        load_bilm(path)
    assert str(temporary) not in str(info.value)
    assert not list(temporary.iterdir())
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 374434792\n"
    path = write_zip(tmp_path / "model.zip", {**files, "elmo/weights.hdf5": pointer})
    with pytest.raises(WeightsError, match=r"model\.zip.elmo.weights\.hdf5: is a git-LFS pointer"):
        load_bilm(path)


def test_an_archive_without_a_model_or_with_several(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"model\.\S+: holds no biLM.*found: readme\.md"):
        load_bilm(write({"readme.md": b"hello"}))
    with pytest.raises(WeightsError, match=r"holds no biLM.*found: readme\.md"):
        load_bilm(write({"folder/readme.md": b"hello"}))
    with pytest.raises(WeightsError, match=r"model\.\S+: holds several models \(en, fr\): unpack it, and load one"):
        load_bilm(write({"en/weights.hdf5": b"x", "en/options.json": b"{}", "fr/model.safetensors": b"x"}))
    with pytest.raises(WeightsError, match=r"weights\.hdf5: is not an HDF5 file"):
        load_bilm(write({"a/weights.hdf5": b"x", "a/options.json": b"{}", "a/vectors/0.hdf5": b"x"}))
