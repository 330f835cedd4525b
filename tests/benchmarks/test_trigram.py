from __future__ import annotations

import io
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.trigram import DISCOUNTS, Trigram, discounts, main, reversed_sentences, with_boundaries
from spacy_elmo import load_bilm, save_bilm
from spacy_elmo.pretraining.config import load_config, resolve
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.pretraining.prepare import prepare_corpora

BEGIN, END, UNK, A, B, C = range(6)


def arrays(sentences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    words = np.array([word for sentence in sentences for word in sentence], dtype=np.int32)
    return words, np.cumsum([0, *map(len, sentences)])


def p(trigram: Trigram, before: int, last: int, word: int) -> float:
    (found,) = trigram.probabilities(np.array([before]), np.array([last]), np.array([word]))
    return float(found)


def test_an_example_by_hand() -> None:
    trigram = Trigram(*arrays([[A, B], [A, C]]), n_words=6)
    # So small a text has the discounts 0.5, 1, 1.5. Words before a, b, c: 1 each; before the end: 2; 5 together, of
    # which 3 * 0.5 + 1 are taken, so that half goes to equal shares of the 5 words that can be predicted.
    one = {A: 0.5 / 5 + 0.1, B: 0.2, C: 0.2, END: 1 / 5 + 0.1, UNK: 0.1, BEGIN: 0.0}
    for word, expected in one.items():
        assert p(trigram, UNK, UNK, word) == pytest.approx(expected)
    first = (2 - 1) / 2 + 1 / 2 * one[A]  # "<S> a" stands there twice
    assert p(trigram, -1, BEGIN, A) == pytest.approx(first) == pytest.approx(0.6)
    after_a = 0.5 / 2 + (0.5 + 0.5) / 2 * one[B]
    assert p(trigram, UNK, A, B) == pytest.approx(after_a) == pytest.approx(0.35)
    second = 0.5 / 2 + (0.5 + 0.5) / 2 * after_a
    assert p(trigram, BEGIN, A, B) == pytest.approx(second) == pytest.approx(0.425)
    third = 0.5 / 1 + 0.5 * (0.5 / 1 + 0.5 * one[END])
    assert p(trigram, A, B, END) == pytest.approx(third) == pytest.approx(0.825)
    losses = trigram.losses(*arrays([[A, B], [UNK]]))
    unknown = 1 / 2 * one[UNK] * one[END]
    np.testing.assert_allclose(losses, [-np.log(first * second * third), -np.log(unknown)])


class Reference:
    """The same by dictionaries, word by word."""

    def __init__(self, sentences: list[list[int]], n_words: int) -> None:
        counts: list[dict[tuple[int, ...], int]] = [Counter(), Counter(), Counter()]
        for sentence in sentences:
            marked = [BEGIN, *sentence, END]
            for i in range(len(marked) - 2):
                counts[2][tuple(marked[i : i + 3])] += 1
            counts[1][BEGIN, marked[1]] += 1
        for trigram in counts[2]:
            counts[1][trigram[1:]] += 1
        for pair in counts[1]:
            counts[0][pair[1:]] += 1
        self.n_words = n_words
        self.counts = counts
        self.discounts = [discounts(np.array(list(one.values()))) for one in counts]
        self.after: list[dict[tuple[int, ...], list[int]]] = [defaultdict(list) for _ in counts]
        for after, one in zip(self.after, counts, strict=True):
            for ngram, count in one.items():
                after[ngram[:-1]].append(count)

    def p(self, history: tuple[int, ...], word: int, order: int) -> float:
        if order < 0:
            return 0.0 if word == BEGIN else 1 / (self.n_words - 1)
        below = self.p(history[1:], word, order - 1)
        found = self.after[order].get(history)
        if found is None:
            return below
        taken = self.discounts[order]
        rest = sum(taken[min(count, 3)] for count in found) / sum(found)
        count = self.counts[order].get((*history, word), 0)
        return (count - taken[min(count, 3)]) / sum(found) + rest * below if count else rest * below


def drawn_sentences(seed: int, n: int, n_words: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    ranks = np.minimum(generator.zipf(1.3, size=n * 6) + 1, n_words - 1)
    return [part.tolist() for part in np.array_split(ranks, n * 6 // generator.integers(2, 6))]


def test_it_is_what_dictionaries_say_and_sums_to_one() -> None:
    n_words = 40
    sentences = drawn_sentences(0, 300, n_words)
    trigram, reference = Trigram(*arrays(sentences), n_words), Reference(sentences, n_words)
    assert all(tuple(one[1:]) != DISCOUNTS for one in reference.discounts[1:])  # there is text enough for its own
    words = np.arange(n_words)
    seen = {(sentence[0], sentence[1]) for sentence in sentences if len(sentence) > 1}
    contexts = [(-1, BEGIN), (BEGIN, 2), (BEGIN, 39), (39, 38), (2, 2), *sorted(seen)[:20]]
    for before, last in contexts:
        found = trigram.probabilities(np.full(n_words, before), np.full(n_words, last), words)
        assert found.sum() == pytest.approx(1.0, abs=1e-12)
        assert found[BEGIN] == 0.0
        assert found[1:].min() > 0.0
        history, order = ((last,), 1) if before < 0 else ((before, last), 2)
        np.testing.assert_allclose(found, [reference.p(history, word, order) for word in words.tolist()], atol=1e-14)


def test_losses_are_sums_of_each_sentence() -> None:
    sentences = drawn_sentences(1, 100, 30)
    trigram = Trigram(*arrays(sentences[10:]), 30)
    losses = trigram.losses(*arrays(sentences[:10]))
    for sentence, loss in zip(sentences[:10], losses, strict=True):
        marked = [-1, BEGIN, *sentence, END]
        expected = [p(trigram, *marked[i : i + 3]) for i in range(len(marked) - 2)]
        assert loss == pytest.approx(-np.log(expected).sum())


def test_sentences_with_boundaries_and_reversed() -> None:
    ids, starts = arrays([[3, 4, 5], [6], [7, 8]])
    assert with_boundaries(ids, starts).tolist() == [0, 3, 4, 5, 1, 0, 6, 1, 0, 7, 8, 1]
    assert reversed_sentences(ids, starts).tolist() == [5, 4, 3, 6, 8, 7]


def test_counts_of_counts_give_the_discounts() -> None:
    counts = np.repeat([1, 2, 3, 4, 5], [100, 40, 20, 10, 7])
    y = 100 / 180
    expected = [0, 1 - 2 * y * 40 / 100, 2 - 3 * y * 20 / 40, 3 - 4 * y * 10 / 20]
    np.testing.assert_allclose(discounts(counts), expected)
    assert discounts(np.array([1, 1, 2])).tolist() == [0.0, *DISCOUNTS]


def test_the_script(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    animals = {"cat": "purrs", "dog": "barks", "bird": "sings"}
    lines = [f"The {one} {verb} ." for one, verb in animals.items()]
    (tmp_path / "train.txt").write_text("\n\n".join("\n".join(lines) for _ in range(40)), encoding="utf8")
    # The second document has words that the vocabulary lacks.
    dev = ["The cat purrs .", "The bird sings .", "", "The fox barks .", "A dog sings ."]
    (tmp_path / "dev.txt").write_text("\n".join(dev), encoding="utf8")
    paths = {"paths.raw": "train.txt", "paths.dev": "dev.txt", "paths.cache": "cache"}
    overrides = {name: str(tmp_path / value) for name, value in paths.items()}
    config = root / "configs" / "pretrain.cfg"
    options = [part for name, value in overrides.items() for part in (f"--{name}", value)]
    main(["--config", str(config), "--parts", "first=1", "second=1", *options])
    printed = capsys.readouterr().out
    assert "; 1 threads" in printed.splitlines()[0]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in printed.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == ["first", "second", "all"]
    corpora = prepare_corpora(*resolve(load_config(config, overrides)))
    total = corpora.dev.n_words + corpora.dev.n_sentences
    assert [int(row[1]) for row in rows[2:]] == [total // 2, total // 2, total]
    figures = np.array([row[2:] for row in rows[2:]], dtype=float)
    np.testing.assert_allclose(figures[:, 0], np.sqrt(figures[:, 1] * figures[:, 2]), rtol=0.01)
    np.testing.assert_allclose(figures[2], np.sqrt(figures[0] * figures[1]), rtol=0.01)
    # Sentences of the text: one of three words to choose in each, and of five targets.
    assert figures[0] == pytest.approx([3**0.2] * 3, rel=0.1)
    assert figures[1, 0] > 3
    assert printed.splitlines()[-1].startswith("480 words of text, 11 in the vocabulary: ")
    for parts, says in [
        (["first=3"], "--parts names 3 documents, the dev text has 2"),
        (["first=1"], "--parts names 1 documents, the dev text has 2"),
        (["one=1", "one=1"], "each has a name of its own"),
        (["one=1", "all=1"], "each has a name of its own"),
    ]:
        with pytest.raises(SystemExit):
            main(["--config", str(config), "--parts", *parts, *options])
        assert says in capsys.readouterr().err

    # A biLM's figures beside them: of all what `elmo perplexity` says, of a part what it would say of its sentences.
    sizes = {"model.lstm_dim": 8, "model.projection_dim": 4, "model.filters": [[1, 4]]}
    steps = {"training.max_steps": 2, "training.rows": 2}
    pretrain(load_config(config, {**overrides, **sizes, **steps}), tmp_path, stdout=io.StringIO(), stderr=io.StringIO())
    model = tmp_path / "model-best"
    main(["--model", str(model), "--parts", "first=1", "second=1"])
    printed = capsys.readouterr().out
    beside = [[cell.strip() for cell in line[1:-1].split("|")] for line in printed.splitlines() if line.startswith("|")]
    assert [row[:5] for row in beside[2:]] == rows[2:]
    whole = measure(model).total
    assert beside[-1][5:] == [f"{value:.2f}" for value in (whole.joint, whole.forward, whole.backward)]
    (tmp_path / "part.txt").write_text("\n".join(dev[3:]), encoding="utf8")
    second = measure(model, text=tmp_path / "part.txt").total
    assert beside[3][1] == str(second.n_targets)
    assert beside[3][5:] == [f"{value:.2f}" for value in (second.joint, second.forward, second.backward)]
    save_bilm(load_bilm(model), tmp_path / "alone")
    for path, says in [("alone", "pretrain.cfg"), ("nothing", "there is no")]:
        with pytest.raises(SystemExit):
            main(["--model", str(tmp_path / path)])
        assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])
    assert "give a --config or a --model" in capsys.readouterr().err
