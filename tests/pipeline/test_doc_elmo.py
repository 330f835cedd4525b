from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span, Token

from spacy_elmo.errors import ElmoError
from spacy_elmo.pipeline.doc_elmo import clear, register_extensions, set_vector_hooks, store, stored_names

NLP = spacy.blank("en")
N_LAYERS, WIDTH = 3, 8


@pytest.fixture(autouse=True)
def extensions() -> None:
    register_extensions()


@pytest.fixture
def doc() -> Doc:
    return annotated("The river bank\n\nand the bank vault")


def vectors(n_tokens: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N_LAYERS, n_tokens, WIDTH)).astype(dtype)


def annotated(text: str, seed: int = 0, dtype: str = "float32", name: str = "elmo") -> Doc:
    doc = NLP.make_doc(text)
    store(doc, name, vectors(len(doc), seed, dtype))
    return doc


def test_layers_and_their_mean(doc: Doc) -> None:
    array = vectors(len(doc))
    assert doc._.elmo.layers.shape == (N_LAYERS, len(doc), WIDTH)
    assert np.array_equal(doc._.elmo.layers, array)
    assert np.allclose(doc._.elmo.mean, array.mean(0), atol=1e-6)
    assert np.allclose(doc[2]._.elmo, array[:, 2].mean(0), atol=1e-6)
    assert np.allclose(doc[1:4]._.elmo, array[:, 1:4].mean((0, 1)), atol=1e-6)
    assert doc[2:2]._.elmo.tolist() == [0.0] * WIDTH


def test_half_precision_is_stored_as_such_and_averaged_in_single() -> None:
    doc = annotated("a b c", dtype="float16")
    assert doc._.elmo.layers.dtype == np.float16
    expected = vectors(3, dtype="float16").astype("float64").mean(0)
    for got, want in [
        (doc._.elmo.mean, expected),
        (doc[1]._.elmo, expected[1]),
        (doc[0:2]._.elmo, expected[:2].mean(0)),
    ]:
        assert got.dtype == np.float32
        assert np.allclose(got, want, atol=1e-6)  # a mean taken in float16 is off by 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_only_the_mean_stored(dtype: str) -> None:
    doc = NLP.make_doc("a b c")
    mean = vectors(3)[0].astype(dtype)
    store(doc, "elmo", mean)
    assert np.array_equal(doc._.elmo.mean, mean)
    assert doc._.elmo.mean.dtype == np.float32
    assert np.array_equal(doc[1]._.elmo, mean[1])
    assert doc[1]._.elmo.dtype == np.float32
    assert np.allclose(doc[0:2]._.elmo, mean[:2].astype("float32").mean(0))
    with pytest.raises(ElmoError, match='store = "layers"'):
        _ = doc._.elmo.layers


def test_none_where_nothing_is_stored() -> None:
    doc = NLP.make_doc("a b")
    assert doc._.elmo is None
    assert doc[0]._.elmo is None
    assert doc[0:1]._.elmo is None


def test_empty_doc() -> None:
    doc = annotated("")
    assert doc._.elmo.layers.shape == (N_LAYERS, 0, WIDTH)
    assert doc._.elmo.mean.shape == (0, WIDTH)
    set_vector_hooks(doc, "elmo")
    assert doc.vector.tolist() == [0.0] * WIDTH
    assert not doc.has_vector
    assert doc.vector_norm == 0.0


def test_the_last_pipe_is_the_one_that_ran_last(doc: Doc) -> None:
    store(doc, "other", vectors(len(doc), seed=1))
    assert doc._.elmo.name == "other"
    assert stored_names(doc) == ["elmo", "other"]
    assert np.array_equal(doc._.elmo.of("elmo").layers, vectors(len(doc)))
    store(doc, "elmo", vectors(len(doc), seed=2))
    assert doc._.elmo.name == "elmo"
    assert np.allclose(doc[0]._.elmo, vectors(len(doc), seed=2)[:, 0].mean(0), atol=1e-6)
    with pytest.raises(ElmoError, match=r"'third'.*'other', 'elmo'"):
        doc._.elmo.of("third")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4, 8), "float32"),
        np.zeros((5, 8), "float32"),
        np.zeros(3, "float32"),
        np.zeros((3, 3, 8), "float64"),
    ],
)
def test_an_array_that_does_not_fit_is_not_stored(array: np.ndarray) -> None:
    doc = NLP.make_doc("a b c")
    with pytest.raises(ElmoError, match="'elmo'"):
        store(doc, "elmo", array)
    assert doc._.elmo is None


