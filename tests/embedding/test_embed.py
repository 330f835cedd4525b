from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo import BiLM, ElmoError, load_bilm, save_bilm
from spacy_elmo.embedding import embed_file
from spacy_elmo.errors import CorpusError
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.text_forms import ptb_brackets

from .conftest import LINES
from .reading import read, read_hdf5, read_npz, writable

NLP = spacy.blank("en")
SUFFIXES = [".h5", ".npz", ".parquet"]


@pytest.fixture(params=SUFFIXES)
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if not writable(request.param):
        pytest.skip("its library is not installed")
    return tmp_path / f"vectors{request.param}"


def expected(
    bilm: BiLM, sentences: list[list[str]], read_as: list[list[str]] | None = None
) -> list[tuple[list[str], np.ndarray]]:
    layers = bilm.encode(sentences if read_as is None else read_as)
    return list(zip(sentences, [one.numpy() for one in layers], strict=True))


def tokenized(lines: list[str]) -> list[list[str]]:
    return [[token.text for token in NLP.make_doc(line) if not token.is_space] for line in lines]


def check(found: list[tuple[list[str], np.ndarray]], wanted: list[tuple[list[str], np.ndarray]], path: Path) -> None:
    if path.suffix == ".parquet":  # a row a token: nothing of a sentence without
        wanted = [pair for pair in wanted if pair[0]]
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    for (_, vectors), (_, right) in zip(found, wanted, strict=True):
        assert vectors.shape == right.shape
        np.testing.assert_allclose(vectors, right, atol=1e-6, rtol=0)


@pytest.mark.parametrize("batch_words", [1, 7, None])
def test_every_line_is_a_sentence(bilm: BiLM, text: Path, output: Path, batch_words: int | None) -> None:
    sentences = tokenized(LINES * 3)
    done = embed_file(text, output, bilm, batch_words=batch_words)
    check(read(output), expected(bilm, sentences), output)
    assert (done.sentences, done.words, done.resumed) == (len(sentences), sum(map(len, sentences)), 0)
    assert {path.name for path in output.parent.iterdir()} == {text.name, output.name}


def test_several_files_are_numbered_on(bilm: BiLM, tmp_path: Path, output: Path) -> None:
    packed: dict[str, Any] = {
        "a.txt.gz": gzip.compress,
        "b.txt.bz2": bz2.compress,
        "c.txt.xz": lzma.compress,
        "d.txt": bytes,
    }
    paths, sentences = [], []
    for i, (name, pack) in enumerate(packed.items()):
        lines = ["\ufeffAnn swims ." if i == 2 else f"Number {i} .", "", "Last line"]
        (tmp_path / name).write_bytes(pack("\r\n".join(lines).encode()))
        paths.append(tmp_path / name)
        sentences += [line.removeprefix("\ufeff").split() for line in lines]
    embed_file(paths, output, bilm, pretokenized=True, batch_words=4)
    check(read(output), expected(bilm, sentences), output)


def chosen(array: np.ndarray, layers: Any) -> np.ndarray:
    if layers == "mean":
        return array.mean(0)
    return array if layers == "all" else array[2 if layers == "top" else layers]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layers", ["all", "mean", "top", 0, 1])
def test_layers_and_dtype(bilm: BiLM, text: Path, output: Path, layers: Any, dtype: Any) -> None:
    embed_file(text, output, bilm, layers=layers, dtype=dtype)
    found = read(output)
    assert {vectors.dtype for _, vectors in found} == {np.dtype(dtype)}
    wanted = [(tokens, chosen(array, layers).astype(dtype)) for tokens, array in expected(bilm, tokenized(LINES * 3))]
    if dtype == "float16":
        wanted = [pair for pair in wanted if pair[0] or output.suffix != ".parquet"]
        for (_, vectors), (_, right) in zip(found, wanted, strict=True):
            np.testing.assert_allclose(vectors.astype("f"), right.astype("f"), atol=2e-6, rtol=1e-3)
    else:
        check(found, wanted, output)


