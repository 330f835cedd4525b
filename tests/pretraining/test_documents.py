"""What a document and a sentence is in each kind of file."""

from __future__ import annotations

import gzip
import inspect
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training.converters import conllu_to_docs

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining.config import RAW_TEXT_OPTIONS, load_config, resolve
from spacy_elmo.pretraining.corpus import encode_corpus
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.sentences import sentences_of
from spacy_elmo.pretraining.text_files import spooled_stdin

from .conftest import MakeConfig

CONLLU = """\
# newdoc id = a
# text = Don't go!
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t1\tx\t_\tSpaceAfter=No
3.1\tgone\tgo\tVERB\tVB\t_\t_\t_\t_\t_
4\t!\t!\tPUNCT\t.\t_\t1\tpunct\t_\t_

1\tMr.\tMr.\tPROPN\tNNP\t_\t0\troot\t_\t_
2\tA. B.\tA. B.\tPROPN\tNNP\t_\t1\tflat\t_\t_

# newdoc
1\tEnd\tend\tNOUN\tNN\t_\t0\troot\t_\t_
"""
SENTENCES = [[["Do", "n't", "go", "!"], ["Mr.", "A. B."]], [["End"]]]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


def read(path: Path | str, nlp: Language, **options: Any) -> list[list[list[str]]]:
    return [sentences_of(doc) for doc in raw_text(path, **options)(nlp)]


# -------------------------------------------------------------------------------------------------------------- txt


