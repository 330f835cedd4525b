"""A frozen biLM reads a training text once: over epochs, evaluations, batches and, with ``cache_dir``, over runs."""

from __future__ import annotations

import copy
import os
import pickle
import random
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as run_training

from spacy_elmo import BiLM, ElmoError, save_bilm
from spacy_elmo.layers.bilm_model import random_bilm
from tests.going_wrong import files_of_at_most, told_once
from tests.pipeline.toys import SENTENCES, blank, examples, getter, listener, ner_config, tagger_config

NAMES = ["Ann", "Bob", "Cleo", "Dan", "Eve", "Fay", "Gus", "Hal"]


class Read(list[tuple[str, ...]]):
    """The sentences that have passed a biLM."""

    @property
    def words(self) -> int:
        return sum(map(len, self))

    def forget(self) -> None:
        del self[:]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Every sentence that any biLM encodes from now on."""
    seen, encode = Read(), BiLM.encode

    def noted(self: BiLM, sentences: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        sentences = [list(sentence) for sentence in sentences]
        seen.extend(tuple(sentence) for sentence in sentences)
        return encode(self, sentences, *args, **kwargs)

    monkeypatch.setattr(BiLM, "encode", noted)
    return seen


@pytest.fixture(autouse=True)
def _no_word_of_ours() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="elmo: ")
        yield


# spaCy's own training


def corpus(folder: Path) -> dict[str, int]:
    """train.spacy and dev.spacy, each sentence once. RETURNS: how many words each has."""
    words = {}
    for name, places in (("train", ["Rome", "Paris", "Oslo"]), ("dev", ["Lima"])):
        nlp, docs = spacy.blank("en"), DocBin()
        count = 0
        for person in NAMES:
            for place in places:
                doc = nlp(f"{person} went to {place} .")
                doc.set_ents([doc.char_span(0, len(person), "PER")])  # type: ignore[list-item]
                docs.add(doc)
                count += len(doc)
        docs.to_disk(folder / f"{name}.spacy")
        words[name] = count
    return words


@pytest.fixture
def words(bilm: BiLM, tmp_path: Path) -> dict[str, int]:
    save_bilm(bilm, tmp_path / "bilm")
    return corpus(tmp_path)


def spacy_train(
    folder: Path, *, batch: int = 20, epochs: int = 3, corpora: dict[str, Any] | None = None, **elmo: Any
) -> tuple[Any, Path]:
    """One run, as `spacy train` does it. RETURNS: the pipeline, and where it was saved."""
    nlp = blank()
    nlp.add_pipe("elmo", config={"store": "none", **elmo})
    nlp.add_pipe("ner", config=ner_config(listener(elmo_dropout=0.2)))
    config = nlp.config
    config["paths"] |= {name: str(folder / f"{name}.spacy") for name in ("train", "dev")}
    config["corpora"] = {
        name: {"@readers": "spacy.Corpus.v1", "path": "${paths." + name + "}"} for name in ("train", "dev")
    }
    config["corpora"]["train"] |= corpora or {}
    config["initialize"]["components"] = {"elmo": {"weights": str(folder / "bilm")}}
    # Streamed (-1) the training text is read, and augmented, anew in each epoch.
    config["training"] |= {"max_epochs": epochs, "max_steps": 0 if epochs > 0 else 12, "eval_frequency": 2}
    config["training"]["batcher"] |= {"size": batch, "tolerance": 0.2}
    run = folder / f"run-{len(list(folder.glob('run-*')))}"
    run.mkdir()
    with (run / "log").open("w") as log:
        trained, _ = run_training(init_nlp(config), run, stdout=log)
    return trained, run


def test_spacy_train_computes_every_text_once(words: dict[str, int], tmp_path: Path, read: Read) -> None:
    spacy_train(tmp_path, epochs=1)
    assert read.words == words["train"] + words["dev"]
    assert len(read) == len(set(read))
    read.forget()
    spacy_train(tmp_path, epochs=4)
    assert read.words == words["train"] + words["dev"]


@pytest.mark.parametrize(("dtype", "cache_mb"), [("float32", 0), ("float16", 512)])
def test_a_second_run_computes_nothing_and_learns_the_same(
    words: dict[str, int], tmp_path: Path, read: Read, dtype: str, cache_mb: int
) -> None:
    options: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "dtype": dtype, "cache_mb": cache_mb}
    first, _ = spacy_train(tmp_path, **options)
    assert read.words == words["train"] + words["dev"]
    read.forget()
    second, _ = spacy_train(tmp_path, **options)
    assert read.words == 0
    for one, other in zip(first.get_pipe("ner").model.walk(), second.get_pipe("ner").model.walk(), strict=True):
        for name in one.param_names:
            np.testing.assert_array_equal(one.get_param(name), other.get_param(name))


def test_batches_limits_and_shuffling_do_not_matter(words: dict[str, int], tmp_path: Path, read: Read) -> None:
    options: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "cache_mb": 0}
    spacy_train(tmp_path, corpora={"limit": 10}, **options)
    assert read.words == 10 * 5 + words["dev"]
    spacy_train(tmp_path, batch=60, **options)
    assert read.words == words["train"] + words["dev"]
    read.forget()
    spacy_train(tmp_path, batch=7, corpora={"limit": 5}, **options)
    spacy_train(tmp_path, batch=200, epochs=-1, **options)
    assert read.words == 0


@pytest.mark.parametrize("kept", [{"cache_mb": 0}, {}])
def test_an_augmented_text_is_a_new_entry(
    words: dict[str, int], tmp_path: Path, read: Read, kept: dict[str, int]
) -> None:
    options: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "epochs": -1, **kept}
    augmented = {"augmenter": {"@augmenters": "spacy.lower_case.v1", "level": 0.5}}
    spacy_train(tmp_path, **options)
    assert read.words == words["train"] + words["dev"]
    read.forget()
    spacy_train(tmp_path, corpora=augmented, **options)
    assert 0 < read.words <= words["train"]
    assert all(sentence == tuple(word.lower() for word in sentence) for sentence in read)
    assert len(read) == len(set(read))
    read.forget()
    spacy_train(tmp_path, corpora={"augmenter": {**augmented["augmenter"], "level": 1.0}}, **options)
    spacy_train(tmp_path, corpora=augmented, **options)
    assert len(read) == len(set(read))


def test_the_saved_pipeline_does_not_carry_the_cache_nor_need_it(
    words: dict[str, int], tmp_path: Path, read: Read
) -> None:
    cache = tmp_path / "cache"
    trained, run = spacy_train(tmp_path, cache_dir=str(cache))
    assert list(cache.iterdir())
    assert not [path for path in (run / "model-last").rglob("*") if "elmo-layers" in path.name]
    cache.rename(tmp_path / "elsewhere")
    read.forget()
    loaded: Any = spacy.load(run / "model-last")
    assert loaded.config["components"]["elmo"]["cache_dir"] == str(cache)
    text = "Ann went to Rome ."
    assert [ent.text for ent in loaded(text).ents] == [ent.text for ent in trained(text).ents]
    assert not cache.exists()
    # It comes back where such a pipeline trains.
    loaded.update(examples(loaded), sgd=loaded.resume_training())
    assert cache.is_dir()


# What is kept, and when


def with_cache(bilm: BiLM, folder: Path, **config: Any) -> Any:
    """A pipeline of `elmo` and a listening `ner` that has begun to train."""
    nlp = blank()
    nlp.add_pipe("elmo", config={"cache_dir": str(folder), **config}).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("ner", config=ner_config(listener()))
    nlp.initialize(getter(nlp))
    return nlp


def vectors(nlp: Any, texts: Sequence[str]) -> list[np.ndarray]:
    elmo = nlp.get_pipe("elmo")
    return [np.array(layers) for layers in elmo.predict([nlp.make_doc(text) for text in texts])]


def rows(folder: Path) -> int:
    (path,) = folder.glob("*.sqlite")
    db = sqlite3.connect(path)
    (count,) = db.execute("SELECT count(*) FROM layers").fetchone()
    db.close()
    return int(count)


TEXTS = [text for text, _, _ in SENTENCES] + ["  A  long   one , with spaces . And another ! ", "", " ", "東京 é"]


def test_vectors_come_back_to_the_bit(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    first = vectors(with_cache(bilm, tmp_path), TEXTS)
    read.forget()
    second = with_cache(bilm, tmp_path)
    again = vectors(second, TEXTS)
    in_another_order = vectors(with_cache(bilm, tmp_path, cache_mb=0), TEXTS[::-1])[::-1]
    assert read.words == 0
    for one, two, three in zip(first, again, in_another_order, strict=True):
        assert one.dtype == two.dtype == np.float32
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
    half = with_cache(bilm, tmp_path, dtype="float16")
    for one, two in zip(first, vectors(half, TEXTS), strict=True):
        assert two.dtype == np.float16
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-3)
    assert read.words > 0


def test_memory_stays_within_its_bound_and_the_disk_has_the_rest(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    texts = [" ".join(f"w{(i * 31 + j) % 997}" for j in range(100)) for i in range(100)]  # 1.9 MB of vectors
    nlp = with_cache(bilm, tmp_path, cache_mb=1)
    first = vectors(nlp, texts)
    read.forget()
    for _ in range(3):
        for one, two in zip(first, vectors(nlp, texts), strict=True):
            np.testing.assert_array_equal(one, two)
    assert read.words == 0
    memo = nlp.get_pipe("elmo").doc_layers._memo
    assert 800_000 < sum(array.nbytes for array in memo.values()) <= 1_000_000


def long_texts(n: int, first: int = 0) -> list[str]:
    """Texts of 19.2 KB of vectors each: 52 of them are 1 MB."""
    return [" ".join(f"w{(i * 31 + j) % 9973}" for j in range(100)) for i in range(first, first + n)]


def in_training(bilm: BiLM, **config: Any) -> Any:
    nlp = blank()
    elmo = nlp.add_pipe("elmo", config={"cache_mb": 1, "store": "none", **config})
    elmo.load_weights(copy.deepcopy(bilm))
    elmo.doc_layers.begin_training()
    return nlp


def test_every_epoch_over_more_text_than_memory_holds_finds_what_it_holds(read: Read) -> None:
    """The oldest made room for the newest: in shuffled epochs nearly everything was computed each time."""
    bilm = random_bilm(lstm_dim=16, projection_dim=8, filters=[[1, 8]], char_dim=4)
    texts, order, rng = long_texts(80), list(range(80)), random.Random(0)
    expected = vectors(in_training(bilm, cache_mb=10), texts)
    nlp, computed = in_training(bilm), []
    for _ in range(4):
        rng.shuffle(order)
        read.forget()
        for start in range(0, 80, 8):
            batch = order[start : start + 8]
            for i, layers in zip(batch, vectors(nlp, [texts[i] for i in batch]), strict=True):
                np.testing.assert_allclose(layers, expected[i], atol=5e-5)
        computed.append(len(read))
    assert computed == [80, 28, 28, 28]
    # What is kept is what was computed first, to the bit.
    doc_layers = nlp.get_pipe("elmo").doc_layers
    kept = [array.copy() for array in doc_layers._memo.values()]
    vectors(nlp, texts)
    for one, two in zip(kept, doc_layers._memo.values(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_a_memo_that_nothing_hits_begins_anew(bilm: BiLM, read: Read) -> None:
    """As where a second corpus is trained on in the same process."""
    nlp = in_training(bilm)
    doc_layers = nlp.get_pipe("elmo").doc_layers

    def computed(texts: list[str]) -> int:
        read.forget()
        for start in range(0, len(texts), 10):
            vectors(nlp, texts[start : start + 10])
            held = sum(array.nbytes for array in doc_layers._memo.values())
            assert held == doc_layers._memo_bytes <= 1_000_000
        return len(read)

    first, second = long_texts(60), long_texts(60, first=100)
    assert [computed(first), computed(first)] == [60, 8]
    # 52 are there: more than 520 misses in a row clear it, and no fewer.
    assert [computed(second) for _ in range(4)] == [60] * 4
    assert computed(first[:1]) == 0
    assert [computed(second) for _ in range(11)] == [60] * 9 + [40, 8]  # towards the end of the ninth
    assert computed(first) == 60


def test_texts_before_training_do_not_count_as_misses(bilm: BiLM, read: Read) -> None:
    nlp = blank()
    elmo = nlp.add_pipe("elmo", config={"cache_mb": 1, "store": "none"})
    elmo.load_weights(bilm)
    for _ in range(10):
        vectors(nlp, long_texts(60))
    elmo.doc_layers.begin_training()
    kept = []
    for text in long_texts(60):
        vectors(nlp, [text])
        kept.append(len(elmo.doc_layers._memo))
    assert kept == [*range(1, 53), *[52] * 8]


@pytest.mark.parametrize("standalone", [False, True])
def test_a_memo_without_room_is_told_once_and_in_training(bilm: BiLM, tmp_path: Path, standalone: bool) -> None:
    def listening(**config: Any) -> tuple[Any, Any]:
        """What gives a tagger its vectors, and what keeps it alive."""
        nlp = in_training(bilm, **config)
        nlp.add_pipe("tagger", config=tagger_config(listener()))
        nlp.initialize(getter(nlp))
        if standalone:
            nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
        return nlp.get_pipe("tagger").model.get_ref("tok2vec"), nlp

    def epochs(model: Any, n: int) -> None:
        for _ in range(n):
            for text in long_texts(60):
                model.begin_update([vocabulary.make_doc(text)])

    vocabulary = blank()
    for quiet in ({"cache_dir": str(tmp_path)}, {"cache_mb": 0}, {"cache_mb": 10}):
        model, _keeps = listening(**quiet)
        epochs(model, 1)
    model, _keeps = listening(dtype="float16")
    epochs(model, 2)
    model, _keeps = listening()
    model.predict([vocabulary.make_doc(text) for text in long_texts(60)])  # no training: nothing is said
    with told_once(r"memo of training texts is full \(cache_mb = 1 MB\).*cache_mb.*float16.*cache_dir"):
        epochs(model, 1)
    epochs(model, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "zero"},  # the toy weights' own
        {"max_length": 7},  # changes nothing by more than rounding
        {"store": "mean"},
        {"cache_words": 0},
    ],
)
def test_what_changes_no_vector_is_found(bilm: BiLM, tmp_path: Path, read: Read, change: dict[str, Any]) -> None:
    vectors(with_cache(bilm, tmp_path), TEXTS)
    read.forget()
    vectors(with_cache(bilm, tmp_path, **change), TEXTS)
    assert read.words == 0


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"precision": "bfloat16"},
        {"text": "lower"},
        {"span_getter": {"@misc": "spacy-elmo.strided_spans.v1", "window": 2}},
    ],
)
def test_what_changes_a_vector_is_not_found(bilm: BiLM, tmp_path: Path, read: Read, change: dict[str, Any]) -> None:
    vectors(with_cache(bilm, tmp_path), TEXTS)
    read.forget()
    changed = vectors(with_cache(bilm, tmp_path, **change), TEXTS)
    assert read.words > 0
    read.forget()
    for one, two in zip(changed, vectors(with_cache(bilm, tmp_path, **change), TEXTS), strict=True):
        np.testing.assert_array_equal(one, two)
    assert read.words == 0


def test_a_changed_value_of_the_weights_is_not_found(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    nlp = with_cache(bilm, tmp_path)
    before = vectors(nlp, TEXTS)
    read.forget()
    weights = nlp.get_pipe("elmo").bilm
    with torch.no_grad():
        weights.backward_lstm.layers[0].kernel[0, 0] += 0.5
    changed = vectors(nlp, TEXTS)
    assert read.words > 0
    assert any((one != two).any() for one, two in zip(before, changed, strict=True))
    # And back: the values count, not the order in which they came.
    read.forget()
    nlp.get_pipe("elmo").load_weights(copy.deepcopy(bilm))
    for one, two in zip(before, vectors(nlp, TEXTS), strict=True):
        np.testing.assert_array_equal(one, two)
    assert read.words == 0


def test_two_forms_that_read_the_same_words_share(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    vectors(with_cache(bilm, tmp_path), TEXTS)
    read.forget()
    nlp = with_cache(bilm, tmp_path, text={"@misc": "spacy-elmo.ptb_brackets.v1"})
    vectors(nlp, TEXTS)
    assert read.words == 0
    vectors(nlp, ["( a )"])
    assert read[-1] == ("-LRB-", "a", "-RRB-")
    read.forget()
    vectors(with_cache(bilm, tmp_path, text={"@misc": "spacy-elmo.ptb_brackets.v1"}), ["( a )"])
    assert read.words == 0


@pytest.mark.parametrize("store", ["layers", "mean", "none"])
def test_only_training_touches_the_disk(bilm: BiLM, tmp_path: Path, store: str) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"cache_dir": str(tmp_path / "cache"), "store": store}).load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(listener()))
    elmo = nlp.get_pipe("elmo")
    list(elmo.pipe([nlp.make_doc("Before .")]))
    assert not (tmp_path / "cache").exists()
    optimizer = nlp.initialize(getter(nlp))
    nlp.update(examples(nlp), sgd=optimizer)
    assert rows(tmp_path / "cache") == 3
    list(nlp.pipe(TEXTS))
    assert rows(tmp_path / "cache") == len(TEXTS)


def test_a_bilm_that_trains_keeps_nothing(bilm: BiLM, tmp_path: Path) -> None:
    nlp = with_cache(bilm, tmp_path / "cache", frozen=False)
    optimizer = nlp.resume_training()
    for _ in range(2):
        nlp.update(examples(nlp), sgd=optimizer)
    nlp.evaluate(examples(nlp))
    assert not (tmp_path / "cache").exists()


def test_what_is_on_a_doc_is_its_own(bilm: BiLM, tmp_path: Path) -> None:
    text = TEXTS[0]
    expected = vectors(with_cache(bilm, tmp_path), [text])[0]
    nlp = with_cache(bilm, tmp_path)
    for _ in range(2):
        doc = nlp(text)
        np.testing.assert_array_equal(doc._.elmo.layers, expected)
        doc._.elmo.layers[:] = 0.0


def test_an_entry_without_cache_dir_is_as_before(bilm: BiLM) -> None:
    nlp = blank()
    elmo = nlp.add_pipe("elmo")
    elmo.load_weights(bilm)
    elmo.doc_layers.begin_training()
    vectors(nlp, TEXTS)
    assert elmo.doc_layers._disk is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cache_dir": ""}, "cache_dir is the path of a folder, or null, not ''"),
        ({"cache_disk_mb": 0}, "cache_disk_mb is at least 1, not 0"),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        blank().add_pipe("elmo", config=config)


# What listeners ask for after their texts were annotated


@pytest.mark.parametrize("store", ["mean", "none"])
@pytest.mark.parametrize("cache_mb", [0, 1])
def test_listeners_take_the_batch_that_was_annotated_last(
    bilm: BiLM, tmp_path: Path, read: Read, store: str, cache_mb: int
) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"store": store, "cache_mb": cache_mb}).load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(listener()))
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.initialize(getter(nlp))
    nlp.to_disk(tmp_path)
    loaded: Any = spacy.load(tmp_path)
    doc_layers = loaded.get_pipe("elmo").doc_layers
    texts = [" ".join(f"w{(i * 31 + j) % 997}" for j in range(100)) for i in range(120)]  # 1.2 MB a batch
    read.forget()
    assert len(list(loaded.pipe(texts, batch_size=60))) == len(texts)
    assert read.words == 120 * 100
    assert len(doc_layers._held.arrays) == 60
    loaded("Ann went to Rome .")
    assert read.words == 120 * 100 + 5
    assert len(doc_layers._held.arrays) == 1
    assert not doc_layers._memo  # these texts do not come back
    assert loaded("Ann went to Rome .")._.elmo is None or store == "mean"


def test_what_is_held_is_of_these_weights(bilm: BiLM, read: Read) -> None:
    nlp = blank()
    elmo = nlp.add_pipe("elmo", config={"store": "none"})
    elmo.load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(listener()))
    doc = nlp.make_doc("Ann went to Rome .")
    (before,) = elmo.predict([doc])
    (held,), _ = elmo.layers_for([doc], is_train=False)
    assert held is before
    elmo.load_weights(copy.deepcopy(bilm).initialize(9))
    (after,), _ = elmo.layers_for([doc], is_train=False)
    assert (after != before).any()
    assert read.words == 10


def test_every_thread_holds_a_batch_of_its_own(bilm: BiLM, read: Read) -> None:
    nlp = blank()
    elmo = nlp.add_pipe("elmo", config={"store": "none"})
    elmo.load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(listener()))
    docs, together = [nlp.make_doc("Ann went ."), nlp.make_doc("Bob slept .")], threading.Barrier(2, timeout=60)

    def annotated_and_listened_to(doc: Doc) -> None:
        (expected,) = elmo.predict([doc])
        together.wait()
        (layers,), _ = elmo.layers_for([doc], is_train=False)
        np.testing.assert_array_equal(layers, expected)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(annotated_and_listened_to, docs)) == [None, None]
    assert read.words == 6


# What goes wrong


def test_a_folder_that_cannot_be_made_is_told_once_and_training_goes_on(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    (tmp_path / "file").write_text("in the way")
    with told_once(r"elmo: vectors are not kept in cache_dir = .*file"):
        nlp = with_cache(bilm, tmp_path / "file")
        optimizer = nlp.resume_training()
        for _ in range(3):
            nlp.update(examples(nlp), sgd=optimizer)
    assert read.words == sum(len(eg.predicted) for eg in examples(nlp))  # memory has them


def test_a_full_disk_is_told_once_and_training_goes_on(bilm: BiLM, tmp_path: Path) -> None:
    texts = [" ".join(f"w{(i * 31 + j) % 997}" for j in range(100)) for i in range(60)]
    expected = vectors(with_cache(bilm, tmp_path / "whole"), texts)
    nlp = with_cache(bilm, tmp_path / "cache", cache_mb=0)
    with files_of_at_most(400_000), told_once("no more vectors are written"):
        for i in range(0, 60, 5):
            for one, two in zip(expected[i : i + 5], vectors(nlp, texts[i : i + 5]), strict=True):
                np.testing.assert_allclose(one, two, atol=5e-5)
    assert 10 <= rows(tmp_path / "cache") < 30


def test_a_damaged_file_is_told_once_and_training_goes_on(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    expected = vectors(with_cache(bilm, tmp_path), TEXTS)
    (path,) = tmp_path.glob("*.sqlite")
    path.write_bytes(path.read_bytes()[:5000] + b"damage" * 5000)
    with told_once("damaged"):
        nlp = with_cache(bilm, tmp_path, cache_mb=0)
        for one, two in zip(expected, vectors(nlp, TEXTS), strict=True):
            np.testing.assert_allclose(one, two, atol=5e-5)
    read.forget()
    vectors(nlp, TEXTS)
    vectors(with_cache(bilm, tmp_path), TEXTS)
    assert read.words == 0


# Copies, children, components with a biLM of their own

CHILDREN = """
import multiprocessing, sqlite3, sys
from pathlib import Path
import numpy as np
import spacy
from spacy.training import Example
from spacy_elmo.layers.bilm_model import random_bilm

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"cache_dir": sys.argv[2], "cache_mb": 0}).load_weights(random_bilm())
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("a"), {})])
    texts = [f"The bank number {i} ." for i in range(20)]
    expected = [nlp(text)._.elmo.layers for text in texts[:10]]

    def rows():
        db = sqlite3.connect(next(Path(sys.argv[2]).glob("*.sqlite")))
        return db.execute("SELECT count(*) FROM layers").fetchone()[0]

    before = rows()
    for doc, wanted in zip(nlp.pipe(texts, n_process=2, batch_size=4), expected):
        np.testing.assert_allclose(doc._.elmo.layers, wanted, atol=1e-5)
    nlp(texts[0])
    print(before, rows())
