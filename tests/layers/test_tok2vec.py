"""Tok2VecWithElmo in every spaCy component that takes a tok2vec, with every embedding and encoder of spaCy's."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.kb import InMemoryLookupKB
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import Model

from spacy_elmo import BiLM, ElmoError
from spacy_elmo.layers.tok2vec import Tok2VecWithElmo_v1
from tests.pipeline.toys import blank, listener, toy_bilm

WIDTH = 12


def block(name: str, **settings: Any) -> dict[str, Any]:
    return {"@architectures": name, **settings}


def hash_embed(*, include_static_vectors: bool = False) -> dict[str, Any]:
    return block(
        "spacy.MultiHashEmbed.v2",
        width=WIDTH,
        attrs=["NORM", "SHAPE"],
        rows=[50, 50],
        include_static_vectors=include_static_vectors,
    )


EMBEDDINGS = {
    "hash": hash_embed(),
    "hash and static vectors": hash_embed(include_static_vectors=True),
    "characters": block(
        "spacy.CharacterEmbed.v2", width=8, rows=50, nM=4, nC=4, include_static_vectors=False, feature="LOWER"
    ),
}
ENCODERS = {
    "maxout": block("spacy.MaxoutWindowEncoder.v2", width=WIDTH, depth=1, window_size=1, maxout_pieces=2),
    "mish": block("spacy.MishWindowEncoder.v2", width=WIDTH, depth=1, window_size=1),
    "lstm": block("spacy.TorchBiLSTMEncoder.v1", width=WIDTH, depth=1, dropout=0.0),
}
BOTH: dict[str, dict[str, Any] | None] = {"elmo": listener(elmo_dropout=0.1), "elmo_output": listener(elmo_dropout=0.1)}


def tok2vec(
    embed: str = "hash", encode: str = "maxout", places: dict[str, dict[str, Any] | None] = BOTH
) -> dict[str, Any]:
    listeners = {"elmo": None, **places}
    return block("spacy-elmo.Tok2VecWithElmo.v1", embed=EMBEDDINGS[embed], encode=ENCODERS[encode], **listeners)


def transition_model(state_type: str, part: dict[str, Any]) -> dict[str, Any]:
    return block(
        "spacy.TransitionBasedParser.v2",
        state_type=state_type,
        extra_state_tokens=False,
        hidden_width=8,
        maxout_pieces=2,
        use_upper=True,
        nO=None,
        tok2vec=part,
    )


def tagging(part: dict[str, Any]) -> dict[str, Any]:
    return {"model": block("spacy.Tagger.v2", nO=None, normalize=False, tok2vec=part)}


def ensemble(part: dict[str, Any], exclusive_classes: bool) -> dict[str, Any]:
    linear = block(
        "spacy.TextCatBOW.v3",
        exclusive_classes=exclusive_classes,
        ngram_size=1,
        no_output_layer=False,
        length=64,
        nO=None,
    )
    return {"model": block("spacy.TextCatEnsemble.v2", nO=None, tok2vec=part, linear_model=linear)}


def reducing(part: dict[str, Any], *used: str) -> dict[str, Any]:
    reductions = {f"use_reduce_{name}": name in used for name in ("first", "last", "max", "mean")}
    return block("spacy.TextCatReduce.v1", nO=None, exclusive_classes=True, tok2vec=part, **reductions)


def knowledge_base(vocab: Vocab) -> InMemoryLookupKB:
    kb = InMemoryLookupKB(vocab, entity_vector_length=3)
    for number, entity in enumerate(("Q1", "Q2")):
        kb.add_entity(entity=entity, freq=1, entity_vector=np.eye(3, dtype="f")[number].tolist())
    kb.add_alias(alias="Paris", entities=["Q1", "Q2"], probabilities=[0.5, 0.5])
    return kb


# Each component's factory and config around a tok2vec, and what it predicts of a Doc.
Read = Callable[[Doc], Any]


def entities(doc: Doc) -> list[tuple[str, str]]:
    return [(ent.text, ent.label_) for ent in doc.ents]


def category(doc: Doc) -> str:
    return max(doc.cats, key=doc.cats.__getitem__)


COMPONENTS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], Read]] = {
    "ner": (
        "ner",
        lambda part: {"model": transition_model("ner", part)},
        entities,
    ),
    "beam_ner": (
        "beam_ner",
        lambda part: {"model": transition_model("ner", part), "beam_width": 2},
        entities,
    ),
    "parser": (
        "parser",
        lambda part: {"model": transition_model("parser", part), "min_action_freq": 1},
        lambda doc: [(token.head.i, token.dep_) for token in doc],
    ),
    "tagger": (
        "tagger",
        tagging,
        lambda doc: [token.tag_ for token in doc],
    ),
    "morphologizer": (
        "morphologizer",
        tagging,
        lambda doc: [(token.pos_, str(token.morph)) for token in doc],
    ),
    "senter": (
        "senter",
        tagging,
        lambda doc: [token.is_sent_start for token in doc],
    ),
    "trainable_lemmatizer": (
        "trainable_lemmatizer",
        lambda part: {**tagging(part), "min_tree_freq": 1},
        lambda doc: [token.lemma_ for token in doc],
    ),
    "textcat ensemble": (
        "textcat",
        lambda part: ensemble(part, exclusive_classes=True),
        category,
    ),
    "textcat mean": ("textcat", lambda part: {"model": reducing(part, "mean")}, category),
    "textcat first last max": ("textcat", lambda part: {"model": reducing(part, "first", "last", "max")}, category),
    "textcat attention": (
        "textcat",
        lambda part: {
            "model": block("spacy.TextCatParametricAttention.v1", nO=None, exclusive_classes=True, tok2vec=part)
        },
        category,
    ),
    "textcat_multilabel": (
        "textcat_multilabel",
        lambda part: ensemble(part, exclusive_classes=False),
        category,
    ),
    "spancat": (
        "spancat",
        lambda part: {
            "model": block(
                "spacy.SpanCategorizer.v1",
                tok2vec=part,
                reducer={"@layers": "spacy.mean_max_reducer.v1", "hidden_size": 8},
                scorer={"@layers": "spacy.LinearLogistic.v1", "nO": None, "nI": None},
            ),
            "suggester": {"@misc": "spacy.ngram_suggester.v1", "sizes": [1]},
        },
        lambda doc: [(span.start, span.end, span.label_) for span in doc.spans.get("sc", [])],
    ),
    "span_finder": (
        "span_finder",
        lambda part: {
            "model": block(
                "spacy.SpanFinder.v1", tok2vec=part, scorer={"@layers": "spacy.LinearLogistic.v1", "nO": 2, "nI": None}
            )
        },
        lambda doc: [(span.start, span.end) for span in doc.spans.get("sc", [])],
    ),
    "entity_linker": (
        "entity_linker",
        lambda part: {"model": block("spacy.EntityLinker.v2", nO=None, tok2vec=part), "incl_prior": False},
        lambda doc: [ent.kb_id_ for ent in doc.ents],
    ),
}

# How many steps it takes to learn the two texts below, where 20 are not enough.
STEPS = {"ner": 40, "beam_ner": 40, "parser": 50, "trainable_lemmatizer": 40}

WORDS = [("Paris sleeps . Ann swam .", "Q1", "A"), ("Paris saw Bob ! He ran .", "Q2", "B")]


def gold(vocab: Vocab) -> list[Example]:
    """Two texts of two sentences, annotated for every component."""
    examples = []
    for text, entity, category in WORDS:
        words = text.split()
        n = len(words)
        ends = [i for i, word in enumerate(words) if word in ".!"]
        doc = Doc(
            vocab,
            words=words,
            tags=["NNP", *["X"] * (n - 1)],
            pos=["PROPN", *["X"] * (n - 1)],
            morphs=["Number=Sing", *[""] * (n - 1)],
            lemmas=[word.lower() for word in words],
            heads=[0] * (ends[0] + 1) + [ends[0] + 1] * (n - ends[0] - 1),
            deps=["ROOT" if i in (0, ends[0] + 1) else "dep" for i in range(n)],
            sent_starts=[i in (0, ends[0] + 1) for i in range(n)],
        )
        doc.set_ents([Span(doc, 0, 1, label="LOC", kb_id=entity)])
        doc.spans["sc"] = [Span(doc, 0, 1, label="LOC")]
        doc.cats = {"A": float(category == "A"), "B": float(category == "B")}
        predicted = Doc(vocab, words=words)
        predicted.ents = [Span(predicted, 0, 1, label="LOC")]
        # (the linker is given entities and sentences)
        predicted[0].is_sent_start, predicted[ends[0] + 1].is_sent_start = True, True
        examples.append(Example(predicted, doc))
    return examples


def add(nlp: Any, component: str, part: dict[str, Any], name: str | None = None) -> str:
    factory, config, _ = COMPONENTS[component]
    pipe = nlp.add_pipe(factory, name=name or factory, config=config(part))
    if factory == "entity_linker":
        pipe.set_kb(knowledge_base)
    return pipe.name


def train(nlp: Any, steps: int, **kwargs: Any) -> list[dict[str, float]]:
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: gold(nlp.vocab))
    optimizer.learn_rate = 0.01
    return [nlp.update(gold(nlp.vocab), sgd=optimizer, losses={}, **kwargs) for _ in range(steps)]


def run(nlp: Any, component: str) -> list[Any]:
    """What a pipeline predicts of the texts, given what it is given in training."""
    read = COMPONENTS[component][2]
    predicted = []
    for example in gold(nlp.vocab):
        doc = example.predicted
        if component != "entity_linker":
            doc = Doc(nlp.vocab, words=[token.text for token in doc])
        for _, pipe in nlp.pipeline:
            doc = pipe(doc)
        predicted.append(read(doc))
    return predicted


def load(path: Path) -> Any:
    """A saved pipeline; untyped, since pipes are used as what they are."""
    return spacy.load(path)


def with_bilm(bilm: BiLM, **config: Any) -> Any:
    nlp = blank()
    rng = np.random.default_rng(0)
    for text, *_ in WORDS:
        for word in text.split():
            nlp.vocab.set_vector(word, rng.normal(size=5).astype("f"))
    nlp.add_pipe("elmo", config={"store": "none", **config}).load_weights(copy.deepcopy(bilm))
    return nlp


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    return toy_bilm()


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_learns_from_both_places_and_survives_saving(
    bilm: BiLM, component: str, tmp_path: Path
) -> None:
    nlp = with_bilm(bilm)
    add(nlp, component, tok2vec())
    train(nlp, STEPS.get(component, 20))
    mixes = [one.layers[0].get_param("scalars") for one in nlp.get_pipe("elmo").listeners]
    assert len(mixes) == 2
    assert min(np.abs(mix).max() for mix in mixes) > 0.0
    assert not np.allclose(*mixes)
    learned = [COMPONENTS[component][2](example.reference) for example in gold(nlp.vocab)]
    assert run(nlp, component) == learned

    nlp.to_disk(tmp_path)
    others = [load(tmp_path), with_bilm(bilm)]
    add(others[1], component, tok2vec())
    others[1].from_bytes(nlp.to_bytes())
    if component != "entity_linker":  # spaCy's knowledge bases cannot be copied
        others.append(copy.deepcopy(nlp))
    for other in others:
        assert run(other, component) == learned
        elmo = other.get_pipe("elmo")
        assert [one.attrs["elmo_link"].upstream for one in elmo.listeners] == [elmo, elmo]


# spaCy's reductions other than the mean take no empty Doc, whatever the tok2vec is.
@pytest.mark.parametrize("component", [name for name in COMPONENTS if name != "textcat first last max"])
def test_texts_without_tokens_or_words(bilm: BiLM, component: str) -> None:
    nlp = with_bilm(bilm, frozen=False)
    if component == "entity_linker":
        nlp.add_pipe("sentencizer")
    add(nlp, component, tok2vec(encode="lstm"))
    train(nlp, 1)
    optimizer = nlp.create_optimizer()
    for texts in (["", ""], ["", " ", "\n\n"], [""]):
        empty = [Example(nlp.make_doc(text), nlp.make_doc(text)) for text in texts]
        nlp.update(empty, sgd=optimizer, losses={})
        nlp.update([*empty, *gold(nlp.vocab)], sgd=optimizer, losses={})
    nlp.update([], sgd=optimizer, losses={})
    assert [len(doc) for doc in nlp.pipe(["", "Paris sleeps .", " ", "", "\n"])] == [0, 3, 1, 0, 1]
    assert list(nlp.pipe([])) == []


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("embed", EMBEDDINGS)
def test_every_embedding_with_every_encoder(bilm: BiLM, embed: str, encode: str, tmp_path: Path) -> None:
    nlp = with_bilm(bilm)
    add(nlp, "tagger", tok2vec(embed, encode))
    losses = train(nlp, 6)
    assert losses[-1]["tagger"] < losses[0]["tagger"]
    model = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    assert model.get_dim("nO") == WIDTH
    docs = [example.predicted for example in gold(nlp.vocab)]
    vectors = model.predict(docs)
    assert [vector.shape for vector in vectors] == [(len(doc), WIDTH) for doc in docs]
    nlp.to_disk(tmp_path)
    again = load(tmp_path)
    for got, wanted in zip(again.get_pipe("tagger").model.get_ref("tok2vec").predict(docs), vectors, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("places", [["elmo"], ["elmo_output"], ["elmo", "elmo_output"]])
def test_the_gradient_reaches_the_mix_of_every_place(bilm: BiLM, places: list[str]) -> None:
    nlp = with_bilm(bilm)
    # the encoder's vector alone has the embedding's width, so that the two are equal
    add(nlp, "tagger", tok2vec(places={place: listener(elmo_dropout=0.0) for place in places}))
    # (not at once: a tagger's output layer begins with zeros, which pass no gradient)
    train(nlp, 1)
    nlp.get_pipe("tagger").update(gold(nlp.vocab))
    listeners = nlp.get_pipe("elmo").listeners
    assert len(listeners) == len(places)
    for one in listeners:
        for name in ("scalars", "gamma"):
            assert np.abs(one.layers[0].get_grad(name)).max() > 1e-6
    model = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    assert model.get_dim("nO") == WIDTH
    assert {model.get_ref(name).get_dim("nO") for name in ("encode", *(["embed"] if "elmo" in places else []))} == {12}


def reduced(reduction: Any, x: np.ndarray) -> np.ndarray:
    """Maxout and layer normalisation, written out."""
    maxout, norm = (next(node for node in reduction.walk() if node.name == name) for name in ("maxout", "layernorm"))
    y = (np.einsum("ni,opi->nop", x, maxout.get_param("W")) + maxout.get_param("b")).max(axis=2)
    y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-8)
    return y * norm.get_param("G") + norm.get_param("b")


def test_it_is_the_embedding_and_elmo_then_the_encoder_and_elmo(bilm: BiLM) -> None:
    nlp = with_bilm(bilm)
    add(nlp, "tagger", tok2vec())
    train(nlp, 3)
    doc = nlp.make_doc("Ann saw Paris .")
    model = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    beside, reduction_after = model.layers
    tok2vec_before, listener_after = beside.layers
    embed_and_listener, reduction_before = tok2vec_before.layers[0].layers
    embed, listener_before = embed_and_listener.layers
    assert {listener_before.id, listener_after.id} == {one.id for one in nlp.get_pipe("elmo").listeners}
    x = reduced(reduction_before, np.hstack([embed.predict([doc])[0], listener_before.predict([doc])[0]]))
    h = model.get_ref("encode").predict([x.astype("f")])[0]
    expected = reduced(reduction_after, np.hstack([h, listener_after.predict([doc])[0]]))
    np.testing.assert_allclose(model.predict([doc])[0], expected, atol=1e-5)


@pytest.mark.parametrize("encode", ENCODERS)
def test_the_model_itself_takes_docs_without_tokens(bilm: BiLM, encode: str) -> None:
    nlp = with_bilm(bilm)
    add(nlp, "tagger", tok2vec(encode=encode))
    train(nlp, 0)
    model = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    for n in (0, 1, 3):
        vectors, backprop = model.begin_update([nlp.make_doc("")] * n)
        assert [vector.shape for vector in vectors] == [(0, WIDTH)] * n
        assert backprop(vectors) == []
    (blank_row,) = model.predict([nlp.make_doc(" \n")])
    assert blank_row.shape == (1, WIDTH)
    assert np.isfinite(blank_row).all()


def test_an_encoder_without_a_width_and_no_listener_at_all(bilm: BiLM) -> None:
    nlp = with_bilm(bilm)
    depth_0 = {**tok2vec(), "encode": block("spacy.TorchBiLSTMEncoder.v1", width=12, depth=0, dropout=0.0)}
    with pytest.raises(ElmoError, match="encoder 'noop' does not tell its width"):
        add(nlp, "tagger", depth_0)
    with pytest.raises(ElmoError, match=r"take spacy\.Tok2Vec\.v2"):
        add(nlp, "tagger", tok2vec(places={}))
    for width in (0, -3):
        nothing = {**tok2vec(), "encode": {**ENCODERS["maxout"], "width": width}}
        with pytest.raises(ElmoError, match=f"width is at least 1, not {width}"):
            add(nlp, "tagger", nothing)


def shared(bilm: BiLM, names: list[str], **config: Any) -> Any:
    nlp = with_bilm(bilm, **config)
    nlp.add_pipe("tok2vec", config={"model": tok2vec()})
    for name in names:
        add(nlp, name, block("spacy.Tok2VecListener.v1", width=WIDTH, upstream="tok2vec"))
    return nlp


@pytest.mark.parametrize("frozen", [True, False])
def test_one_tok2vec_shared_by_several_components(bilm: BiLM, frozen: bool, tmp_path: Path) -> None:
    names = ["tagger", "ner", "senter"]
    nlp = shared(bilm, names, frozen=frozen)
    train(nlp, 50)
    assert len(nlp.get_pipe("elmo").listeners) == 2
    learned = {name: [COMPONENTS[name][2](example.reference) for example in gold(nlp.vocab)] for name in names}
    assert {name: run(nlp, name) for name in names} == learned
    mixes = [one.layers[0].get_param("scalars") for one in nlp.get_pipe("elmo").listeners]
    assert min(np.abs(mix).max() for mix in mixes) > 0.0
    nlp.to_disk(tmp_path)
    assert {name: run(load(tmp_path), name) for name in names} == learned
    # a component that leaves the shared tok2vec takes a copy of it, which listens to `elmo` for itself
    nlp.replace_listeners("tok2vec", "ner", ["model.tok2vec"])
    nlp.to_disk(tmp_path)
    for other in (nlp, load(tmp_path)):
        assert {name: run(other, name) for name in names} == learned
        assert other.get_pipe("tok2vec").listening_components == ["tagger", "senter"]
    assert sorted(load(tmp_path).get_pipe("elmo").listening_components) == ["ner", "tok2vec"]


@pytest.mark.parametrize("order", [["elmo", "elmo_output"], ["elmo_output", "elmo"]])
def test_replaced_listeners_keep_what_each_was(bilm: BiLM, order: list[str], tmp_path: Path) -> None:
    places = {
        "elmo": listener(elmo_dropout=0.1, projection=5, mix=block("spacy-elmo.ScalarMix.v1")),
        "elmo_output": listener(elmo_dropout=0.2, mix=block("spacy-elmo.ScalarMix.v1", l2=0.5, layer_norm=True)),
    }
    nlp = with_bilm(bilm, lr_factor=0.3)
    add(nlp, "tagger", tok2vec(places=dict(places)))
    train(nlp, 15)
    tags = run(nlp, "tagger")
    vectors = nlp.get_pipe("tagger").model.get_ref("tok2vec").predict([nlp.make_doc("Paris sleeps .")])
    nlp.replace_listeners("elmo", "tagger", [f"model.tok2vec.{place}" for place in order])
    nlp.remove_pipe("elmo")
    config = nlp.config["components"]["tagger"]["model"]["tok2vec"]
    for place, old in places.items():
        assert config[place]["@architectures"] == "spacy-elmo.ElmoTok2Vec.v1"
        assert config[place]["lr_factor"] == 0.3
        assert config[place]["elmo_dropout"] == old["elmo_dropout"]
        assert config[place].get("projection") == old.get("projection")
        assert config[place]["mix"]["l2"] == old["mix"].get("l2", 0.0)
    nlp.to_disk(tmp_path)
    for other in (nlp, load(tmp_path)):
        assert run(other, "tagger") == tags
        model = other.get_pipe("tagger").model.get_ref("tok2vec")
        np.testing.assert_array_equal(model.predict([nlp.make_doc("Paris sleeps .")])[0], vectors[0])
        standalone = [node for node in model.walk() if node.name == "elmo_tok2vec"]
        assert sorted(node.get_dim("nO") for node in standalone) == [5, 16]
        assert sorted(node.attrs["elmo_settings"].elmo_dropout for node in standalone) == [0.1, 0.2]
        other.update(gold(other.vocab), sgd=other.resume_training(), losses={})


def test_a_listener_from_python_code_is_enough() -> None:
    """Without a config: any models of the right kinds."""
    docs = [blank().make_doc("a b"), blank().make_doc("c")]

    def constant(width: int) -> Any:
        def forward(model: Any, docs: list[Doc], is_train: bool) -> Any:
            return [model.ops.alloc2f(len(doc), width) + 1.0 for doc in docs], lambda d_outputs: []

        return Model("constant", forward, dims={"nO": width})

    encode = spacy.registry.architectures.get("spacy.MishWindowEncoder.v2")(width=4, window_size=1, depth=1)
    model = Tok2VecWithElmo_v1(embed=constant(3), elmo=constant(7), encode=encode, elmo_output=constant(2))
    model.initialize(X=docs)
    assert [vector.shape for vector in model.predict(docs)] == [(2, 4), (1, 4)]


PROCESSES = """
import sys
import spacy

if __name__ == "__main__":
    nlp = spacy.load(sys.argv[1])
    texts = ["Paris sleeps .", "", "Ann saw Bob !"] * 4
    expected = [[token.tag_ for token in nlp(text)] for text in texts]
    assert any(expected)
    found = [[token.tag_ for token in doc] for doc in nlp.pipe(texts, n_process=2, batch_size=3)]
    assert found == expected
    print("equal")
"""


@pytest.mark.slow
def test_two_processes_predict_alike(bilm: BiLM, tmp_path: Path) -> None:
    nlp = with_bilm(bilm)
    add(nlp, "tagger", tok2vec(encode="lstm"))
    train(nlp, 10)
    nlp.to_disk(tmp_path / "pipeline")
    script = tmp_path / "script.py"
    script.write_text(PROCESSES, encoding="utf8")
    command = [sys.executable, str(script), str(tmp_path / "pipeline")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"