def test_none_is_all_that_can_be_set(doc: Doc) -> None:
    store(doc, "other", vectors(len(doc)))
    for obj in (doc, doc[0], doc[0:2]):
        with pytest.raises(ElmoError, match="set"):
            obj._.elmo = np.zeros(3)
    doc._.elmo = None
    assert doc._.elmo is None
    assert stored_names(doc) == []
    with pytest.raises(ElmoError, match="cannot be set"):
        doc[0]._.elmo = None


# --- copies and files ---


def through_bytes(doc: Doc) -> Doc:
    return Doc(NLP.vocab).from_bytes(doc.to_bytes())


def through_docbin(doc: Doc) -> Doc:
    data = DocBin(docs=[doc], store_user_data=True).to_bytes()
    return next(iter(DocBin().from_bytes(data).get_docs(NLP.vocab)))


def through_pickle(doc: Doc) -> Doc:
    return pickle.loads(pickle.dumps(doc))


@pytest.mark.parametrize("through", [through_bytes, through_docbin, through_pickle, Doc.copy])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n_tokens", [0, 5])
def test_vectors_and_their_order_survive(through: Callable[[Doc], Doc], dtype: str, n_tokens: int) -> None:
    doc = annotated(" ".join("a" * n_tokens), dtype=dtype, name="first")
    doc.user_data["of the user"] = 1
    store(doc, "another", vectors(n_tokens, seed=1, dtype=dtype))
    store(doc, "mean", vectors(n_tokens, seed=2, dtype=dtype)[0])
    after = through(doc)
    assert after is not doc
    assert stored_names(after) == ["first", "another", "mean"]
    assert after._.elmo.name == "mean"
    for name in ("first", "another"):
        assert np.array_equal(after._.elmo.of(name).layers, doc._.elmo.of(name).layers)
        assert after._.elmo.of(name).layers.dtype == dtype
    assert np.array_equal(after._.elmo.mean, doc._.elmo.mean)
    store(doc, "first", vectors(n_tokens, seed=3, dtype=dtype))
    assert np.array_equal(after._.elmo.of("first").layers, vectors(n_tokens, dtype=dtype))


def test_nothing_in_docs_made_from_parts(doc: Doc) -> None:
    assert doc[0:2].as_doc()._.elmo is None
    with pytest.warns(UserWarning, match="W102"):
        assert Doc.from_docs([doc, doc])._.elmo is None
    assert next(iter(DocBin(docs=[doc]).get_docs(NLP.vocab)))._.elmo is None


def test_rows_of_other_tokens_are_refused(doc: Doc) -> None:
    part = doc[0:2].as_doc(copy_user_data=True)
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
    split = annotated("riverbank vault")
    with split.retokenize() as retokenizer:
        retokenizer.split(split[0], ["river", "bank"], heads=[(split[0], 1), split[1]])
    for wrong in (part, doc, split):
        for read in (
            lambda d: d._.elmo.layers,
            lambda d: d._.elmo.mean,
            lambda d: d[0]._.elmo,
            lambda d: d[0:1]._.elmo,
        ):
            with pytest.raises(ElmoError, match="merge or split tokens before 'elmo'"):
                read(wrong)
    store(doc, "elmo", vectors(len(doc)))
    assert doc._.elmo.layers.shape[1] == len(doc)


def test_a_copy_of_the_whole_doc_keeps_its_vectors(doc: Doc) -> None:
    assert np.array_equal(doc[:].as_doc(copy_user_data=True)._.elmo.layers, doc._.elmo.layers)


@pytest.mark.parametrize("merge", [False, True])
def test_doc_cleaner_clears_also_after_a_merge(doc: Doc, merge: bool) -> None:
    cleaner = NLP.create_pipe("doc_cleaner", config={"attrs": {"_.elmo": None}, "silent": True})
    store(doc, "other", vectors(len(doc)))
    set_vector_hooks(doc, "elmo")
    if merge:
        with doc.retokenize() as retokenizer:
            retokenizer.merge(doc[0:2])
    doc = cleaner(doc)
    assert doc._.elmo is None
    assert doc.user_data == {}
    assert doc.user_hooks == {}


# --- extensions ---


@pytest.fixture
def no_extensions() -> Iterator[None]:
    for owner in (Doc, Token, Span):
        owner.remove_extension("elmo")
    yield
    for owner in (Doc, Token, Span):
        if owner.has_extension("elmo"):
            owner.remove_extension("elmo")


