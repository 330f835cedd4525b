from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.bilm.config import PUBLISHED_FILTERS, BiLMConfig
from spacy_elmo.errors import ElmoError

OPTIONS: dict[str, Any] = {
    "lstm": {
        "dim": 4096,
        "projection_dim": 512,
        "n_layers": 2,
        "cell_clip": 3,
        "proj_clip": 3,
        "use_skip_connections": True,
    },
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 16},
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "max_characters_per_token": 50,
        "n_characters": 262,
        "n_highway": 2,
    },
}
WORD_OPTIONS: dict[str, Any] = {"lstm": OPTIONS["lstm"], "n_tokens_vocab": 100}
# What bilm-tf's train script writes beside the shape of the model.
TRAINING_KEYS: dict[str, Any] = {
    "bidirectional": True,
    "dropout": 0.1,
    "all_clip_norm_val": 10.0,
    "n_epochs": 10,
    "n_train_tokens": 768648884,
    "batch_size": 128,
    "unroll_steps": 20,
    "n_negative_samples_batch": 8192,
    "sample_softmax": True,
    "share_embedding_softmax": False,
    "learning_rate": 0.2,
}


def changed(options: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the option at a dotted path set."""
    options = copy.deepcopy(options)
    *sections, key = path.split(".")
    section = options
    for name in sections:
        section = section[name]
    section[key] = value
    return options


def without(options: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy without the option at a dotted path."""
    options = copy.deepcopy(options)
    *sections, key = path.split(".")
    section = options
    for name in sections:
        section = section[name]
    del section[key]
    return options


@st.composite
def configs(draw: st.DrawFn) -> BiLMConfig:
    counts = st.integers(1, 5000)
    clips = st.none() | st.floats(0.0, 1e6) | st.integers(0, 100)
    lstm_dim = draw(counts)
    shape: dict[str, Any] = {
        "lstm_dim": lstm_dim,
        "projection_dim": draw(st.integers(1, lstm_dim)),
        "n_layers": draw(st.integers(1, 9)),
        "cell_clip": draw(clips),
        "proj_clip": draw(clips),
        "use_skip_connections": draw(st.booleans()),
        "state": draw(st.sampled_from(["zero", "warm"])),
    }
    if draw(st.booleans()):
        return BiLMConfig(**shape, filters=None, n_words=draw(counts))
    columns = draw(st.integers(3, 60))
    filters = draw(st.lists(st.tuples(st.integers(1, columns), counts), min_size=1, max_size=8))
    return BiLMConfig(
        **shape,
        filters=tuple(filters),
        activation=draw(st.sampled_from(["relu", "tanh"])),
        n_highway=draw(st.integers(0, 4)),
        char_dim=draw(counts),
        max_characters_per_token=columns,
    )


@given(config=configs())
@settings(deadline=None, max_examples=60)
def test_options_hold_the_whole_config(config: BiLMConfig) -> None:
    assert BiLMConfig.from_options(json.loads(json.dumps(config.to_options()))) == config


def test_published_options() -> None:
    config = BiLMConfig.from_options(OPTIONS)
    assert config == BiLMConfig(lstm_dim=4096, projection_dim=512, n_highway=2)
    assert config.filters == PUBLISHED_FILTERS
    assert (config.width, config.n_filters) == (1024, 2048)
    assert config.has_projection
    assert config.has_char_projection


def test_options_have_the_public_structure() -> None:
    assert BiLMConfig.from_options(OPTIONS).to_options() == {**OPTIONS, "bidirectional": True, "state": "zero"}
    found = BiLMConfig.from_options(WORD_OPTIONS).to_options()
    assert found == {**WORD_OPTIONS, "bidirectional": True, "state": "zero"}


@pytest.mark.parametrize("options", [OPTIONS, WORD_OPTIONS], ids=["characters", "words"])
def test_keys_of_training_and_unknown_keys_are_ignored(options: dict[str, Any]) -> None:
    more = {**options, **TRAINING_KEYS, "n_tokens_vocab": options.get("n_tokens_vocab", 793471), "my_own": [None]}
    more = changed(more, "lstm.my_own", "x")
    assert BiLMConfig.from_options(more) == BiLMConfig.from_options(options)


@pytest.mark.parametrize("n_characters", [261, 262, 7, None, "many"])
def test_the_number_of_characters_is_not_looked_at(n_characters: object) -> None:
    expected = BiLMConfig.from_options(OPTIONS)
    assert BiLMConfig.from_options(changed(OPTIONS, "char_cnn.n_characters", n_characters)) == expected
    assert BiLMConfig.from_options(without(OPTIONS, "char_cnn.n_characters")) == expected


@pytest.mark.parametrize(
    ("path", "field", "expected"),
    [
        ("lstm.n_layers", "n_layers", 1),
        ("lstm.cell_clip", "cell_clip", None),
        ("lstm.proj_clip", "proj_clip", None),
        ("lstm.use_skip_connections", "use_skip_connections", False),
        ("char_cnn.n_highway", "n_highway", 0),
    ],
)
def test_what_an_optional_key_means_when_it_is_left_out(path: str, field: str, expected: object) -> None:
    # As bilm-tf's training reads them, which is not what our own constructor defaults to.
    assert getattr(BiLMConfig.from_options(without(OPTIONS, path)), field) == expected


def test_no_highways_may_be_written_as_null() -> None:
    assert BiLMConfig.from_options(changed(OPTIONS, "char_cnn.n_highway", None)).n_highway == 0


@pytest.mark.parametrize(
    ("options", "path", "named"),
    [
        (OPTIONS, "lstm", "'lstm'"),
        (OPTIONS, "lstm.dim", "'dim' in lstm"),
        (OPTIONS, "lstm.projection_dim", "'projection_dim' in lstm"),
        (OPTIONS, "char_cnn.filters", "'filters' in char_cnn"),
        (OPTIONS, "char_cnn.activation", "'activation' in char_cnn"),
        (OPTIONS, "char_cnn.embedding", "'embedding'"),
        (OPTIONS, "char_cnn.embedding.dim", "'dim' in char_cnn.embedding"),
        (OPTIONS, "char_cnn.max_characters_per_token", "'max_characters_per_token' in char_cnn"),
        (WORD_OPTIONS, "n_tokens_vocab", "'n_tokens_vocab'"),
    ],
)
def test_a_missing_key_is_named(options: dict[str, Any], path: str, named: str) -> None:
    with pytest.raises(ElmoError, match=named):
        BiLMConfig.from_options(without(options, path))


@pytest.mark.parametrize("options", [None, [], "lstm", 3])
def test_options_that_are_no_object(options: Any) -> None:
    with pytest.raises(ElmoError, match="options"):
        BiLMConfig.from_options(options)


@pytest.mark.parametrize("section", ["lstm", "char_cnn", "char_cnn.embedding"])
@pytest.mark.parametrize("value", [None, [], 3])
def test_a_section_that_is_no_object_is_named(section: str, value: object) -> None:
    with pytest.raises(ElmoError, match=section.split(".")[-1]):
        BiLMConfig.from_options(changed(OPTIONS, section, value))


NOT_A_COUNT: list[object] = [0, -1, 2.0, "2", None, True, float("nan"), [2]]
NO_HIGHWAYS: list[object] = [-1, 1.0, "1", True]
NO_COLUMNS: list[object] = [2, 0, -50, 50.0, "50", None, True]
NO_ACTIVATIONS: list[object] = ["gelu", "ReLU", "", None, 1, []]
NO_STATES: list[object] = ["carry", "", None, 0, []]
NOT_A_CLIP: list[object] = [-1, -0.5, float("nan"), float("inf"), "3", True, [3.0]]
WRONG_FILTERS: list[object] = [
    [],
    "7",
    5,
    [[1, 2, 3]],
    [[1]],
    [1, 2],
    ["12"],
    [[0, 4]],
    [[1, 0]],
    [[1, -4]],
    [[1.5, 4]],
    [[True, 4]],
    [[1, "4"]],
    [[51, 4]],
]
WRONG: list[tuple[str, object]] = [
    *((name, value) for name in ("lstm_dim", "projection_dim", "n_layers", "char_dim") for value in NOT_A_COUNT),
    *(("n_highway", value) for value in NO_HIGHWAYS),
    *(("max_characters_per_token", value) for value in NO_COLUMNS),
    *((name, value) for name in ("cell_clip", "proj_clip") for value in NOT_A_CLIP),
    *(("use_skip_connections", value) for value in (None, 1, "true")),
    *(("activation", value) for value in NO_ACTIVATIONS),
    *(("state", value) for value in NO_STATES),
    *(("filters", value) for value in WRONG_FILTERS),
]


def ids(value: object) -> str:
    return repr(value)


@pytest.mark.parametrize(("field", "value"), WRONG, ids=ids)
def test_a_wrong_value_is_an_error_that_names_its_field(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"lstm_dim": 8, "projection_dim": 4, "max_characters_per_token": 50, field: value}
    with pytest.raises(ElmoError, match="filter" if field == "filters" else field):
        BiLMConfig(**fields)


PATHS = {
    "lstm_dim": "lstm.dim",
    "char_dim": "char_cnn.embedding.dim",
    **{
        name: f"lstm.{name}"
        for name in ("projection_dim", "n_layers", "cell_clip", "proj_clip", "use_skip_connections")
    },
    **{name: f"char_cnn.{name}" for name in ("n_highway", "max_characters_per_token", "activation", "filters")},
    "state": "state",
}


@pytest.mark.parametrize(("field", "value"), WRONG, ids=ids)
def test_a_wrong_option_is_an_error_that_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ElmoError, match="filter" if field == "filters" else field):
        BiLMConfig.from_options(changed(OPTIONS, PATHS[field], value))


