"""Lines of damaged files: refused with file and line, or left out and counted."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.language import Language

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining import text_files
from spacy_elmo.pretraining.notes import Damage, Notes
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.text_files import records, text_lines

in_a_folder = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


def skipping() -> Damage:
    return Damage("skip", Notes())


def texts(path: Path, nlp: Language, **options: Any) -> tuple[list[str], dict[str, tuple[int, str]]]:
    reader = raw_text(path, **options)
    return [doc.text for doc in reader(nlp)], reader.notes.found


# ------------------------------------------------------------------------------------------------------------- lines


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n\r\0\ufeff", exclude_categories=["Cs"]), max_size=30)),
    longest=st.integers(1, 40),
    last=st.sampled_from(["", "\n", "\r\n"]),
)
@in_a_folder
def test_lines_of_any_text_come_whole_and_bounded(tmp_path: Path, lines: list[str], longest: int, last: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(("\n".join(lines) + last).encode())
    found = [""]
    damage = skipping()
    for piece, ends in text_lines(path, longest, "cut", damage):
        assert len(piece) <= longest
        found[-1] += piece
        if ends:
            found.append("")
    assert "\n".join(found).rstrip("\n") == "\n".join(lines).rstrip("\n")
    n_long = sum(len(line) > longest for line in lines)
    assert sum(n for n, _ in damage.notes.found.values()) == n_long
    kept = [piece for piece, _ in text_lines(path, longest, "skip", skipping())]
    assert [line for line in kept if line] == [line for line in lines if 0 < len(line) <= longest]


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), min_size=1),
    longest=st.integers(10, 20),
)
@in_a_folder
def test_of_any_bytes_the_lines_that_are_text_are_left(tmp_path: Path, lines: list[bytes], longest: int) -> None:
    def text_of(line: bytes, first: bool) -> str | None:
        try:
            text = line.decode("utf-8-sig" if first else "utf-8")
        except UnicodeDecodeError:
            return None
        return None if "\0" in text else text.rstrip("\r")

    (tmp_path / "a.txt").write_bytes(b"\n".join([*lines, b""]))
    damage = skipping()
    expected = [(n, text) for n, line in enumerate(lines, 1) if (text := text_of(line, n == 1)) is not None]
    assert list(records(tmp_path / "a.txt", damage)) == expected
    assert sum(n for n, _ in damage.notes.found.values()) == len(lines) - len(expected)
    if all(len(text) <= longest for _, text in expected):
        assert [text for text, _ in text_lines(tmp_path / "a.txt", 12, "cut", skipping())] == [t for _, t in expected]


def test_a_record_that_is_too_long_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST_RECORD", 100)
    path = tmp_path / "a.jsonl"
    path.write_text("a" * 99 + "\n" + "b" * 1000 + "\nc\n", encoding="utf8")
    damage = skipping()
    assert list(records(path, damage)) == [(1, "a" * 99), (3, "c")]
    assert damage.notes.found == {"lines skipped: more than 100 bytes": (1, f"{path}, line 2")}
    with pytest.raises(CorpusError, match="line 2: more than 100 bytes"):
        list(records(path, Damage("raise", Notes())))


# ------------------------------------------------------------------------------------------------------------ damage


DAMAGED = [
    ("a.txt", b"fine\nbr\xffken\n\nmore\n", "lines skipped: not UTF-8", ["fine", "more"], "line 2"),
    ("a.txt", b"fine\n\nnu\0l\n", "lines skipped: NUL characters", ["fine"], "line 3"),
    ("a.txt", "fine\n".encode("utf-16"), "lines skipped: not UTF-8", None, "line 1"),
    ("a.jsonl", b'{"text": "fine"}\n{"text": \n{"text": "more"}', "lines skipped: not valid JSON", None, "line 2"),
    ("a.jsonl", b'{"text": "fine"}\n{"text": 3}\n', "lines skipped: neither 'text' nor 'tokens'", None, "line 2"),
    ("a.jsonl", b'{"text": "fine"}\n{"text": "a\\u0000"}\n', "lines skipped: NUL characters", None, "line 2"),
    ("a.jsonl", b'{"text": "fine"}\n{"tokens": ["\\u0000"]}\n', "lines skipped: NUL characters", None, "line 2"),
]


@pytest.mark.parametrize(("name", "content", "what", "kept", "where"), DAMAGED)
def test_damage_is_refused_or_skipped_and_counted(
    tmp_path: Path, nlp: Language, name: str, content: bytes, what: str, kept: list[str] | None, where: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.txt").write_text("Whole", encoding="utf8")
    with pytest.raises(CorpusError, match=rf"{name}, {where}: .*errors = 'skip'"):
        texts(tmp_path, nlp)
    read, notes = texts(tmp_path, nlp, errors="skip")
    assert notes[what] == (1 if "utf-16" not in what else 2, f"{tmp_path / name}, {where}")
    assert read[-1] == "Whole"
    if kept is not None:
        assert read[:-1] == kept


def test_utf16_is_named(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_bytes("fine\n".encode("utf-16"))
    with pytest.raises(CorpusError, match="looks like UTF-16"):
        texts(tmp_path, nlp)


@pytest.mark.parametrize("data", [gzip.compress(b"one\n\ntwo\n" * 99, mtime=0)[:-9], b"no gzip"])
def test_a_packed_file_that_ends_too_early(tmp_path: Path, nlp: Language, data: bytes) -> None:
    (tmp_path / "a.txt.gz").write_bytes(data)
    (tmp_path / "b.txt").write_text("Whole", encoding="utf8")
    with pytest.raises(CorpusError, match=r"a\.txt\.gz, after line \d+: cannot be read"):
        texts(tmp_path, nlp)
    read, notes = texts(tmp_path, nlp, errors="skip")
    assert read[-1] == "Whole"
    assert notes["files whose rest is skipped: damaged"][0] == 1


def test_empty_files_are_refused_before_reading_or_counted(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_text("Whole", encoding="utf8")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(b" \n"))
    with pytest.raises(CorpusError, match=r"no text in .*b\.txt: .*errors = 'skip'"):
        raw_text(tmp_path)(nlp)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(CorpusError, match=r"no text in .*c\.txt\.xz"):
        texts(tmp_path, nlp)
    (tmp_path / "b.txt").write_bytes(b"")
    read, notes = texts(tmp_path, nlp, errors="skip")
    assert read == ["Whole"]
    assert notes == {"files without text": (2, str(tmp_path / "b.txt"))}
    (tmp_path / "a.txt").unlink()
    with pytest.raises(CorpusError, match=r"no text in .*b\.txt and 1 more"):
        texts(tmp_path, nlp, errors="skip")


def test_a_broken_docbin_and_a_pointer_can_be_skipped(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.spacy").write_bytes(b"no DocBin")
    (tmp_path / "b.txt").write_text(f"{'version https://git-lfs.github.com/spec/'}v1\n", encoding="utf8")
    (tmp_path / "c.txt").write_text("Whole", encoding="utf8")
    read, notes = texts(tmp_path, nlp, errors="skip")
    assert read == ["Whole"]
    assert [what.split(":")[0] for what in notes] == [
        "files skipped, or their rest",
        "files without text",
        "files skipped",
    ]


# -------------------------------------------------------------------------------------------------------- long lines


def test_ten_million_characters_in_a_line(tmp_path: Path, nlp: Language) -> None:
    word = "x" * 999
    (tmp_path / "a.txt").write_text(f"Before\n{' '.join([word] * 10_000)}\nAfter\n", encoding="utf8")
    reader = raw_text(tmp_path / "a.txt")
    pieces = [str(text) for text in reader.texts(nlp)]
    assert " ".join(pieces).split() == ["Before", *[word] * 10_000, "After"]
    assert max(map(len, pieces)) <= 1_000_000
    where = f"{tmp_path / 'a.txt'}, line 2"
    assert reader.notes.found == {"lines of more than 1,000,000 characters cut at white space": (1, where)}
    reader = raw_text(tmp_path / "a.txt", long_lines="skip")
    assert list(reader.texts(nlp)) == ["Before\nAfter"]
    assert reader.notes.found == {"lines of more than 1,000,000 characters skipped": (1, where)}
    with pytest.raises(CorpusError, match="line 2: more than 1,000,000 characters"):
        list(raw_text(tmp_path / "a.txt", long_lines="raise").texts(nlp))


def test_a_long_text_of_json(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.max_length = 100
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in ("Before", "word " * 50, "After")), "utf8")
    assert texts(path, nlp)[1] == {"texts of more than 100 characters cut at white space": (1, f"{path}, line 2")}
    assert texts(path, nlp, long_lines="skip")[0] == ["Before", "After"]
    with pytest.raises(CorpusError, match="line 2: more than 100 characters"):
        texts(path, nlp, long_lines="raise")


# -------------------------------------------------------------------------------------------------------------- kinds


def test_zst_files_or_the_line_that_installs_what_reads_them(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    path = tmp_path / "a.txt.zst"
    if sys.version_info < (3, 14):
        path.write_bytes(b"any")
        with monkeypatch.context() as context:
            context.setitem(sys.modules, "zstandard", None)
            with pytest.raises(CorpusError, match=r'pip install "spacy-elmo\[zst\]"'):
                texts(path, nlp, errors="skip")
        compress = pytest.importorskip("zstandard").compress
    else:
        from compression.zstd import compress
    whole = compress(b"One\n\n") + compress(b"Two\n")
    path.write_bytes(whole)
    assert texts(path, nlp)[0] == ["One", "Two"]
    path.write_bytes(b"no zst")
    with pytest.raises(CorpusError, match=r"a\.txt\.zst, after line 0: cannot be read"):
        texts(path, nlp)


@pytest.mark.parametrize(
    ("option", "value"), [("errors", "ignore"), ("long_lines", "drop"), ("line", "word"), ("format", "csv")]
)
def test_unknown_values_are_refused_by_name(option: str, value: str) -> None:
    with pytest.raises(CorpusError, match=f"{option} is '{value}'"):
        raw_text("a.txt", **{option: value})
