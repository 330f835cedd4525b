from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import (
    WIKIPEDIA,
    Row,
    Sample,
    made_up_sentences,
    read_sentences,
    spread_by_length,
)
from benchmarks.flops import encode_flops, training_flops
from benchmarks.peers.texts import batches, read_texts, write_text
from spacy_elmo import BiLMConfig


def test_made_up_text_is_like_the_sample_of_the_targets() -> None:
    sentences = made_up_sentences(2000, seed=0)
    lengths = [len(sentence) for sentence in sentences]
    words = [word for sentence in sentences for word in sentence]
    types = set(words)
    assert np.median(lengths) == pytest.approx(19, abs=1)
    assert np.mean(lengths) == pytest.approx(20.3, abs=0.7)
    assert np.percentile(lengths, 90) == pytest.approx(33, abs=1.5)
    assert len(types) / len(words) == pytest.approx(0.11, abs=0.01)
    assert np.mean([len(word) for word in words]) == pytest.approx(4.2, abs=0.4)
    assert np.mean([len(word) for word in types]) == pytest.approx(6.8, abs=0.4)
    assert sentences == made_up_sentences(2000, seed=0)
    assert sentences != made_up_sentences(2000, seed=1)


def test_a_training_step_reads_as_many_types_as_in_wikipedia() -> None:
    draws = [len(np.unique(WIKIPEDIA.draw(3400, np.random.default_rng(seed)))) for seed in range(3)]
    assert np.mean(draws) == pytest.approx(1370, rel=0.05)


def test_a_part_has_the_lengths_of_the_whole() -> None:
    sentences = [["word"] * n for n in np.random.default_rng(0).permutation(np.arange(1, 101)).tolist()]
    part = spread_by_length(sentences, 9)
    assert sorted(map(len, part)) == [11, 21, 31, 41, 51, 60, 70, 80, 90]
    places = [sentences.index(sentence) for sentence in part]
    assert places == sorted(places)
    assert spread_by_length(sentences, 200) is sentences


def test_sentences_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"One two .\n\nThree four !\nFive\n"))
    expected = [["Five"], ["One", "two", "."], ["Three", "four", "!"]]
    assert sorted(read_sentences(path, 10, 0, raw=False)) == expected
    assert len(read_sentences(path, 2, 0, raw=False)) == 2
    paragraphs = tmp_path / "raw.txt"
    paragraphs.write_text("He isn't here. Go!\n", encoding="utf8")
    assert sorted(read_sentences(paragraphs, 10, 0, raw=True)) == [["Go", "!"], ["He", "is", "n't", "here", "."]]


def test_texts_come_back_and_are_cut_into_batches(tmp_path: Path) -> None:
    sentences = [["a"], ["b", "c", "d"], ["\u2028", "e"]]
    path = str(write_text(sentences, tmp_path / "text.txt"))
    assert read_texts({"some": path}) == {"some": sentences}
    assert list(batches(sentences, 2, by_length=False)) == [sentences[:2], sentences[2:]]
    assert list(batches(sentences, 2, by_length=True)) == [[sentences[1], sentences[2]], [sentences[0]]]


def test_ratios_are_medians_of_rounds() -> None:
    ours = Row("ours", lambda: Sample(0, 0), samples=[Sample(1, 8), Sample(1, 9), Sample(1, 2)])
    theirs = Row("theirs", lambda: Sample(0, 0), samples=[Sample(2, 4), Sample(1, 3), Sample(1, 4)])
    assert ours.rate == 8
    assert ours.over(theirs) == 3  # of 4, 3, 0.5


def test_flops_by_hand() -> None:
    config = BiLMConfig(lstm_dim=5, projection_dim=2, n_layers=2, filters=((1, 3), (2, 4)), char_dim=2, n_highway=1)
    # 3 words and 2 boundaries, 2 directions, 2 layers, 2 (2P 4H + H P)
    lstm = 5 * 2 * 2 * 2 * (4 * 20 + 10)
    # Types: "a" and the two boundaries have 1 + 2 + 2 columns, "abc" has 7.
    convolutions = sum(2 * columns * 1 * 2 * 3 + 2 * (columns - 1) * 2 * 2 * 4 for columns in (5, 5, 5, 7))
    rest = 4 * (2 * 2 * 7 * 7 + 2 * 7 * 2)
    assert encode_flops(config, [["a", "abc", "a"]]) == lstm + convolutions + rest
    softmax = 2 * 2 * 5 * 2 * (9 + 1)
    step = training_flops(config, words=5, types=["<S>", "</S>", "a", "abc"], negatives=9)
    assert step == 3 * (lstm + convolutions + rest + softmax)
