"""A `cell_clip` of 400 digits, valid JSON, was a bare OverflowError; three numbers a filter a bare ValueError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo import BiLMConfig, ElmoError, load_bilm
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.weights import save_bilm_hdf5

SIZES: dict[str, Any] = {"lstm_dim": 8, "projection_dim": 4}
HUGE = [10**400, -(10**400), 10**6000]
FIELDS = [
    *("lstm_dim", "projection_dim", "n_layers", "cell_clip", "proj_clip", "use_skip_connections", "activation"),
    *("n_highway", "char_dim", "max_characters_per_token", "filters", "state"),
]


@pytest.mark.parametrize("value", HUGE, ids=["large", "negative", "not printable"])
@pytest.mark.parametrize("field", FIELDS)
def test_the_field_is_named(field: str, value: int) -> None:
    with pytest.raises(ElmoError, match=f"^{field} is ") as info:
        BiLMConfig(**{**SIZES, field: value})
    assert len(str(info.value)) < 500


@pytest.mark.parametrize("value", HUGE, ids=["large", "negative", "not printable"])
def test_numbers_of_filters_and_words(value: int) -> None:
    with pytest.raises(ElmoError, match=r"^a filter's width is "):
        BiLMConfig(**SIZES, filters=((value, 1),))
    with pytest.raises(ElmoError, match=r"^a filter's count is "):
        BiLMConfig(**SIZES, filters=((1, value),))
    with pytest.raises(ElmoError, match=r"^filters is a list"):
        BiLMConfig(**SIZES, filters=((1, 1, value),))  # type: ignore[arg-type]
    with pytest.raises(ElmoError, match=r"^n_words is "):
        BiLMConfig(**SIZES, filters=None, n_words=value)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("lstm", "cell_clip", 10**400),
        ("lstm", "proj_clip", 10**400),
        ("lstm", "dim", 10**400),
        ("lstm", "n_layers", 10**400),
        ("char_cnn", "n_highway", 10**400),
        ("char_cnn", "max_characters_per_token", 10**400),
        ("char_cnn", "max_characters_per_token", 10**9),  # no tensor contradicts: it failed at the first text
        ("char_cnn", "filters", [[1, 10**400]]),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_in_an_options_file(section: str, key: str, value: Any, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    save_bilm_hdf5(random_bilm(lstm_dim=8, projection_dim=4), tmp_path)
    options = json.loads((tmp_path / "options.json").read_text())
    options[section][key] = value
    (tmp_path / "options.json").write_text(json.dumps(options))
    with pytest.raises(ElmoError, match=r"options\.json: "):
        load_bilm(tmp_path)


def test_the_largest_clip_that_is_a_float_stays() -> None:
    assert BiLMConfig(lstm_dim=8, projection_dim=4, cell_clip=10**308).cell_clip == 1e308


@pytest.mark.parametrize("filters", [[[1, 2, 3]], [[1]], [1], [None], [[]], "12", 5, [], [["1", 2]], [[1.0, 2]], {}])
def test_filters_that_are_no_pairs(filters: Any) -> None:
    with pytest.raises(ElmoError, match="filter"):
        random_bilm(lstm_dim=8, projection_dim=4, filters=filters)
    with pytest.raises(ElmoError, match="filter"):
        BiLMConfig(lstm_dim=8, projection_dim=4, filters=filters)


def test_no_filters_are_words_which_a_random_bilm_does_not_have() -> None:
    with pytest.raises(ElmoError, match="set n_words"):
        random_bilm(filters=None)
