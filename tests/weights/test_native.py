"""Our own format: everything comes back, the bytes are the same every time, and what is broken is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from spacy_elmo.bilm.adaptive import AdaptiveSoftmax
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.continuous import ContinuousOutput
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax, SampledSoftmax
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import (
    bilm_from_bytes,
    bilm_to_bytes,
    load_native,
    load_softmax,
    load_vocabulary,
    save_native,
    save_softmax,
    save_vocabulary,
)

WORDS = ["<S>", "</S>", "<UNK>", "the", "a\nb", "\ud800", "", "é"]


def config(**changes: Any) -> BiLMConfig:
    fields: dict[str, Any] = {"lstm_dim": 6, "projection_dim": 4, "filters": ((1, 3), (3, 4)), "char_dim": 2}
    return BiLMConfig(**{**fields, **changes})


def filled(bilm: BiLM, seed: int = 0) -> BiLM:
    """Every tensor drawn, biases and start state included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in bilm.state_dict().values():
            tensor.normal_(generator=generator)
    bilm.invalidate()
    return bilm


CASES: dict[str, Callable[[], BiLM]] = {
    "characters": lambda: BiLM(config()),
    "warm": lambda: BiLM(config(state="warm")),
    "no projections": lambda: BiLM(config(lstm_dim=7, projection_dim=7, n_highway=0, cell_clip=None)),
    "one layer": lambda: BiLM(config(n_layers=1, activation="tanh", use_skip_connections=False)),
    "three layers": lambda: BiLM(config(n_layers=3, n_highway=2, max_characters_per_token=10)),
    "words": lambda: BiLM(config(filters=None, char_dim=16, n_words=len(WORDS)), vocabulary=WORDS),
}


@pytest.fixture(params=list(CASES))
def bilm(request: pytest.FixtureRequest) -> BiLM:
    return filled(CASES[request.param]())


@pytest.fixture
def small() -> BiLM:
    return filled(BiLM(config()))


def assert_same(found: BiLM, expected: BiLM) -> None:
    assert found.config == expected.config
    assert found.vocabulary == expected.vocabulary
    state, wanted = found.state_dict(), expected.state_dict()
    assert state.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(state[name], tensor), name
    sentences = [["the", "é", "unseen"], [], [""]]
    for a, b in zip(found.encode(sentences), expected.encode(sentences), strict=True):
        assert torch.equal(a, b)


def test_folder_round_trip(bilm: BiLM, tmp_path: Path) -> None:
    save_native(bilm, tmp_path / "new" / "model")
    assert_same(load_native(tmp_path / "new" / "model"), bilm)
    files = {path.name for path in (tmp_path / "new" / "model").iterdir()}
    assert files == {"config.json", "model.safetensors"} | ({"vocabulary.json"} if bilm.vocabulary else set())
    options = json.loads((tmp_path / "new" / "model" / "config.json").read_text())
    assert options == bilm.config.to_options()


def test_bytes_round_trip_and_are_the_file(bilm: BiLM, tmp_path: Path) -> None:
    data = bilm_to_bytes(bilm)
    assert_same(bilm_from_bytes(data), bilm)
    save_native(bilm, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == data
    assert bilm_to_bytes(load_native(tmp_path)) == data


def test_bytes_are_half_as_long_where_float16_holds_every_value(bilm: BiLM, tmp_path: Path) -> None:
    full = bilm_to_bytes(bilm)
    save_native(bilm, tmp_path / "half", dtype="float16")
    rounded = load_native(tmp_path / "half")
    data = bilm_to_bytes(rounded)
    assert data == (tmp_path / "half" / "model.safetensors").read_bytes()
    n = sum(tensor.numel() for tensor in bilm.state_dict().values())
    assert len(full) - len(data) == pytest.approx(2 * n, abs=16)  # the header is padded to whole 8 bytes
    found = bilm_from_bytes(data)
    assert_same(found, rounded)
    assert {tensor.dtype for tensor in found.state_dict().values()} == {torch.float32}
    # What is asked for counts in files; one value that float16 lacks, and all are float32.
    save_native(rounded, tmp_path / "full")
    assert (tmp_path / "full" / "model.safetensors").stat().st_size == len(full)
    for value in (1 + 2**-11, 2.0**-25, 65520.0):
        rounded.state_dict()["forward_lstm.layers.0.bias"][0] = value
        assert len(bilm_to_bytes(rounded)) == len(full)
        assert_same(bilm_from_bytes(bilm_to_bytes(rounded)), rounded)


def test_the_file_is_read_by_the_safetensors_library(small: BiLM, tmp_path: Path) -> None:
    save_native(small, tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    for name, tensor in small.state_dict().items():
        assert torch.equal(tensors[name], tensor)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.metadata()) == {"spacy_elmo_config", "spacy_elmo_version"}


def test_half_precision_is_read_as_float32(small: BiLM, tmp_path: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in small.state_dict().items()}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(small.config.to_options()))
    loaded = load_native(tmp_path).state_dict()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.float())


