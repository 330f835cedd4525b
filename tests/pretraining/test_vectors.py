from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.vectors import Vectors  # type: ignore[import-not-found]

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining import vectors as module
from spacy_elmo.pretraining.vectors import VectorTargets, WordVectors

WORDS = ["cat", "dog", "Cat", "zero", "</s>"]
DATA = np.array([[3, 0, 4], [0, 2, 0], [1, 1, 1], [0, 0, 0], [0, 0, -5], [7, 7, 7]], dtype=np.float32)


def save_table(folder: Path, data: np.ndarray = DATA) -> Path:
    vectors = Vectors(data=data.copy(), keys=WORDS)
    vectors.add("kitten", row=0)  # a second word of the same vector
    vectors.to_disk(folder)
    return folder


def save_floret(folder: Path, **options: object) -> Path:
    data = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    Vectors(data=data, mode="floret", minn=2, maxn=3, hash_count=2, **options).to_disk(folder)
    return folder


def unit(row: int) -> np.ndarray:
    return DATA[row] / np.linalg.norm(DATA[row])


def test_each_word_has_the_direction_of_its_vector(tmp_path: Path) -> None:
    vectors = WordVectors(str(save_table(tmp_path / "toy")))
    assert (vectors.name, vectors.n_dims, vectors.of_ngrams) == ("toy", 3, False)
    train, dev = ["<S>", "</S>", "<UNK>", "dog", "unseen", "kitten", "zero"], ["cat", "dog", "\ud800"]
    targets = VectorTargets(vectors, train, dev)
    ids = targets.ids(train)
    assert ids.dtype == np.int64
    # No vector: no word of that name, or a vector of zeros. "</S>" is found as "</s>"; there is no "<s>".
    assert [bool(row) for row in ids] == [False, True, False, True, False, True, False]
    for row, source in zip(ids[[1, 3, 5]], (4, 1, 0), strict=True):
        np.testing.assert_allclose(targets.table[row].numpy(), unit(source), rtol=1e-6)
    assert targets.ids(["cat"]) == ids[5]
    assert targets.ids(["\ud800", "", "Cat"]).tolist() == [0, 0, 0]  # "Cat" is in none of the lists
    assert (targets.table[0] == 0).all()
    # Of the table only the rows that are needed.
    assert len(targets.table) == 1 + 4
    assert targets.ids([]).shape == (0,)


