"""Folders of ELMoForManyLangs: loaded as that program would, or refused with an error that says what is wrong."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.bilm.model import BiLM
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import bilm_from_bytes, bilm_to_bytes, load_bilm, save_bilm, save_bilm_hdf5
from spacy_elmo.weights.many_langs import is_many_langs, load_many_langs, read_dictionary

from .many_langs_folder import CHARACTER_MARKS, CHARACTERS, SENTENCES, SIZES, WORDS, changed, write_model, write_pickle

KINDS: dict[str, dict[str, Any]] = {
    "word and characters": SIZES,
    "characters": changed(token_embedder={"word_dim": 0}),
    "words": changed(token_embedder={"char_dim": 0}),
}
VARIANTS: dict[str, dict[str, Any]] = {
    **KINDS,
    "tanh": changed(token_embedder={"activation": "tanh"}),
    "no highway": changed(token_embedder={"n_highway": 0}),
    "filters not in order": changed(token_embedder={"filters": [[5, 2], [1, 3], [12, 2]], "n_highway": 1}),
    "as many features as outputs": changed(token_embedder={"filters": [[1, 2], [3, 3]], "word_dim": 0}),
    "one layer": changed(encoder={"n_layers": 1}),
    "three layers": changed(encoder={"n_layers": 3}),
    "no clips": changed(encoder={"cell_clip": 0, "proj_clip": None}),
    "one clip": changed(encoder={"cell_clip": None}),
    "as many cells as outputs": changed(encoder={"projection_dim": 7}),
    "fewer cells than outputs": changed(encoder={"projection_dim": 9}),
    "three characters": changed(token_embedder={"max_characters_per_token": 3, "filters": [[1, 3], [3, 2]]}),
    "fifty characters": changed(token_embedder={"max_characters_per_token": 50}),
}


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    found = torch.load(path, weights_only=True)
    assert isinstance(found, dict)
    return found


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a state dict on disk."""
    tensors = tensors_of(path)
    change(tensors)
    torch.save(tensors, path)


def rewrite_json(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def set_in(section: str, key: str, value: Any, sizes: Any) -> None:
    sizes[section][key] = value


def spoil(name: str, value: float, tensors: dict[str, Any]) -> None:
    tensors[name].view(-1)[-1] = value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model")
    return tmp_path / "model"


# The vectors


@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_are_those_of_the_reference(variant: str, tmp_path: Path) -> None:
    reference = write_model(tmp_path, VARIANTS[variant], seed=3)
    bilm = load_bilm(tmp_path)
    found = bilm.encode(SENTENCES)
    for words, layers in zip(SENTENCES, found, strict=True):
        assert layers.shape == (VARIANTS[variant]["encoder"]["n_layers"] + 1, len(words), bilm.config.width)
        if words:
            np.testing.assert_allclose(layers.double().numpy(), reference.layers(words), rtol=0, atol=2e-6)
    # Both clips were met where there are clips: else this would prove little.
    clips = {"cell": bilm.config.cell_clip, "proj": bilm.config.proj_clip}
    assert all((hits > 0) == bool(clips[which]) for which, hits in reference.clip_hits.items())


@pytest.mark.parametrize("kind", KINDS)
def test_float64_shows_no_difference_but_rounding(kind: str, tmp_path: Path) -> None:
    reference = write_model(tmp_path, KINDS[kind], seed=4)
    bilm = load_bilm(tmp_path).double()
    for words, layers in zip(SENTENCES, bilm.encode(SENTENCES), strict=True):
        if words:
            # Subtracting the forget gate's 1 in float32 costs up to 6e-8 of the bias.
            np.testing.assert_allclose(layers.numpy(), reference.layers(words), rtol=0, atol=2e-7)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "as before torch 1.6"])
def test_both_kinds_of_pickles(legacy: bool, tmp_path: Path) -> None:
    reference = write_model(tmp_path, legacy=legacy)
    words = SENTENCES[0]
    found = load_many_langs(tmp_path).encode([words])[0]
    np.testing.assert_allclose(found.double().numpy(), reference.layers(words), rtol=0, atol=2e-6)