def test_a_line_is_a_paragraph_a_document_or_a_sentence(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One. Two\nMr . X said\n\n\nThree\n", encoding="utf8")
    one, two, mr, said, three = ["One", "."], ["Two"], ["Mr", "."], ["X", "said"], ["Three"]
    assert read(path, nlp) == [[one, two, mr, said], [three]]
    assert read(path, nlp, line="document") == [[one, two], [mr, said], [three]]
    assert read(path, nlp, line="sentence") == [[one + two, mr + said], [three]]


def test_words_with_spaces_between_them_are_not_tokenised(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "a.txt"
    path.write_text("can't U.S.A! x.\n.  B\tc\n\nD\n", encoding="utf8")
    first = ["can't", "U.S.A!", "x."]
    assert read(path, nlp, pretokenized=True) == [[first, ["."], ["B", "c"]], [["D"]]]
    assert read(path, nlp, pretokenized=True, line="sentence") == [[first, [".", "B", "c"]], [["D"]]]
    assert read(path, nlp, pretokenized=True, line="document") == [[first], [["."], ["B", "c"]], [["D"]]]


@given(
    sentences=st.lists(
        st.lists(st.text("ab.!é'", min_size=1, max_size=4), min_size=1, max_size=5), min_size=1, max_size=6
    )
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokenised_sentences_come_back_as_they_are(tmp_path: Path, nlp: Language, sentences: list[list[str]]) -> None:
    (tmp_path / "a.txt").write_text("\n".join(map(" ".join, sentences)), encoding="utf8")
    assert read(tmp_path / "a.txt", nlp, pretokenized=True, line="sentence") == [sentences]


def test_format_reads_files_of_any_name(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "wiki_00").write_text('{"body": "One."}\n', encoding="utf8")
    (tmp_path / "wiki_01.gz").write_bytes(gzip.compress(b'{"body": ["T wo"]}\n'))
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert read(tmp_path, nlp, format="jsonl", field="body") == [[["One", "."]], [["T wo"]]]
    with pytest.raises(CorpusError, match=r"neither .*'field'"):
        read(tmp_path, nlp, format="jsonl")
    with pytest.raises(CorpusError, match="holds no raw text"):
        read(tmp_path, nlp)


# ------------------------------------------------------------------------------------------------- sentences of others


def test_spacy_files_keep_the_sentences_that_are_set(tmp_path: Path, nlp: Language) -> None:
    words = ["a", ".", "b", "\n", "c", "!", "d"]
    docs = [
        Doc(nlp.vocab, words=words, sent_starts=[True, False, False, False, False, False, True]),
        Doc(nlp.vocab, words=words, heads=[0, 0, 0, 0, 0, 5, 5], deps=["x"] * 7),
        Doc(nlp.vocab, words=words),
        Doc(nlp.vocab, words=["e"]),
    ]
    DocBin(docs=docs).to_disk(tmp_path / "a.spacy")
    assert read(tmp_path, nlp) == [
        [["a", ".", "b", "c", "!"], ["d"]],
        [["a", ".", "b", "c"], ["!", "d"]],
        [["a", "."], ["b"], ["c", "!"], ["d"]],
        [["e"]],
    ]
    assert read(tmp_path, nlp, limit_words=5)[0] == [["a", ".", "b", "c", "!"]]


def test_conllu_words_and_sentences_are_as_annotated(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU, encoding="utf8")
    (tmp_path / "b.conllu.gz").write_bytes(gzip.compress(CONLLU.replace("\n", "\r\n").encode()))
    assert read(tmp_path, nlp) == SENTENCES * 2
    # What is held out keeps them too, and so does the corpus.
    corpus = encode_corpus(raw_text(tmp_path)(nlp), tmp_path / "corpus", key="a")
    assert list(corpus.sentences()) == [sentence for document in SENTENCES * 2 for sentence in document]
    assert corpus.meta["n_lines"] == 6


def test_sentences_that_are_held_out_stay_as_they_are(toy_config: MakeConfig, tmp_path: Path) -> None:
    lines = [[f"w{i}", ".", "b", "!", f"{j}"] for i in range(40) for j in range(3)]
    text = "".join(" ".join(line) + "\n" * (1 + (n % 3 == 2)) for n, line in enumerate(lines))
    (tmp_path / "a.txt").write_text(text, encoding="utf8")
    block = {"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path), "line": "sentence", "pretokenized": True}
    corpora = prepare_corpora(*resolve(toy_config(corpora__train=block, paths__cache=str(tmp_path / "cache"))))
    assert corpora.dev.n_documents > 0
    found = [*corpora.train.sentences(), *corpora.dev.sentences()]
    assert sorted(map(tuple, found)) == sorted(map(tuple, lines))


@given(
    sentences=st.lists(
        st.lists(st.text("abéß .-", min_size=1, max_size=4).filter(lambda word: not word.isspace()), min_size=1),
        min_size=1,
        max_size=5,
    ),
    comments=st.booleans(),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_conllu_is_read_as_spacys_converter_reads_it(
    tmp_path: Path, nlp: Language, sentences: list[list[str]], comments: bool
) -> None:
    sentences = [[word.strip() for word in words] for words in sentences]
    text = "".join(
        ("# text\n" if comments else "")
        + "".join(f"{n}\t{word}\tx\tX\tX\t_\t{n - 1}\tx\t_\t_\n" for n, word in enumerate(words, 1))
        + "\n"
        for words in sentences
    )
    (tmp_path / "a.conllu").write_text(text, encoding="utf8")
    theirs = [[token.text for token in doc] for doc in conllu_to_docs(text, n_sents=1, no_print=True)]
    assert read(tmp_path / "a.conllu", nlp) == [sentences] == [theirs]


@pytest.mark.parametrize(
    "row", ["1 x y", "x\tDo" + "\t_" * 8, "7\tDo" + "\t_" * 8, "1\t" + "\t_" * 8, "1\tDo", "1\tD\xe9"]
)
def test_conllu_that_is_none(tmp_path: Path, nlp: Language, row: str) -> None:
    good = "1\tfine" + "\t_" * 8
    (tmp_path / "a.conllu").write_text(f"{good}\n\n{row}\n2\tmore{chr(9)}_\n\n{good}\n", encoding="utf8")
    with pytest.raises(CorpusError, match=r"a\.conllu, line 3: not CoNLL-U"):
        read(tmp_path, nlp)
    reader = raw_text(tmp_path, errors="skip")
    assert [sentences_of(doc) for doc in reader(nlp)] == [[["fine"], ["fine"]]]
    assert reader.notes.found == {"sentences skipped: not CoNLL-U": (1, f"{tmp_path / 'a.conllu'}, line 3")}


def test_a_treebank(nlp: Language, shared: Path) -> None:
    path = shared / "data" / "ud" / "english-ewt" / "dev.conllu"
    theirs = conllu_to_docs(path.read_text(encoding="utf8"), n_sents=1, no_print=True)
    ours = [sentence for document in read(path, nlp) for sentence in document]
    assert ours == [[token.text for token in doc] for doc in theirs]


# ------------------------------------------------------------------------------------------------------ standard input


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Bytes on the standard input of a new process."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        spooled_stdin.cache_clear()

    yield put
    spooled_stdin.cache_clear()


def test_the_standard_input_is_known_by_its_content(nlp: Language, pipe: Callable[[bytes], None]) -> None:
    fingerprints = []
    for data in (b"One\n\nTwo\n", b"One\n\nTwo\n", b"One\n\nTwo!\n"):
        pipe(data)
        reader = raw_text("-")
        fingerprints.append(reader.fingerprint())
        for again in (reader, raw_text(Path("-"))):  # as often as it is asked for
            assert [doc.text for doc in again(nlp)] == data.decode().split()
        assert reader.fingerprint() == fingerprints[-1]
        reader.files()[0].unlink()
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    pipe(b'{"text": "One"}\n')
    assert [doc.text for doc in raw_text("-", format="jsonl")(nlp)] == ["One"]


def test_the_copy_of_the_standard_input_goes_with_the_process() -> None:
    program = "from spacy_elmo.pretraining.text_files import spooled_stdin as s; print(s()); assert s().read_bytes()"
    done = subprocess.run([sys.executable, "-c", program], input=b"One", capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert not Path(done.stdout.decode().strip()).exists()


def test_a_closed_standard_input_is_said(nlp: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    spooled_stdin.cache_clear()
    with pytest.raises(CorpusError, match="nothing is piped into it"):
        raw_text("-")(nlp)


# -------------------------------------------------------------------------------------------------------------- config


def test_own_text_keeps_what_is_said_of_its_files(root: Path) -> None:
    overrides = {"paths.raw": "a.txt", "corpora.train.line": "sentence", "corpora.train.errors": "skip"}
    corpora = load_config(root / "configs" / "pretrain.cfg", overrides)["corpora"]
    block = {"@readers": "spacy-elmo.RawText.v1", "path": "a.txt", "line": "sentence", "errors": "skip"}
    assert corpora["train"] == block


def test_every_option_of_the_reader_can_be_said_of_own_text() -> None:
    assert tuple(inspect.signature(raw_text).parameters) == ("path", *RAW_TEXT_OPTIONS)


def test_what_was_skipped_is_printed_and_kept(
    toy_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b"\n\n".join(b"Document %d is fine.\nbr\xffken" % number for number in range(40))
    (tmp_path / "a.txt").write_bytes(text)
    block = {"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path), "errors": "skip"}
    for _ in range(2):  # read, and out of the cache
        config = toy_config(corpora__train=block, paths__cache=str(tmp_path / "cache"))
        corpora = prepare_corpora(*resolve(config))
        assert corpora.train.meta["notes"] == {"lines skipped: not UTF-8": 40}
        assert f"train: 40 lines skipped: not UTF-8 (first: {tmp_path / 'a.txt'}, line 2)" in capsys.readouterr().err
