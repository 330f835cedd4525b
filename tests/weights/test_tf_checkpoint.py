"""bilm-tf's TensorFlow checkpoints: one that TensorFlow wrote, ones to the format's description, and broken ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import load_bilm, load_softmax, recognised, save_bilm, save_bilm_hdf5
from tests.reference import make_tf_checkpoint as real
from tests.reference.make_golden import SENTENCES
from tests.reference.numpy_bilm import NumpyBiLM

from .writers import (
    TOLERANCE,
    Model,
    entry,
    header,
    table,
    variable_names,
    write_bundle,
    write_checkpoint_model,
    write_hdf5,
)

FIXTURE = Path(__file__).parent / "fixtures" / "tf_checkpoint"
INDEX, DATA = "model.ckpt-12.index", "model.ckpt-12.data-00000-of-00001"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint_model(tmp_path, Model())


def refused(path: Path, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_bilm(path)


# Written by TensorFlow 2.21


def test_a_checkpoint_of_tensorflow_equals_the_reference() -> None:
    weights, _ = real.draw()
    expected = NumpyBiLM(real.OPTIONS, weights).encode(SENTENCES)
    bilm = load_bilm(FIXTURE)
    for layers, wanted in zip(bilm.encode(SENTENCES), expected, strict=True):
        np.testing.assert_allclose(layers.numpy(), wanted, rtol=0, atol=TOLERANCE)
    for name in ("0.kernel", "1.projection"):
        dataset = f"RNN_1/RNN/MultiRNNCell/Cell{name[0]}/LSTMCell/{'W_0' if name[0] == '0' else 'W_P_0'}"
        found = bilm.state_dict()[f"backward_lstm.layers.{name}"]
        np.testing.assert_array_equal(found.numpy(), weights[dataset])


def test_the_softmax_of_tensorflow_gives_the_references_perplexity() -> None:
    weights, values = real.draw()
    softmax = load_softmax(FIXTURE)
    for name, value in values.items():
        np.testing.assert_array_equal(getattr(softmax, name).detach().numpy(), value)
    hidden = NumpyBiLM(real.OPTIONS, weights).encode([["the", ",", "of"]])[0][-1, :, :5]  # forward, top layer
    logits = hidden @ values["W"].astype(np.float64).T + values["b"]
    targets = np.array([4, 6, 1])
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(3), targets]
    (layers,) = load_bilm(FIXTURE).encode([["the", ",", "of"]])
    found = softmax.target_losses(layers[-1, :, :5], torch.from_numpy(targets))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=5e-6)


# Ways to name one


@pytest.mark.parametrize(
    "name", ["", "checkpoint", "options.json", "model.ckpt-7", "model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"]
)
def test_all_ways_to_name_a_checkpoint(name: str) -> None:
    expected = load_bilm(FIXTURE).state_dict()
    with recognised(FIXTURE / name) as found:
        assert found.family == "bilm-tf checkpoint"
        assert found.path == FIXTURE / "model.ckpt-7"
        state = found.load().state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in expected.items())


def test_options_that_lie_elsewhere(folder: Path) -> None:
    (folder / "other").mkdir()
    options = (folder / "options.json").rename(folder / "other" / "my.json")
    for name in ("model.ckpt-12", INDEX, DATA):
        Model().check(load_bilm(options, folder / name))
    refused(folder, r"model\.ckpt-12: has no options\.json beside it: load_bilm\(<the options file>")


def test_the_latest_of_several(folder: Path, tmp_path: Path) -> None:
    write_checkpoint_model(folder, Model("tanh"), name="model.ckpt-8")
    (folder / "options.json").write_text(json.dumps(Model().options))
    refused(folder, r"several checkpoints \(model\.ckpt-12, model\.ckpt-8\).*no file 'checkpoint'")
    Model().check(load_bilm(folder / "model.ckpt-12"))
    for named in ("model.ckpt-12", "/home/someone/model.ckpt-12", "C:\\\\models\\\\model.ckpt-12"):
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\nall_model_checkpoint_paths: "x"\n')
        Model().check(load_bilm(folder))
    (folder / "checkpoint").write_bytes(b"\xff\xfe")
    refused(folder, "several checkpoints")


def test_a_file_that_names_a_checkpoint_which_is_gone(folder: Path) -> None:
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-99"\n')
    Model().check(load_bilm(folder))


def test_hdf5_weights_come_first_where_both_lie(folder: Path) -> None:
    pytest.importorskip("h5py")
    other = Model("base")
    other.weights = {name: value * np.float32(0.5) for name, value in other.weights.items()}
    write_hdf5(folder / "model.hdf5", other.weights)
    other.check(load_bilm(folder))
    Model().check(load_bilm(folder / "model.ckpt-12"))


def test_nothing_is_saved_over_a_checkpoints_options(folder: Path) -> None:
    bilm = load_bilm(folder)
    for save in (save_bilm, save_bilm_hdf5):
        with pytest.raises(
            WeightsError, match=r"holds (a TensorFlow checkpoint|a model in HDF5).*choose another folder"
        ):
            save(bilm, folder)
    Model().check(load_bilm(folder))


# Other models


def test_other_types_of_numbers_and_adams_moments(folder: Path) -> None:
    model = Model()
    variables = {name: value.astype(np.float64) for name, value in variable_names(model.weights).items()}
    variables["lm/char_embed"] = variables["lm/char_embed"].astype(np.float16)  # drawn so that they are exact
    variables |= {f"{name}/{slot}": value for name, value in variables.items() for slot in ("Adam", "Adam_1")}
    variables |= {"beta1_power": np.array(0.9), "lm/beta2_power": np.array(0.9)}
    write_bundle(folder / "model.ckpt-12", variables)
    model.check(load_bilm(folder))
    with pytest.raises(WeightsError, match=r"model\.ckpt-12\.index: holds no softmax"):
        load_softmax(folder)


def test_a_softmax_that_is_the_word_table(tmp_path: Path) -> None:
    model = Model("words")
    folder = write_checkpoint_model(tmp_path, model)
    variables = variable_names(model.weights) | {"lm/softmax/b": model.softmax["b"]}
    write_bundle(folder / "model.ckpt-12", variables)
    softmax = load_softmax(folder)
    np.testing.assert_array_equal(softmax.stored()["W"].detach().numpy(), model.weights["embedding"])
    np.testing.assert_array_equal(softmax.stored()["b"].detach().numpy(), model.softmax["b"])


def test_forward_only_models_are_named(folder: Path) -> None:
    variables = variable_names(Model().weights)
    forward = {name.replace("lm/RNN_0/", "lm/"): value for name, value in variables.items() if "RNN_1" not in name}
    write_bundle(folder / "model.ckpt-12", forward)
    refused(folder, r"model\.ckpt-12\.index: is a forward-only language model.*'bidirectional'")


# What is broken


def test_shapes_and_names_that_do_not_belong_to_the_options(folder: Path) -> None:
    variables = variable_names(Model().weights)
    name = "lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel"
    write_bundle(folder / "model.ckpt-12", {**variables, name: np.zeros((12, 40), dtype=np.float32)})
    refused(folder, rf"variable '{name}' has shape \(12, 40\), but its options ask for \(12, 36\)")
    write_bundle(folder / "model.ckpt-12", {key: value for key, value in variables.items() if key != name})
    refused(folder, f"ask for variables that it lacks: {name}")
    write_bundle(folder / "model.ckpt-12", {**variables, name.replace("cell_1", "cell_2"): variables[name]})
    refused(folder, "holds variables that its options do not ask for: .*cell_2")
    variables[name][3, 4] = np.nan
    write_bundle(folder / "model.ckpt-12", variables)
    refused(folder, rf"'{name}' has 1 NaN or infinite values")


def test_whole_numbers_are_not_weights(folder: Path) -> None:
    variables = variable_names(Model().weights)
    variables["lm/char_embed"] = variables["lm/char_embed"].astype(np.int32)
    write_bundle(folder / "model.ckpt-12", variables)
    refused(folder, "'lm/char_embed' has TensorFlow's data type 3, not floating-point")


def test_missing_cut_and_damaged_values(folder: Path) -> None:
    data = (folder / DATA).read_bytes()
    (folder / DATA).write_bytes(data[:9000])
    refused(folder, rf"{DATA}: has 9000 bytes, but '\S+' ends at byte")
    (folder / DATA).write_bytes(data[:10] + bytes([data[10] ^ 1]) + data[11:])
    refused(folder, rf"{DATA}: the bytes of 'lm/CNN/W_cnn_0' do not have its checksum: the file is damaged")
    (folder / DATA).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 374434792\n")
    refused(folder, f"{DATA}: is a git-LFS pointer")
    (folder / DATA).unlink()
    refused(folder, f"{DATA}: no such file, but .*{INDEX} says that weights lie there")


def test_a_missing_cut_or_damaged_index(folder: Path) -> None:
    data = (folder / INDEX).read_bytes()
    whole = r"model\.ckpt-12\.index: is not the whole index of a TensorFlow checkpoint: "
    for share in (0.1, 0.5, 0.99):
        (folder / INDEX).write_bytes(data[: int(len(data) * share)])
        refused(folder, whole + "it does not end as a table does")
    (folder / INDEX).write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    refused(folder, whole + "the block at 0 does not have its checksum")
    (folder / INDEX).write_bytes(bytes(5 * 2**20))
    refused(folder, "is larger than 4194304 bytes")
    (folder / INDEX).unlink()
    with pytest.raises(WeightsError, match=rf"{INDEX}: no such file"):
        load_bilm(folder / "options.json", folder / DATA)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "has no header; checkpoints of TensorFlow's first format"),
        ({b"lm": b""}, "has no header"),
        ({b"": b""}, "there are 0 files of values"),
        ({b"": header(1, big_endian=True)}, "written on a big-endian machine"),
        ({b"": header(1), b"lm/x": b"\x08"}, "a number is cut short"),
        ({b"": header(1), b"lm/x": b"\x12\x05\x12"}, "a field is cut short"),
        ({b"": header(1), b"lm/x": b"\x0b"}, "unknown wire type 3"),
        ({b"": header(1), b"lm/x": b"\x08" + b"\xff" * 10}, "longer than 64 bits"),
        ({b"": header(1), b"lm/x": entry(np.zeros(2), shard=1)}, "points to file 1 of 1"),
        ({b"": header(1), b"lm/x": b"\x20" + b"\xff" * 9 + b"\x01"}, "points outside of all files"),
        ({b"": header(1), b"lm/x": b"\x12\x0d\x12\x0b\x08" + b"\xff" * 9 + b"\x01"}, "dimension of unknown size"),
    ],
)
def test_indexes_that_make_no_sense(rows: dict[bytes, bytes], message: str, folder: Path) -> None:
    (folder / INDEX).write_bytes(table(rows))
    refused(folder, rf"model\.ckpt-12\.index: is not the whole index of a TensorFlow checkpoint: .*{message}")


def test_compressed_blocks_are_named(folder: Path) -> None:
    (folder / INDEX).write_bytes(table({b"": header(1)}, compression=1))
    refused(folder, r"compressed \(Snappy\), which is not read: save the checkpoint with a current TensorFlow")


def one_entry(change: Callable[[bytes], bytes], folder: Path) -> None:
    """Change the entry of char_embed in the index."""
    variables = variable_names(Model().weights)
    offset, rows = 0, {b"": header(1)}
    for name, value in sorted(variables.items()):
        rows[name.encode()] = entry(value, offset=offset)
        offset += value.nbytes
    rows[b"lm/char_embed"] = change(rows[b"lm/char_embed"])
    (folder / INDEX).write_bytes(table(rows))


def test_sizes_and_slices(folder: Path) -> None:
    one_entry(lambda data: data + b"\x28\x07", folder)  # size 7
    refused(folder, r"'lm/char_embed' has 7 bytes, but its shape is \(261, 3\) of torch\.float32")
    one_entry(lambda data: data + b"\x20" + b"\xff" * 8 + b"\x7f", folder)  # offset 2**63 - 1
    refused(folder, "it is cut short")
    one_entry(lambda data: data + b"\x3a\x00", folder)
    refused(folder, "'lm/char_embed' is a partitioned variable")


def test_tensors_that_share_their_bytes_do_not_multiply(folder: Path) -> None:
    rows = {b"": header(1)}
    variables = variable_names(Model().weights)
    for name, value in variables.items():
        rows[name.encode()] = entry(np.zeros_like(value))
    (folder / INDEX).write_bytes(table(rows))
    (folder / DATA).write_bytes(bytes(max(value.nbytes for value in variables.values())))
    refused(folder, r"its tensors have \d+ bytes, its files \d+")


def test_checkpoints_of_the_first_format(folder: Path) -> None:
    shutil.copy(folder / INDEX, folder / "model.ckpt-1")
    refused(folder / "model.ckpt-1", r"is a table of TensorFlow, but not called '\.index'")
