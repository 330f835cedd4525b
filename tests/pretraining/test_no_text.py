"""Files without text, and files that only stand for a text."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import spacy

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.raw_text import raw_text

from .conftest import MakeConfig

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b""),
        ("a.txt", b" \n\n\t\n\xc2\xa0\n"),
        ("a.txt", b"\xef\xbb\xbf"),
        ("a.txt.gz", gzip.compress(b"\n", mtime=0)),
        ("a.jsonl", b""),
        ("a.jsonl", b'{"text": ""}\n{"text": " \\n"}\n{"tokens": []}\n'),
    ],
)
def test_empty_files_are_said_to_be_empty(toy_config: MakeConfig, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    block = {"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path)}
    config = toy_config(corpora__train=block, paths__cache=str(tmp_path / "cache"))
    with pytest.raises(CorpusError, match=f"There is no text in .*{name}"):
        pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())


def test_documents_of_white_space_are_not_held_out(toy_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n' + '{"text": " "}\n' * 50, encoding="utf8")
    block = {"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path)}
    with pytest.raises(CorpusError, match="the text has 1 documents"):
        pretrain(
            toy_config(corpora__train=block, paths__cache=str(tmp_path / "cache")),
            tmp_path / "out",
            stdout=io.StringIO(),
            stderr=io.StringIO(),
        )


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.spacy"])
def test_a_git_lfs_pointer_is_no_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(CorpusError, match=f"{name} is a git-LFS pointer"):
        list(raw_text(tmp_path)(spacy.blank("en")))


def test_a_text_about_git_lfs_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(POINTER + b"is how a pointer looks.\n" * 100)
    assert list(raw_text(tmp_path)(spacy.blank("en")))