"""


def test_children_do_not_write(tmp_path: Path) -> None:
    method = "spawn" if sys.platform in ("win32", "darwin") else "fork"
    script = tmp_path / "script.py"
    script.write_text(CHILDREN, encoding="utf8")
    command = [sys.executable, str(script), method, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "10"]


def test_a_copy_opens_the_file_itself(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    nlp = with_cache(bilm, tmp_path)
    expected = vectors(nlp, TEXTS)
    copied = copy.deepcopy(nlp)
    assert copied.get_pipe("elmo").doc_layers._disk is None
    read.forget()
    for one, two in zip(expected, vectors(copied, TEXTS), strict=True):
        np.testing.assert_array_equal(one, two)
    assert read.words == 0


def test_a_component_with_a_bilm_of_its_own_keeps_them_too(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"cache_dir": str(tmp_path / "cache"), "cache_mb": 0}).load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(listener()))
    nlp.get_pipe("ner").initialize(getter(nlp), nlp=nlp)
    nlp.replace_listeners("elmo", "ner", ["model.tok2vec"])
    read.forget()
    nlp.remove_pipe("elmo")
    block = nlp.config["components"]["ner"]["model"]["tok2vec"]
    assert (block["cache_dir"], block["cache_disk_mb"]) == (str(tmp_path / "cache"), 10_000)
    nlp.to_disk(tmp_path / "nlp")
    for _ in range(2):
        loaded: Any = spacy.load(tmp_path / "nlp")
        optimizer = loaded.resume_training()
        for _ in range(3):
            loaded.update(examples(loaded), sgd=optimizer)
            loaded.evaluate(examples(loaded))
    assert read.words == sum(len(eg.predicted) for eg in examples(nlp))


def test_two_pipes_share_a_folder(bilm: BiLM, tmp_path: Path, read: Read) -> None:
    nlp = blank()
    other = random_bilm(lstm_dim=16, projection_dim=8, filters=[[1, 8], [2, 8], [3, 8]], char_dim=4, seed=9)
    for name, weights in (("one", bilm), ("two", other)):
        pipe = nlp.add_pipe("elmo", name=name, config={"cache_dir": str(tmp_path), "cache_mb": 0})
        pipe.load_weights(weights)
        pipe.doc_layers.begin_training()
    doc = nlp(TEXTS[3])
    first = [doc._.elmo.of(name).layers.copy() for name in ("one", "two")]
    assert (first[0] != first[1]).any()
    read.forget()
    again = nlp(Doc(nlp.vocab, words=[token.text for token in doc]))
    for one, name in zip(first, ("one", "two"), strict=True):
        np.testing.assert_array_equal(again._.elmo.of(name).layers, one)
    assert read.words == 0


def test_a_pickle_in_another_program_has_not_begun_to_train(bilm: BiLM, tmp_path: Path) -> None:
    doc_layers = with_cache(bilm, tmp_path / "cache").get_pipe("elmo").doc_layers
    assert doc_layers.trains
    assert copy.deepcopy(doc_layers).trains
    (tmp_path / "pickle").write_bytes(pickle.dumps(doc_layers))
    # In containers the first process has the number 1 everywhere.
    code = """
import os, pickle, sys
from pathlib import Path

os.getpid = lambda: int(sys.argv[2])
print(pickle.loads(Path(sys.argv[1]).read_bytes()).trains)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "pickle"), str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.strip() == "False", done.stderr