def test_the_weights_alone_are_a_model(bilm: BiLM, tmp_path: Path) -> None:
    save_native(bilm, tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "vocabulary.json").unlink(missing_ok=True)
    assert_same(load_native(tmp_path), bilm)
    assert_same(load_native(tmp_path / "model.safetensors"), bilm)


def test_no_temporary_files_are_left(small: BiLM, tmp_path: Path) -> None:
    save_native(small, tmp_path)
    save_native(small, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_another_model_in_the_same_folder_replaces_all(tmp_path: Path) -> None:
    save_native(filled(CASES["words"]()), tmp_path)
    bilm = filled(CASES["characters"]())
    save_native(bilm, tmp_path)
    assert_same(load_native(tmp_path), bilm)
    assert not (tmp_path / "vocabulary.json").exists()


def test_a_failed_save_keeps_the_old_model(small: BiLM, tmp_path: Path) -> None:
    save_native(small, tmp_path)
    broken = filled(BiLM(config()), seed=1)
    with torch.no_grad():
        broken.state_dict()["forward_lstm.layers.1.bias"][3] = float("nan")
    with pytest.raises(WeightsError, match=r"forward_lstm\.layers\.1\.bias.* 1 NaN or infinite"):
        save_native(broken, tmp_path)
    with pytest.raises(WeightsError, match="NaN"):
        bilm_to_bytes(broken)
    assert_same(load_native(tmp_path), small)


def test_a_file_where_the_folder_should_be(small: BiLM, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(WeightsError, match="there is a file of that name"):
        save_native(small, tmp_path / "model")
    assert (tmp_path / "model").read_text() == "mine"


# What is broken


def stored(bilm: BiLM, folder: Path, *, options: Any = None, **changes: torch.Tensor | None) -> Path:
    """The weights as a tool of others stores them, some tensors replaced or (None) left out."""
    tensors = {**bilm.state_dict(), **{name.replace("__", "."): value for name, value in changes.items()}}
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.torch.save_file(present, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(bilm.config.to_options() if options is None else options))
    return folder


def test_another_shape_names_the_tensor_and_both_shapes(small: BiLM, tmp_path: Path) -> None:
    stored(small, tmp_path, token_encoder__char_embed=torch.zeros(262, 2))
    with pytest.raises(WeightsError, match=r"token_encoder\.char_embed.*\(262, 2\).*\(261, 2\)"):
        load_native(tmp_path)


def test_missing_and_unexpected_tensors_are_named(small: BiLM, tmp_path: Path) -> None:
    stored(small, tmp_path, token_encoder__W_proj=None)
    with pytest.raises(WeightsError, match=r"lacks: token_encoder\.W_proj"):
        load_native(tmp_path)
    stored(small, tmp_path, extra=torch.zeros(1))
    with pytest.raises(WeightsError, match="not ask for: extra"):
        load_native(tmp_path)


def test_a_start_state_belongs_to_the_policy(small: BiLM, tmp_path: Path) -> None:
    stored(small, tmp_path, options={**small.config.to_options(), "state": "warm"})
    with pytest.raises(WeightsError, match="lacks: start_forward_hidden"):
        load_native(tmp_path)
    stored(filled(CASES["warm"]()), tmp_path, options=small.config.to_options())
    with pytest.raises(WeightsError, match="not ask for: start_backward_cell"):
        load_native(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(small: BiLM, tmp_path: Path, value: float) -> None:
    stored(small, tmp_path, token_encoder__b_proj=torch.full((4,), value))
    with pytest.raises(WeightsError, match=r"token_encoder\.b_proj.*4 NaN or infinite"):
        load_native(tmp_path)


def test_whole_numbers_are_not_weights(small: BiLM, tmp_path: Path) -> None:
    stored(small, tmp_path, token_encoder__b_proj=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(WeightsError, match=r"b_proj.*int64"):
        load_native(tmp_path)


def test_a_config_that_claims_too_much_allocates_nothing(small: BiLM, tmp_path: Path) -> None:
    options = small.config.to_options()
    options["lstm"]["n_layers"] = 10**12
    stored(small, tmp_path, options=options)
    with pytest.raises(WeightsError, match=r"lacks: forward_lstm\.layers\.2.*and more"):
        load_native(tmp_path)
    options["lstm"].update(n_layers=2, dim=10**9)
    stored(small, tmp_path, options=options)
    with pytest.raises(WeightsError, match=r"kernel.*\(8, 24\).*\(8, 4000000000\)"):
        load_native(tmp_path)


def test_config_errors_name_file_and_field(small: BiLM, tmp_path: Path) -> None:
    options = small.config.to_options()
    options["char_cnn"]["activation"] = "gelu"
    stored(small, tmp_path, options=options)
    with pytest.raises(WeightsError, match=r"config\.json.*activation.*'gelu'"):
        load_native(tmp_path)
    options = small.config.to_options()
    options["char_cnn"]["n_characters"] = 300
    stored(small, tmp_path, options=options)
    with pytest.raises(WeightsError, match=r"config\.json: char_cnn\.n_characters is 300.*\(261, 2\)"):
        load_native(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json: is not valid JSON"):
        load_native(tmp_path)
    for empty in ("[]", "3", "null"):
        (tmp_path / "config.json").write_text(empty)
        with pytest.raises(WeightsError, match=r"config\.json"):
            load_native(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"no config.*no config\.json beside"):
        load_native(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 90, "is an HDF5 file"),
        (b"PK\x03\x04" + b"\0" * 90, "pickled"),
        (b"\xff" * 90, "not a whole safetensors file"),
        (b"\x02\0\0\0\0\0\0\0{}", "no config"),
    ],
)
def test_files_that_are_not_weights(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=rf"model\.safetensors.*{message}"):
        load_native(tmp_path)


def test_words_without_their_vocabulary(tmp_path: Path) -> None:
    bilm = filled(CASES["words"]())
    stored(bilm, tmp_path)
    with pytest.raises(WeightsError, match=r"8 rows and have no vocabulary.*vocabulary\.json"):
        load_native(tmp_path)
    (tmp_path / "vocabulary.json").write_text(json.dumps(WORDS))
    assert_same(load_native(tmp_path), bilm)
    (tmp_path / "vocabulary.json").write_text(json.dumps(WORDS[:-1]))
    with pytest.raises(WeightsError, match="7 words, but the word table 8 rows"):
        load_native(tmp_path)
    (tmp_path / "vocabulary.json").write_text(json.dumps([word.lower() for word in WORDS]))
    with pytest.raises(WeightsError, match="<S>"):
        load_native(tmp_path)
    (tmp_path / "vocabulary.json").write_text('{"a": 1}')
    with pytest.raises(WeightsError, match="list of strings"):
        load_native(tmp_path)


def test_bytes_of_something_else() -> None:
    for data in (b"", b"\x80\x04K\x01.", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 8):
        with pytest.raises(WeightsError, match="the bytes of a biLM"):
            bilm_from_bytes(data)


def test_damaged_bytes_give_an_error_or_finite_values(small: BiLM, tmp_path: Path) -> None:
    data = bilm_to_bytes(small)
    header = 8 + int.from_bytes(data[:8], "little")
    rng = random.Random(7)
    refused = 0
    for attempt in range(60):
        damaged = bytearray(data)
        if attempt % 3 == 0:
            del damaged[rng.randrange(len(data)) :]
        for _ in range(rng.randrange(1, 8)):
            # Two in three attempts damage the header: it is where a reader can be led astray.
            if damaged:
                damaged[rng.randrange(min(len(damaged), header if attempt % 3 else len(data)))] = rng.randrange(256)
        (tmp_path / "model.safetensors").write_bytes(damaged)
        for load in (lambda: load_native(tmp_path), lambda: bilm_from_bytes(bytes(damaged))):  # noqa: B023
            try:
                loaded = load()
            except WeightsError:
                refused += 1
                continue
            assert all(torch.isfinite(tensor).all() for tensor in loaded.state_dict().values())
    assert refused > 60


# The softmax and its vocabulary


def test_softmax_round_trip(tmp_path: Path) -> None:
    softmax = FullSoftmax(5, 3).initialize(1)
    with torch.no_grad():
        softmax.b.copy_(torch.arange(5.0))
    save_softmax(softmax, tmp_path)
    for path in (tmp_path, tmp_path / "softmax.safetensors"):
        loaded = load_softmax(path)
        assert torch.equal(loaded.stored()["W"], softmax.W)
        assert torch.equal(loaded.stored()["b"], softmax.b)
    save_softmax(softmax, tmp_path / "other.safetensors")
    assert torch.equal(load_softmax(tmp_path / "other.safetensors").stored()["W"], softmax.W)


def test_softmax_errors(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"softmax\.safetensors: no such file"):
        load_softmax(tmp_path)
    path = tmp_path / "softmax.safetensors"
    safetensors.torch.save_file({"W": torch.zeros(5, 3), "b": torch.zeros(4)}, path)
    with pytest.raises(WeightsError, match=r"'b' has shape \(4,\).*\(5,\)"):
        load_softmax(tmp_path)
    safetensors.torch.save_file({"W": torch.zeros(5)}, path)
    with pytest.raises(WeightsError, match="is not a softmax layer"):
        load_softmax(tmp_path)
    safetensors.torch.save_file({"W": torch.full((2, 2), np.nan), "b": torch.zeros(2)}, path)
    with pytest.raises(WeightsError, match="NaN"):
        load_softmax(tmp_path)


def output_layers() -> list[Any]:
    """One of each kind, its weights drawn."""
    vmf = ContinuousOutput(6, 3, loss="vmf", dot_weight=0.1, norm_weight=0.02, vectors="toy", sha256="ab" * 32)
    return [
        AdaptiveSoftmax(9, 4, cutoffs=[2, 5], div_value=1.5, head_bias=True).initialize(1),
        vmf.initialize(1),
        ContinuousOutput(6, 3, vectors="toy", sha256="00" * 32).initialize(2),
    ]


@pytest.mark.parametrize("layer", output_layers(), ids=["adaptive", "vmf", "cosine"])
def test_other_output_layers_round_trip(layer: Any, tmp_path: Path) -> None:
    save_softmax(layer, tmp_path)
    first = (tmp_path / "softmax.safetensors").read_bytes()
    loaded = load_softmax(tmp_path)
    assert type(loaded) is type(layer)
    assert loaded.settings() == layer.settings()
    assert loaded.stored().keys() == layer.stored().keys()
    for name, tensor in layer.stored().items():
        assert torch.equal(loaded.stored()[name], tensor)
    for name, tensor in layer.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    save_softmax(loaded, tmp_path)
    assert (tmp_path / "softmax.safetensors").read_bytes() == first
    # It is a whole layer: it trains on.
    if isinstance(loaded, ContinuousOutput):
        loaded.use_table(torch.eye(7, 6).roll(1, 0))
    hidden = torch.randn(5, layer.width, generator=torch.Generator().manual_seed(0))
    loss = loaded.loss(hidden, torch.arange(5), seed=0)
    loss.backward()
    assert loss.isfinite()


def test_softmaxes_are_saved_as_what_scores_and_a_tied_one_whole(tmp_path: Path) -> None:
    table = torch.nn.Parameter(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    sampled = SampledSoftmax(5, 3, n_samples=2, tied=True)
    sampled.tie(table)
    save_softmax(sampled, tmp_path)
    loaded = load_softmax(tmp_path)
    assert type(loaded) is FullSoftmax
    assert not loaded.tied
    assert torch.equal(loaded.W, table)


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ({"kind": "softmax", "settings": {"n_words": 6, "width": 3}}, r"'W' has shape \(5, 3\).*\(6, 3\)"),
        ({"kind": "softmax", "settings": {"n_words": 10**30, "width": 3}}, "is no output layer of ours"),
        ({"kind": "softmax", "settings": {"n_words": 10**15, "width": 3}}, r"'W' has shape \(5, 3\)"),
        ({"kind": "softmax", "settings": {}}, "is no output layer of ours"),
        ({"kind": "softmax", "settings": 3}, "is no output layer of ours"),
        ({"kind": "other", "settings": {}}, "is no output layer of ours.*other"),
        ({"kind": ["softmax"], "settings": {}}, "is no output layer of ours"),
        (["softmax"], "is no output layer of ours"),
        ({"kind": "adaptive_softmax", "settings": {"n_words": 5, "width": 3, "cutoffs": "ab"}}, "is no output layer"),
        ({"kind": "adaptive_softmax", "settings": {"n_words": 5, "width": 3, "cutoffs": [2]}}, "is no output layer"),
        (
            {"kind": "adaptive_softmax", "settings": {"n_words": 5, "width": 4, "cutoffs": [2]}},
            r"lacks: head\.weight, tail",
        ),
        ({"kind": "continuous_output", "settings": {"n_dims": 5, "width": 3, "loss": "l2"}}, "'cosine' or 'vmf'"),
        ({"kind": "continuous_output", "settings": {"n_dims": 5, "width": 3, "sha256": 3}}, "is no output layer"),
        ({"kind": "continuous_output", "settings": {"n_dims": 5, "width": 3, "sha256": "x"}}, "is no output layer"),
    ],
)
def test_headers_that_describe_no_output_layer(output: Any, named: str, tmp_path: Path) -> None:
    tensors = {"W": torch.zeros(5, 3), "b": torch.zeros(5)}
    metadata = {"spacy_elmo_output_layer": json.dumps(output)}
    safetensors.torch.save_file(tensors, tmp_path / "softmax.safetensors", metadata)
    with pytest.raises(WeightsError, match=rf"softmax\.safetensors: .*{named}"):
        load_softmax(tmp_path)


def test_vocabulary_round_trip_with_odd_words(tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "the", "", " ", "\xa0", "a\u2028b", "\x0b", "\x85", "日本語", "😀", "\ufeff"]
    save_vocabulary(words, tmp_path / "vocabulary.txt")
    assert load_vocabulary(tmp_path / "vocabulary.txt") == words
    save_vocabulary([*words, "last", ""][:5], tmp_path / "vocabulary.txt")  # an empty last word is kept
    assert load_vocabulary(tmp_path / "vocabulary.txt") == words[:5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["<S>", "</S>", "<UNK>", "a\nb"], r"word 3, 'a\\nb', has a line break"),
        (["<S>", "</S>", "<UNK>", "a\r"], "line break"),
        (["<S>", "</S>", "<UNK>", "x\ud800"], r"word 3, 'x\\ud800', has a lone surrogate"),
        (["<S>", "</S>", "<UNK>", "a", "a"], "word 4 .*'a', stands there twice"),
        (["<S>", "<UNK>", "</S>"], "starts with <S>, </S>, <UNK>"),
    ],
)
def test_vocabularies_that_no_file_can_hold(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        save_vocabulary(words, tmp_path / "vocabulary.txt")
    assert not list(tmp_path.iterdir())


def test_vocabulary_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes("\ufeff<S>\r\n</S>\r\n<UNK>\r\nthe".encode())
    assert load_vocabulary(path) == ["<S>", "</S>", "<UNK>", "the"]
    path.write_bytes(b"<S>\n</S>\n<UNK>\n\xff\n")
    with pytest.raises(WeightsError, match="UTF-8"):
        load_vocabulary(path)
