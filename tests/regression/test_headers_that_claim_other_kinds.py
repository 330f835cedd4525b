"""Headers of safetensors files that ended in an AttributeError or a NotImplementedError."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo import load_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import bilm_from_bytes, load_softmax, summary

OUTPUT = "spacy_elmo_output_layer"


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    source = root / "tests" / "weights" / "fixtures" / "v0.1" / "characters"
    return Path(shutil.copytree(source, tmp_path, dirs_exist_ok=True))


def edit(path: Path, change: Callable[[dict[str, Any]], None], append: bytes = b"") -> None:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + raw[8 + size :] + append)


@pytest.mark.parametrize(
    "output",
    [
        {"kind": "softmax", "settings": {"n_words": 10, "width": 4, "tied": True}},
        {"kind": "softmax", "settings": {"n_words": 10}},
        {"kind": "softmax", "settings": None},
        {"kind": ["softmax"], "settings": {}},
        {"kind": "adaptive", "settings": {"n_words": 10, "width": 4, "cutoffs": {}}},
        [],
        1,
    ],
)
def test_no_output_layer_of_ours(output: Any, folder: Path) -> None:
    edit(folder / "softmax.safetensors", lambda header: header["__metadata__"].update({OUTPUT: json.dumps(output)}))
    with pytest.raises(WeightsError, match="'spacy_elmo_output_layer' in its header is no output layer of ours"):
        load_softmax(folder)
    assert any("is no output layer of ours" in problem for problem in summary(folder).problems)


def test_values_of_half_a_byte(folder: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        name = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
        start, stop = header[name]["data_offsets"]
        header[name] |= {"dtype": "F4", "shape": [(stop - start) * 2]}
        names.append(name)

    names: list[str] = []
    edit(folder / "model.safetensors", change)
    raw = (folder / "model.safetensors").read_bytes()
    with pytest.raises(WeightsError):
        bilm_from_bytes(raw)
    with pytest.raises(WeightsError):
        load_bilm(folder)


def test_values_of_half_a_byte_in_the_right_shape(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__")
    data = b""
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        values = raw[8 + size + start : 8 + size + stop]
        if name == "backward_lstm.layers.0.bias":
            entry["dtype"], values = "F4", values[: len(values) // 8]
        entry["data_offsets"] = [len(data), len(data) + len(values)]
        data += values
    encoded = json.dumps({"__metadata__": metadata, **header}).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    with pytest.raises(WeightsError, match=r"F4|float4|not a whole safetensors file"):
        load_bilm(folder)
    with pytest.raises(WeightsError):
        bilm_from_bytes(path.read_bytes())
