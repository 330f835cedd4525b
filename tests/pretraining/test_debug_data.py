"""What `elmo debug-data` says of a text that is known."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.debug import duplicates, figures, odd_words
from spacy_elmo.pretraining.debug.odd_words import is_mojibake
from spacy_elmo.pretraining.debug.report import DataReport
from spacy_elmo.pretraining.debug_data import data_report, debug_data
from spacy_elmo.pretraining.prepare import Corpora
from spacy_elmo.pretraining.vocabulary import build_vocabulary

from ..weights.many_langs_folder import write_model as write_many_langs_model
from .conftest import MakeConfig

VOCAB = spacy.blank("en").vocab


def encoded(folder: Path, documents: list[list[str]]) -> EncodedCorpus:
    """A corpus of documents whose sentences are lines of words with spaces between them."""
    sentences = [[line.split(" ") for line in lines] for lines in documents]
    docs = [
        Doc(
            VOCAB,
            words=[word for words in lines for word in words],
            sent_starts=[i == 0 for words in lines for i in range(len(words))],
        )
        for lines in sentences
    ]
    return encode_corpus(docs, folder, key=json.dumps(documents))


def report_on(
    config: MakeConfig, folder: Path, train: list[list[str]], dev: list[list[str]], max_words: int = 1000, **more: Any
) -> DataReport:
    settings, _ = resolve(config(**more))
    corpus, other = encoded(folder / "train", train), encoded(folder / "dev", dev)
    vocabulary = build_vocabulary(corpus, max_words)
    return data_report(settings, Corpora(train=corpus, dev=other, vocabulary=vocabulary, versions={}))


LONG = "a sentence of exactly eight words is this"
OTHER = "another sentence that is long enough to count"


def test_counts_and_lengths(toy_config: MakeConfig, tmp_path: Path) -> None:
    train = [["a b c", "a b"], ["a", "é d"]]
    report = report_on(toy_config, tmp_path, train, [["a zz"]], max_words=5)
    text = report.train
    assert (text.documents, text.sentences, text.words, text.types, text.once) == (2, 4, 8, 5, 3)
    assert text.sentence_words == {"mean": 2.0, "10%": 1.0, "50%": 2.0, "90%": 3.0, "99%": 3.0, "max": 3.0}
    assert text.document_words == {"mean": 4.0, "10%": 3.0, "50%": 3.0, "90%": 5.0, "99%": 5.0, "max": 5.0}
    assert report.vocabulary == 5
    assert report.oov == {"train": 3 / 8, "dev": 1 / 2}
    assert report.epochs == 40 * 4 * 6 / (8 + 4)  # with the boundaries
    split = report_on(toy_config, tmp_path, train, [["a zz"]], max_words=5, training__rows=2, training__accumulate=3)
    assert split.epochs == 40 * (2 * 3) * 6 / (8 + 4)
    assert 0xC3 not in text.unseen_bytes
    assert text.unseen_bytes[:2] == [0x21, 0x22]
    assert report.bytes_of_dev_only == [ord("z")]
    assert json.loads(json.dumps(report.figures()))["dev"]["words"] == 2


WORDS = st.sampled_from(["a", "b", "c", "d", "e f", "é", "мир"])
TEXTS = st.lists(st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=4), min_size=1, max_size=6)


@given(train=TEXTS, dev=TEXTS)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_duplicates_and_shares_are_those_of_plain_python(
    toy_config: MakeConfig, tmp_path: Path, train: list[list[list[str]]], dev: list[list[list[str]]]
) -> None:
    texts = [[[" ".join(words) for words in lines] for lines in text] for text in (train, dev)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "LONG_SENTENCE", 1)
        patch.setattr(figures, "_BLOCK", 3)
        patch.setattr(odd_words, "_BLOCK", 3)
        patch.setattr(figures, "VOCABULARY_SIZES", (4, 5, 6, 50))
        report = report_on(toy_config, tmp_path, texts[0], texts[1])

    def share_repeated(values: list[Any]) -> float:
        return 1 - len(set(values)) / len(values)

    sentences = [[line for lines in text for line in lines] for text in texts]
    for text, lines, whole in zip((report.train, report.dev), sentences, texts, strict=True):
        assert text.duplicate_sentences == pytest.approx(share_repeated(lines))
        assert text.duplicate_documents == pytest.approx(share_repeated([tuple(document) for document in whole]))
    found = [line in set(sentences[0]) for line in sentences[1]]
    assert report.sentences_of_dev_in_train == pytest.approx(np.mean(found))
    known = {tuple(document) for document in texts[0]}
    assert report.documents_of_dev_in_train == pytest.approx(np.mean([tuple(d) in known for d in texts[1]]))
    counts: dict[str, int] = {}
    for line in sentences[0]:
        for word in line.split(" "):
            counts[word] = counts.get(word, 0) + 1
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    for name, lines in (("train", sentences[0]), ("dev", sentences[1])):
        words = [word for line in lines for word in line.split(" ")]
        for size in (4, 5, 6, 50):
            unknown = np.mean([word not in ranked[: size - 3] for word in words])
            assert getattr(report, name).oov[size] == pytest.approx(unknown)


def test_a_sample_of_hashes_keeps_all_copies(toy_config: MakeConfig, tmp_path: Path) -> None:
    lines = [f"{LONG} {number % 500}" for number in range(1000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_MOST_HASHES", 100)
        report = report_on(toy_config, tmp_path, [lines], [lines[:5]])
    assert report.train.duplicate_sentences == 0.5
    hashes = duplicates.Hashes(1000)
    assert hashes.every == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_MOST_HASHES", 100)
        assert duplicates.Hashes(1000).every == 10


def test_oddities_are_counted_by_words_and_sentences(toy_config: MakeConfig, tmp_path: Path) -> None:
    long = "x" * 41
    train = [
        ["plain words", '< div class="a">hi</div > and < br/ >', "R & amp ; D & so", "[ [ Link ] ]", "{ { cite } }"],
        ["cafÃ © and Ã¼ber", "itâ€ ™ s", "lost \ufffd", "TrÃ¨s", "AÃ … NÃ »"],
        [f"{long} https://x", "bell\x07", "Аpple", "мир и война not", "one слово here too"],
    ]
    odd = report_on(toy_config, tmp_path, train, [["plain words"]]).train.oddities
    counted = {name: (oddity.words, oddity.sentences) for name, oddity in odd.items()}
    assert counted == {
        "markup": (6, 4),
        "mojibake": (5, 4),
        "control characters": (1, 1),
        "very long words": (1, 1),
        "several scripts in a word": (1, 1),
        "words of another script": (5, 2),
    }
    assert odd["very long words"].examples == [long]
    assert set(odd["words of another script"].examples) == {"Аpple", "мир", "и", "война", "слово"}


@pytest.mark.parametrize("word", ["café", "Größe", "naïve", "Ã", "мир", "日本", "", "plain", "«", "ÉTÉ", "São"])
def test_words_that_are_no_mojibake(word: str) -> None:
    assert not is_mojibake(word)
    if not word.isascii():
        for encoding in ("cp1252", "latin-1"):
            try:
                broken = word.encode("utf8").decode(encoding)
            except UnicodeError:
                continue
            assert is_mojibake(broken)


ADVICE: list[tuple[str, list[list[str]], list[list[str]], dict[str, Any]]] = [
    ("words are little", [["A few"]], [["A few"]], {}),
    ("read 320 times", [["A b"]], [["A b"]], {}),
    ("Dev has 2 words", [["A b"]], [["A b"]], {}),
    ("Train has 1 documents", [["A b"]], [["A b"]], {}),
    ("100.0% of dev's sentences and 0.0% of its documents are in train", [[LONG, OTHER]], [[LONG]], {}),
    ("50.0% of train's sentences and 0.0% of its documents repeat others", [[LONG, LONG]], [["A"]], {}),
    ("50.00% of the words are cut at 8 bytes", [["Abcdefghi b"]], [["A"]], {}),
    ("100.0% of dev's words are predicted as <UNK>. More or other", [["A b"]], [["c d"]], {}),
    ("Dev has bytes that train never has (ASCII cd)", [["A b"]], [["c d"]], {}),
    ("Besides Latin there is Cyrillic 33.3%", [["A b мир"]], [["A"]], {}),
    ("the tokenizer of 'en' does not find words here", [["我爱北京我爱北京 我爱北京我爱北京"]], [["我"]], {}),
    ("no sentence ends are found", [[" ".join(["A"] * 200)]], [["A"]], {}),
    ("The text is in lower case", [["a b c"]], [["a"]], {}),
    ("Only 25% of the characters are letters", [["A 1 2 3"]], [["A"]], {}),
    ("look like HTML or wiki markup", [["A </div"]], [["A"]], {}),
    ("look like UTF-8 that was read as another encoding", [["A Ã¼ber"]], [["A"]], {}),
    ("No word has a letter", [["1 2"]], [["1"]], {}),
]


@pytest.mark.parametrize(("says", "train", "dev", "more"), ADVICE, ids=[entry[0] for entry in ADVICE])
def test_advice(
    toy_config: MakeConfig, tmp_path: Path, says: str, train: list[list[str]], dev: list[list[str]], more: Any
) -> None:
    report = report_on(toy_config, tmp_path, train, dev, **more)
    assert any(says in line for line in report.advice), report.advice
    assert any(says in line for line in report.text().splitlines())


def test_a_good_text_gets_no_advice(toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)

    def text(n: int) -> list[list[str]]:
        words = draw.choice(np.array([f"Word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(60)]), (n, 3, 9))
        return [[" ".join(line) for line in document] for document in words.tolist()]

    report = report_on(
        toy_config, tmp_path, text(400), text(400), model__max_characters_per_token=50, training__max_steps=10
    )
    assert report.advice == ["10,800 words are little: " + report.advice[0].split(": ", 1)[1]]


def test_of_a_config(toy_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    report = debug_data(*resolve(toy_config()))
    assert report.train.documents + report.dev.documents == 60
    assert report.oov == {"train": 0.0, "dev": 0.0}
    assert "of dev in train: 100.00% of the sentences" in report.text()
    assert capsys.readouterr().out == ""


def test_memory_does_not_grow_with_words(
    toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_BLOCK", 200)
    monkeypatch.setattr(odd_words, "_BLOCK", 200)
    monkeypatch.setattr(duplicates, "_MOST_HASHES", 1000)
    settings, _ = resolve(toy_config())

    def peak(n: int) -> int:
        docs = (
            Doc(VOCAB, words=[f"w{i % 50}" for i in range(j, j + 200)], sent_starts=[True, *[False] * 199])
            for j in range(n)
        )
        corpus = encode_corpus(docs, tmp_path / "corpus", key=str(n))
        corpora = Corpora(train=corpus, dev=corpus, vocabulary=build_vocabulary(corpus, 0), versions={})
        tracemalloc.start()
        try:
            assert data_report(settings, corpora).train.words == 200 * n
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(300)
    small, large = peak(500), peak(5000)
    assert large < small + 500_000  # 900,000 more words: arrays of 64 bits would be seven megabytes each


def test_weights_say_how_much_of_a_word_is_read(toy_config: MakeConfig, tmp_path: Path) -> None:
    """The config's number of bytes was taken, whatever the weights read, code points even."""
    write_many_langs_model(tmp_path / "many")  # ten code points
    words = [["ééééééééé abcdefghij abcdefghijk b"]]
    report = report_on(toy_config, tmp_path, words, words, initialize={"weights": str(tmp_path / "many")})
    assert report.train.truncated == 1
    assert any("25.00% of the words are cut at 10 characters" in advice for advice in report.advice)
    assert report_on(toy_config, tmp_path / "own", words, words).train.truncated == 3  # at 8 bytes