@pytest.mark.parametrize("owner", [Doc, Token, Span])
@pytest.mark.parametrize("args", [{"default": None}, {"getter": len}, {"method": len}])
def test_an_extension_of_the_user_is_not_overwritten(no_extensions: None, owner: type, args: dict) -> None:
    owner.set_extension("elmo", **args)  # type: ignore[attr-defined]
    before = owner.get_extension("elmo")  # type: ignore[attr-defined]
    with pytest.raises(ElmoError, match=f"{owner.__name__}.remove_extension"):
        register_extensions()
    assert owner.get_extension("elmo") == before  # type: ignore[attr-defined]
    assert sum(other.has_extension("elmo") for other in (Doc, Token, Span)) == 1


def test_extensions_can_be_registered_again() -> None:
    register_extensions()
    register_extensions()
    assert annotated("a")._.elmo is not None


# --- vector hooks ---


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a.astype("float64") @ b / np.linalg.norm(a.astype("float64")) / np.linalg.norm(b))


def test_hooks_give_the_contextual_vectors(doc: Doc) -> None:
    set_vector_hooks(doc, "elmo")
    mean = vectors(len(doc)).mean(0)
    obj: Any
    for obj, expected in [(doc, mean.mean(0)), (doc[1:3], mean[1:3].mean(0)), (doc[2], mean[2])]:
        assert obj.has_vector
        assert np.allclose(obj.vector, expected, atol=1e-6)
        assert obj.vector.dtype == np.float32
        assert obj.vector_norm == pytest.approx(np.linalg.norm(expected), abs=1e-5)
    assert doc[2].text == doc[6].text == "bank"
    assert doc[2].similarity(doc[6]) == pytest.approx(cosine(mean[2], mean[6]), abs=1e-6)
    assert doc[2].similarity(doc[2]) == pytest.approx(1.0, abs=1e-6)
    assert doc[2:3].similarity(doc[6:7]) == pytest.approx(doc[2].similarity(doc[6]), abs=1e-6)
    assert doc.similarity(doc[1:3]) == pytest.approx(cosine(mean.mean(0), mean[1:3].mean(0)), abs=1e-6)
    assert type(doc.similarity(doc)) is type(doc[0].similarity(doc)) is type(doc[0:1].similarity(doc)) is float


def test_zero_vectors_are_similar_to_nothing() -> None:
    doc = NLP.make_doc("a \n")
    array = vectors(len(doc))
    array[:, 1] = 0.0
    store(doc, "elmo", array)
    set_vector_hooks(doc, "elmo")
    assert doc[0].similarity(doc[1]) == doc[1].similarity(doc) == 0.0
    assert doc[0].has_vector
    assert not doc[1].has_vector
    assert doc[1].vector_norm == 0.0


def test_hooks_read_the_pipe_they_were_set_for(doc: Doc) -> None:
    store(doc, "other", vectors(len(doc), seed=1))
    set_vector_hooks(doc, "elmo")
    assert np.array_equal(np.asarray(doc[0].vector), doc._.elmo.of("elmo").mean[0])
    with pytest.raises(ElmoError, match="'third'"):
        set_vector_hooks(doc, "third")


def test_similarity_with_a_doc_that_lost_its_hooks(doc: Doc) -> None:
    set_vector_hooks(doc, "elmo")
    with pytest.warns(UserWarning, match="W109"):
        other = through_bytes(doc)
    assert other.user_hooks == {}
    assert doc.similarity(other) == pytest.approx(1.0, abs=1e-6)


def test_similarity_with_vectors_of_another_kind_is_an_error(doc: Doc) -> None:
    set_vector_hooks(doc, "elmo")
    with pytest.raises(ElmoError, match="width 8"):
        doc.similarity(NLP.make_doc("something else"))


@pytest.mark.parametrize("through", [through_pickle, Doc.copy])
def test_hooks_go_along_with_pickle_and_copy(doc: Doc, through: Callable[[Doc], Doc]) -> None:
    set_vector_hooks(doc, "elmo")
    after = through(doc)
    assert np.array_equal(np.asarray(after.vector), np.asarray(doc.vector))
    store(after, "elmo", vectors(len(doc), seed=1))
    assert not np.array_equal(np.asarray(after.vector), np.asarray(doc.vector))


def test_clearing_takes_our_hooks_and_leaves_those_of_the_user(doc: Doc) -> None:
    doc.user_hooks["sentiment"] = len
    doc.user_token_hooks["similarity"] = max
    set_vector_hooks(doc, "elmo")
    part = doc[0:2].as_doc()  # shares the dicts of hooks with doc
    with pytest.raises(ElmoError, match="as_doc"):
        _ = part.vector
    assert not part.has_vector
    clear(part)
    assert part.user_hooks == {"sentiment": len}
    assert "vector" in doc.user_hooks
    clear(doc)
    assert doc.user_hooks == {"sentiment": len}
    assert doc.user_span_hooks == {}
    assert not doc.has_vector