def test_a_word_of_the_dictionary_is_found_by_its_cut_form(folder: Path) -> None:
    bilm = load_bilm(folder)
    for word in ("abcdefghij", "abcdefghijk", "abcdefghij" * 5):
        assert bilm.token_ids([word])[0, 0] == WORDS.index("abcdefghij")
    assert bilm.token_ids(["abcdefghi"])[0, 0] == WORDS.index("<oov>")


def test_values_are_those_of_the_files(folder: Path) -> None:
    bilm = load_bilm(folder)
    values, stored = bilm.state_dict(), tensors_of(folder / "encoder.pkl") | tensors_of(folder / "token_embedder.pkl")
    assert torch.equal(values["token_encoder.word_embed"], stored["word_emb_layer.embedding.weight"])
    assert torch.equal(values["token_encoder.char_embed"], stored["char_emb_layer.embedding.weight"])
    for direction in ("forward", "backward"):
        kernel, bias = (values[f"{direction}_lstm.layers.1.{name}"] for name in ("kernel", "bias"))
        stem = f"{direction}_layer_1"
        # i, f, candidate, o there; i, candidate, f, o here, and a forget gate that counts from 1.
        for ours, theirs in ((0, 0), (1, 2), (2, 1), (3, 3)):
            columns, rows = slice(7 * ours, 7 * ours + 7), slice(7 * theirs, 7 * theirs + 7)
            assert torch.equal(kernel[:5, columns].t(), stored[f"{stem}.input_linearity.weight"][rows])
            assert torch.equal(kernel[5:, columns].t(), stored[f"{stem}.state_linearity.weight"][rows])
            expected = stored[f"{stem}.state_linearity.bias"][rows] - (1.0 if ours == 2 else 0.0)
            assert torch.equal(bias[columns], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_are_read_as_float32(dtype: torch.dtype, folder: Path) -> None:
    before = load_bilm(folder)
    for name in ("encoder.pkl", "token_embedder.pkl"):
        rewrite(folder / name, lambda tensors: tensors.update({key: t.to(dtype) for key, t in tensors.items()}))
    for name, tensor in load_bilm(folder).state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, before.state_dict()[name], rtol=1e-3, atol=1e-3)


# The folder


def test_what_is_recognised(folder: Path, tmp_path: Path) -> None:
    assert is_many_langs(folder)
    assert not is_many_langs(tmp_path)
    for path in (folder, str(folder), folder / "config.json", folder / "encoder.pkl"):
        assert load_bilm(path).config.is_many_langs


@pytest.mark.parametrize("legacy", [False, True])
def test_published_as_an_archive(legacy: bool, tmp_path: Path) -> None:
    reference = write_model(tmp_path / "144", legacy=legacy)
    archive = shutil.make_archive(str(tmp_path / "144"), "zip", tmp_path / "144")
    shutil.rmtree(tmp_path / "144")
    bilm = load_bilm(archive)
    found = bilm.encode(SENTENCES[:1])[0]
    np.testing.assert_allclose(found.double().numpy(), reference.layers(SENTENCES[0]), rtol=0, atol=2e-6)


def test_what_is_not_used_may_be_broken_or_missing(folder: Path, tmp_path: Path) -> None:
    expected = load_bilm(folder).encode(SENTENCES)[0]
    (folder / "classifier.pkl").write_bytes(b"nothing")
    rewrite_json(
        folder / "config.json", lambda arguments: [arguments.pop(k) for k in [*arguments] if k != "config_path"]
    )
    assert torch.equal(load_bilm(folder).encode(SENTENCES)[0], expected)
    for kind, name in (("characters", "word.dic"), ("words", "char.dic")):
        write_model(tmp_path / kind, KINDS[kind])
        assert not (tmp_path / kind / name).exists()
        before = load_bilm(tmp_path / kind)
        (tmp_path / kind / name).write_text("nothing")
        assert load_bilm(tmp_path / kind).config == before.config


