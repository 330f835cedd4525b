"""Cache folders that several runs share, or that other programs put files into."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus

ENCODE = """
import sys, spacy
from spacy_elmo.pretraining.corpus import encode_corpus
from spacy_elmo.pretraining.raw_text import raw_text
print(encode_corpus(raw_text(sys.argv[1])(spacy.blank("en")), sys.argv[2], key="a").n_words)
"""


def words(n: int) -> Iterator[Doc]:
    nlp = spacy.blank("en")
    for _ in range(n):
        yield Doc(nlp.vocab, words=["some", "words"])


def test_one_encodes_and_the_others_open_what_it_made(tmp_path: Path) -> None:
    read: list[int] = []
    results: list[EncodedCorpus] = []

    def docs() -> Iterator[Doc]:
        read.append(1)
        for doc in words(3):
            time.sleep(0.2)
            yield doc

    def work() -> None:
        results.append(encode_corpus(docs(), tmp_path / "cache" / "train", key="a"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [1]
    assert [corpus.n_words for corpus in results] == [6, 6, 6]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["train"]


@pytest.mark.slow
def test_processes_that_start_together_all_succeed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some words here .\n" * 3000, encoding="utf8")
    command = [sys.executable, "-c", ENCODE, str(tmp_path / "a.txt"), str(tmp_path / "cache" / "train")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        printed, errors = process.communicate()
        assert (process.returncode, printed) == (0, "12000\n"), errors


def test_a_failure_of_the_first_is_not_the_seconds(tmp_path: Path) -> None:
    begun = threading.Event()
    errors: list[Exception] = []

    def broken() -> Iterator[Doc]:
        yield from words(1)
        begun.set()
        time.sleep(0.3)
        raise CorpusError("broken")

    def work() -> None:
        try:
            encode_corpus(broken(), tmp_path / "train", key="a")
        except CorpusError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert encode_corpus(words(2), tmp_path / "train", key="a").n_words == 4
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize("name", [".DS_Store", "notes.txt"])
def test_foreign_files_stop_nothing_and_stay(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "train"
    encode_corpus(words(1), folder, key="a")
    (folder / name).write_text("mine", encoding="utf8")
    assert encode_corpus(iter(()), folder, key="a").n_words == 2  # opened, nothing is read
    assert encode_corpus(words(2), folder, key="b").n_words == 4
    assert (folder / name).read_text(encoding="utf8") == "mine"
    (folder / "ids.bin").write_bytes(b"")
    assert encode_corpus(words(3), folder, key="b").n_words == 6
    assert (folder / name).read_text(encoding="utf8") == "mine"


def test_a_folder_with_only_hidden_files_is_free(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / ".DS_Store").write_text("x", encoding="utf8")
    assert encode_corpus(words(1), tmp_path / "train", key="a").n_words == 2


def test_a_pipelines_folder_is_no_corpus(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path / "train")  # with a meta.json, as a corpus
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CorpusError, match="not an encoded corpus"):
        encode_corpus(words(1), tmp_path / "train", key="a")
    assert sorted(tmp_path.rglob("*")) == before
