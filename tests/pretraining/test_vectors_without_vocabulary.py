"""Users asked why ELMo has a vocabulary at all: it is the softmax's, and no vector depends on it."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import spacy
from safetensors.torch import load

from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.weights import load_bilm
from tests.pipeline.toys import blank

from .conftest import MakeConfig

TEXT = "The cat purrs at the zebra . A word never seen : Zwölf"


@pytest.fixture(scope="module")
def model(toy_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "out"
    pretrain(toy_config(training__max_steps=3), output, stdout=io.StringIO(), stderr=io.StringIO())
    return output / "model-last"


def layers_of(path: Path) -> np.ndarray:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(path)
    return nlp(TEXT)._.elmo.layers


@pytest.mark.parametrize("what", ["another", "reversed", "none", "none, and no softmax"])
def test_any_vocabulary_or_none_gives_equal_vectors(model: Path, tmp_path: Path, what: str) -> None:
    expected = layers_of(model)
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    file = copy / "vocabulary.txt"
    words = file.read_text(encoding="utf8").splitlines()
    assert "cat" in words
    assert "zebra" not in words
    if what == "another":
        file.write_text("\n".join([*words[:3], *(f"w{i}" for i in range(len(words) - 3))]), encoding="utf8")
    elif what == "reversed":
        file.write_text("\n".join([*words[:3], *words[:2:-1]]), encoding="utf8")
    else:
        file.unlink()
        if "softmax" in what:
            (copy / "softmax.safetensors").unlink()
    np.testing.assert_array_equal(layers_of(copy), expected)


def test_the_softmax_is_not_in_the_bytes_of_a_pipeline(model: Path) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(model)
    tensors = load(nlp.get_pipe("elmo").model.shims[0].to_bytes())
    assert tensors.keys() == load_bilm(model).state_dict().keys()
    assert not any(name.startswith("softmax") or name in ("W", "b") for name in tensors)
    loaded = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    np.testing.assert_array_equal(loaded(TEXT)._.elmo.layers, layers_of(model))
