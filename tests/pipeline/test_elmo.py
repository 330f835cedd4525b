"""The component by itself: vectors on Docs, options, weights, serialisation, processes and threads."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin

from spacy_elmo import BiLM, ElmoError, save_bilm
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.pipeline.doc_elmo import stored
from spacy_elmo.pipeline.elmo import Elmo
from tests.pipeline.toys import WITHOUT_BUILTIN, blank

TEXT = "The bank raised rates. We sat on the bank of the river!"


def layers(doc: Doc) -> np.ndarray:
    return doc._.elmo.layers


def with_options(bilm: BiLM, **config: Any) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo", config=config).load_weights(bilm)
    return nlp


def test_layers_are_those_of_the_bilm_on_each_sentence(nlp: Any, bilm: BiLM) -> None:
    doc = nlp(TEXT)
    words = [token.text for token in doc]
    expected = np.concatenate([x.numpy() for x in bilm.encode([words[:5], words[5:]])], axis=1)
    assert layers(doc).shape == (3, len(doc), 16)
    assert layers(doc).dtype == np.float32
    np.testing.assert_allclose(layers(doc), expected, atol=1e-6)
    np.testing.assert_allclose(doc[3]._.elmo, expected[:, 3].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(doc[2:6]._.elmo, expected[:, 2:6].mean(axis=(0, 1)), atol=1e-6)


def test_the_same_text_twice_gives_the_same_vectors(nlp: Any) -> None:
    first = layers(nlp(TEXT)).copy()
    nlp("Something else in between .")
    np.testing.assert_array_equal(layers(nlp(TEXT)), first)


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_order_and_batch_size_do_not_matter(nlp: Any, batch_size: int) -> None:
    texts = [TEXT, "Short .", "", TEXT, "   ", "A somewhat longer one , without an end"]
    alone = [layers(nlp(text)) for text in texts]
    for docs, wanted in ((nlp.pipe(texts, batch_size=batch_size), alone), (nlp.pipe(texts[::-1]), alone[::-1])):
        for doc, expected in zip(docs, wanted, strict=True):
            np.testing.assert_allclose(layers(doc), expected, atol=1e-5)


def test_empty_docs_have_empty_rows(nlp: Any) -> None:
    docs = list(nlp.pipe(["", "a", "", "b"]))
    assert [doc.text for doc in docs] == ["", "a", "", "b"]
    assert [layers(doc).shape for doc in docs] == [(3, 0, 16), (3, 1, 16), (3, 0, 16), (3, 1, 16)]


def test_white_space_has_rows_of_zeros_and_does_not_touch_the_others(nlp: Any) -> None:
    spaced = nlp("  The bank \n\n raised rates.  \n")
    plain = nlp("The bank raised rates.")
    space = np.array([token.is_space for token in spaced])
    assert space.sum() >= 3
    assert not layers(spaced)[:, space].any()
    np.testing.assert_allclose(layers(spaced)[:, ~space], layers(plain), atol=1e-6)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_has_one_finite_row_a_token(nlp: Any, text: str) -> None:
    doc = nlp(text)
    assert layers(doc).shape == (3, len(doc), 16)
    assert np.isfinite(layers(doc)).all()
    assert [bool(row.any()) for row in layers(doc)[0]] == [not token.is_space for token in doc]


def test_a_token_of_fifty_thousand_characters_is_read_by_its_head(nlp: Any) -> None:
    # "a token with a space in it" and a huge one: one finite row each
    doc = Doc(nlp.vocab, words=["x" * 50_000, "New York", "हिन्दी", "🙂", "中文"])
    cut = Doc(nlp.vocab, words=["x" * 48, "New York", "हिन्दी", "🙂", "中文"])
    # What was computed before for a word is not computed again, and other numbers of rows may round otherwise.
    np.testing.assert_allclose(layers(nlp(doc)), layers(nlp(cut)), atol=1e-5)


@pytest.mark.parametrize("pieces", [7, 64, 512])
def test_a_long_doc_in_windows_equals_one_pass(bilm: BiLM, pieces: int) -> None:
    words = [f"w{i % 97}" for i in range(600)]
    nlp = with_options(bilm, max_length=pieces)
    whole = with_options(bilm, max_length=10_000)
    doc = Doc(nlp.vocab, words=words)
    np.testing.assert_allclose(layers(nlp(doc)), layers(whole(Doc(whole.vocab, words=words))), atol=1e-5)


def test_a_long_doc_with_white_space_keeps_every_row_in_place(nlp: Any, bilm: BiLM) -> None:
    # more words than are moved at once to make room for the gaps
    words = [f"w{i % 97}" if i % 13 else " " for i in range(9_000)]
    doc = nlp(Doc(nlp.vocab, words=words))
    read = [i for i, word in enumerate(words) if word != " "]
    expected = bilm.encode([[words[i] for i in read]])[0].numpy()
    np.testing.assert_allclose(layers(doc)[:, read], expected, atol=1e-5)
    assert not layers(doc)[:, [i for i, word in enumerate(words) if word == " "]].any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_store_and_dtype(bilm: BiLM, dtype: str) -> None:
    expected = layers(with_options(bilm)(TEXT))
    everything = with_options(bilm, dtype=dtype)(TEXT)._.elmo
    assert everything.layers.dtype == np.dtype(dtype)
    np.testing.assert_allclose(everything.layers, expected, rtol=1e-3 if dtype == "float16" else 0)
    mean = with_options(bilm, dtype=dtype, store="mean")(TEXT)
    np.testing.assert_allclose(mean._.elmo.mean, expected.mean(axis=0), atol=1e-2 if dtype == "float16" else 1e-5)
    with pytest.raises(ElmoError, match='store = "layers"'):
        _ = mean._.elmo.layers
    nothing = with_options(bilm, store="none")(TEXT)
    assert nothing._.elmo is None
    assert not any(key[0] == "elmo" for key in nothing.user_data)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"store": "all"}, "store is one of"),
        ({"dtype": "float64"}, "dtype is one of"),
        ({"state": "carry"}, "state is one of"),
        ({"max_length": 0}, "max_length is at least 1"),
        ({"cache_mb": -1}, "cache_mb is at least 0"),
        ({"vectors": True, "store": "none"}, "vectors = true needs"),
    ],
)
def test_a_wrong_option_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        blank().add_pipe("elmo", config=config)


def test_add_pipe_never_loads_and_the_first_use_says_what_is_missing() -> None:
    nlp = blank(WITHOUT_BUILTIN)
    nlp.add_pipe("elmo", name="mine")
    with pytest.raises(ElmoError, match=r"(?s)'mine' has no ELMo weights.*load_weights.*initialize.components.mine"):
        nlp("Hello")
    with pytest.raises(ElmoError, match="has no ELMo weights"):
        nlp.initialize()


def test_weights_come_from_a_folder_a_bilm_or_the_config(bilm: BiLM, tmp_path: Path) -> None:
    save_bilm(bilm, tmp_path / "bilm")
    expected = layers(with_options(bilm)(TEXT))
    by_path = blank()
    by_path.add_pipe("elmo").load_weights(str(tmp_path / "bilm"))
    np.testing.assert_array_equal(layers(by_path(TEXT)), expected)
    config = by_path.config
    config["initialize"]["components"]["elmo"] = {"weights": str(tmp_path / "bilm")}
    by_config = spacy.util.load_model_from_config(config)
    by_config.initialize()
    np.testing.assert_array_equal(layers(by_config(TEXT)), expected)
    config["initialize"]["components"]["elmo"] = {
        "weights": {"@misc": "spacy-elmo.random_bilm.v1", "lstm_dim": 8, "projection_dim": 4, "seed": 3}
    }
    random = spacy.util.load_model_from_config(config)
    random.initialize()
    assert layers(random(TEXT)).shape[2] == 8
    with pytest.raises(ElmoError, match="a path or a BiLM, not dict"):
        by_path.get_pipe("elmo").load_weights({})


def test_new_weights_replace_the_old_and_nothing_of_them_stays(nlp: Any) -> None:
    nlp.get_pipe("elmo").doc_layers.begin_training()  # the memo is in use
    before = layers(nlp(TEXT)).copy()
    other = random_bilm(lstm_dim=16, projection_dim=8, filters=[[1, 8], [2, 8], [3, 8]], char_dim=4, seed=9)
    nlp.get_pipe("elmo").load_weights(other)
    assert np.abs(layers(nlp(TEXT)) - before).max() > 1e-3


def test_serialisation_carries_the_weights(nlp: Any, tmp_path: Path) -> None:
    expected = layers(nlp(TEXT))
    nlp.to_disk(tmp_path / "nlp")
    loaded = spacy.load(tmp_path / "nlp")
    bare = blank()
    bare.add_pipe("elmo").from_bytes(nlp.get_pipe("elmo").to_bytes())
    pipe = pickle.loads(pickle.dumps(nlp.get_pipe("elmo")))
    assert isinstance(pipe, Elmo)
    for other in (loaded, bare, copy.deepcopy(nlp), pickle.loads(pickle.dumps(nlp))):
        np.testing.assert_array_equal(layers(other(TEXT)), expected)
    np.testing.assert_array_equal(layers(pipe(Doc(pipe.vocab, words=[t.text for t in nlp(TEXT)]))), expected)
    copied = copy.deepcopy(nlp.get_pipe("elmo"))
    assert copied.bilm is not nlp.get_pipe("elmo").bilm


def test_options_are_changed_when_a_pipeline_is_loaded(nlp: Any, tmp_path: Path) -> None:
    nlp.to_disk(tmp_path)
    loaded: Any = spacy.load(tmp_path, config={"components": {"elmo": {"store": "mean", "dtype": "float16"}}})
    assert loaded(TEXT)._.elmo.mean.shape == (len(nlp(TEXT)), 16)
    kept = stored(loaded(TEXT), "elmo")
    assert kept is not None
    assert kept.dtype == np.float16


def test_an_unloaded_component_round_trips_too(tmp_path: Path) -> None:
    nlp = blank()
    nlp.add_pipe("elmo")
    nlp.to_disk(tmp_path)
    loaded: Any = spacy.load(tmp_path)
    assert loaded.get_pipe("elmo").bilm is None


def test_several_pipes_by_name(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", name="small").load_weights(random_bilm(lstm_dim=8, projection_dim=4))
    nlp.add_pipe("elmo", name="large").load_weights(bilm)
    doc = nlp(TEXT)
    assert doc._.elmo.layers.shape[2] == 16
    assert doc._.elmo.of("small").layers.shape[2] == 8


def test_docs_do_not_share_arrays(nlp: Any) -> None:
    one, two = nlp.pipe([TEXT, TEXT])
    layers(one)[:] = 0.0
    assert layers(two).any()


def test_the_memo_is_not_written_through_a_doc(nlp: Any) -> None:
    nlp.get_pipe("elmo").doc_layers.begin_training()
    expected = layers(nlp(TEXT)).copy()
    layers(nlp(TEXT))[:] = 0.0
    np.testing.assert_array_equal(layers(nlp(TEXT)), expected)


def test_docbin_and_doc_cleaner(nlp: Any) -> None:
    stored = DocBin(docs=[nlp(TEXT)], store_user_data=True).to_bytes()
    (doc,) = DocBin().from_bytes(stored).get_docs(nlp.vocab)
    np.testing.assert_array_equal(layers(doc), layers(nlp(TEXT)))
    nlp.add_pipe("doc_cleaner", config={"attrs": {"_.elmo": None}})
    assert nlp(TEXT)._.elmo is None


def test_vectors_come_from_the_context(bilm: BiLM) -> None:
    nlp = with_options(bilm, vectors=True)
    money, river = nlp("the bank raised rates"), nlp("the bank of the river")
    np.testing.assert_allclose(money[1].vector, money._.elmo.mean[1], atol=1e-6)
    np.testing.assert_allclose(money.vector, money._.elmo.mean.mean(axis=0), atol=1e-6)
    assert money[1].similarity(river[1]) < money[1].similarity(money[1]) == pytest.approx(1.0)
    assert money.has_vector
    assert not blank()("the bank").has_vector


def test_as_tuples(nlp: Any) -> None:
    pairs = list(nlp.pipe([(TEXT, 1), ("b", 2)], as_tuples=True))
    assert [context for _, context in pairs] == [1, 2]
    np.testing.assert_allclose(layers(pairs[0][0]), layers(nlp(TEXT)), atol=1e-5)


def test_eight_threads_get_equal_vectors(nlp: Any) -> None:
    texts = [f"{TEXT} Number {i} ." for i in range(40)]
    expected = [layers(nlp(text)) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        for got, wanted in zip(threads.map(lambda text: layers(nlp(text)), texts), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.gpu
def test_on_a_gpu_vectors_come_back_to_the_cpu(bilm: BiLM) -> None:
    expected = layers(with_options(bilm)(TEXT))
    spacy.require_gpu()
    try:
        nlp = with_options(copy.deepcopy(bilm))
        assert isinstance(layers(nlp(TEXT)), np.ndarray)
        np.testing.assert_allclose(layers(nlp(TEXT)), expected, atol=1e-4)
        with pytest.raises(ElmoError, match="one process only"):
            list(nlp.pipe([TEXT] * 10, n_process=2))
    finally:
        spacy.require_cpu()
