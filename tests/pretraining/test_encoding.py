"""Shards and processes: the same corpus to the bit, however it was cut, by whom, and how often it was interrupted."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.errors import CorpusError, PretrainingError
from spacy_elmo.pretraining import corpus as corpus_module
from spacy_elmo.pretraining import texts as texts_module
from spacy_elmo.pretraining.config import NlpSettings, resolve
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.raw_text import RawText
from spacy_elmo.pretraining.texts import Text
from spacy_elmo.pretraining.workers import Workers

from .conftest import MakeConfig

SHARD = 4000  # characters, so that a small text makes many
N_SHARDS = 12


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_SHARD_SIZE", SHARD)


def made_up(n: int = N_SHARDS) -> list[Text]:
    """Documents of so many shards, new words in each; some are tokens."""
    draw = random.Random(0)
    documents: list[Text] = []
    for number in range(4 * n):
        words = [f"{draw.choice(['été', 'don', 'the', '😀'])}{draw.randrange(30 + 20 * number)}" for _ in range(120)]
        words[::9] = [".", "?", "\n", "don't", "<S>", "</S>", "U.K.", ",", " ", "a", "b", "c", "d", "<UNK>"]
        documents.append(words if number % 5 == 0 else " ".join(words) + "x" * (SHARD // 4 - 500))
    return documents


TEXTS = made_up()
VOCAB = spacy.blank("en").vocab


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What encoding TEXTS by one process at a stretch gives."""
    folder = tmp_path_factory.mktemp("expected") / "corpus"
    corpus = encode_corpus(TEXTS, folder, key="a")
    assert corpus.n_types > 256
    assert corpus.n_documents == len(TEXTS)
    return files(folder)


class Watched(Workers):
    """Workers that the test can look at."""

    last: Watched

    def __enter__(self) -> Watched:
        super().__enter__()
        Watched.last = self
        return self

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return self._processes


def processes(n: int) -> Callable[[], Workers]:
    return partial(Watched, NlpSettings(), n)


class Stop(Exception):
    """Stands for whatever ends a build early."""


def stop_after(n: int) -> Callable[[int], None]:
    """A `progress` that ends the build after so many shards."""
    calls: list[int] = []

    def progress(n_words: int) -> None:
        calls.append(n_words)
        if len(calls) == n:
            raise Stop

    return progress


def interrupted(folder: Path, after: int) -> dict[Path, int]:
    """Begin a build of TEXTS and end it after so many shards. RETURNS: the shards, and when they were written."""
    with pytest.raises(Stop):
        encode_corpus(TEXTS, folder, key="a", progress=stop_after(after))
    partial_folder = folder.with_name(folder.name + ".partial")
    return {path: path.stat().st_mtime_ns for path in sorted(partial_folder.glob("*.npz"))}


# ---------------------------------------------------------------------------------------------- however it is cut


@given(
    documents=st.lists(
        st.lists(st.sampled_from(["a", "b.", "B", ".", "\n", "é", "<S>", "😀 x"]), max_size=9), min_size=1
    ),
    size=st.integers(1, 40),
)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_where_it_is_cut_does_not_matter(tmp_path: Path, documents: list[list[str]], size: int) -> None:
    results: list[Any] = []
    as_docs: list[Text] = [Doc(VOCAB, words=words) for words in documents]
    as_tokens: list[Text] = [*documents]
    for number, texts in enumerate((as_tokens, as_docs)):
        folder = tmp_path / f"corpus{number}"
        shutil.rmtree(folder, ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(corpus_module, "_SHARD_SIZE", 10**6 if number else size)
            try:
                encode_corpus(texts, folder, key="a")
                results.append(files(folder))
            except CorpusError as error:
                results.append(str(error))
    assert results[0] == results[1]


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_processes(tmp_path: Path, expected: dict[str, bytes], n: int) -> None:
    seen: list[int] = []
    corpus = encode_corpus(TEXTS, tmp_path / "corpus", key="a", workers=processes(n), progress=seen.append)
    assert files(tmp_path / "corpus") == expected
    assert len(Watched.last.processes) == n
    assert all(process.returncode is not None for process in Watched.last.processes)
    assert sum(seen) == corpus.n_words
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_small_text_starts_no_processes(tmp_path: Path) -> None:
    def none() -> Workers:
        raise AssertionError("started")

    assert encode_corpus(["Some words."], tmp_path / "small", key="a", workers=none).n_words == 3
    docs = (Doc(VOCAB, words=["word"] * 1000) for _ in range(20))  # nor do Docs, which are tokenised already
    assert encode_corpus(docs, tmp_path / "docs", key="a", workers=none).n_words == 20_000


def test_a_pipeline_that_has_met_many_words_is_replaced(
    tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def make_nlp() -> spacy.Language:
        made.append(1)
        return spacy.blank("en")

    monkeypatch.setattr(texts_module, "_MOST_LEXEMES", 1500)
    encode_corpus(TEXTS, tmp_path / "corpus", key="a", make_nlp=make_nlp)
    assert len(made) > 2
    assert files(tmp_path / "corpus") == expected


# ------------------------------------------------------------------------------------------- however it is interrupted


def test_a_build_goes_on_from_the_shards_that_are_there(tmp_path: Path, expected: dict[str, bytes]) -> None:
    folder = tmp_path / "corpus"
    before = interrupted(folder, 4)
    assert [path.name for path in before] == [f"00000{number}.npz" for number in range(4)]
    after = interrupted(folder, 6)
    assert len(after) == 6
    assert {path: after[path] for path in before} == before
    encode_corpus(TEXTS, folder, key="a")
    assert files(folder) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def stripped(path: Path) -> None:
    with zipfile.ZipFile(path) as old:
        kept = {name: old.read(name) for name in old.namelist() if name != "ids.npy"}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in kept.items():
            new.writestr(name, data)


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        stripped,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b"\0" * 1000),
        lambda path: shutil.copy(path.with_name("000003.npz"), path),
    ],
    ids=["flipped", "stripped", "empty", "cut", "zeros", "another"],
)
def test_a_damaged_shard_is_encoded_anew(
    tmp_path: Path, expected: dict[str, bytes], damage: Callable[[Path], object]
) -> None:
    folder = tmp_path / "corpus"
    path = list(interrupted(folder, 4))[1]
    damage(path)
    encode_corpus(TEXTS, folder, key="a")
    assert files(folder) == expected


