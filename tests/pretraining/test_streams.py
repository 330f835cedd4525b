from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.errors import CorpusError, PretrainingError
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.streams import Stream, Window
from spacy_elmo.pretraining.vocabulary import Vocabulary, build_vocabulary

BOS, EOS = "<S>", "</S>"
Documents = list[list[list[str]]]
VOCAB = spacy.blank("en").vocab


def corpus_of(folder: Path, documents: Documents) -> EncodedCorpus:
    docs = [Doc(VOCAB, words=[word for sentence in doc for word in [*sentence, "\n"]]) for doc in documents]
    return encode_corpus(docs, folder, key=repr(documents))


def inputs(corpus: EncodedCorpus, window: Window) -> tuple[list[list[str]], list[list[str]]]:
    forward, backward = (
        [[corpus.types[window.type_rows[index]] for index in row] for row in rows.tolist()]
        for rows in (window.forward, window.backward)
    )
    return forward, backward


def targets(vocabulary: Vocabulary, window: Window) -> tuple[list[list[str]], list[list[str]]]:
    forward, backward = (
        [[vocabulary.words[index] for index in row] for row in rows.tolist()]
        for rows in (window.forward_targets, window.backward_targets)
    )
    return forward, backward


def test_one_row_is_the_published_example(tmp_path: Path) -> None:
    # bilm-tf's data for the sentences `a b c d e` and `f`, run in its test mode; here in one row.
    corpus = corpus_of(tmp_path / "corpus", [[list("abcde"), ["f"]]])
    vocabulary = Vocabulary([BOS, EOS, "<UNK>", *"abcdef"])
    stream = Stream(corpus, vocabulary, rows=1, unroll_steps=2, seed=0)
    assert stream.steps_per_epoch == 4
    windows = [stream.window(step) for step in range(4)]
    assert np.concatenate([w.type_rows[w.forward] for w in windows], axis=1).tolist() == [[0, 3, 4, 5, 6, 7, 0, 8]]
    assert np.concatenate([w.forward_targets for w in windows], axis=1).tolist() == [[3, 4, 5, 6, 7, 1, 8, 1]]
    assert np.concatenate([w.type_rows[w.backward] for w in windows], axis=1).tolist() == [[1, 7, 6, 5, 4, 3, 1, 8]]
    assert np.concatenate([w.backward_targets for w in windows], axis=1).tolist() == [[7, 6, 5, 4, 3, 0, 8, 0]]


def test_rows_are_contiguous_by_hand(tmp_path: Path) -> None:
    # 6 + 2 + 4 + 3 = 15 steps: two rows of seven, one step is dropped; the second row begins within `f`.
    corpus = corpus_of(tmp_path / "corpus", [[list("abcde"), ["f"], list("aba"), list("ab")]])
    assert corpus.types[3:] == list("abcdef")
    vocabulary = Vocabulary([BOS, EOS, "<UNK>", *"abcde"])
    stream = Stream(corpus, vocabulary, rows=2, unroll_steps=7, seed=5)
    assert stream.steps_per_epoch == 1
    window = stream.window(0)
    assert window.type_rows.tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    assert window.type_rows[window.forward].tolist() == [[0, 3, 4, 5, 6, 7, 0], [8, 0, 3, 4, 3, 0, 3]]
    assert window.forward_targets.tolist() == [[3, 4, 5, 6, 7, 1, 2], [1, 3, 4, 3, 1, 3, 4]]
    assert window.type_rows[window.backward].tolist() == [[1, 7, 6, 5, 4, 3, 1], [8, 1, 3, 4, 3, 1, 4]]
    assert window.backward_targets.tolist() == [[7, 6, 5, 4, 3, 0, 2], [0, 3, 4, 3, 0, 4, 3]]
    assert window.starts.tolist() == [
        [True, False, False, False, False, False, True],
        [False, True] + [False] * 3 + [True, False],
    ]
    dtypes = {name: array.dtype for name, array in vars(window).items()}
    assert window.document_starts.tolist() == [[True] + [False] * 6, [False] * 7]
    assert dtypes.pop("starts") == dtypes.pop("document_starts") == np.dtype(bool)
    assert set(dtypes.values()) == {np.dtype(np.int64)}


