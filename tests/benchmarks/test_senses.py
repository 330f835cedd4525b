from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.senses import (
    CONTROLS,
    DATA,
    Context,
    accuracies,
    by_means,
    control,
    interval,
    main,
    of_contexts,
    of_senses,
    read_contexts,
)
from spacy_elmo import save_bilm
from spacy_elmo.layers.bilm_model import random_bilm

ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf8").splitlines()]


def test_every_word_has_two_senses_of_five_contexts() -> None:
    counts = Counter((row["word"], row["sense"]) for row in ROWS)
    words = list(dict.fromkeys(row["word"] for row in ROWS))
    assert len(words) >= 20
    assert set(counts.values()) == {5}
    assert Counter(word for word, _ in counts) == dict.fromkeys(words, 2)
    # A word's contexts stand together.
    assert [row["word"] for row in ROWS] == [word for word in words for _ in range(10)]
    assert all(set(row) == {"word", "sense", "text"} for row in ROWS)


def test_every_context_is_a_sentence_with_the_word_in_it_once() -> None:
    assert len({row["text"] for row in ROWS}) == len(ROWS)
    for word, contexts in read_contexts().items():
        assert len({" ".join(context.words) for context in contexts}) == 10
        for context in contexts:
            # Whatever the case, a plural included: the word itself is the only hint of its kind.
            forms = [token for token in context.words if token.lower() in (word, f"{word}s")]
            assert forms == [word]
            assert context.words[context.place] == word
            n = sum(any(map(str.isalnum, token)) for token in context.words)
            assert 8 <= n <= 25, context.words
            assert context.words[0][0].isupper() or context.words[0] in "\"'"
            assert context.words[-1] in (".", "?", "!")


def test_contexts_of_a_sense_differ_in_where_the_word_stands() -> None:
    for contexts in read_contexts().values():
        for half in (contexts[:5], contexts[5:]):
            assert len({context.sense for context in half}) == 1
            assert len({context.place for context in half}) >= 3


def test_nearest_context() -> None:
    senses = ["a", "a", "b", "b"]
    apart = np.array([[1.0, 0.1], [2.0, 0.0], [0.0, 1.0], [0.1, 3.0]])
    assert of_contexts(apart, senses) == 1.0
    assert of_contexts(apart, ["a", "b", "a", "b"]) == 0.0
    # The third is nearer to the first two than to the fourth, which is nearest to it.
    assert of_contexts(np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.3], [0.0, 1.0]]), senses) == 0.75
    # Static vectors, and such as differ by rounding alone.
    assert of_contexts(np.ones((4, 3)), senses) == 0.5
    assert of_contexts(np.ones((4, 3)) + 1e-8 * np.arange(12).reshape(4, 3), senses) == 0.5
    assert of_contexts(np.zeros((4, 3)), senses) == 0.5
    # A tie within a sense is none.
    assert of_contexts(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), ["a", "a", "a", "b"]) == 0.75


def test_nearest_sense() -> None:
    senses = ["a", "a", "b", "b"]
    apart = np.array([[1.0, 0.1], [2.0, 0.0], [0.0, 1.0], [0.1, 3.0]])
    assert by_means(apart, senses) == 1.0
    assert by_means(apart, ["a", "b", "a", "b"]) == 0.25  # what is left out in turn lies apart in half of the cases
    # Static vectors, and such as differ by rounding alone.
    assert by_means(np.ones((4, 3)), senses) == 0.5
    assert by_means(np.ones((4, 3)) + 1e-8 * np.arange(12).reshape(4, 3), senses) == 0.5
    assert by_means(np.zeros((4, 3)), senses) == 0.5
    # The first is nearer to its sense than to the third, and as near as to the fourth.
    assert (
        of_senses(lambda place, others: float(others == [3] or others == [1]) if place == 0 else 0.0, senses)
        == ((1.0 + 0.5) / 2 + 3 * 0.5) / 4
    )