@pytest.mark.parametrize(
    "named",
    [
        "cnn_sizes.json",
        "./cnn_sizes.json",
        "configs/cnn_sizes.json",
        "../cnn_sizes.json",
        "/home/author/cnn_sizes.json",
        "C:\\Users\\author\\cnn_sizes.json",
        "..\\..\\cnn_sizes.json",
    ],
)
def test_the_author_s_path_is_found_by_its_last_part(named: str, folder: Path) -> None:
    # What lies where the path would lead is not read.
    (folder.parent / "cnn_sizes.json").write_text("not this one")
    rewrite_json(folder / "config.json", lambda arguments: arguments.update(config_path=named))
    assert load_bilm(folder).config.lstm_dim == 7


def test_a_path_inside_the_folder_goes_before(folder: Path) -> None:
    (folder / "configs").mkdir()
    (folder / "cnn_sizes.json").rename(folder / "configs" / "cnn_sizes.json")
    with pytest.raises(WeightsError, match=r"there is no cnn_sizes\.json in .* \(found: char\.dic, config\.json"):
        load_bilm(folder)
    (folder / "cnn_sizes.json").write_text("not this one")
    rewrite_json(folder / "config.json", lambda arguments: arguments.update(config_path="configs/cnn_sizes.json"))
    assert load_bilm(folder).config.lstm_dim == 7


@pytest.mark.parametrize("name", ["cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json"])
def test_published_folders_name_a_file_of_the_program(name: str, folder: Path) -> None:
    rewrite_json(folder / "config.json", lambda arguments: arguments.update(config_path=f"/author/configs/{name}"))
    # These weights are smaller than the published ones, which is what the error says.
    with pytest.raises(
        WeightsError, match=r"word_emb_layer\.embedding\.weight' has shape \(13, 6\).* ask for \(13, 100\)"
    ):
        load_bilm(folder)
    rewrite_json(folder / "cnn_sizes.json", lambda sizes: None)
    (folder / "cnn_sizes.json").rename(folder / name)  # one that lies there goes before
    assert load_bilm(folder).config.lstm_dim == 7


@pytest.mark.parametrize("named", [None, 3, "", "..", "/", "a\0b", "x" * 5000, "\ud800", "other.json"])
def test_a_config_path_that_names_nothing(named: Any, folder: Path) -> None:
    rewrite_json(folder / "config.json", lambda arguments: arguments.update(config_path=named))
    with pytest.raises(WeightsError, match=r"config_path|cannot be read"):
        load_bilm(folder)


@pytest.mark.parametrize("name", ["config.json", "char.dic", "word.dic", "token_embedder.pkl", "encoder.pkl"])
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(WeightsError, match=rf"{name}: no such file"):
        load_bilm(folder)
    (folder / name).mkdir()
    with pytest.raises(WeightsError, match=rf"{name}: is a folder"):
        load_bilm(folder)


def test_other_encoders_are_refused_by_name(folder: Path) -> None:
    for name, message in (
        ("LSTM", "a plain LSTM with its top layer alone"),
        ("x", "only 'elmo'"),
        (None, "None, and only"),
    ):
        rewrite_json(folder / "cnn_sizes.json", partial(set_in, "encoder", "name", name))
        with pytest.raises(WeightsError, match=rf"cnn_sizes\.json: the encoder is .*{message}"):
            load_bilm(folder)
    rewrite_json(folder / "cnn_sizes.json", lambda sizes: sizes["encoder"].update(name="ELMo"))
    rewrite_json(folder / "cnn_sizes.json", lambda sizes: sizes["token_embedder"].update(name="lstm"))
    with pytest.raises(WeightsError, match=r"the token_embedder is 'lstm', and only 'cnn'"):
        load_bilm(folder)