SENTENCE = st.lists(st.sampled_from(["a", "b", "c", "d", "e", BOS, EOS]), min_size=1, max_size=6)
DOCUMENTS = st.lists(st.lists(SENTENCE, min_size=1, max_size=4), min_size=1, max_size=6)


@given(documents=DOCUMENTS, rows=st.integers(1, 4), unroll=st.integers(1, 5), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_epoch_covers_each_step_once_in_contiguous_rows(
    tmp_path: Path, documents: Documents, rows: int, unroll: int, seed: int
) -> None:
    corpus = corpus_of(tmp_path / "corpus", documents)
    vocabulary = build_vocabulary(corpus, 6)  # some words are unknown
    n_steps = sum(len(sentence) + 1 for document in documents for sentence in document)
    if n_steps < rows * unroll:
        with pytest.raises(CorpusError, match=r"too small: .* Lower rows or unroll_steps"):
            Stream(corpus, vocabulary, rows=rows, unroll_steps=unroll, seed=seed)
        return
    stream = Stream(corpus, vocabulary, rows=rows, unroll_steps=unroll, seed=seed)
    assert stream.steps_per_epoch == n_steps // (rows * unroll)

    def steps_of(sentences: list[list[str]]) -> list[tuple[str, ...]]:
        known = set(vocabulary.words)
        steps: list[tuple[str, ...]] = []
        for words in sentences:
            seen = [word if word in known else "<UNK>" for word in words]
            forward, seen_forward = [BOS, *words], [*seen, EOS]
            backward, seen_backward = [EOS, *words[::-1]], [*seen[::-1], BOS]
            steps += list(zip(forward, backward, seen_forward, seen_backward, strict=True))
        return steps

    for epoch in range(2):
        windows = [stream.window(epoch * stream.steps_per_epoch + index) for index in range(stream.steps_per_epoch)]
        laid_out: list[tuple[str, ...]] = []
        for row in range(rows):
            for window in windows:  # row by row: what follows in a row is what follows in the text
                columns = [*inputs(corpus, window), *targets(vocabulary, window)]
                laid_out += list(zip(*(column[row] for column in columns), strict=True))
        # One of the orders of the documents must give exactly this, up to the dropped rest.
        order = np.random.default_rng([seed, epoch]).permutation(len(documents))
        expected = [step for index in order for step in steps_of(documents[index])]
        assert laid_out == expected[: len(laid_out)]
        assert n_steps - len(laid_out) < rows * unroll


@pytest.mark.parametrize("lengths", [[1, 1, 1], [3, 1, 2, 4]])
def test_document_starts_are_where_a_document_s_first_sentence_begins(tmp_path: Path, lengths: list[int]) -> None:
    # Each document begins with a word of its own, and no other sentence does.
    documents = [[[f"d{n}", "a"], *[["b", "a"]] * (length - 1)] for n, length in enumerate(lengths)]
    corpus = corpus_of(tmp_path / "corpus", documents)
    vocabulary = build_vocabulary(corpus, 0)
    stream = Stream(corpus, vocabulary, rows=1, unroll_steps=3, seed=3)
    for step in range(2 * stream.steps_per_epoch):
        window = stream.window(step)
        firsts = [vocabulary.words[target][0] == "d" for target in window.forward_targets[0]]
        assert window.document_starts[0].tolist() == firsts
        assert window.starts[0].tolist() == [True, False, False]


def test_window_depends_on_the_step_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [[[f"w{n}" for n in rng.integers(0, 30, 5)] for _ in range(3)] for _ in range(20)]
    corpus = corpus_of(tmp_path / "corpus", documents)
    vocabulary = build_vocabulary(corpus, 0)
    stream = Stream(corpus, vocabulary, rows=4, unroll_steps=3, seed=1)
    steps = list(range(3 * stream.steps_per_epoch))
    forwards = {step: stream.window(step) for step in steps}
    again = Stream(EncodedCorpus.open(tmp_path / "corpus"), vocabulary, rows=4, unroll_steps=3, seed=1)
    for step in reversed(steps):
        for name, array in vars(again.window(step)).items():
            assert np.array_equal(array, getattr(forwards[step], name))
    # Epochs and seeds have orders of their own.
    first, second = (
        [forwards[epoch * stream.steps_per_epoch + index].forward_targets.tolist() for index in range(5)]
        for epoch in range(2)
    )
    other = Stream(corpus, vocabulary, rows=4, unroll_steps=3, seed=2)
    assert first != second
    assert first != [other.window(index).forward_targets.tolist() for index in range(5)]


def test_both_directions_share_the_types_that_are_read(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", [[["a", "b", "a", "a"]] * 5])
    stream = Stream(corpus, build_vocabulary(corpus, 0), rows=1, unroll_steps=25, seed=0)
    assert stream.window(0).type_rows.tolist() == [0, 1, 3, 4]


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", [[["a", "b"]]])
    vocabulary = build_vocabulary(corpus, 0)
    with pytest.raises(CorpusError, match="2 words in 1 sentences do not fill one window of 2 rows"):
        Stream(corpus, vocabulary, rows=2, unroll_steps=2, seed=0)
    for rows, unroll_steps in ((0, 1), (1, 0)):
        with pytest.raises(PretrainingError, match="both must be 1 or more"):
            Stream(corpus, vocabulary, rows=rows, unroll_steps=unroll_steps, seed=0)


def test_of_many_documents_neighbours_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[[f"w{number}"]] * (1 + number % 3) for number in range(11)]
    corpus = corpus_of(tmp_path / "corpus", documents)
    vocabulary = build_vocabulary(corpus, 0)
    monkeypatch.setattr("spacy_elmo.pretraining.streams.MOST_PIECES", 4)
    stream = Stream(corpus, vocabulary, rows=1, unroll_steps=2, seed=3)
    for epoch in range(2):
        windows = [stream.window(epoch * stream.steps_per_epoch + index) for index in range(stream.steps_per_epoch)]
        read = [forward[0][1] for window in windows for forward, _ in [inputs(corpus, window)]]
        order = np.random.default_rng([3, epoch]).permutation(4)
        expected = [
            word for piece in order for document in documents[3 * piece : 3 * piece + 3] for (word,) in document
        ]
        assert read == expected


def test_memory_that_is_given_back_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[[f"w{number}", "a", "b"]] * 4 for number in range(30)]
    corpus = corpus_of(tmp_path / "corpus", documents)
    vocabulary = build_vocabulary(corpus, 0)
    before = Stream(corpus, vocabulary, rows=2, unroll_steps=3, seed=0)
    expected = [before.window(step) for step in range(before.steps_per_epoch)]
    monkeypatch.setattr("spacy_elmo.pretraining.streams._PLACES", 1)
    monkeypatch.setattr("spacy_elmo.pretraining.corpus._KEPT", 0)
    stream = Stream(corpus, vocabulary, rows=2, unroll_steps=3, seed=0)
    for step, window in enumerate(expected):
        for name, array in vars(stream.window(step)).items():
            assert np.array_equal(array, getattr(window, name))


@pytest.mark.parametrize("rows", [2_000_000_000, 2**62])
def test_more_rows_than_words_cost_no_memory(tmp_path: Path, rows: int) -> None:
    """NumPy's "Maximum allowed size exceeded", or 16 GB for the rows' numbers."""
    corpus = corpus_of(tmp_path / "corpus", [[["a", "b"]]])
    with pytest.raises(CorpusError, match="The corpus is too small"):
        Stream(corpus, build_vocabulary(corpus, 0), rows=rows, unroll_steps=1, seed=0)