@pytest.mark.parametrize(
    ("text_form", "make"),
    [
        ("lower", lambda doc: [token.lower_ for token in doc]),
        ("norm", lambda doc: [token.norm_ for token in doc]),
        (ptb_brackets(), lambda doc: ptb_brackets()([token.text for token in doc])),
        (lambda words: [word[::-1] for word in words], lambda doc: [token.text[::-1] for token in doc]),
    ],
    ids=["lower", "norm", "ptb_brackets", "own"],
)
@pytest.mark.parametrize("pretokenized", [True, False])
def test_text_forms(bilm: BiLM, tmp_path: Path, text_form: Any, make: Any, pretokenized: bool) -> None:
    (tmp_path / "t").write_text("Ann CAN'T swim (there) .\nAnn ( ca n't ) Swim\n", encoding="utf8")
    lines = (tmp_path / "t").read_text(encoding="utf8").splitlines()
    docs = [spacy.tokens.Doc(NLP.vocab, words=line.split()) if pretokenized else NLP.make_doc(line) for line in lines]
    embed_file(tmp_path / "t", tmp_path / "v.npz", bilm, text=text_form, pretokenized=pretokenized)
    tokens = [[token.text for token in doc] for doc in docs]
    read_as = [make(doc) for doc in docs]
    assert read_as != tokens
    check(read_npz(tmp_path / "v.npz"), expected(bilm, tokens, read_as), tmp_path / "v.npz")


def test_a_normalizer_that_loses_words_is_named_with_the_line(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match=r"text\.txt, line 1: text: .* a list of 8 strings"):
        embed_file(text, tmp_path / "v.npz", bilm, text=lambda words: list(words)[1:])


words_of_lines = st.lists(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1), max_size=6),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=15)
@given(sentences=words_of_lines, batch_words=st.integers(1, 20), seed=st.integers(0, 9))
def test_any_words_come_back(
    bilm: BiLM,
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[list[str]],
    batch_words: int,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "t").write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf8", newline="\n")
    wanted = expected(bilm, sentences)
    for suffix in filter(writable, SUFFIXES):
        path = folder / f"v{suffix}"
        embed_file(folder / "t", path, bilm, pretokenized=True, batch_words=batch_words)
        check(read(path), wanted, path)