@pytest.mark.parametrize("section", ["encoder", "token_embedder"])
def test_sizes_that_are_missing(section: str, folder: Path) -> None:
    sizes = json.loads((folder / "cnn_sizes.json").read_text())
    for key in sizes[section]:
        broken = {**sizes, section: {k: v for k, v in sizes[section].items() if k != key}}
        (folder / "cnn_sizes.json").write_text(json.dumps(broken))
        with pytest.raises(WeightsError, match=r"cnn_sizes\.json: .*(lacks " + key + "|is None)"):
            load_bilm(folder)
    (folder / "cnn_sizes.json").write_text(json.dumps({**sizes, section: 3}))
    with pytest.raises(WeightsError, match=f"has no section '{section}'"):
        load_bilm(folder)


def test_sizes_that_are_wrong(folder: Path) -> None:
    sizes = json.loads((folder / "cnn_sizes.json").read_text())
    for section, key, value, message in (
        ("encoder", "dim", 0, "lstm_dim"),
        ("encoder", "n_layers", 2**40, "asks? for"),
        ("encoder", "cell_clip", -1, "cell_clip"),
        ("token_embedder", "activation", "gelu", "activation is 'relu' or 'tanh'"),
        ("token_embedder", "filters", [], "filters"),
        ("token_embedder", "filters", [[13, 2]], "wider than max_characters_per_token"),
        ("token_embedder", "char_dim", -3, "char_dim"),
        ("token_embedder", "word_dim", 6.5, "word_dim"),
        ("token_embedder", "word_dim", 7, r"has shape \(13, 6\).* ask for \(13, 7\)"),
        ("token_embedder", "word_dim", 0, "has shape|do not ask for"),
        ("token_embedder", "n_highway", 1, r"do not ask for: highways\._layers\.1"),
        ("token_embedder", "n_highway", 3, r"it lacks: highways\._layers\.2"),
    ):
        (folder / "cnn_sizes.json").write_text(json.dumps({**sizes, section: {**sizes[section], key: value}}))
        with pytest.raises(WeightsError, match=message):
            load_bilm(folder)
    sizes["token_embedder"] |= {"word_dim": 0, "char_dim": 0}
    (folder / "cnn_sizes.json").write_text(json.dumps(sizes))
    with pytest.raises(WeightsError, match="word_dim and char_dim are both 0"):
        load_bilm(folder)


# Dictionaries


def test_white_space_in_a_dictionary_counts_as_an_ideographic_space(tmp_path: Path) -> None:
    path = tmp_path / "char.dic"
    path.write_bytes("a\t1\n\u3000\t0\r\n\u2028\t2\n b \t3".encode())
    assert read_dictionary(path) == ["\u3000", "a", "\u3000", "b "]
    write_model(tmp_path / "model")
    bilm = load_bilm(tmp_path / "model")
    assert bilm.characters == [*dict.fromkeys([*CHARACTERS, *CHARACTER_MARKS])]
    assert bilm.vocabulary == WORDS
    rows = bilm.token_ids(["\u3000", "\u00a0"])[:, 2]
    assert rows.tolist() == [bilm.characters.index("\u3000"), bilm.characters.index("<oov>")]


def test_rows_are_the_file_s(folder: Path) -> None:
    expected = load_bilm(folder).encode(SENTENCES)[0]
    lines = (folder / "char.dic").read_text(encoding="utf8").splitlines(keepends=True)
    (folder / "char.dic").write_text("".join(reversed(lines)), encoding="utf8")
    assert torch.equal(load_bilm(folder).encode(SENTENCES)[0], expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n", "line 1, '', is not a token"),
        ("a\t0\n\nb\t1\n", "line 2, '', is not a token"),
        ("a\t1\n", "no line for row 0"),
        ("a\t0\nb\n", "line 2, 'b', is not a token"),
        ("a\t0\nb\tc\t1\n", "line 2, .*, is not a token"),
        ("a\t0\nb\t-1\n", "line 2, .*, is not a token"),
        ("a\t0\nb\t١\n", "line 2, .*, is not a token"),
        ("a\t0\nb\t99999999999\n", "line 2, .*, is not a token"),
        ("a\t0\nb\t0\n", "line 2 gives row 0 to a second token"),
        ("a\t0\nb\t2\n", "no line for row 1"),
    ],
)
def test_broken_dictionaries(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "word.dic").write_text(text, encoding="utf8")
    with pytest.raises(WeightsError, match=rf"word\.dic: .*{message}"):
        read_dictionary(tmp_path / "word.dic")


