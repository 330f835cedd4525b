"""``elmo embed`` lost the head of a pipe, emptied files of others, and met odd names and arguments with tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from spacy_elmo import BiLM, ElmoError, save_bilm
from spacy_elmo.cli import elmo_cli
from spacy_elmo.embedding import embed_file
from spacy_elmo.embedding.partial_file import PartialFile
from spacy_elmo.errors import CorpusError

posix = pytest.mark.skipif(os.name == "nt", reason="needs pipes with names")
SURROGATE = "\ud800"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Ann swims\n" * 20, encoding="utf8")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -------------------------------------------------------------------------------------------------------------- texts


@posix
def test_a_text_that_is_a_pipe_or_a_device(bilm: BiLM, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.txt")
    for path in (tmp_path / "fifo.txt", Path("/dev/zero")):
        with pytest.raises(CorpusError, match=f"{path} is a pipe or a device, .* write the text to a file"):
            embed_file(path, tmp_path / "v.npz", bilm)
    assert names(tmp_path) == ["fifo.txt"]


@posix
def test_standard_input_as_a_text(bilm: BiLM, tmp_path: Path) -> None:
    if not os.path.exists("/dev/stdin"):
        pytest.skip("the system has no name for the standard input")
    save_bilm(bilm, tmp_path / "bilm")
    command = [sys.executable, "-m", "spacy", "elmo", "embed", "/dev/stdin", str(tmp_path / "v.npz")]
    done = subprocess.run(
        [*command, "--weights", str(tmp_path / "bilm")], input="some words\n" * 2000, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "/dev/stdin is a pipe or a device" in " ".join((done.stdout + done.stderr).split())
    assert names(tmp_path) == ["bilm"]


def test_what_may_not_be_read_is_one_line(
    bilm: BiLM, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_bilm(bilm, tmp_path / "bilm")
    # The user root may read anything: only click's question is answered as for others.
    monkeypatch.setattr(os, "access", lambda path, mode, **more: False)
    arguments = ["embed", str(text), str(tmp_path / "v.npz"), "--weights", str(tmp_path / "bilm")]
    result = CliRunner().invoke(elmo_cli, arguments)
    assert result.exit_code == 0, result.output
    if os.name != "nt" and os.geteuid():
        text.chmod(0)
        result = CliRunner().invoke(elmo_cli, [*arguments, "--force"])
        assert result.exit_code == 1
        assert "cannot be read: Permission denied" in " ".join(result.output.split())


# ------------------------------------------------------------------------------------------------- names of the output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nul\0.npz", "no file can have this name"),
        pytest.param("x" * 300 + ".npz", "cannot be written: File name too long", marks=posix),
        pytest.param("x" * 244 + ".npz", "cannot be written: File name too long", marks=posix),
        pytest.param(f"{SURROGATE}.npz", "no file can have this name", marks=posix),
        pytest.param("fifo.npz", "is a pipe or a device", marks=posix),
        pytest.param("loop.npz", "cannot be written: Too many levels", marks=posix),
    ],
    ids=["nul", "long", "long with its suffix", "surrogate", "pipe", "loop"],
)
@pytest.mark.parametrize("options", [{}, {"overwrite": True, "resume": False}], ids=["new", "forced"])
def test_names_that_no_file_has(
    bilm: BiLM, text: Path, tmp_path: Path, name: str, message: str, options: dict[str, Any]
) -> None:
    if name == "fifo.npz":
        os.mkfifo(tmp_path / name)
    if name == "loop.npz":
        (tmp_path / name).symlink_to(tmp_path / name)
    before = names(tmp_path)
    with pytest.raises(ElmoError, match=message):
        embed_file(text, tmp_path / name, bilm, **options)
    assert names(tmp_path) == before


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user whom a folder keeps out")
def test_a_folder_that_may_not_be_searched(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o600)
    try:
        with pytest.raises(ElmoError, match=r"v\.npz: cannot be written: Permission denied"):
            embed_file(text, folder / "v.npz", bilm)
    finally:
        folder.chmod(0o700)


# ------------------------------------------------------------------------------------------------------ files of others


@pytest.mark.parametrize("options", [{}, {"resume": False}, {"resume": False, "overwrite": True}], ids=str)
@pytest.mark.parametrize("content", [b"my diary, no line end", b"my diary\n", b'{"mine": 1}\n', b'{"journal of":1}'])
def test_a_journal_of_something_else_stays(
    bilm: BiLM, text: Path, tmp_path: Path, content: bytes, options: dict[str, Any]
) -> None:
    journal = tmp_path / "v.npz.journal"
    journal.write_bytes(content)
    with pytest.raises(ElmoError, match=r"v\.npz\.journal is no journal of such a file: move it"):
        embed_file(text, tmp_path / "v.npz", bilm, **options)
    assert journal.read_bytes() == content
    assert names(tmp_path) == ["text.txt", "v.npz.journal"]


def test_a_file_of_the_products_name_stays(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "v.parquet.new").write_bytes(b"mine")
    with pytest.raises(ElmoError, match=r"v\.parquet\.new lies there without its journal"):
        embed_file(text, tmp_path / "v.parquet", bilm)
    assert (tmp_path / "v.parquet.new").read_bytes() == b"mine"
    assert names(tmp_path) == ["text.txt", "v.parquet.new"]


@pytest.mark.parametrize("name", ["v.npz", "v.npz.journal", "v.npz.partial"])
def test_texts_and_weights_are_not_written_over(bilm: BiLM, text: Path, tmp_path: Path, name: str) -> None:
    save_bilm(bilm, tmp_path / "bilm")
    options: dict[str, Any] = {"resume": False, "overwrite": True}
    text.rename(tmp_path / name)
    with pytest.raises(ElmoError, match=f"{name} is one of the texts"):
        embed_file(tmp_path / name, tmp_path / "v.npz", bilm, **options)
    assert (tmp_path / name).read_text(encoding="utf8") == "Ann swims\n" * 20
    (tmp_path / name).rename(text)
    weights = (tmp_path / "bilm" / "model.safetensors").rename(tmp_path / name)
    before = weights.read_bytes()
    with pytest.raises(ElmoError, match=f"{name} is the weights"):
        embed_file(text, tmp_path / "v.npz", weights, **options)
    assert weights.read_bytes() == before


@posix
@pytest.mark.parametrize("name", ["v.npz.journal", "v.npz.partial"])
def test_pipes_and_folders_in_the_way(bilm: BiLM, text: Path, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ElmoError, match=f"{name} is a pipe or a device"):
        embed_file(text, tmp_path / "v.npz", bilm)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(ElmoError, match=f"{name} is a folder"):
        embed_file(text, tmp_path / "v.npz", bilm, resume=False)
    assert names(tmp_path) == ["text.txt", name]


def line(entry: Any) -> bytes:
    data = entry if isinstance(entry, bytes) else json.dumps(entry).encode()
    return data + b" %08x\n" % zlib.crc32(data)


STEP = {"records": 9, "words": 9, "size": 10, "overwrites": [], "note": None}


@pytest.mark.parametrize(
    "added",
    [
        json.dumps(STEP).encode() + b"\n",
        json.dumps(STEP).encode() + b" 00000000\n",
        b"[" * 100_000 + b"\n",
        line(b"[" * 100_000),
        line([]),
        line(None),
        line({**STEP, "records": None}),
        json.dumps({**STEP, "size": "100"}).encode() + b"\n",
        json.dumps({**STEP, "size": -7}).encode() + b"\n",
        json.dumps({**STEP, "overwrites": [["a", "!!"]]}).encode() + b"\n",
        json.dumps({**STEP, "overwrites": [[1]]}).encode() + b"\n",
        json.dumps({**STEP, "note": [[1, 2]]}).encode() + b"\n",
        b"\xff\0\n",
        b"\n",
    ],
    ids=lambda data: repr(data[:60]),
)
def test_a_journal_that_says_what_cannot_be(bilm: BiLM, text: Path, tmp_path: Path, added: bytes) -> None:
    output = tmp_path / "v.npz"
    broken_off(text, output, bilm)
    with (tmp_path / "v.npz.journal").open("ab") as file:
        file.write(added)
    with pytest.raises(ElmoError, match=r"v\.npz\.journal.*: damaged\. Begin anew \(--no-resume, resume=False\)"):
        embed_file(text, output, bilm, batch_words=9)
    assert embed_file(text, output, bilm, batch_words=9, resume=False).sentences == 20


def broken_off(text: Path, output: Path, bilm: BiLM) -> None:
    """A run whose fourth line cannot be split."""
    from spacy_elmo.embedding import embed

    seen = 0

    def split(self: Any, line: Any, of_old: Any = embed.Splitter.__call__) -> Any:
        nonlocal seen
        seen += 1
        if seen == 8:
            raise KeyboardInterrupt
        return of_old(self, line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed.Splitter, "__call__", split)
        with pytest.raises(KeyboardInterrupt):
            embed_file(text, output, bilm, batch_words=9)
    assert names(output.parent) == sorted([text.name, f"{output.name}.journal", f"{output.name}.partial"])


@posix
def test_the_journal_of_the_next_run_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the instant at which a run lets go of its journal and the end of it."""
    output = tmp_path / "out"
    others: list[Any] = []

    def opened() -> PartialFile:
        return PartialFile(output, {}, resume=False, overwrite=True)

    first = opened()
    first.write(b"first")
    first.commit(records=1, words=1)
    release = PartialFile.release

    def released(self: PartialFile) -> None:
        release(self)
        if not others and threading.current_thread() is threading.main_thread():
            others.append(None)
            others[0] = opened()

    monkeypatch.setattr(PartialFile, "release", released)
    first.publish()
    assert output.read_bytes() == b"first"
    second = others[0]
    assert names(tmp_path) == ["out", "out.journal", "out.partial"]
    with pytest.raises(ElmoError, match="by another process"):
        opened()
    second.write(b"second")
    second.commit(records=1, words=1)
    second.publish()
    assert output.read_bytes() == b"second"
    assert names(tmp_path) == ["out"]


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: value}, f"^{name} is ")
            for name in (
                "layers",
                "dtype",
                "precision",
                "state",
                "pretokenized",
                "lang",
                "text",
                "batch_words",
                "max_length",
                "resume",
                "overwrite",
                "output",
            )
            for value in (np.array([1, 2]), 1.5, [1], {}, b"all", 10**5000, object())
        ),
        *(({name: None}, f"^{name} is ") for name in ("layers", "dtype", "text", "max_length", "resume")),
        *(({name: True}, f"^{name} is ") for name in ("layers", "batch_words", "max_length", "lang", "state")),
        ({"batch_words": 2**31}, "not 2147483648"),
        ({"output": None}, "output is a path"),
        *(({"output": name}, "written to files named") for name in ("", ".", "..", "/", ".npz")),
        ({"texts": None}, "texts are paths of files, not None"),
        ({"texts": 3}, "texts are paths of files, not 3"),
        ({"texts": [None]}, "a text is a path"),
        ({"texts": b"text.txt"}, "a text is a path"),
        ({"weights": None}, "weights, if no biLM, is a path"),
        ({"weights": np.zeros(3)}, "weights, if no biLM, is a path"),
    ],
    ids=lambda value: " ".join(f"{k} {type(v).__name__}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_arguments_of_another_type(
    bilm: BiLM, text: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    arguments = {"texts": text, "output": tmp_path / "v.npz", "weights": bilm, **options}
    with pytest.raises(ElmoError, match=message) as info:
        embed_file(**arguments)
    assert len(str(info.value)) < 400
    assert names(tmp_path) == ["text.txt"]


def test_numbers_and_paths_of_other_libraries(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    class Named:
        def __fspath__(self) -> str:
            return str(text)

    embed_file(Named(), tmp_path / "a.npz", bilm, layers=np.int64(1), batch_words=np.int32(5), max_length=np.int8(9))  # type: ignore[arg-type]
    embed_file(str(text), tmp_path / "b.npz", bilm, layers=1, batch_words=5, max_length=9)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_number_of_thousands_of_digits(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    save_bilm(bilm, tmp_path / "bilm")
    result = CliRunner().invoke(
        elmo_cli,
        ["embed", str(text), str(tmp_path / "v.npz"), "--weights", str(tmp_path / "bilm"), "--layers", "9" * 5000],
    )
    assert result.exit_code == 1
    assert "the number of one, 0 to 2, not '999" in " ".join(result.output.split())
    assert len(result.output) < 1000
