"""Out and in again: what is copied is equal to the bit, whatever the sizes, and other readers find what they expect."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spacy_elmo import BiLM, BiLMConfig, ElmoError, load_bilm, save_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import Format, load_many_langs, load_output_layer, recognised, save_native
from tests.reference.make_golden import SENTENCES, VOCABULARY

from .many_langs_folder import write_model
from .writers import Model, write_checkpoint_model

h5py = pytest.importorskip("h5py")

FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What no line of a file can hold: line breaks, lone surrogates.
WORD = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=6)


@st.composite
def bilms(draw: st.DrawFn) -> BiLM:
    """Small ones of any shape that bilm-tf has, every value drawn: biases are not zero."""
    lstm_dim = draw(st.integers(1, 6))
    fields: dict[str, Any] = {
        "lstm_dim": lstm_dim,
        "projection_dim": draw(st.integers(1, lstm_dim)),
        "n_layers": draw(st.integers(1, 4)),
        "cell_clip": draw(st.none() | st.floats(0.125, 8.0)),
        "proj_clip": draw(st.none() | st.floats(0.125, 8.0)),
        "use_skip_connections": draw(st.booleans()),
    }
    vocabulary = None
    if draw(st.booleans()):
        fields |= {
            "filters": draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4)),
            "activation": draw(st.sampled_from(["relu", "tanh"])),
            "n_highway": draw(st.integers(0, 3)),
            "char_dim": draw(st.integers(1, 4)),
            "max_characters_per_token": draw(st.integers(5, 50)),
        }
    else:
        vocabulary = draw(st.permutations(["<S>", "</S>", *draw(st.lists(WORD, max_size=4))]))
        fields |= {"filters": None, "n_words": len(vocabulary)}
    bilm = BiLM(BiLMConfig(**fields), vocabulary=vocabulary)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.normal_(generator=generator)
    return bilm


def assert_equal(found: BiLM, expected: BiLM) -> None:
    assert found.config == expected.config
    assert found.vocabulary == expected.vocabulary
    assert found.characters == expected.characters
    tensors, wanted = found.state_dict(), expected.state_dict()
    assert list(tensors) == list(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(tensors[name], tensor), name


@FEW
@given(bilms(), st.permutations(["native", "bilm-hdf5"]))
def test_there_and_back(bilm: BiLM, formats: list[Format]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        found = bilm
        for step, format in enumerate([*formats, formats[0]]):
            save_bilm(found, path / str(step), format)
            found = load_bilm(path / str(step))
            assert_equal(found, bilm)
        # The same model is the same bytes, however often it was converted.
        for file in (path / "0").iterdir():
            assert file.read_bytes() == (path / "2" / file.name).read_bytes(), file.name


@FEW
@given(bilms())
def test_what_other_readers_find(bilm: BiLM) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_bilm(bilm, folder, "bilm-hdf5")
        options = json.loads(Path(folder, "options.json").read_bytes())
        found: dict[str, np.ndarray] = {}
        with h5py.File(Path(folder, "weights.hdf5"), "r") as file:
            file.visititems(lambda name, node: found.update({name: node[()]}) if hasattr(node, "dtype") else None)
            assert not dict(file.attrs)
        lines = Path(folder, "vocabulary.txt").read_bytes().decode().split("\n") if bilm.vocabulary else None
    config = bilm.config
    assert {array.dtype for array in found.values()} == {np.dtype("<f4")}
    for d, stack in enumerate((bilm.forward_lstm, bilm.backward_lstm)):
        for layer, cell in enumerate(stack.layers):
            name = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            # Raw: whoever reads them adds the forget gate's 1.
            np.testing.assert_array_equal(found.pop(f"{name}/B"), cast("Any", cell.bias).detach().numpy())
            np.testing.assert_array_equal(found.pop(f"{name}/W_0"), cast("Any", cell.kernel).detach().numpy())
            assert (f"{name}/W_P_0" in found) == (config.projection_dim < config.lstm_dim)
            found.pop(f"{name}/W_P_0", None)
    assert options["lstm"]["n_layers"] == config.n_layers
    if config.filters is None:
        assert set(found) == {"embedding"}
        assert "char_cnn" not in options
        assert lines == [*(bilm.vocabulary or []), ""]
        assert found["embedding"].shape == (config.n_words, config.projection_dim)
        return
    assert options["char_cnn"]["n_characters"] == 262
    assert found["char_embed"].shape == (261, config.char_dim)
    for i, (width, count) in enumerate(config.filters):
        assert found.pop(f"CNN/W_cnn_{i}").shape == (1, width, config.char_dim, count)
        assert found.pop(f"CNN/b_cnn_{i}").shape == (count,)
    assert ("CNN_proj/W_proj" in found) == (config.n_filters != config.projection_dim)
    assert len([name for name in found if name.startswith("CNN_high_")]) == 4 * config.n_highway


@pytest.mark.parametrize("case", ["base", "one_layer", "no_char_projection", "words"])
def test_from_a_checkpoint(case: str, tmp_path: Path) -> None:
    model = Model(case)
    source = write_checkpoint_model(tmp_path / "checkpoint", model)
    save_bilm(load_bilm(source), tmp_path / "hdf5", "bilm-hdf5")
    with h5py.File(tmp_path / "hdf5" / "weights.hdf5", "r") as file:
        for name, value in model.weights.items():
            np.testing.assert_array_equal(file[name][()], value)
    model.check(load_bilm(tmp_path / "hdf5"))


def test_what_a_format_cannot_hold(tmp_path: Path) -> None:
    write_model(tmp_path / "144")
    many_langs = load_many_langs(tmp_path / "144")
    with pytest.raises(WeightsError, match="no place for the token encoder of ELMoForManyLangs"):
        save_bilm(many_langs, tmp_path / "hdf5", "bilm-hdf5")
    assert not (tmp_path / "hdf5").exists()
    save_bilm(many_langs, tmp_path / "native")
    assert_equal(load_bilm(tmp_path / "native"), many_langs)
    with pytest.raises(ElmoError, match="format is one of native, bilm-hdf5, not 'onnx'"):
        save_bilm(many_langs, tmp_path / "onnx", "onnx")  # type: ignore[arg-type]


def test_a_start_state_is_left_out_with_a_warning(tmp_path: Path) -> None:
    bilm = BiLM(BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 3),), state="warm")).initialize(1)
    assert bilm.start_forward_hidden is not None
    bilm.start_forward_hidden.fill_(0.5)
    with pytest.warns(UserWarning, match="no place for the start state"):
        save_bilm(bilm, tmp_path, "bilm-hdf5")
    found = load_bilm(tmp_path)
    assert found.config.state == "zero"
    for one, other in zip(found.encode(SENTENCES), bilm.encode(SENTENCES, "zero"), strict=True):
        assert torch.equal(one, other)


# The output layer


def test_the_softmax_of_a_checkpoint_goes_along(tmp_path: Path) -> None:
    model = Model()
    source = write_checkpoint_model(tmp_path / "checkpoint", model)

    def convert() -> Path:
        with recognised(source) as found:
            output = load_output_layer(found)
            save_native(found.load(), tmp_path / "native", output)
        assert output is not None
        return tmp_path / "native"

    convert()
    with recognised(tmp_path / "native") as found:
        again = load_output_layer(found)
    assert again is not None
    assert again.words is None
    assert "vocabulary.txt: no such file" in again.why
    np.testing.assert_array_equal(again.softmax.stored()["W"].detach().numpy(), model.softmax["W"])
    np.testing.assert_array_equal(again.softmax.stored()["b"].detach().numpy(), model.softmax["b"])
    (source / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    with recognised(convert()) as found:
        again = load_output_layer(found)
    assert again is not None
    assert again.words == VOCABULARY
    assert again.why == ""
    # Vocabularies that do not fit are not taken, and that of the softmax before goes.
    for lines, why in ((["the", "cat"], "lacks <S>, </S>, <UNK>"), (VOCABULARY[:5], "has 5 words")):
        (source / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
        with recognised(source) as found:
            output = load_output_layer(found)
        assert output is not None
        assert output.words is None
        assert why in output.why
        assert not (convert() / "vocabulary.txt").exists()


def test_special_words_come_first_with_their_rows(tmp_path: Path) -> None:
    model = Model()
    source = write_checkpoint_model(tmp_path, model)
    words = [*VOCABULARY[3:6], "</S>", "<S>", *VOCABULARY[6:], "<UNK>"]
    (source / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    with recognised(source) as found:
        output = load_output_layer(found)
    assert output is not None
    assert output.words == VOCABULARY
    for word, row, bias in zip(
        output.words, output.softmax.stored()["W"].detach(), output.softmax.stored()["b"].detach(), strict=True
    ):
        np.testing.assert_array_equal(row.numpy(), model.softmax["W"][words.index(word)])
        assert bias == model.softmax["b"][words.index(word)]
    # Our own format has each word once.
    (source / "vocab.txt").write_text("".join(f"{word}\n" for word in [*VOCABULARY[:9], "the"]), encoding="utf-8")
    with recognised(source) as found:
        output = load_output_layer(found)
    assert output is not None
    assert output.words is None
    assert "'the', stands there twice" in output.why


def test_weights_without_an_output_layer(tmp_path: Path) -> None:
    save_bilm(BiLM(BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 3),))), tmp_path)
    with recognised(tmp_path) as found:
        assert load_output_layer(found) is None