def test_a_dictionary_in_another_encoding(folder: Path) -> None:
    (folder / "word.dic").write_bytes("naïve\t0\n".encode("latin-1"))
    with pytest.raises(WeightsError, match=r"word\.dic: is not text in UTF-8"):
        load_bilm(folder)


@pytest.mark.parametrize("name", ["char.dic", "word.dic"])
def test_a_dictionary_of_another_length(name: str, folder: Path) -> None:
    text = (folder / name).read_text(encoding="utf8")
    n = text.count("\n")
    (folder / name).write_text(f"{text}more\t{n}\n", encoding="utf8")
    with pytest.raises(WeightsError, match=rf"token_embedder\.pkl: .* has {n} rows, but {name} has {n + 1} lines"):
        load_bilm(folder)


def test_a_dictionary_without_its_marks(folder: Path) -> None:
    for name, mark in (("char.dic", "<bow>"), ("word.dic", "<oov>")):
        text = (folder / name).read_text(encoding="utf8")
        (folder / name).write_text(text.replace(f"{mark}\t", "x\t"), encoding="utf8")
        with pytest.raises(WeightsError, match=f"lacks? {mark}"):
            load_bilm(folder)
        (folder / name).write_text(text, encoding="utf8")


# State dicts


@pytest.mark.parametrize("name", ["encoder.pkl", "token_embedder.pkl"])
def test_tensors_that_are_missing_unexpected_or_of_another_shape(name: str, folder: Path) -> None:
    original = (folder / name).read_bytes()
    stored = list(tensors_of(folder / name))[-1]
    for change, message in (
        (lambda tensors: tensors.pop(stored), f"lacks: {stored}"),
        (lambda tensors: tensors.update(other=torch.zeros(1)), "do not ask for: other"),
        (lambda tensors: tensors.update({stored: tensors[stored][None]}), rf"'{stored}' has shape \(1, "),
        # Shapes that no memory could hold: nothing is allocated for them.
        (lambda tensors: tensors.update({stored: torch.zeros(1).expand(10**6, 10**6)}), r"shape \(1000000, 1000000\)"),
    ):
        rewrite(folder / name, change)
        with pytest.raises(WeightsError, match=rf"{name}: .*{message}"):
            load_bilm(folder)
        (folder / name).write_bytes(original)


