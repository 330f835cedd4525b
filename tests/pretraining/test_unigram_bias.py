"""A softmax that begins with the frequencies of words."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.output_layer import OutputLayer
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import changed_keys, load_config, resolve
from spacy_elmo.pretraining.corpus import encode_corpus
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.pretraining.objectives import initialize_output, output_layer
from spacy_elmo.pretraining.perplexity import perplexity
from spacy_elmo.pretraining.prepare import Corpora, prepare_corpora
from spacy_elmo.pretraining.vocabulary import build_vocabulary, log_frequencies
from spacy_elmo.weights import load_softmax

from .conftest import MakeConfig

FULL = {"@misc": "spacy-elmo.full_softmax.v1"}
SAMPLED = {"@misc": "spacy-elmo.sampled_softmax.v1", "n_samples": 5}
ADAPTIVE = {"@misc": "spacy-elmo.adaptive_softmax.v1", "cutoffs": [5, 9], "div_value": 2.0}
TIED = {**SAMPLED, "tie_weights": True}
VOCAB = spacy.blank("en").vocab


def run(config: Any, output: Path, **kwargs: Any) -> tuple[PretrainingResult, str]:
    stdout = io.StringIO()
    result = pretrain(config, output, stdout=stdout, stderr=io.StringIO(), **kwargs)
    return result, stdout.getvalue()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


def initial_layer(config: Any) -> tuple[BiLM, OutputLayer, Corpora]:
    settings, filled = resolve(config)
    corpora = prepare_corpora(settings, filled)
    vocabulary = corpora.vocabulary
    bilm_config = settings.bilm_config(len(vocabulary))
    bilm = BiLM(bilm_config, vocabulary=vocabulary.words if bilm_config.filters is None else None).initialize(0)
    layer = output_layer(settings.objective, vocabulary, bilm, len(vocabulary))
    initialize_output(settings.objective, layer, corpora, 0)
    return bilm, layer, corpora


def initial_softmax(config: Any) -> tuple[BiLM, FullSoftmax, Corpora]:
    bilm, layer, corpora = initial_layer(config)
    assert isinstance(layer, FullSoftmax)
    return bilm, layer, corpora


def unigrams(sentences: list[list[str]], words: list[str]) -> dict[str, float]:
    """Counted by hand."""
    counts = Counter(word if word in words else "<UNK>" for sentence in sentences for word in sentence)
    counts.update(words)
    for mark in ("<S>", "</S>"):
        counts[mark] += len(sentences)
    total = sum(counts.values())
    return {word: counts[word] / total for word in words}


@pytest.mark.parametrize("objective", [FULL, SAMPLED, ADAPTIVE], ids=["full", "sampled", "adaptive"])
def test_where_nothing_else_speaks_the_perplexity_is_that_of_the_unigrams(
    toy_config: MakeConfig, objective: dict[str, Any]
) -> None:
    config = toy_config(objective={**objective, "unigram_bias": True}, vocabulary__max_words=12)
    bilm, softmax, corpora = initial_layer(config)
    with torch.no_grad():
        for parameter in softmax.parameters():
            if parameter.dim() > 1:
                parameter.zero_()
    words = corpora.vocabulary.words
    p = unigrams(list(corpora.train.sentences()), words)
    assert sum(p.values()) == pytest.approx(1.0)
    dev = list(corpora.dev.sentences())
    for name, mark in (("forward", "</S>"), ("backward", "<S>")):
        targets = [word if word in p else "<UNK>" for sentence in dev for word in [*sentence, mark]]
        expected = math.exp(-np.mean([math.log(p[word]) for word in targets]))
        assert getattr(perplexity(bilm, softmax, words, dev), name) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("objective", [FULL, SAMPLED, TIED], ids=["full", "sampled", "tied"])
def test_only_the_biases_begin_otherwise(toy_config: MakeConfig, objective: dict[str, Any]) -> None:
    more = {"model__filters": None} if objective is TIED else {}
    (bilm, softmax, corpora), (other, plain, _) = (
        initial_softmax(toy_config(objective={**objective, "unigram_bias": wanted}, **more)) for wanted in (True, False)
    )
    assert torch.equal(softmax.W, plain.W)
    assert all(torch.equal(one, two) for one, two in zip(bilm.parameters(), other.parameters(), strict=True))
    assert not plain.b.any()
    p = unigrams(list(corpora.train.sentences()), corpora.vocabulary.words)
    np.testing.assert_allclose(softmax.b.detach().exp(), list(p.values()), rtol=1e-5)


WORDS = st.sampled_from(["a", "b", "c", "<S>", "</S>", "<UNK>", "."])


@given(documents=st.lists(st.lists(WORDS, min_size=1, max_size=12), min_size=1, max_size=4), size=st.integers(4, 9))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_they_are_a_distribution(tmp_path: Path, documents: list[list[str]], size: int) -> None:
    corpus = encode_corpus([Doc(VOCAB, words=words) for words in documents], tmp_path / "c", key=repr(documents))
    vocabulary = build_vocabulary(corpus, size)
    p = unigrams([list(words) for words in corpus.sentences()], vocabulary.words)
    np.testing.assert_allclose(np.exp(log_frequencies(corpus, vocabulary)), list(p.values()), rtol=1e-12)


@pytest.fixture(scope="module")
def trained(toy_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("unigrams")
    run(toy_config(objective={**FULL, "unigram_bias": True}, training__max_steps=20), output)
    return output


def test_a_run_begins_with_them(toy_config: MakeConfig, trained: Path, tmp_path: Path) -> None:
    run(toy_config(objective=FULL, training__max_steps=1), tmp_path / "plain")
    ours, plain = (lines_of(path / "evaluations.jsonl") for path in (trained, tmp_path / "plain"))
    assert ours[0]["joint_perplexity"] < 0.9 * plain[0]["joint_perplexity"]


def test_a_resumed_run_goes_on_with_what_it_learnt(toy_config: MakeConfig, tmp_path: Path) -> None:
    def config(steps: int) -> Any:
        objective = {**FULL, "unigram_bias": True}
        return toy_config(objective=objective, training__max_steps=steps, training__schedule="constant")

    run(config(12), tmp_path / "whole")
    run(config(5), tmp_path / "out")
    run(config(12), tmp_path / "out", resume=True)
    whole, out = (tmp_path / name for name in ("whole", "out"))
    assert lines_of(out / "losses.jsonl") == lines_of(whole / "losses.jsonl")
    assert torch.equal(load_softmax(out / "model-last").stored()["b"], load_softmax(whole / "model-last").stored()["b"])


def test_the_config_keeps_it(trained: Path) -> None:
    saved = load_config(trained / "model-last" / "pretrain.cfg")
    assert saved["objective"] == {**FULL, "tie_weights": False, "unigram_bias": True}
    filled = resolve(saved)[1]
    assert filled["objective"] == saved["objective"]
    del saved["objective"]["unigram_bias"]
    assert resolve(saved)[1]["objective"]["unigram_bias"] is False


def test_given_weights_with_a_softmax_keep_their_biases(toy_config: MakeConfig, trained: Path, tmp_path: Path) -> None:
    for wanted in (True, False):
        config = toy_config(
            objective={**FULL, "unigram_bias": wanted},
            initialize__weights=str(trained / "model-last"),
            training__max_steps=1,
        )
        run(config, tmp_path / str(wanted))
    assert lines_of(tmp_path / "True" / "evaluations.jsonl") == lines_of(tmp_path / "False" / "evaluations.jsonl")
    one, other = (load_softmax(tmp_path / name / "model-last").stored() for name in ("True", "False"))
    assert torch.equal(one["b"], other["b"])


def test_a_resumed_run_cannot_change_it(toy_config: MakeConfig, tmp_path: Path) -> None:
    run(toy_config(objective=ADAPTIVE, training__max_steps=2), tmp_path)
    for changed in ({"unigram_bias": True}, {"head_bias": True}, {"div_value": 1.5}):
        (name,) = changed
        with pytest.raises(PretrainingError, match=rf"cannot go on with another objective\.{name}: "):
            run(toy_config(objective={**ADAPTIVE, **changed}, training__max_steps=4), tmp_path, resume=True)


def test_a_checkpoint_from_before_it_goes_on() -> None:
    before: dict[str, Any] = {"objective": dict(SAMPLED)}
    now: dict[str, Any] = {"objective": {**SAMPLED, "unigram_bias": False}}
    assert changed_keys(before, now) == []
    now["objective"]["unigram_bias"] = True
    assert changed_keys(before, now) == ["objective.unigram_bias"]