def test_precision_windows_and_start_state_are_the_biLMs(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    embed_file(text, path, bilm, precision="bfloat16", max_length=2, state="zero")
    layers = bilm.encode(tokenized(LINES * 3), "zero", precision="bfloat16", max_length=2)
    for (_, vectors), right in zip(read_npz(path), layers, strict=True):
        np.testing.assert_allclose(vectors, right.numpy(), atol=1e-6, rtol=0)


def test_carried_state_is_that_of_one_chain(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    bilm.encode([["something", "before"]], "carry")
    embed_file(text, path, bilm, state="carry", batch_words=10)
    bilm.reset_state()
    for (_, vectors), sentence in zip(read_npz(path), tokenized(LINES * 3), strict=True):
        np.testing.assert_allclose(vectors, bilm.encode([sentence], "carry")[0].numpy(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("column", [0, 1, 2])
def test_golden_vectors_of_the_public_fixture(shared: Path, tmp_path: Path, column: int) -> None:
    # Made by AllenNLP: the top layer, its forward and its backward half; state carried from sentence to sentence.
    h5py = pytest.importorskip("h5py")
    folder = shared / "fixtures" / "allennlp_elmo"
    sentences = json.loads((folder / "sentences.json").read_text(encoding="utf8"))[column]
    (tmp_path / "t").write_text("\n".join(sentences), encoding="utf8")
    bilm = load_bilm(folder / "options.json", folder / "lm_weights.hdf5")
    embed_file(tmp_path / "t", tmp_path / "v.hdf5", bilm, pretokenized=True, state="carry")
    found = read_hdf5(tmp_path / "v.hdf5")
    assert [" ".join(tokens) for tokens, _ in found] == [" ".join(sentence.split()) for sentence in sentences]
    with h5py.File(folder / f"lm_embeddings_{column}.hdf5", "r") as golden:
        assert len(found) == len(golden) == 10
        for number, (_, vectors) in enumerate(found):
            forward, backward = golden[str(number)][...]
            np.testing.assert_allclose(vectors[2], np.concatenate([forward, backward], axis=1), atol=4e-6, rtol=0)


# ------------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("fine\nGröße\n".encode("latin1"), "line 2: not UTF-8 (byte 0xf6 at 2"),
        ("fine\n".encode("utf-16"), "line 1: not UTF-8"),
        (b"fine\nfine\nbi\0nary\n", "line 3: has a NUL"),
        (b"fine\n" + b"a " * 600_000, "line 2: longer than 1,000,000 characters"),
        (b"fine\n" + "é".encode() * 3_000_000, "line 2: longer than 1,000,000 characters"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-LFS pointer"),
        (b"", "there is no line of text"),
    ],
)
def test_text_that_cannot_be_read(bilm: BiLM, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(ElmoError) as info:
        embed_file(tmp_path / "t.txt", tmp_path / "v.npz", bilm)
    assert message in str(info.value)
    assert str(tmp_path / "t.txt") in str(info.value)
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


def test_packed_text_that_is_cut_short(bilm: BiLM, tmp_path: Path) -> None:
    for name, pack in (("t.gz", gzip.compress), ("t.bz2", bz2.compress), ("t.xz", lzma.compress)):
        data = pack(b"".join(b"%d\n" % number for number in range(9999)))
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(CorpusError, match=rf"{name}, line \d+: cannot be read"):
            embed_file(tmp_path / name, tmp_path / "v.npz", bilm)


def test_missing_and_mistaken_files(bilm: BiLM, text: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"none\.txt cannot be read: No such file"):
        embed_file([text, tmp_path / "none.txt"], tmp_path / "v.npz", bilm)
    with pytest.raises(CorpusError, match="is a folder"):
        embed_file(tmp_path, tmp_path / "v.npz", bilm)
    with pytest.raises(CorpusError, match="no file of text"):
        embed_file([], tmp_path / "v.npz", bilm)
    with pytest.raises(ElmoError, match=r"named \.h5, \.hdf5, \.npz, \.parquet"):
        embed_file(text, tmp_path / "v.txt", bilm)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ElmoError, match="is a folder"):
        embed_file(text, tmp_path / "folder.npz", bilm)
    with pytest.raises(ElmoError, match=r"cannot be written: Not a directory|cannot be written: File exists"):
        embed_file(text, text / "v.npz", bilm)
    same = tmp_path / "t.npz"
    same.write_text("Ann\n", encoding="utf8")
    with pytest.raises(ElmoError, match="is one of the texts"):
        embed_file([text, same], same, bilm, overwrite=True)
    assert same.read_text(encoding="utf8") == "Ann\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, "0 to 2, not 3"),
        ({"layers": "bottom"}, "not 'bottom'"),
        ({"dtype": "float64"}, "not 'float64'"),
        ({"precision": "int8"}, "int8"),
        ({"state": "hot"}, "not 'hot'"),
        ({"state": "warm"}, "start state"),
        ({"lang": "zzz"}, "language 'zzz'"),
        ({"text": "upper"}, "not 'upper'"),
        ({"batch_words": 0}, "not 0"),
        ({"max_length": 0}, "not 0"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(
    bilm: BiLM, text: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ElmoError, match=message):
        embed_file(text, tmp_path / "v.npz", bilm, **options)
    assert [path.name for path in tmp_path.iterdir()] == [text.name]


def test_vectors_too_large_for_float16(text: Path, tmp_path: Path) -> None:
    from spacy_elmo.layers.bilm_model import random_bilm

    large = random_bilm(lstm_dim=4, projection_dim=4, filters=[[1, 4], [2, 4]], char_dim=4)
    large.token_encoder.b_proj.data.fill_(1e5)
    with pytest.raises(ElmoError, match="line 1: a vector is too large for float16"):
        embed_file(text, tmp_path / "v.npz", large, dtype="float16")


def test_an_existing_file_is_replaced_on_request_only(bilm: BiLM, text: Path, output: Path) -> None:
    output.write_bytes(b"mine")
    with pytest.raises(ElmoError, match="exists"):
        embed_file(text, output, bilm)
    assert output.read_bytes() == b"mine"
    embed_file(text, output, bilm, overwrite=True)
    assert len(read(output)) >= 15
    assert {path.name for path in output.parent.iterdir()} == {text.name, output.name}


def test_the_language_is_that_of_the_weights(tmp_path: Path) -> None:
    save_bilm(random_bilm(seed=0), tmp_path / "bilm")
    (tmp_path / "a.txt").write_text("我爱你\n", encoding="utf8")
    counts = []
    for lang in ("zh", None, "en"):
        if lang != "en":
            (tmp_path / "bilm" / "meta.json").write_text('{"lang": "zh"}', encoding="utf8")
        counts.append(embed_file(tmp_path / "a.txt", tmp_path / f"{lang}.npz", tmp_path / "bilm", lang=lang).words)
    assert counts == [3, 3, 1]