def test_shards_of_another_text_are_not_used(tmp_path: Path, expected: dict[str, bytes]) -> None:
    folder = tmp_path / "corpus"
    with pytest.raises(Stop):
        encode_corpus(["Other words."] * 2000, folder, key="a", progress=stop_after(5))
    encode_corpus(TEXTS, folder, key="a")
    assert files(folder) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork")
def test_killed_at_random_instants(tmp_path: Path, expected: dict[str, bytes]) -> None:
    draw = random.Random(1)
    start = time.perf_counter()
    encode_corpus(TEXTS, tmp_path / "timed", key="a")
    seconds = time.perf_counter() - start
    folder = tmp_path / "corpus"
    finished = killed = 0
    while killed < 20:
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                encode_corpus(TEXTS, folder, key="a")
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0, 0.7 * seconds))
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if folder.exists():
            finished += 1
            assert encode_corpus(iter(()), folder, key="a").n_documents == len(TEXTS)
            assert files(folder) == expected
            shutil.rmtree(folder)
    encode_corpus(TEXTS, folder, key="a")
    assert files(folder) == expected


PARENT = """
import sys
from tests.pretraining import test_encoding as here
from spacy_elmo.pretraining import corpus
corpus._SHARD_SIZE = here.SHARD
shards = []
def progress(n_words):
    shards.append(n_words)
    if len(shards) == 3:
        print(*(process.pid for process in here.Watched.last.processes), flush=True)
        sys.stdin.read()
corpus.encode_corpus(here.TEXTS, sys.argv[1], key="a", workers=here.processes(2), progress=progress)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
def test_processes_end_with_their_parent(tmp_path: Path, root: Path, expected: dict[str, bytes]) -> None:
    folder = tmp_path / "corpus"
    command = [sys.executable, "-c", PARENT, str(folder)]
    parent = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 60
    while any(map(runs, children)):
        assert time.monotonic() < end
        time.sleep(0.05)
    encode_corpus(TEXTS, folder, key="a")
    assert files(folder) == expected


def runs(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    if status.exists():  # whose child it has become may not ask for it
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------- errors


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    def interrupt(n_words: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_corpus(TEXTS, tmp_path / "corpus", key="a", workers=processes(2), progress=interrupt)
    assert [process.returncode is not None for process in Watched.last.processes] == [True, True]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
def test_a_process_that_dies_is_reported(tmp_path: Path, expected: dict[str, bytes]) -> None:
    def kill(n_words: int) -> None:
        for process in Watched.last.processes:
            process.kill()

    with pytest.raises(PretrainingError, match=r"ended \(killed by signal 9\): run again, .* system\.n_process lower"):
        encode_corpus(TEXTS, tmp_path / "corpus", key="a", workers=processes(2), progress=kill)
    encode_corpus(TEXTS, tmp_path / "corpus", key="a")
    assert files(tmp_path / "corpus") == expected


@pytest.mark.parametrize("n", [1, 2])
def test_a_tokenizer_that_fails_is_one_clear_error(tmp_path: Path, n: int) -> None:
    texts = [*TEXTS, "too long " * 120_000]  # for spaCy's max_length
    with pytest.raises(CorpusError, match=r"^the tokenizer failed on the text that begins 'too long too .*E088"):
        encode_corpus(texts, tmp_path / "corpus", key="a", workers=processes(n) if n > 1 else None)
    assert list(tmp_path.iterdir()) == []


def test_a_language_that_a_process_cannot_make(tmp_path: Path) -> None:
    with pytest.raises(PretrainingError, match="spaCy has no tokenizer for the language 'xyz'"):
        encode_corpus(TEXTS, tmp_path / "corpus", key="a", workers=partial(Workers, NlpSettings(lang="xyz"), 2))


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("n", "limit"), [(1, 5000), (1, 25_000), (2, 5000)], ids=["shard", "corpus", "process"])
def test_a_full_disk_is_said_and_the_build_goes_on(
    tmp_path: Path, expected: dict[str, bytes], n: int, limit: int
) -> None:
    folder = tmp_path / "corpus"
    with (
        small_files(limit),
        pytest.raises(PretrainingError, match=r"cannot encode text into .*corpus: .*File too large"),
    ):
        encode_corpus(TEXTS, folder, key="a", workers=processes(n) if n > 1 else None)
    assert not folder.exists()
    if limit > 5000:
        assert len(list((tmp_path / "corpus.partial").glob("*.npz"))) > N_SHARDS // 2
    encode_corpus(TEXTS, folder, key="a")
    assert files(folder) == expected
    corpus = EncodedCorpus.open(folder)
    with small_files(limit), pytest.raises(PretrainingError, match=r"characters-50\.bin: cannot be written: File too"):
        corpus.types.character_rows(50)
    assert corpus.types.character_rows(50).shape == (corpus.n_types, 50)


class Growing(RawText):
    """A file that somebody writes to while it is read."""

    def texts(self, nlp: spacy.Language) -> Iterator[Text]:
        yield from super().texts(nlp)
        with self.files()[0].open("a", encoding="utf8") as file:
            file.write("\n\nMore.")


def test_a_text_that_changes_while_it_is_read(toy_config: MakeConfig, toy_text: Path, tmp_path: Path) -> None:
    shutil.copy(toy_text, tmp_path / "a.txt")
    run_settings, config = resolve(toy_config(paths__cache=str(tmp_path / "cache")))
    readers = run_settings.corpora.model_copy(update={"train": Growing(tmp_path / "a.txt")})
    with pytest.raises(CorpusError, match="the text of train was changed while it was read"):
        prepare_corpora(run_settings.model_copy(update={"corpora": readers}), config)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_corpus_of_the_old_format_is_built_anew(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    encode_corpus(["One."], folder, key="a")
    meta = srsly.read_json(folder / "meta.json")
    srsly.write_json(folder / "meta.json", {**meta, "format": 1})
    with pytest.raises(CorpusError, match="format 1, not 2"):
        EncodedCorpus.open(folder)
    encode_corpus(["One."], folder, key="a").types.character_rows(9)
    assert encode_corpus(["One two."], folder, key="b").n_words == 3
    assert not (folder / "characters-9.bin").exists()


# -------------------------------------------------------------------------------------------------------- what it holds


@pytest.mark.parametrize(("n", "dtype"), [(253, np.uint8), (254, np.uint16), (65_533, np.uint16), (65_534, np.uint32)])
def test_ids_are_the_smallest_integers(tmp_path: Path, n: int, dtype: type) -> None:
    corpus = encode_corpus([[f"w{number:05}" for number in range(n)]], tmp_path / "corpus", key="a")
    assert corpus.n_types == n + 3
    assert corpus.ids.dtype == dtype
    assert corpus.ids.tolist() == list(range(3, n + 3))


def test_sentences_are_counted_in_steps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_KEPT", 0)
    corpus = encode_corpus(TEXTS, tmp_path / "corpus", key="a")
    assert corpus.n_documents == len(TEXTS)
    assert np.array_equal(corpus.sentence_steps, corpus.sentence_starts + np.arange(corpus.n_sentences + 1))
    before = list(corpus.sentences())
    corpus.release()
    assert list(corpus.sentences()) == before


def test_the_split_is_of_the_text_and_complete(toy_config: MakeConfig, tmp_path: Path) -> None:
    parts: dict[int, list[list[list[str]]]] = {}
    for n_process in (1, 2):
        run_settings, config = resolve(
            toy_config(paths__cache=str(tmp_path / f"cache{n_process}"), system__n_process=n_process)
        )
        corpora = prepare_corpora(run_settings, config)
        parts[n_process] = [list(corpus.sentences()) for corpus in (corpora.train, corpora.dev)]
        read = list(run_settings.corpora.train(spacy.blank("en")))
        assert corpora.train.n_documents + corpora.dev.n_documents == len(read)
        assert corpora.train.n_words + corpora.dev.n_words == sum(not t.is_space for doc in read for t in doc)
    assert parts[1] == parts[2]