@pytest.mark.parametrize("n_words", [0, -1, 1.0, "10", True])
def test_a_wrong_size_of_the_word_table(n_words: Any) -> None:
    with pytest.raises(ElmoError, match="n_words"):
        BiLMConfig(lstm_dim=8, projection_dim=4, filters=None, n_words=n_words)
    with pytest.raises(ElmoError, match="n_words"):
        BiLMConfig.from_options({**WORD_OPTIONS, "n_tokens_vocab": n_words})


def test_words_need_the_size_of_their_table_and_characters_have_none() -> None:
    with pytest.raises(ElmoError, match="n_words"):
        BiLMConfig(lstm_dim=8, projection_dim=4, filters=None)
    with pytest.raises(ElmoError, match="n_words"):
        BiLMConfig(lstm_dim=8, projection_dim=4, n_words=10)


def test_an_lstm_cannot_project_to_more_than_it_holds() -> None:
    with pytest.raises(ElmoError, match=r"projection_dim \(9\).*\(8\)"):
        BiLMConfig(lstm_dim=8, projection_dim=9)


def test_projections_are_left_out_where_the_sizes_agree() -> None:
    config = BiLMConfig(lstm_dim=8, projection_dim=8, filters=((1, 3), (2, 5)))
    assert not config.has_projection
    assert not config.has_char_projection
    assert (config.width, config.n_filters) == (16, 8)
    smaller = dataclasses.replace(config, projection_dim=7)
    assert smaller.has_projection
    assert smaller.has_char_projection