@pytest.mark.parametrize("name", ["encoder.pkl", "token_embedder.pkl"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers(name: str, value: float, folder: Path) -> None:
    for stored in tensors_of(folder / name):
        original = (folder / name).read_bytes()
        rewrite(folder / name, partial(spoil, stored, value))
        with pytest.raises(WeightsError, match=rf"{name}: '{stored}' has 1 NaN or infinite value"):
            load_bilm(folder)
        (folder / name).write_bytes(original)


def test_what_is_no_tensor_of_numbers(folder: Path) -> None:
    path = folder / "encoder.pkl"
    stored = "forward_layer_0.state_linearity.bias"
    original = path.read_bytes()
    for change, message in (
        (lambda tensors: tensors.update({stored: tensors[stored].long()}), "holds torch.int64, not floating-point"),
        (lambda tensors: tensors.update({stored: tensors[stored].cfloat()}), "holds torch.complex64"),
        (lambda tensors: tensors.update({stored: tensors[stored].to_sparse()}), "is not a plain tensor"),
        (lambda tensors: tensors.update({stored: tensors[stored].to("meta")}), "is not a plain tensor"),
        (lambda tensors: tensors.update({stored: [1.0]}), "holds list under"),
        (lambda tensors: tensors.update({3: tensors[stored]}), "holds Tensor under 3"),
    ):
        rewrite(path, change)
        with pytest.raises(WeightsError, match=rf"encoder\.pkl: .*{message}"):
            load_bilm(folder)
        path.write_bytes(original)
    torch.save([torch.zeros(3)], path)
    with pytest.raises(WeightsError, match="holds list, not a state dict"):
        load_bilm(folder)


class _Calls:
    """An object that runs a function when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "was run")


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_in_a_pickle_is_run(legacy: bool, folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    tensors: dict[str, Any] = tensors_of(folder / "encoder.pkl")
    tensors["x"] = _Calls(trace)
    torch.save(tensors, folder / "encoder.pkl", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(
        WeightsError, match=r"encoder\.pkl: not a whole state dict .* objects other than tensors"
    ) as error:
        load_bilm(folder)
    assert not trace.exists()
    # torch's own advice is to read it in the unsafe way.
    assert "weights_only" not in str(error.value)
    # That it would have been run is true: the test is none without it.
    torch.load(folder / "encoder.pkl", weights_only=False)
    assert trace.exists()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_files_of_other_kinds(folder: Path, tmp_path: Path) -> None:
    path = folder / "encoder.pkl"
    original = path.read_bytes()

    def refused(data: bytes, message: str) -> None:
        path.write_bytes(data)
        with pytest.raises(WeightsError, match=rf"encoder\.pkl: {message}"):
            load_bilm(folder)

    refused(b"", "the file is empty")
    refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a git-LFS pointer")
    refused(b"\x89HDF\r\n\x1a\n" + bytes(100), "is not a file of PyTorch")
    refused(pickle.dumps({"a": 1}, protocol=2), "is not a file of PyTorch")
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w"):
        pass
    refused(tar.getvalue(), "is not a file of PyTorch")

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("readme.txt", "hello")
    refused(archive.getvalue(), "is a zip archive, but not one of PyTorch")
    compressed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(original)) as source,
        zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    refused(compressed.getvalue(), "its entries are compressed")
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), tmp_path / "program.pt")
    with zipfile.ZipFile(tmp_path / "program.pt") as source:
        assert any(name.endswith("constants.pkl") for name in source.namelist())
    refused((tmp_path / "program.pt").read_bytes(), "is a TorchScript program, which is never run")
    refused(original[: len(original) // 2], "not a whole zip archive")


@pytest.mark.parametrize("left", [4, -4])
def test_a_tensor_is_not_filled_with_what_comes_after_it_in_the_file(left: int, folder: Path) -> None:
    path = folder / "encoder.pkl"
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = next(name for name in records if "/data/" in name)
    records[name] = records[name][:left]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    with pytest.raises(
        WeightsError, match=r"encoder\.pkl: (its values are not as many as its tensors|not a whole state)"
    ):
        load_bilm(folder)


# In our own format


def assert_same(found: BiLM, expected: BiLM) -> None:
    assert found.config == expected.config
    assert (found.vocabulary, found.characters) == (expected.vocabulary, expected.characters)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    for one, other in zip(found.encode(SENTENCES), expected.encode(SENTENCES), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_our_folder_and_bytes_hold_it_whole(kind: str, tmp_path: Path) -> None:
    write_model(tmp_path / "theirs", KINDS[kind])
    bilm = load_bilm(tmp_path / "theirs")
    ours = tmp_path / "ours"
    save_bilm(bilm, ours)
    files = {"config.json", "model.safetensors"}
    files |= {"vocabulary.json"} if bilm.vocabulary else set()
    files |= {"characters.json"} if bilm.characters else set()
    assert {path.name for path in ours.iterdir()} == files
    assert_same(load_bilm(ours), bilm)
    data = bilm_to_bytes(bilm)
    assert data == (ours / "model.safetensors").read_bytes()
    assert_same(bilm_from_bytes(data), bilm)
    for name in files - {"model.safetensors"}:
        (ours / name).unlink()
    assert_same(load_bilm(ours), bilm)  # the header is enough


def test_our_folder_without_a_header(folder: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    bilm = load_bilm(folder)
    save_bilm(bilm, tmp_path / "ours")
    safetensors.save_file(bilm.state_dict(), tmp_path / "ours" / "model.safetensors")
    assert_same(load_bilm(tmp_path / "ours"), bilm)
    (tmp_path / "ours" / "characters.json").write_text("[1]")
    with pytest.raises(WeightsError, match="a table of characters is a list of strings"):
        load_bilm(tmp_path / "ours")
    (tmp_path / "ours" / "characters.json").unlink()
    with pytest.raises(WeightsError, match="needs the characters of its table"):
        load_bilm(tmp_path / "ours")


def test_another_model_in_our_folder_takes_its_tables_away(folder: Path, tmp_path: Path) -> None:
    save_bilm(load_bilm(folder), tmp_path / "ours")
    write_model(tmp_path / "words", KINDS["words"])
    save_bilm(load_bilm(tmp_path / "words"), tmp_path / "ours")
    assert not (tmp_path / "ours" / "characters.json").exists()
    assert load_bilm(tmp_path / "ours").characters is None


def test_saving_into_the_folder_is_refused(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(WeightsError, match=r"holds a model of ELMoForManyLangs \(encoder\.pkl, token_embedder\.pkl\)"):
        save_bilm(load_bilm(folder), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_format_of_bilm_tf_cannot_hold_it(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    with pytest.raises(WeightsError, match="no place for the token encoder of ELMoForManyLangs"):
        save_bilm_hdf5(load_bilm(folder), tmp_path / "hdf5")
    assert not (tmp_path / "hdf5").exists()


# Damage


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("name", "legacy"),
    [
        ("config.json", False),
        ("cnn_sizes.json", False),
        ("char.dic", False),
        ("word.dic", False),
        ("token_embedder.pkl", False),
        ("encoder.pkl", False),
        ("token_embedder.pkl", True),
        ("encoder.pkl", True),
    ],
)
def test_damaged_files_load_or_are_refused(name: str, legacy: bool, tmp_path: Path) -> None:
    write_model(tmp_path, changed(encoder={"n_layers": 1}, token_embedder={"n_highway": 1}), legacy=legacy)
    path = tmp_path / name
    original = path.read_bytes()
    draw = random.Random(f"{name} {legacy}")
    refused = 0
    for attempt in range(200):
        data = bytearray(original)
        if attempt % 3 == 0:
            del data[draw.randrange(len(data)) :]
        else:
            # Heads and tails say how the rest is read: half of the hits go there.
            for _ in range(draw.randint(1, 4)):
                places = (
                    draw.randrange(len(data)),
                    draw.randrange(min(600, len(data))),
                    -1 - draw.randrange(min(900, len(data))),
                )
                data[draw.choice(places)] ^= 1 << draw.randrange(8)
        path.unlink()  # what is mapped into memory is not written to
        path.write_bytes(data)
        try:
            bilm = load_bilm(tmp_path)
        except WeightsError:
            refused += 1
        else:
            assert all(layers.isfinite().all() for layers in bilm.encode([["the", "🦆"]]))
    assert 60 <= refused <= 200
    path.write_bytes(original)
    load_bilm(tmp_path)


def test_the_folder_can_go_while_its_weights_are_in_use(folder: Path) -> None:
    bilm = load_bilm(folder)
    expected = bilm.encode(SENTENCES)[0]
    for path in folder.glob("*.pkl"):
        path.write_bytes(bytes(path.stat().st_size))  # nothing of the model is left in these
    shutil.rmtree(folder)
    bilm.invalidate()
    assert torch.equal(bilm.encode(SENTENCES)[0], expected)


def test_the_writer_and_the_reader_are_not_of_one_mind_by_chance(folder: Path) -> None:
    # Two tensors of one shape, swapped: the reference and the package must see other weights.
    reference = write_model(folder, seed=9)
    tensors = {name: tensor.numpy() for name, tensor in tensors_of(folder / "encoder.pkl").items()}
    a, b = "forward_layer_0.input_linearity.weight", "forward_layer_0.state_linearity.weight"
    tensors[a], tensors[b] = tensors[b], tensors[a]
    write_pickle(folder / "encoder.pkl", tensors)
    words = SENTENCES[0]
    assert np.abs(load_bilm(folder).encode([words])[0].numpy() - reference.layers(words)).max() > 1e-2
