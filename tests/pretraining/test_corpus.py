from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.tokens import Doc, DocBin

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining import corpus as corpus_module
from spacy_elmo.pretraining.corpus import EncodedCorpus, corpus_key, encode_corpus
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.sentences import sentences_of

TEXT = "The cat sat. It slept!\nA dog barked\n\nSecond document.\n"
SENTENCES = [["The", "cat", "sat", "."], ["It", "slept", "!"], ["A", "dog", "barked"], ["Second", "document", "."]]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


def read(path: Path | str, nlp: Language, **settings: Any) -> list[list[list[str]]]:
    return [sentences_of(doc) for doc in raw_text(path, **settings)(nlp)]


def docs_of(nlp: Language, *texts: str) -> Iterator[Doc]:
    return map(nlp.make_doc, texts)


# ---------------------------------------------------------------------------------------------------------- readers


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_txt_and_jsonl_plain_and_packed(
    tmp_path: Path, nlp: Language, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    txt = tmp_path / f"a.txt{suffix}"
    txt.write_bytes(pack(TEXT.encode()))
    assert read(txt, nlp) == [SENTENCES[:3], SENTENCES[3:]]
    lines = [
        {"text": "The cat sat. It slept!\nA dog barked"},
        {"tokens": ["Second", "docu ment", "."], "text": "not this"},
    ]
    jsonl = tmp_path / f"a.jsonl{suffix}"
    jsonl.write_bytes(pack("\n\n".join(json.dumps(line) for line in lines).encode()))
    assert read(jsonl, nlp) == [SENTENCES[:3], [["Second", "docu ment", "."]]]


def test_spacy_file_keeps_its_tokens(tmp_path: Path, nlp: Language) -> None:
    words = ["not", "tokenised.", "by", "a rule", "\n", "Next", "line"]
    DocBin(docs=[Doc(nlp.vocab, words=words)]).to_disk(tmp_path / "a.spacy")
    assert read(tmp_path / "a.spacy", spacy.blank("de")) == [[words[:4], words[5:]]]


def test_folder_glob_and_order(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "deep/a.txt", "a.txt", "readme.md"):
        (tmp_path / name).write_text(name.replace("/", " "), encoding="utf8")
    assert [doc.text for doc in raw_text(tmp_path)(nlp)] == ["a.txt", "b.txt", "deep a.txt"]
    assert [doc.text for doc in raw_text(str(tmp_path / "*.txt"))(nlp)] == ["a.txt", "b.txt"]
    assert [doc.text for doc in raw_text(tmp_path / "**" / "a.txt")(nlp)] == ["a.txt", "deep a.txt"]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a[1].txt").write_text("Here", encoding="utf8")
    assert read(tmp_path / "a[1].txt", nlp) == [[["Here"]]]


def test_windows_line_ends_and_bom(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne two\r\n\r\n \t\r\nA b\r\n")
    assert read(tmp_path / "a.txt", nlp) == [[["One", "two"]], [["A", "b"]]]


def test_text_without_blank_lines_is_flushed_at_a_line_end(tmp_path: Path, nlp: Language) -> None:
    line = "x" * 99 + "\n"
    (tmp_path / "a.txt").write_text(line * 2500, encoding="utf8")
    docs = list(raw_text(tmp_path / "a.txt")(nlp))
    assert [len(doc.text) for doc in docs] == [100_099, 100_099, 2500 * 100 - 2 * 100_100 - 1]


@pytest.mark.parametrize("space", [" ", "\t"])
def test_long_line_is_cut_at_white_space(tmp_path: Path, space: str) -> None:
    nlp = spacy.blank("en")
    nlp.max_length = 1000
    words = [f"wörd{number}" for number in range(2000)]
    (tmp_path / "a.txt").write_text(space.join(words) + "\nEnd", encoding="utf8")
    docs = list(raw_text(tmp_path / "a.txt")(nlp))
    assert max(len(doc.text) for doc in docs) <= 1000
    assert [token.text for doc in docs for token in doc if not token.is_space] == [*words, "End"]


@pytest.mark.parametrize("n", [999, 1000, 1001, 3999, 4000, 4001, 9000])
def test_long_line_without_white_space_loses_nothing(tmp_path: Path, n: int) -> None:
    nlp = spacy.blank("en")
    nlp.max_length = 1000
    text = ("aé€𝄞" * n)[:n]  # bytes of characters of every length fall on the cuts
    for name, content in (("a.txt", text), ("a.jsonl", json.dumps({"text": text}))):
        (tmp_path / name).write_text(content, encoding="utf8")
        docs = list(raw_text(tmp_path / name)(nlp))
        assert max(len(doc.text) for doc in docs) <= 1000
        assert "".join(doc.text for doc in docs) == text


def test_limit_words_is_exact_and_counts_no_white_space(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf8")
    for limit in range(1, 13):
        words = [word for doc in read(tmp_path, nlp, limit_words=limit) for sentence in doc for word in sentence]
        assert words == [word for sentence in SENTENCES for word in sentence][:limit]
    assert read(tmp_path, nlp, limit_words=1000) == read(tmp_path, nlp)


def test_reader_resolves_from_a_config(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf8")
    block = {"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path), "limit_words": 5}
    reader = spacy.registry.resolve({"corpus": block})["corpus"]
    assert [len(doc) for doc in reader(nlp)] == [5]
    assert spacy.registry.fill({"corpus": {**block, "path": None}})["corpus"]["limit_words"] == 5


def test_fingerprint_and_key_follow_the_files(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf8")
    reader = raw_text(tmp_path)
    key = corpus_key(reader, nlp)
    assert key == corpus_key(raw_text(tmp_path), spacy.blank("en"))
    others = {corpus_key(raw_text(tmp_path, limit_words=3), nlp), corpus_key(reader, spacy.blank("de"))}
    (tmp_path / "a.txt").write_text(TEXT + "More.", encoding="utf8")
    assert len({key, corpus_key(reader, nlp), *others}) == 4


# ----------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"fine\nbr\xffken\n", r"a\.txt, line 2: not UTF-8 \(byte 0xff at 2"),
        ("a.txt", b"cut in the middle \xe2\x82", r"line 1: not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n\n{"text": \n', r"a\.jsonl, line 3: not valid JSON"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl, line 1: not UTF-8"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"line 1: not valid JSON .*surrogates"),
        ("a.jsonl", b'{"txt": "x"}\n', r"line 1: neither"),
        ("a.jsonl", b'["x"]\n', r"line 1: neither"),
        ("a.jsonl", b'{"text": "x", "tokens": ["a", 1]}\n', r"line 1: neither"),
        ("a.jsonl", b"[" * 100_000, r"line 1: not valid JSON"),
        ("a.txt.gz", b"no gzip at all", r"a\.txt\.gz, after line 0: cannot be read"),
        ("a.txt.gz", gzip.compress(b"one\ntwo\n" * 9, mtime=0)[:-9], r"after line \d+: cannot be read"),
        ("a.txt.gz", gzip.compress(b"one\n", mtime=0)[:-6] + b"\0" * 6, r"cannot be read"),
        ("a.txt.bz2", bz2.compress(b"one\n")[:-3], r"cannot be read"),
        ("a.txt.xz", b"\xfd7zXZ", r"cannot be read"),
        ("a.spacy", b"no DocBin", r"a\.spacy: not a readable \.spacy file"),
        ("a.md", b"text", r"a\.md' is of no kind that can be read: .*\.txt, .*\.gz, .*'format'"),
        ("a.spacy.gz", b"text", r"is of no kind that can be read"),
    ],
)
def test_broken_file_is_one_clear_error(tmp_path: Path, nlp: Language, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=says):
        list(raw_text(tmp_path / name)(nlp))


def test_truncated_docbin(tmp_path: Path, nlp: Language) -> None:
    data = DocBin(docs=[nlp.make_doc("Some words here.")]).to_bytes()
    (tmp_path / "a.spacy").write_bytes(data[: len(data) // 2])
    with pytest.raises(CorpusError, match=r"not a readable \.spacy file"):
        list(raw_text(tmp_path)(nlp))


def test_nothing_found_is_said_before_reading(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "readme.md").write_text("x", encoding="utf8")
    for path, says in [
        (tmp_path / "none.txt", "There is no file or folder"),
        (tmp_path / "*.txt", "matches no file"),
        (tmp_path, "holds no raw text"),
        (None, "No path"),
        ("", "No path"),
    ]:
        with pytest.raises(CorpusError, match=says):
            raw_text(path)(nlp)
    with pytest.raises(CorpusError, match="limit_words is -1"):
        raw_text(tmp_path, limit_words=-1)


# -------------------------------------------------------------------------------------------------------- sentences

PIECES = st.sampled_from(
    [
        "a",
        "Mr",
        "x.",
        ".",
        "!",
        "?",
        "。",
        "...",
        ",",
        '"',
        "(",
        ")",
        "'s",
        "-",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\u2028",
        "\t",
        "7",
    ]
)


def sentences_by_tokens(doc: Doc) -> list[list[str]]:
    """The rule in words: the Sentencizer's guesses, line breaks, no white space, no empty sentences."""
    sentences: list[list[str]] = [[]]
    for token, begins in zip(doc, Sentencizer().predict([doc])[0], strict=True):
        if begins:
            sentences.append([])
        if not token.is_space:
            sentences[-1].append(token.text)
        elif any(character in token.text for character in "\n\r\x85\u2028\u2029"):
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


@given(words=st.lists(PIECES, max_size=30))
@settings(deadline=None, max_examples=300)
def test_sentences_are_the_sentencizers_and_end_at_line_breaks(nlp: Language, words: list[str]) -> None:
    for doc in (Doc(nlp.vocab, words=words), nlp.make_doc("".join(words))):
        before = doc.to_bytes()
        assert sentences_of(doc) == sentences_by_tokens(doc)
        assert doc.to_bytes() == before


def test_sentences_of_real_text(nlp: Language, shared: Path) -> None:
    docs = list(raw_text(shared / "data" / "raw" / "dev.txt.xz", limit_words=20_000)(nlp))
    assert sum(len(doc) for doc in docs) > 20_000
    for doc in docs:
        assert sentences_of(doc) == sentences_by_tokens(doc)


# --------------------------------------------------------------------------------------------------- encoded corpus

WORDS = st.one_of(
    st.sampled_from(["the", "The", "a b", "<S>", "</S>", "<UNK>", "é", "\0", "𝄞", "a\nb", "\ufeff"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
)


@given(documents=st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_encoding_round_trips(tmp_path: Path, nlp: Language, documents: list[list[str]]) -> None:
    docs = [Doc(nlp.vocab, words=words) for words in documents]
    expected = [sentences for doc in docs if (sentences := sentences_by_tokens(doc))]
    if not expected:
        with pytest.raises(CorpusError, match="no words"):
            encode_corpus(docs, tmp_path / "corpus", key=json.dumps(documents))
        return
    corpus = encode_corpus(docs, tmp_path / "corpus", key=json.dumps(documents))
    flat = [sentence for sentences in expected for sentence in sentences]
    assert list(corpus.sentences()) == flat
    assert np.diff(corpus.document_starts).tolist() == [len(sentences) for sentences in expected]
    assert corpus.n_words == sum(map(len, flat)) == corpus.counts.sum()
    assert corpus.types[:3] == ["<S>", "</S>", "<UNK>"]
    rest = list(zip((-corpus.counts[3:]).tolist(), corpus.types[3:], strict=True))
    assert rest == sorted(rest)
    assert np.array_equal(np.bincount(corpus.ids, minlength=corpus.n_types), corpus.counts)


def test_encoding_is_deterministic_and_described(tmp_path: Path, nlp: Language) -> None:
    long = "x" * 60
    documents = [["b", "a", "c", ".", "a", "b", "<S>", "\n\n", "a", "</S>", "zz"], ["\n"], ["Läßt", "\n", long]]
    one, two = (
        encode_corpus([Doc(nlp.vocab, words=words) for words in documents], tmp_path / name, key=name)
        for name in ("one", "two")
    )
    assert list(one.types) == ["<S>", "</S>", "<UNK>", "a", "b", ".", "Läßt", "c", long, "zz"]
    assert one.counts.tolist() == [1, 1, 0, 3, 2, 1, 1, 1, 1, 1]
    assert one.meta == {
        "format": 2,
        "key": "one",
        "n_documents": 2,
        "n_lines": 4,
        "n_sentences": 5,
        "n_words": 12,
        "n_types": 10,
        "sha256": two.meta["sha256"],
    }
    other = encode_corpus([Doc(nlp.vocab, words=documents[0])], tmp_path / "three", key="one")
    assert other.meta["sha256"] != one.meta["sha256"]
    for limit, code_points, n in ((50, False, 1), (62, False, 0), (7, False, 2), (7, True, 1)):
        config = BiLMConfig(
            lstm_dim=4,
            projection_dim=4,
            filters=((1, 4),),
            max_characters_per_token=limit,
            n_characters=300 if code_points else None,
        )
        assert one.truncated_words(config) == n  # ä and ß are two bytes each, and ELMoForManyLangs reads no bytes


def test_finished_folder_is_reused_and_another_key_rebuilds(tmp_path: Path, nlp: Language) -> None:
    folder = tmp_path / "deep" / "corpus"
    encode_corpus(docs_of(nlp, "one two"), folder, key="a")

    def untouched() -> Iterator[Doc]:
        raise AssertionError("read although it was there")
        yield

    assert encode_corpus(untouched(), folder, key="a").n_words == 2
    assert encode_corpus(docs_of(nlp, "one two three"), folder, key="b").n_words == 3
    assert [file.name for file in folder.parent.iterdir()] == ["corpus"]


def test_half_built_corpus_is_thrown_away(tmp_path: Path, nlp: Language) -> None:
    folder = tmp_path / "corpus"

    def broken() -> Iterator[Doc]:
        yield nlp.make_doc("one two")
        raise CorpusError("broken")

    with pytest.raises(CorpusError, match="broken"):
        encode_corpus(broken(), folder, key="a")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "corpus.partial").mkdir()  # what a killed process leaves
    (tmp_path / "corpus.partial" / "ids.bin").write_bytes(b"\0" * 5)
    assert encode_corpus(docs_of(nlp, "one two"), folder, key="a").n_words == 2
    # A failed rebuild leaves the old corpus.
    with pytest.raises(CorpusError, match="broken"):
        encode_corpus(broken(), folder, key="b")
    assert EncodedCorpus.open(folder).meta["key"] == "a"
    # A finished folder that lost bytes is no corpus: opening says so, encoding builds it anew.
    (folder / "ids.bin").write_bytes(b"\0" * 4)
    with pytest.raises(CorpusError, match="not a whole encoded corpus"):
        EncodedCorpus.open(folder)
    assert encode_corpus(docs_of(nlp, "one two"), folder, key="a").n_words == 2


def test_folders_of_others_are_never_removed(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "thesis.txt").write_text("x", encoding="utf8")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(CorpusError, match="not an encoded corpus"):
            encode_corpus(docs_of(nlp, "one"), folder, key="a")
    assert (tmp_path / "thesis.txt").is_file()


def test_progress_sums_to_the_words(tmp_path: Path, nlp: Language) -> None:
    seen: list[int] = []
    doc = Doc(nlp.vocab, words=["longer-word"] * 1000)
    encode_corpus((doc for _ in range(150)), tmp_path / "corpus", key="a", progress=seen.append)
    assert sum(seen) == 150_000
    assert len(seen) > 1


def test_memory_does_not_grow_with_words(tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_SHARD_SIZE", 40_000)
    words = [f"w{number % 50}." for number in range(1000)]

    def peak(n_docs: int) -> int:
        docs = (Doc(nlp.vocab, words=words) for _ in range(n_docs))
        tracemalloc.start()
        try:
            assert encode_corpus(docs, tmp_path / "corpus", key=str(n_docs)).n_words == 1000 * n_docs
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(20)  # whatever is made once
    small, large = peak(30), peak(300)
    assert large < small + 50_000  # 270,000 more words; as int32 in memory they were a megabyte