def test_word_input_has_no_filters() -> None:
    config = BiLMConfig(lstm_dim=8, projection_dim=4, filters=None, n_words=10)
    assert config.n_filters == 0
    assert not config.has_char_projection


def test_equal_models_have_equal_configs() -> None:
    plain = BiLMConfig(lstm_dim=8, projection_dim=4, cell_clip=None, proj_clip=3.0, filters=((1, 2), (3, 4)))
    other: Any = [[1, 2], [3, 4]]
    spelled = BiLMConfig(lstm_dim=8, projection_dim=4, cell_clip=0, proj_clip=3, filters=other)
    assert plain == spelled
    assert hash(plain) == hash(spelled)
    assert spelled.cell_clip is None
    assert isinstance(spelled.proj_clip, float)
    # What only a character encoder reads makes no difference to a model of words.
    words = BiLMConfig(lstm_dim=8, projection_dim=4, filters=None, n_words=10)
    assert words == dataclasses.replace(words, activation="tanh", n_highway=3, char_dim=5, max_characters_per_token=9)


def test_a_config_is_frozen_and_given_by_keyword() -> None:
    config = BiLMConfig(lstm_dim=8, projection_dim=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lstm_dim = 9  # type: ignore[misc]
    with pytest.raises(TypeError):
        BiLMConfig(8, 4)  # type: ignore[call-arg]
