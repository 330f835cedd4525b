"""bilm-tf's and AllenNLP's format: real files written with h5py, whole and broken in every way."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import load_bilm_hdf5, load_vocabulary, save_bilm_hdf5

h5py = pytest.importorskip("h5py")

WORDS = ["</S>", "the", "<S>", "<UNK>", "cat"]  # any order: the table's
OPTIONS: dict[str, Any] = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 4,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 6,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 3], [3, 4]],
        "n_highway": 1,
        "embedding": {"dim": 2},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
    "all_clip_norm_val": 10.0,  # a key of training: ignored
}
SHAPES = {
    "char_embed": (261, 2),
    "CNN/W_cnn_0": (1, 1, 2, 3),
    "CNN/b_cnn_0": (3,),
    "CNN/W_cnn_1": (1, 3, 2, 4),
    "CNN/b_cnn_1": (4,),
    "CNN_high_0/W_carry": (7, 7),
    "CNN_high_0/b_carry": (7,),
    "CNN_high_0/W_transform": (7, 7),
    "CNN_high_0/b_transform": (7,),
    "CNN_proj/W_proj": (7, 4),
    "CNN_proj/b_proj": (4,),
    **{
        f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{name}": shape
        for d in (0, 1)
        for layer in (0, 1)
        for name, shape in (("W_0", (8, 24)), ("B", (24,)), ("W_P_0", (6, 4)))
    },
}


class Files:
    """An options.json and a weights file, as bilm-tf would have written them."""

    def __init__(self, folder: Path) -> None:
        self.options_path, self.weights_path = folder / "options.json", folder / "weights.hdf5"
        self.options = json.loads(json.dumps(OPTIONS))
        rng = np.random.default_rng(3)
        self.weights: dict[str, np.ndarray] = {
            name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()
        }

    def write(self) -> Files:
        self.options_path.write_text(json.dumps(self.options))
        with h5py.File(self.weights_path, "w") as file:
            for name, values in self.weights.items():
                file.create_dataset(name, data=values)
        return self

    def load(self) -> BiLM:
        return load_bilm_hdf5(self.options_path, self.weights_path)

    def refused(self, message: str) -> None:
        with pytest.raises(WeightsError, match=message):
            self.write().load()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def words_only(files: Files) -> None:
    del files.options["char_cnn"]
    files.weights = {name: values for name, values in files.weights.items() if name.startswith("RNN")}
    files.weights["embedding"] = np.arange(5 * 4, dtype=np.float32).reshape(5, 4)


@pytest.mark.parametrize("n_characters", [261, 262])
def test_every_dataset_arrives_where_it_belongs(files: Files, n_characters: int) -> None:
    files.options["char_cnn"]["n_characters"] = n_characters
    bilm = files.write().load()
    state = bilm.state_dict()
    assert len(state) == len(files.weights)
    places = {
        "char_embed": "token_encoder.char_embed",
        "CNN/b_cnn_1": "token_encoder.conv_biases.1",
        "CNN_high_0/W_carry": "token_encoder.highways.0.W_carry",
        "CNN_high_0/b_transform": "token_encoder.highways.0.b_transform",
        "CNN_proj/W_proj": "token_encoder.W_proj",
        "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0": "forward_lstm.layers.1.kernel",
        "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/B": "backward_lstm.layers.0.bias",
        "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0": "backward_lstm.layers.1.projection",
    }
    for dataset, parameter in places.items():
        np.testing.assert_array_equal(state[parameter].numpy(), files.weights[dataset])
    np.testing.assert_array_equal(state["token_encoder.conv_weights.1"].numpy(), files.weights["CNN/W_cnn_1"][0])
    assert bilm.config == BiLMConfig(
        lstm_dim=6, projection_dim=4, filters=((1, 3), (3, 4)), char_dim=2, use_skip_connections=True
    )


def test_one_layer_under_tensorflows_names(files: Files) -> None:
    files.options["lstm"]["n_layers"] = 1
    files.weights = {name: values for name, values in files.weights.items() if "Cell1" not in name}
    expected = files.write().load().state_dict()
    files.weights = {name.replace("MultiRNNCell/Cell0/", ""): values for name, values in files.weights.items()}
    assert "RNN_0/RNN/LSTMCell/W_0" in files.weights
    found = files.write().load().state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_float64_and_compressed_datasets(files: Files) -> None:
    expected = files.write().load().state_dict()
    with h5py.File(files.weights_path, "w") as file:
        for name, values in files.weights.items():
            file.create_dataset(name, data=values.astype(np.float64), compression="gzip")
    found = files.load().state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.filterwarnings("ignore:.*no place for the start state")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_layers": 1},
        {"lstm_dim": 7, "projection_dim": 7, "n_highway": 0},
        {"filters": None, "n_words": 5},
        {"state": "warm"},
    ],
)
def test_export_round_trip(tmp_path: Path, changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"lstm_dim": 6, "projection_dim": 4, "filters": ((1, 3), (3, 4)), "char_dim": 2}
    config = BiLMConfig(**{**fields, **changes})
    bilm = BiLM(config, vocabulary=WORDS if config.filters is None else None).initialize(4)
    save_bilm_hdf5(bilm, tmp_path / "export")
    save_bilm_hdf5(bilm, tmp_path / "export")  # over an older one
    found = load_bilm_hdf5(tmp_path / "export" / "options.json", tmp_path / "export" / "weights.hdf5")
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, bilm.state_dict()[name])
    assert found.vocabulary == bilm.vocabulary
    assert {**found.config.to_options(), "state": None} == {**config.to_options(), "state": None}
    assert found.config.state == "zero"  # the format has no place for a start state
    names = {path.name for path in (tmp_path / "export").iterdir()}
    assert names == {"options.json", "weights.hdf5"} | ({"vocabulary.txt"} if bilm.vocabulary else set())


def test_exported_names_and_shapes_are_bilm_tfs(files: Files, tmp_path: Path) -> None:
    save_bilm_hdf5(files.write().load(), tmp_path / "export")
    with h5py.File(tmp_path / "export" / "weights.hdf5", "r") as file:
        found: dict[str, Any] = {}
        file.visititems(lambda name, node: found.update({name: node}) if isinstance(node, h5py.Dataset) else None)
        assert {name: node.shape for name, node in found.items()} == SHAPES
        assert {node.dtype for node in found.values()} == {np.dtype("float32")}
        for name, values in files.weights.items():
            np.testing.assert_array_equal(found[name][()], values)
    options = json.loads((tmp_path / "export" / "options.json").read_text())
    assert {key: options["lstm"][key] for key in OPTIONS["lstm"]} == OPTIONS["lstm"]
    assert {key: options["char_cnn"][key] for key in OPTIONS["char_cnn"]} == OPTIONS["char_cnn"]


def test_nothing_is_exported_with_a_nan(files: Files, tmp_path: Path) -> None:
    bilm = files.write().load()
    with torch.no_grad():
        bilm.state_dict()["forward_lstm.layers.0.bias"][0] = float("nan")
    with pytest.raises(WeightsError, match="NaN"):
        save_bilm_hdf5(bilm, tmp_path / "export")
    assert not list((tmp_path / "export").iterdir())


# Models that read words


@pytest.mark.parametrize("name", ["vocabulary.txt", "vocab.txt", "vocabulary.json"])
@pytest.mark.parametrize("with_size", [True, False])
def test_word_models_with_their_vocabulary(files: Files, name: str, with_size: bool) -> None:
    words_only(files)
    if with_size:
        files.options["n_tokens_vocab"] = 5
    path = files.weights_path.with_name(name)
    path.write_text(json.dumps(WORDS) if name.endswith(".json") else "\n".join(WORDS) + "\n")
    bilm = files.write().load()
    assert bilm.vocabulary == WORDS
    (layers,) = bilm.encode([["cat", "dog"]])
    np.testing.assert_array_equal(layers[0].numpy(), np.tile(files.weights["embedding"][[4, 3]], 2))


def test_word_models_without_or_with_a_wrong_vocabulary(files: Files) -> None:
    words_only(files)
    files.refused(r"weights\.hdf5.*table of 5 rows and have no vocabulary.*vocabulary\.txt")
    files.weights_path.with_name("vocabulary.txt").write_text("<S>\n</S>\n<UNK>\n")
    files.refused("3 words, but the word table 5 rows")
    files.weights_path.with_name("vocabulary.txt").write_text("a\nb\nc\nd\ne\n")
    files.refused("lacks <S> and </S>")
    files.options["n_tokens_vocab"] = 6
    files.refused(r"'embedding' has shape \(5, 4\).*\(6, 4\)")


# What is broken


def test_wrong_shape_names_dataset_found_and_expected(files: Files) -> None:
    files.options["lstm"]["dim"] = 5
    files.refused(r"weights\.hdf5.*'RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0' has shape \(8, 24\).*\(8, 20\)")


def test_missing_and_unexpected_datasets_are_named(files: Files) -> None:
    files.options["lstm"]["n_layers"] = 3
    files.refused(r"lacks: RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0")
    files.options["lstm"]["n_layers"] = 10**12
    files.refused("and more")
    files.options["lstm"]["n_layers"] = 1
    files.refused(r"do not ask for: RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B")


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_that_are_not_finite(files: Files, value: float) -> None:
    files.weights["CNN_proj/b_proj"][1] = value
    files.refused(r"b_proj' has 1 NaN or infinite values of 4")


def test_values_that_were_never_written(files: Files) -> None:
    files.write()
    with h5py.File(files.weights_path, "a") as file:
        del file["CNN_proj/b_proj"]
        file.create_dataset("CNN_proj/b_proj", shape=(4,), dtype="f4")
    with pytest.raises(WeightsError, match=r"b_proj' has a shape but no values"):
        files.load()


def test_whole_numbers_are_not_weights(files: Files) -> None:
    files.weights["CNN_proj/b_proj"] = np.zeros(4, dtype=np.int32)
    files.refused("b_proj' holds int32")


def test_numbers_of_a_size_that_numpy_does_not_have(files: Files) -> None:
    # Seen on a file with one byte changed: asking for the type of such a dataset raised a bare ValueError.
    files.write()
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(2**20)
    with h5py.File(files.weights_path, "a") as file:
        del file["CNN_proj/b_proj"]
        h5py.h5d.create(file.id, b"CNN_proj/b_proj", kind, h5py.h5s.create_simple((4,))).write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.ones(4, dtype=np.float32)
        )
    with pytest.raises(WeightsError, match="'CNN_proj/b_proj' cannot be read"):
        files.load()


def test_values_in_other_files_are_never_opened(files: Files, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(np.ones(4, dtype=np.float32).tobytes())
    files.write()
    with h5py.File(files.weights_path, "a") as file:
        del file["CNN_proj/b_proj"]
        file.create_dataset("CNN_proj/b_proj", shape=(4,), dtype="f4", external=[(str(secret), 0, 16)])
    with pytest.raises(WeightsError, match="'CNN_proj/b_proj' lies in another file, which is never opened"):
        files.load()
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["x"] = np.ones(4, dtype=np.float32)
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "x", shape=(4,))
    with h5py.File(files.weights_path, "a") as file:
        del file["CNN_proj/b_proj"]
        file.create_virtual_dataset("CNN_proj/b_proj", layout)
    with pytest.raises(WeightsError, match="'CNN_proj/b_proj' lies in another file, which is never opened"):
        files.load()
    for link in (h5py.ExternalLink(str(tmp_path / "other.hdf5"), "x"), h5py.SoftLink("/CNN/b_cnn_1")):
        with h5py.File(files.weights_path, "a") as file:
            del file["CNN_proj/b_proj"]
            file["CNN_proj/b_proj"] = link
        with pytest.raises(WeightsError, match="lacks: CNN_proj/b_proj"):
            files.load()


def test_values_compressed_to_next_to_nothing(files: Files) -> None:
    words_only(files)
    del files.weights["embedding"]
    files.options["n_tokens_vocab"] = 5_000_000
    files.weights_path.with_name("vocab.txt").write_text("<S>\n" * 5_000_000)
    files.write()
    with h5py.File(files.weights_path, "a") as file:
        table = file.create_dataset(
            "embedding", shape=(5_000_000, 4), dtype="f4", chunks=(50_000, 4), compression="gzip"
        )
        table[:1] = 1.0  # one chunk is there, and HDF5 makes zeros of the others
    files.options_path.write_text(json.dumps(files.options))
    with pytest.raises(WeightsError, match=r"its datasets make 80\d{6} bytes, but the file has \d{5}:"):
        files.load()


def test_more_values_than_numbers_count(files: Files) -> None:
    words_only(files)
    del files.weights["embedding"]
    files.options["n_tokens_vocab"] = 2**62
    files.write()
    with h5py.File(files.weights_path, "a") as file:
        file.create_dataset("embedding", shape=(2**62, 4), dtype="f4", chunks=(16, 4))
    with pytest.raises(WeightsError, match="'embedding' has a shape but no values"):
        files.load()


def test_a_great_many_datasets(files: Files) -> None:
    files.write()
    with h5py.File(files.weights_path, "a") as file:
        for i in range(10_001):
            file.create_dataset(f"more/{i}", shape=(), dtype="f4")
    with pytest.raises(WeightsError, match="has more than 10000 datasets"):
        files.load()


def test_forward_only_models_are_named(files: Files) -> None:
    # bilm-tf's dump leaves their names half in TensorFlow's way.
    forward = {name: values for name, values in files.weights.items() if not name.startswith("RNN")}
    forward |= {f"rnn/multi_rnn_cell/cell_{layer}/lstm_cell/kernel": np.zeros((8, 24)) for layer in (0, 1)}
    files.weights = forward
    files.refused(r"weights\.hdf5: is a forward-only language model.*'bidirectional'.*no LSTM that reads backward")
    files.weights = {"RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0": np.zeros((8, 24))}
    files.refused("is a forward-only language model")


def test_public_vocabularies_for_a_word_table(files: Files) -> None:
    words_only(files)
    path = files.weights_path.with_name("vocab-2016-09-10.txt")
    path.write_text("\n".join([*WORDS[:3], "!!!MAXTERMID", *WORDS[3:]]) + "\n")
    assert files.write().load().vocabulary == WORDS
    path.write_text("\n".join(["<S>", "</S>", "<UNK>", "!!!MAXTERMID", "the"]) + "\n")
    assert load_vocabulary(path, n_words=4) == ["<S>", "</S>", "<UNK>", "the"]
    assert len(load_vocabulary(path)) == len(load_vocabulary(path, n_words=5)) == 5
    path.with_name("other_vocab.txt").write_text("")
    files.refused(r"several vocabularies \(other_vocab\.txt, vocab-2016-09-10\.txt\).*vocabulary\.txt")
    path.with_name("vocabulary.txt").write_text("\n".join(WORDS))
    assert files.write().load().vocabulary == WORDS


def test_compressed_vocabularies_that_are_broken_or_bombs(files: Files) -> None:
    words_only(files)
    path = files.weights_path.with_name("vocab.txt.gz")
    data = gzip.compress("\n".join(WORDS).encode())
    for broken in (data[:-9], data[:15] + b"\xff" + data[16:], b"the\n", gzip.compress(b"\xff")):
        path.write_bytes(broken)
        files.refused(r"vocab\.txt\.gz")
    path.write_bytes(gzip.compress(bytes(64 * 2**20 + 1)))
    files.refused(r"vocab\.txt\.gz: grows to more than 67108864 bytes")


@pytest.mark.parametrize("n_characters", [260, 263, "262", None, [261]])
def test_another_number_of_characters(files: Files, n_characters: Any) -> None:
    files.options["char_cnn"]["n_characters"] = n_characters
    files.refused(r"options\.json: char_cnn\.n_characters is .*char_embed has shape \(261, 2\)")


def test_unknown_activation(files: Files) -> None:
    files.options["char_cnn"]["activation"] = "gelu"
    files.refused(r"options\.json: activation .*'gelu'")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"lstm"', "\ufffe", "[" * 100_000])
def test_broken_options(files: Files, text: str) -> None:
    files.write().options_path.write_text(text, encoding="utf-8")
    with pytest.raises(WeightsError, match=r"options\.json"):
        files.load()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.99])
def test_truncated_weights(files: Files, share: float) -> None:
    data = files.write().weights_path.read_bytes()
    files.weights_path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match=r"weights\.hdf5"):
        files.load()


def test_pointers_and_other_files_in_place_of_weights(files: Files) -> None:
    files.write()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 374434792\n"
    files.weights_path.write_bytes(pointer)
    with pytest.raises(WeightsError, match=r"weights\.hdf5: is a git-LFS pointer.*git lfs pull"):
        files.load()
    files.weights_path.write_bytes(b"<html>404</html>")
    with pytest.raises(WeightsError, match="is not an HDF5 file"):
        files.load()
    files.weights_path.unlink()
    with pytest.raises(WeightsError, match=r"weights\.hdf5: no such file"):
        files.load()
    files.write().options_path.write_bytes(pointer)
    with pytest.raises(WeightsError, match=r"options\.json: is a git-LFS pointer"):
        files.load()


def test_without_h5py_the_error_has_the_install_line(files: Files) -> None:
    """In a process of its own, where h5py cannot be imported; everything else must still work there."""
    files.write()
    script = (
        "import sys\n"
        "sys.modules['h5py'] = None\n"
        "from spacy_elmo.weights import bilm_from_bytes, load_bilm_hdf5\n"
        "try:\n"
        "    load_bilm_hdf5(sys.argv[1], sys.argv[2])\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    arguments = [str(files.options_path), str(files.weights_path)]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert 'pip install "spacy-elmo[hdf5]"' in done.stdout