def test_a_pipelines_vectors_are_found(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    for word, vector in zip(WORDS, DATA, strict=False):
        nlp.vocab.set_vector(word, vector)
    nlp.to_disk(tmp_path / "pipeline")
    for name in (tmp_path / "pipeline", tmp_path / "pipeline" / "vocab"):
        targets = VectorTargets(WordVectors(str(name)), WORDS)
        for word in ("cat", "dog", "Cat"):
            np.testing.assert_allclose(targets.table[targets.ids([word])[0]], unit(WORDS.index(word)), rtol=1e-6)
    vocab = tmp_path / "pipeline" / "vocab"
    assert WordVectors(str(vocab)).sha256() == WordVectors(str(tmp_path / "pipeline")).sha256()


def test_an_installed_packages_vectors_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "xx_toy_vectors"
    (package / "xx_toy_vectors-1.0").mkdir(parents=True)
    save_table(package / "xx_toy_vectors-1.0" / "vocab")
    (package / "__init__.py").write_text("")
    info = tmp_path / "xx_toy_vectors-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xx_toy_vectors\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        vectors = WordVectors("xx_toy_vectors")
        assert (vectors.name, vectors.n_dims) == ("xx_toy_vectors", 3)
    finally:
        sys.modules.pop("xx_toy_vectors", None)


def test_floret_has_a_vector_for_any_word(tmp_path: Path) -> None:
    folder = save_floret(tmp_path / "floret")
    vectors = WordVectors(str(folder))
    assert vectors.of_ngrams
    train, dev = ["<S>", "</S>", "cat", "Übung"], ["cat", "zebra", ""]
    targets = VectorTargets(vectors, train, dev)
    ids = targets.ids([*train, "zebra"])
    assert sorted(ids.tolist()) == [1, 2, 3, 4, 5]
    assert targets.ids(["", "of no list"]).tolist() == [0, 0]
    whole = Vectors().from_disk(folder)
    for word, row in zip([*train, "zebra"], ids, strict=True):
        expected = whole[word] / np.linalg.norm(whole[word])
        np.testing.assert_allclose(targets.table[row].numpy(), expected, rtol=1e-5)


def test_lower_case_tables(tmp_path: Path) -> None:
    targets = VectorTargets(WordVectors(str(save_floret(tmp_path / "floret", attr="LOWER"))), ["CAT", "cat", "dog"])
    rows = targets.ids(["CAT", "cat", "Cat", "dog"])
    assert rows[0] == rows[1] == rows[2] != rows[3]
    save_floret(tmp_path / "norm", attr="NORM")
    with pytest.raises(PretrainingError, match="something else than the words' text"):
        WordVectors(str(tmp_path / "norm"))


def test_a_large_table_is_kept_in_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = WordVectors(str(save_table(tmp_path / "toy")))
    wide = VectorTargets(vectors, WORDS).table.numpy()
    monkeypatch.setattr(module, "LARGE_TABLE", 4 * 3 * 3)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    targets = VectorTargets(vectors, WORDS)
    assert (wide.dtype, targets.table.numpy().dtype) == (np.float32, np.float16)
    np.testing.assert_allclose(targets.table.numpy(), wide, atol=1e-3)


@given(data=st.data(), dims=st.integers(2, 5))
@settings(deadline=None, max_examples=25)
def test_any_lists_of_words(data: st.DataObject, dims: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    words = data.draw(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
    numbers = np.random.default_rng(1).normal(size=(len(words), dims)).astype(np.float32)
    folder = tmp_path_factory.mktemp("table")
    Vectors(data=numbers, keys=words).to_disk(folder)
    lists = [data.draw(st.lists(st.sampled_from([*words, "missing"]), max_size=6)) for _ in range(2)]
    asked = [word for some in lists for word in some]
    vectors = WordVectors(str(folder))
    if not set(asked) & set(words):
        with pytest.raises(PretrainingError, match="for none of the text's words"):
            VectorTargets(vectors, *lists)
        return
    targets = VectorTargets(vectors, *lists)
    for word, row in zip(asked, targets.ids(asked), strict=True):
        if word in words and word != "missing":
            expected = numbers[words.index(word)]
            np.testing.assert_allclose(targets.table[row].numpy(), expected / np.linalg.norm(expected), rtol=1e-5)
        elif word not in words:
            assert row == 0


def test_the_hash_is_of_all_that_counts(tmp_path: Path) -> None:
    hashes = {WordVectors(str(save_table(tmp_path / name))).sha256() for name in ("one", "two")}
    assert len(hashes) == 1
    changed = DATA.copy()
    changed[0, 0] += 1
    hashes.add(WordVectors(str(save_table(tmp_path / "three", changed))).sha256())
    Vectors(data=DATA.copy(), keys=["other", *WORDS[1:]]).to_disk(tmp_path / "four")
    hashes.add(WordVectors(str(tmp_path / "four")).sha256())
    assert len(hashes) == 3


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        PretrainingError, match=r"objective\.vectors: no_such_thing is neither a folder nor an installed"
    ):
        WordVectors("no_such_thing")
    with pytest.raises(PretrainingError, match="no file 'vectors'"):
        WordVectors(str(tmp_path))
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(PretrainingError, match=r"blank has no vectors \(its table is \(0, 0\)"):
        WordVectors(str(tmp_path / "blank"))
    for name, content in (("vectors", b"\x93NUMPY broken"), ("key2row", b"\xc1"), ("vectors.cfg", b"{")):
        folder = save_table(tmp_path / f"broken {name}")
        (folder / name).write_bytes(content)
        with pytest.raises(PretrainingError, match=rf"broken {name} cannot be read: "):
            WordVectors(str(folder))
    broken = DATA.copy()
    broken[1, 0] = np.inf
    with pytest.raises(PretrainingError, match="infinite holds NaN or infinite numbers"):
        VectorTargets(WordVectors(str(save_table(tmp_path / "infinite", broken))), WORDS)
    with pytest.raises(PretrainingError, match="toy has a vector for none of the text's words"):
        VectorTargets(WordVectors(str(save_table(tmp_path / "toy"))), ["zero", "nothing"])
