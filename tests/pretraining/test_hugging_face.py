"""Data sets read through the optional library `datasets`: here of folders, with nothing from the network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining.hugging_face import hugging_face

ROWS: list[dict[str, Any]] = [
    {"text": "One two.", "words": ["One", "t wo"]},
    {"text": "Three.", "words": ["Three", "."]},
]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    write(tmp_path / "set", ROWS)
    return tmp_path / "set"


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf8")


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_are_documents(folder: Path, nlp: Language, streaming: bool) -> None:
    reader = hugging_face(str(folder), streaming=streaming)
    assert [[token.text for token in doc] for doc in reader(nlp)] == [["One", "two", "."], ["Three", "."]]
    assert list(reader.texts(nlp)) == ["One two.", "Three."]
    words = hugging_face(str(folder), column="words", streaming=streaming)
    assert [[token.text for token in doc] for doc in words(nlp)] == [["One", "t wo"], ["Three", "."]]
    assert [doc.text for doc in hugging_face(str(folder), limit_words=2)(nlp)] == ["One two"]


def test_a_part_of_it(folder: Path, nlp: Language) -> None:
    assert [doc.text for doc in hugging_face(str(folder), split="train[1:]")(nlp)] == ["Three."]


def test_rows_without_text(folder: Path, nlp: Language) -> None:
    write(folder, [ROWS[0], {"text": None, "words": []}, {"text": "a\0b", "words": []}, ROWS[1]])
    with pytest.raises(CorpusError, match=r"\(train\), row 2: neither text nor a list of words in 'text'. Set errors"):
        list(hugging_face(str(folder))(nlp))
    reader = hugging_face(str(folder), errors="skip")
    assert [doc.text for doc in reader(nlp)] == ["One two.", "Three."]
    assert [(what, n) for what, (n, _) in reader.notes.found.items()] == [
        ("rows skipped: neither text nor a list of words in 'text'", 1),
        ("rows skipped: NUL characters", 1),
    ]


def test_what_is_not_there_is_said_before_reading(folder: Path, nlp: Language) -> None:
    with pytest.raises(CorpusError, match="has no column 'body', but text, words"):
        hugging_face(str(folder), column="body")(nlp)
    with pytest.raises(CorpusError, match=r"\(test\) cannot be loaded"):
        hugging_face(str(folder), split="test")(nlp)
    with pytest.raises(CorpusError, match="cannot be loaded"):
        hugging_face(str(folder / "none"))(nlp)


def test_a_changed_folder_is_another_text(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    first = hugging_face(str(tmp_path)).fingerprint()
    assert first == hugging_face(str(tmp_path), streaming=True).fingerprint()
    assert first != hugging_face(str(tmp_path), column="words").fingerprint()
    write(tmp_path, ROWS[1:])
    assert first != hugging_face(str(tmp_path)).fingerprint()


def test_without_the_library_there_is_the_line_that_installs_it(nlp: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    reader = hugging_face("any/set")
    with pytest.raises(CorpusError, match=r'pip install "spacy-elmo\[datasets\]"'):
        reader(nlp)


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(CorpusError, match="No name"):
        hugging_face("")
    with pytest.raises(CorpusError, match="errors is 'ignore'"):
        hugging_face("a", errors="ignore")
    with pytest.raises(CorpusError, match="limit_words is -1"):
        hugging_face("a", limit_words=-1)