def test_vectors_that_know_nothing_are_at_half_in_the_mean() -> None:
    """The sense whose context is asked about has no more and no fewer that stand for it than the other."""
    random = np.random.default_rng(0)
    senses = ["a"] * 5 + ["b"] * 5
    shares = [by_means(1.0 + random.standard_normal((10, 16)), senses) for _ in range(200)]
    assert np.mean(shares) == pytest.approx(0.5, abs=4 * np.std(shares) / 200**0.5)
    assert np.std(shares) < 0.2


def test_static_vectors_are_at_half() -> None:
    bilm = random_bilm()
    for contexts in read_contexts().values():
        static, *others = accuracies(bilm, contexts)
        assert static == 0.5
        assert len(others) == 3
        assert all(0.0 <= share <= 1.0 for share in others)


def contexts(*sentences: tuple[str, str]) -> list[Context]:
    return [Context("bank", sense, text.split(), text.split().index("bank")) for sense, text in sentences]


def test_controls() -> None:
    four = contexts(("a", "The bank lent money"), ("a", "In the bank"), ("b", "A muddy bank"), ("b", "the bank of mud"))
    before, common = CONTROLS.values()
    # "the" thrice, in both senses, each half right; "muddy" has none, so half; the last has "the" in the other sense.
    assert control(four, before) == ((1.0 + 0.5) / 2 + (1.0 + 0.5) / 2 + 0.5 + 0.0) / 4
    # "the" is what they have in common, with few words beside it or many.
    assert control(four, common) == (1.0 + (1.0 + 0.5) / 2 + 0.5 + 0.0) / 4
    first = contexts(("a", "bank , one"), ("a", "bank two"), ("b", "So bank"), ("b", "three bank"))
    assert control(first, before) == (1.0 + 1.0 + 0.5 + 0.5) / 4


def test_what_stands_around_a_word_does_not_tell_its_sense() -> None:
    for alike in CONTROLS.values():
        assert np.mean([control(one, alike) for one in read_contexts().values()]) <= 0.5


def test_intervals_over_words() -> None:
    shares = np.stack([np.full(24, 0.5), np.arange(24) % 2], axis=1)
    low, high = interval(shares, seed=0)
    assert low[0] == high[0] == 0.5
    # The mean of 24 throws of a coin: 0.5, give or take 1.96 * 0.5 / sqrt(24).
    assert (low[1], high[1]) == pytest.approx((0.3, 0.7), abs=0.03)
    assert interval(shares, seed=0).tolist() == [low.tolist(), high.tolist()]


def test_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bilm(random_bilm(n_layers=1), tmp_path / "bilm")
    main([str(tmp_path / "bilm"), "--threads", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    assert rows[0] == ["word", "senses", "layer 0", "layer 1", "mean", "same word before", "words in common"]
    assert [row[0] for row in rows[2:-4]] == list(read_contexts())
    assert rows[2][1] == "money, river"
    n = len(ROWS) // 10
    assert rows[-4][:3] == [f"all {n}, nearest sense", f"{len(ROWS)} contexts", "50.0%"]
    assert rows[-2][:3] == [f"all {n}, nearest context", f"{len(ROWS)} contexts", "50.0%"]
    shares = np.array([[float(cell.rstrip("%")) for cell in row[3:]] for row in rows[2:-3]])
    np.testing.assert_allclose(shares[:-1].mean(axis=0), shares[-1], atol=0.6)  # of whole per cents
    for means, bounds in (rows[-4:-2], rows[-2:]):
        assert bounds[:3] == ["", "95% over words", "50.0% - 50.0%"]
        for cell, share in zip(bounds[3:], means[3:], strict=True):
            if cell:
                low, high = (float(bound.rstrip("%")) for bound in cell.split(" - "))
                assert low <= float(share.rstrip("%")) <= high
    with pytest.raises(SystemExit):
        main([str(tmp_path / "nothing")])
    assert "no such file or folder" in capsys.readouterr().err
