"""Perplexity of all weights that have a softmax: against the float64 reference, in every kind of file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spacy_elmo.errors import CorpusError, WeightsError
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.weights import load_bilm, load_softmax, save_bilm, save_softmax, save_vocabulary
from tests.reference import make_tf_checkpoint as real
from tests.reference.make_golden import VOCABULARY
from tests.reference.numpy_bilm import NumpyBiLM
from tests.weights.many_langs_folder import write_model as write_many_langs_model
from tests.weights.writers import (
    Model,
    files_of,
    variable_names,
    write_bundle,
    write_checkpoint_model,
    write_hdf5_model,
    write_tar,
    write_zip,
)

FIXTURE = Path(real.FOLDER)
SENTENCES = [
    ["the", "cat", "."],
    ["The", "cat", "no", "no", "no", "no", "no", "unseen", "日本語", "."],
    ["."],
    ["<S>", "</S>", "<UNK>", "a.b", "naïve"],
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(words) for words in SENTENCES) + "\n\n", encoding="utf8")
    return path


def expected(model: NumpyBiLM, softmax: dict[str, np.ndarray], vocabulary: list[str]) -> tuple[float, float, float]:
    """Forward, backward and joint perplexity of SENTENCES."""
    nlls = np.array([model.nlls(words, softmax, vocabulary) for words in SENTENCES]).sum(axis=0)
    targets = sum(len(words) + 1 for words in SENTENCES)
    forward, backward = np.exp(nlls / targets)
    return forward, backward, np.exp(nlls.sum() / 2 / targets)


def check(path: Path, text: Path, wanted: tuple[float, float, float]) -> None:
    report = measure(path, text=text, pretokenized=True, per_sentence=True)
    found = (report.total.forward, report.total.backward, report.total.joint)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert report.total.n_targets == sum(len(words) + 1 for words in SENTENCES)
    assert [words for _, words in report.sentences] == SENTENCES


def of(model: Model) -> tuple[float, float, float]:
    reference = NumpyBiLM(model.options, model.weights, vocabulary=model.vocabulary)
    return expected(reference, model.softmax, VOCABULARY)


@pytest.mark.parametrize("case", ["base", "tanh", "low_clips", "one_layer", "three_layers", "words"])
def test_checkpoints(case: str, text: Path, tmp_path: Path) -> None:
    model = Model(case)
    folder = write_checkpoint_model(tmp_path / "model", model)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf8")
    check(folder, text, of(model))
    check(folder / "model.ckpt-12", text, of(model))


def test_a_checkpoint_of_tensorflow(text: Path) -> None:
    weights, softmax = real.draw()
    wanted = expected(NumpyBiLM(real.OPTIONS, weights), softmax, real.VOCABULARY)
    check(FIXTURE, text, wanted)


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_inside_an_archive(write: Callable[..., Path], text: Path, tmp_path: Path) -> None:
    model = Model()
    folder = write_checkpoint_model(tmp_path / "model", model, n_shards=2)
    (folder / "vocab-2016-09-10.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf8")
    check(write(tmp_path / "archive", files_of(folder, "2x4096_tf_checkpoint")), text, of(model))


def test_our_own_folder_of_the_same_weights(text: Path, tmp_path: Path) -> None:
    model = Model()
    folder = write_checkpoint_model(tmp_path / "model", model)
    ours = tmp_path / "ours"
    save_bilm(load_bilm(folder), ours)
    save_softmax(load_softmax(folder), ours)
    save_vocabulary(VOCABULARY, ours / "vocabulary.txt")
    check(ours, text, of(model))
    check(write_zip(tmp_path / "ours.zip", files_of(ours, "model-best")), text, of(model))


def test_a_softmax_that_is_the_word_table(text: Path, tmp_path: Path) -> None:
    model = Model("words")
    folder = write_checkpoint_model(tmp_path / "model", model)
    model.softmax["W"] = model.weights["embedding"]
    write_bundle(folder / "model.ckpt-12", variable_names(model.weights) | {"lm/softmax/b": model.softmax["b"]})
    check(folder, text, of(model))


def test_rows_are_the_lines_of_the_vocabulary(text: Path, tmp_path: Path) -> None:
    """bilm-tf takes the special words from anywhere, strips lines, and knows a line that is no word."""
    model = Model()
    folder = write_checkpoint_model(tmp_path / "model", model)
    order = np.random.default_rng(1).permutation(len(VOCABULARY))
    words = [VOCABULARY[row] for row in order]
    reference = NumpyBiLM(model.options, model.weights)
    (folder / "vocabulary.txt").write_text("".join(f"{word} \n" for word in words), encoding="utf8")
    check(folder, text, expected(reference, model.softmax, words))
    lines = [*words[:4], "!!!MAXTERMID", *words[4:]]
    (folder / "vocabulary.txt").write_text("\n".join(lines), encoding="utf8")
    check(folder, text, expected(reference, model.softmax, words))
    twice = ["cat" if word == "no" else word for word in words]
    (folder / "vocabulary.txt").write_text("\n".join(twice), encoding="utf8")
    check(folder, text, expected(reference, model.softmax, twice))
    right, wrong = of(model), expected(reference, model.softmax, words)
    assert abs(right[2] / wrong[2] - 1) > 0.01  # a row in another place shows


def test_the_tokenizer_of_a_language(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the,and café\n", encoding="utf8")
    report = measure(FIXTURE, text=tmp_path / "t.txt", lang="en", per_sentence=True)
    assert [words for _, words in report.sentences] == [["the", ",", "and", "café"]]
    assert report.unknown == 0
    report = measure(FIXTURE, text=tmp_path / "t.txt", pretokenized=True, per_sentence=True)
    assert [words for _, words in report.sentences] == [["the,and", "café"]]
    assert report.unknown == 1


def test_pretokenized_text(text: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "more.txt.gz", "wt", encoding="utf8") as file:
        file.write("the end . no end\n")
    both = measure(FIXTURE, text=f"{tmp_path}/*.txt*", pretokenized=True, per_sentence=True)
    assert [words for _, words in both.sentences] == [["the", "end", ".", "no", "end"], *SENTENCES]
    text.write_text(" \n\n", encoding="utf8")
    with pytest.raises(CorpusError, match=r"no text in .*text\.txt"):
        measure(FIXTURE, text=text, pretokenized=True)
    (tmp_path / "text.jsonl").write_text("{}", encoding="utf8")
    with pytest.raises(CorpusError, match=r"text\.jsonl is no \.txt file"):
        measure(FIXTURE, text=tmp_path / "text.jsonl", pretokenized=True)
    text.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 37443\n")
    with pytest.raises(CorpusError, match="git-LFS pointer"):
        measure(FIXTURE, text=text, pretokenized=True)


# What cannot be measured


def test_formats_without_a_softmax(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    formats = {"bilm-tf HDF5": write_hdf5_model(tmp_path / "hdf5", Model()), "ELMoForManyLangs": tmp_path / "many"}
    write_many_langs_model(tmp_path / "many")
    save_bilm(load_bilm(tmp_path / "hdf5"), tmp_path / "ours")
    formats["spacy-elmo"] = tmp_path / "ours"
    for family, path in formats.items():
        for place in (path, write_zip(tmp_path / "model.zip", files_of(path))):
            with pytest.raises(
                WeightsError, match=rf"{place.name}: these weights \({family}\) come without a softmax.*checkpoints"
            ):
                measure(place, text=text)


def test_a_checkpoint_that_lacks_something(text: Path, tmp_path: Path) -> None:
    folder = write_checkpoint_model(tmp_path / "model", Model())

    def refused(message: str, place: Path = folder) -> None:
        with pytest.raises(WeightsError, match=message):
            measure(place, text=text, pretokenized=True)

    refused(r"model: has no vocabulary, but a softmax over 10 words: .*vocabulary\.txt")
    refused(r"model\.zip: has no vocabulary", write_zip(tmp_path / "model.zip", files_of(folder)))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY[:8]), encoding="utf8")
    refused(r"vocab\.txt: has 8 words, but the softmax beside it predicts 10")
    (folder / "vocab.txt").write_text("\n".join([*VOCABULARY[3:], "a", "b", "c"]), encoding="utf8")
    refused(r"vocab\.txt: lacks <S>, </S>, <UNK>")
    (folder / "vocab.txt").write_bytes(b"\xff\n")
    refused(r"vocab\.txt: is not text in UTF-8")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf8")
    with pytest.raises(WeightsError, match=r"model: has no pretrain\.cfg that names a dev text: give the text"):
        measure(folder)
    write_bundle(folder / "model.ckpt-12", variable_names(Model().weights))
    refused(r"model\.ckpt-12\.index: holds no softmax")
    options = json.loads((folder / "options.json").read_text())
    options["lstm"]["dim"] = 10
    (folder / "options.json").write_text(json.dumps(options))
    refused("has shape .* but its options ask for")
