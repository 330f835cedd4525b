"""Our own golden file: many configurations, and words that are easy to get wrong, from a float64 reference.

Made by tests/reference/make_golden.py, which also asserts that every case tests what its name says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.bilm.characters import character_ids
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.weights.layout import layout

from ..reference.make_golden import BATCHES, CARRIED, CASES, GOLDEN, SENTENCES, VOCABULARY, make_golden

# float32 against float64; values are up to 6 in size, where float32 itself steps by 5e-7.
TOLERANCE = 2e-6
# The state goes through three batches, and rounding with it: every order of summation (MKL's, oneDNN's, one row or
# many) ends elsewhere, up to 2.7e-6 away with these weights, which are large enough to run into their clips.
CARRIED_TOLERANCE = 4e-6


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN, allow_pickle=False) as file:
        return dict(file)


def stored_json(array: np.ndarray) -> Any:
    return json.loads(array.tobytes())


def golden_bilm(golden: dict[str, np.ndarray], case: str) -> BiLM:
    options = stored_json(golden[f"{case}/options"])
    if "char_cnn" not in options:
        options["n_tokens_vocab"] = len(VOCABULARY)
    config = BiLMConfig.from_options(options)
    bilm = BiLM(config, vocabulary=None if config.filters else VOCABULARY)
    ends = np.cumsum([int(np.prod(shape)) for _, shape in stored_json(golden[f"{case}/shapes"])])
    names = [name for name, _ in stored_json(golden[f"{case}/shapes"])]
    values = dict(zip(names, np.split(golden[f"{case}/weights"], ends[:-1]), strict=True))
    state = {entry.parameter: torch.from_numpy(values.pop(entry.dataset)).view(entry.shape) for entry in layout(config)}
    assert not values
    bilm.load_state_dict(state)
    return bilm


def split(array: np.ndarray, sentences: list[list[str]]) -> list[np.ndarray]:
    """The layers (L+1, n, 2P) of each sentence."""
    return np.split(array, np.cumsum([len(words) for words in sentences])[:-1], axis=1)


def assert_layers(found: list[torch.Tensor], expected: list[np.ndarray], tolerance: float = TOLERANCE) -> None:
    assert len(found) == len(expected)
    for tensor, array in zip(found, expected, strict=True):
        assert tensor.dtype == torch.float32
        assert tuple(tensor.shape) == array.shape
        np.testing.assert_allclose(tensor.double().numpy(), array, rtol=0, atol=tolerance)


def test_the_file_is_what_the_committed_script_writes(golden: dict[str, np.ndarray]) -> None:
    made = make_golden()
    assert made.keys() == golden.keys()
    for name, array in made.items():
        # Not to the last bit: another BLAS may sum in another order.
        np.testing.assert_allclose(np.asarray(array, float), np.asarray(golden[name], float), rtol=0, atol=1e-10)


def test_the_file_is_small() -> None:
    assert Path(GOLDEN).stat().st_size < 400_000


@pytest.mark.parametrize("columns", [10, 50])
def test_character_ids(golden: dict[str, np.ndarray], columns: int) -> None:
    words = [word for sentence in SENTENCES for word in sentence]
    np.testing.assert_array_equal(character_ids(words, columns), golden[f"char_ids/{columns}"])


@pytest.mark.parametrize("case", list(CASES))
def test_all_layers_of_a_batch(golden: dict[str, np.ndarray], case: str) -> None:
    bilm = golden_bilm(golden, case)
    assert_layers(bilm.encode(SENTENCES, "zero"), split(golden[f"{case}/layers"], SENTENCES))


@pytest.mark.parametrize("case", list(CASES))
def test_each_sentence_alone_and_in_windows(golden: dict[str, np.ndarray], case: str) -> None:
    bilm = golden_bilm(golden, case)
    expected = split(golden[f"{case}/layers"], SENTENCES)
    for sentence, layers in zip(SENTENCES, expected, strict=True):
        assert_layers(bilm.encode([sentence], "zero"), [layers])
        assert_layers(bilm.encode([sentence], "zero", max_length=2), [layers])


def test_other_sentences_and_their_order_do_not_matter(golden: dict[str, np.ndarray]) -> None:
    bilm = golden_bilm(golden, "base")
    expected = split(golden["base/layers"], SENTENCES)
    found = bilm.encode([["other", "words"] * 20, *SENTENCES[::-1], *SENTENCES], "zero")
    assert_layers(found[1:], [*expected[::-1], *expected])


@pytest.mark.parametrize("case", list(CASES))
def test_differentiable_forward(golden: dict[str, np.ndarray], case: str) -> None:
    bilm = golden_bilm(golden, case)
    found = [layers.detach() for layers in bilm(SENTENCES)]
    assert_layers(found, split(golden[f"{case}/layers"], SENTENCES))


@pytest.mark.parametrize("case", list(CASES))
def test_formulas_in_float64(golden: dict[str, np.ndarray], case: str) -> None:
    bilm = golden_bilm(golden, case).double()
    for found, expected in zip(bilm(SENTENCES), split(golden[f"{case}/layers"], SENTENCES), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CARRIED)
def test_carried_state_over_batches_of_changing_size(golden: dict[str, np.ndarray], case: str) -> None:
    bilm = golden_bilm(golden, case)
    batches = [[SENTENCES[i] for i in batch] for batch in BATCHES]
    expected = split(golden[f"{case}/carried"], [sentence for batch in batches for sentence in batch])
    for _ in range(2):  # the second time after a reset
        found = [layers for batch in batches for layers in bilm.encode(batch, "carry")]
        assert_layers(found, expected, CARRIED_TOLERANCE)
        bilm.reset_state()
