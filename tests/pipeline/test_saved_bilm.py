"""The biLM of a saved pipeline: which component's, and that it is the one that training left."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.bilm import BiLM
from spacy_elmo.errors import WeightsError
from spacy_elmo.pipeline.saved_bilm import bilm_of_pipeline, is_pipeline
from tests.pipeline.toys import blank, examples, getter, listener, tagger_config


def saved(nlp: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    nlp.to_disk(folder)
    return folder


def pipeline(bilm: BiLM, *names: str) -> Any:
    """A pipeline with an `elmo` component of each name, of other weights each."""
    nlp = blank()
    for seed, name in enumerate(names):
        one = copy.deepcopy(bilm).initialize(seed)
        nlp.add_pipe("elmo", name=name).load_weights(one)
    return nlp


def assert_equal(found: BiLM, expected: BiLM) -> None:
    assert found.config == expected.config
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


def test_fine_tuned_weights(bilm: BiLM, tmp_path: Path) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"frozen": False}).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    optimizer = nlp.initialize(getter(nlp))
    for _ in range(3):  # the tagger's output starts at zero, and so does its first gradient
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    tuned = nlp.get_pipe("elmo").bilm
    name = "forward_lstm.layers.0.kernel"
    assert not torch.equal(tuned.state_dict()[name], bilm.state_dict()[name])
    found = bilm_of_pipeline(saved(nlp, tmp_path))
    assert_equal(found, tuned)
    (layers,) = found.encode([["Ann", "went", "to", "Rome", "."]])
    np.testing.assert_allclose(layers.numpy(), nlp("Ann went to Rome .")._.elmo.layers, atol=1e-6)


def test_several_components_are_told_apart_by_their_names(bilm: BiLM, tmp_path: Path) -> None:
    nlp = pipeline(bilm, "small", "large")
    saved(nlp, tmp_path)
    for name in ("small", "large"):
        assert_equal(bilm_of_pipeline(tmp_path, name), nlp.get_pipe(name).bilm)
    with pytest.raises(WeightsError, match=r"several components have a biLM \(small, large\): name one"):
        bilm_of_pipeline(tmp_path)
    with pytest.raises(WeightsError, match=r"no component 'elmo' with a biLM \(those with one: small, large\)"):
        bilm_of_pipeline(tmp_path, "elmo")


def test_one_component_of_another_name_among_others(bilm: BiLM, tmp_path: Path) -> None:
    nlp = pipeline(bilm, "contextual")
    nlp.add_pipe("sentencizer")
    nlp.vocab.set_vector("Ann", np.ones(3, dtype=np.float32))
    saved(nlp, tmp_path)
    # Neither other components nor tokenizer and vocabulary need to be there.
    config = (tmp_path / "config.cfg").read_text(encoding="utf8")
    (tmp_path / "config.cfg").write_text(config.replace('"sentencizer"\n', '"not_installed"\n'), encoding="utf8")
    assert 'factory = "not_installed"' in (tmp_path / "config.cfg").read_text(encoding="utf8")
    (tmp_path / "tokenizer").write_bytes(b"broken")
    (tmp_path / "vocab" / "strings.json").write_text("broken")
    assert_equal(bilm_of_pipeline(tmp_path), nlp.get_pipe("contextual").bilm)


def test_a_component_that_has_taken_the_bilm_in(bilm: BiLM, tmp_path: Path) -> None:
    nlp = pipeline(bilm, "elmo")
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.initialize(getter(nlp))
    expected = copy.deepcopy(nlp.get_pipe("elmo").bilm)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    saved(nlp, tmp_path)
    assert_equal(bilm_of_pipeline(tmp_path), expected)
    assert_equal(bilm_of_pipeline(tmp_path, "tagger"), expected)


def test_an_installed_package(bilm: BiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What `spacy package` and pip leave, put there by hand.
    nlp = pipeline(bilm, "elmo")
    package = tmp_path / "en_toy_bilm"
    saved(nlp, package / "en_toy_bilm-0.0.1")
    (package / "__init__.py").write_text("")
    (package / "meta.json").write_text(json.dumps({**nlp.meta, "name": "toy_bilm", "version": "0.0.1"}))
    (tmp_path / "en_toy_bilm-0.0.1.dist-info").mkdir()
    (tmp_path / "en_toy_bilm-0.0.1.dist-info" / "METADATA").write_text("Name: en_toy_bilm\nVersion: 0.0.1\n")
    assert not is_pipeline("en_toy_bilm")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_pipeline("en_toy_bilm")
    assert_equal(bilm_of_pipeline("en_toy_bilm"), nlp.get_pipe("elmo").bilm)
    monkeypatch.delitem(sys.modules, "en_toy_bilm")


def test_what_is_no_pipeline(tmp_path: Path) -> None:
    assert not is_pipeline(tmp_path)
    assert not is_pipeline(tmp_path / "nothing")
    assert is_pipeline("spacy")  # a package: that it is none of a pipeline is said when it is loaded
    with pytest.raises(WeightsError, match="spacy: the package cannot be loaded"):
        bilm_of_pipeline("spacy")
    with pytest.raises(WeightsError, match=r"config\.cfg: is not the config of a pipeline"):
        bilm_of_pipeline(tmp_path)


def test_pipelines_without_weights(bilm: BiLM, tmp_path: Path) -> None:
    nlp = blank()
    nlp.add_pipe("sentencizer")
    with pytest.raises(WeightsError, match=r"no component of this pipeline has a biLM \(sentencizer\)"):
        bilm_of_pipeline(saved(nlp, tmp_path / "without"))
    nlp.add_pipe("elmo")
    with pytest.raises(WeightsError, match="component 'elmo' has no ELMo weights"):
        bilm_of_pipeline(saved(nlp, tmp_path / "empty"))
    folder = saved(pipeline(bilm, "elmo"), tmp_path / "broken")
    model = folder / "elmo" / "model"
    model.write_bytes(model.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="component 'elmo' cannot be loaded"):
        bilm_of_pipeline(folder)
