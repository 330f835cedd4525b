from __future__ import annotations

import configparser
import fnmatch
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pytest
import safetensors
import safetensors.torch
import spacy
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from typer.testing import CliRunner

from scripts.builtin_model import absolute_paths, texts_of
from scripts.builtin_model import main as make_builtin
from spacy_elmo import BiLM, ElmoError, builtin_models, load_bilm, save_bilm
from spacy_elmo.cli import elmo_cli
from spacy_elmo.embedding import embed_file
from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.pretraining.config import load_config
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.weights import bilm_to_bytes, builtin, builtin_model, load_softmax, summary
from tests.weights.offering import install

NAME = "tlh"  # no installed package has weights for it


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    return random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4], [2, 4]], char_dim=2)


@pytest.fixture
def folder(bilm: BiLM, tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    save_bilm(bilm, path)
    return path


def same(first: BiLM, second: BiLM) -> bool:
    return bilm_to_bytes(first) == bilm_to_bytes(second)


# Offering


def test_a_function_that_gives_a_path(
    bilm: BiLM, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering = install(tmp_path, monkeypatch, NAME, folder)
    (model,) = [model for model in builtin_models() if model.name == NAME]
    assert (model.package, model.full_name) == ("acme-elmo", f"{NAME}@acme-elmo")
    assert offering.calls == 0
    assert model.path() == folder
    assert same(load_bilm(NAME), bilm)
    assert same(load_bilm(f"{NAME}@acme-elmo"), bilm)
    assert summary(NAME).path == folder / "model.safetensors"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("", "{module}"),
        ("from pathlib import Path\nwhere = Path(__file__).parent", "{module}:where"),
        ("import os\nwhere = os.path.dirname(__file__)", "{module}:where"),
        ("from importlib.resources import files\nwhere = lambda: files(__package__)", "{module}:where"),
    ],
    ids=["the package itself", "a Path", "a string", "importlib.resources"],
)
def test_weights_inside_a_package(
    bilm: BiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, value: str
) -> None:
    offering = install(tmp_path, monkeypatch, NAME, "", code=code, value=value)
    (site,) = tmp_path.glob(f"site-*/{offering.module}")
    save_bilm(bilm, site, dtype="float16")
    save_bilm(load_bilm(site), tmp_path / "expected")
    assert same(load_bilm(NAME), load_bilm(tmp_path / "expected"))


@pytest.mark.parametrize("path", [f"./{NAME}", f"{NAME}/", f"./{NAME}/", Path(NAME)], ids=repr)
def test_what_is_a_path_is_no_name(
    path: Path | str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, NAME, folder)
    monkeypatch.chdir(tmp_path)
    assert builtin_model(path) is None
    reads: list[Callable[[Path | str], object]] = [load_bilm, summary, load_softmax]
    for read in reads:
        with pytest.raises(WeightsError, match=rf"^{path}: no such file or folder$"):
            read(path)


def test_a_path_in_another_folder_is_no_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, NAME, folder)
    assert builtin_model(tmp_path / NAME) is None
    assert builtin_model(str(tmp_path / NAME)) is None
    for path in (tmp_path / NAME, str(tmp_path / NAME)):
        with pytest.raises(WeightsError, match=f"{NAME}: no such file or folder$"):
            load_bilm(path)


def test_a_file_or_folder_of_that_name_goes_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering = install(tmp_path, monkeypatch, NAME, folder)
    monkeypatch.chdir(tmp_path)
    other = random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2)
    save_bilm(other, NAME)
    assert same(load_bilm(NAME), other)
    assert offering.calls == 0
    for path in Path(NAME).iterdir():
        path.unlink()
    # An empty folder is no biLM; the error says how the built-in one is still called.
    with pytest.raises(WeightsError, match=rf"holds no biLM.*the built-in weights of that name are '{NAME}@acme-elmo'"):
        load_bilm(NAME)


def test_a_name_that_nobody_offers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, NAME, folder)
    with pytest.raises(WeightsError, match=rf"^xyz: no such file or folder, nor built-in weights .*\b{NAME}\b.*\)$"):
        load_bilm("xyz")
    with pytest.raises(WeightsError, match=r"^weights\.hdf5: no such file or folder$"):
        load_bilm("weights.hdf5")


def test_two_packages_of_one_name(bilm: BiLM, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, NAME, folder)
    save_bilm(random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2), tmp_path / "other")
    install(tmp_path, monkeypatch, NAME, tmp_path / "other", package="other-elmo")
    with pytest.raises(
        WeightsError, match=rf"'{NAME}' are offered by several packages.*'{NAME}@acme-elmo', '{NAME}@other-elmo'"
    ):
        load_bilm(NAME)
    assert same(load_bilm(f"{NAME}@acme-elmo"), bilm)
    assert same(load_bilm(f"{NAME}@other-elmo"), load_bilm(tmp_path / "other"))


def test_another_package_goes_before_our_own(
    bilm: BiLM, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_bilm(random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2), tmp_path / "ours")
    install(tmp_path, monkeypatch, NAME, tmp_path / "ours", package="spacy-elmo")
    assert same(load_bilm(NAME), load_bilm(tmp_path / "ours"))
    install(tmp_path, monkeypatch, NAME, folder)
    assert same(load_bilm(NAME), bilm)
    assert same(load_bilm(f"{NAME}@spacy-elmo"), load_bilm(tmp_path / "ours"))
    install(tmp_path, monkeypatch, NAME, folder, package="other-elmo")
    names = ", ".join(f"'{NAME}@{package}'" for package in ("acme-elmo", "other-elmo", "spacy-elmo"))
    with pytest.raises(WeightsError, match=f"several packages: say which by one of {names} in the place of a path"):
        load_bilm(NAME)


def test_a_checkout_that_was_not_installed_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points are written by pip: those of models that came with an update are not known before it runs again."""
    monkeypatch.setattr(builtin, "__file__", str(tmp_path / "spacy_elmo" / "weights" / "builtin.py"))
    models = tmp_path / "spacy_elmo" / "models"
    models.mkdir(parents=True)
    again = rf"this package has '{NAME}' since it was installed: install it again, `pip install -e \.`"
    nlp: Any = spacy.blank("en")
    elmo = nlp.add_pipe("elmo")
    elmo.lang = NAME
    for there in (False, True):
        for use in (lambda: load_bilm(NAME), lambda: nlp("Ann")):
            with pytest.raises(WeightsError, match=r"\(there are: .*\)") as caught:
                use()
            assert bool(re.search(again, str(caught.value))) is there
        folder.replace(models / NAME) if not there else None


@pytest.mark.parametrize(
    ("code", "value", "message"),
    [
        ("import no_such_module", "{module}:weights", "gives no path: ModuleNotFoundError.*no_such_module"),
        ("", "{module}:weights", "gives no path: AttributeError"),
        ("", "no_such_package_of_weights:weights", "gives no path: ModuleNotFoundError"),
        ("weights = 3", "{module}:weights", "gives no path: TypeError"),
        ("def weights():\n    raise OSError('no room')", "{module}:weights", r"gives no path: OSError\('no room'\)"),
        ("raise SystemExit('no licence')", "{module}:weights", r"gives no path: SystemExit\('no licence'\)"),
        ("import sys\ndef weights():\n    sys.exit(3)", "{module}:weights", r"gives no path: SystemExit\(3\)"),
        ("weights = '/no/such/folder'", "{module}:weights", "/no/such/folder is not there: install the package again"),
        ("weights = 'models'", "{module}:weights", "gives 'models', which is no absolute path"),
        ("", "{module}", "holds no biLM"),
    ],
)
def test_a_broken_offering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, value: str, message: str
) -> None:
    install(tmp_path, monkeypatch, NAME, "", code=code, value=value)
    with pytest.raises(
        WeightsError, match=rf"^built-in weights '{NAME}' of the package acme-elmo: .*{message}"
    ) as caught:
        load_bilm(NAME)
    assert "\n" not in str(caught.value)


def test_damaged_weights_name_the_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, NAME, folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsError, match=rf"^built-in weights '{NAME}' of the package acme-elmo: .*not a whole"):
        load_bilm(NAME)


def test_embedding_reads_the_language_beside_the_weights(
    bilm: BiLM, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, NAME, folder)
    text = tmp_path / "text.txt"
    text.write_text("z.B. so", encoding="utf8")
    (folder / "meta.json").write_text('{"lang": "de"}', encoding="utf8")
    assert embed_file(text, tmp_path / "german.npz", NAME).words == 2
    (folder / "meta.json").unlink()
    assert embed_file(text, tmp_path / "english.npz", NAME).words > 2  # English knows no such abbreviation


def setup_cfg(root: Path) -> tuple[dict[str, str], list[str]]:
    """What setup.cfg offers, a module by its name, and the patterns of the files that a wheel gets."""
    config = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    config.read(root / "setup.cfg", encoding="utf8")
    lines = config["options.entry_points"].get("spacy_elmo_weights", "").split("\n")
    parts = [line.partition("=") for line in lines if line.strip()]
    offered = {name.strip(): module.strip() for name, _, module in parts}
    return offered, config["options.package_data"]["spacy_elmo"].split()


def in_the_wheel(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(f"models/en/{name}", pattern) for pattern in patterns)


# What may be shipped was trained on these alone: names in readers, and the hash of the encoded text.
TEXTS = {"raw", "wikipedia.txt.xz", "books.txt.xz"}
TRAINED_ON = {"en": "3d6516a2b73a70b168eeb23774401ee440e638b60f0539148058abaad2bb17f3"}


def check_folder(path: Path, root: Path) -> dict[str, Any]:
    """That a folder of built-in weights is whole, small, and says what it has to. RETURNS: its meta.json."""
    _, patterns = setup_cfg(root)
    files = {file.name: file for file in path.iterdir() if file.name != "__pycache__"}
    assert set(files) == {
        "__init__.py",
        "LICENSE",
        "README.md",
        "config.json",
        "meta.json",
        "model.safetensors",
        "pretrain.cfg",
    }
    # A wheel has what the checkout has.
    assert [name for name in files if name != "__init__.py" and not in_the_wheel(name, patterns)] == []
    assert sum(file.stat().st_size for file in files.values()) <= 20e6
    meta: dict[str, Any] = json.loads(files["meta.json"].read_text(encoding="utf8"))
    about = [meta[name] for name in ("name", "version", "license")]
    assert all(isinstance(text, str) and 0 < len(text) <= 60 for text in about)  # `elmo info` shows no longer ones
    assert meta["license"].lower() in files["README.md"].read_text(encoding="utf8").lower()
    assert files["LICENSE"].stat().st_size
    for name in ("meta.json", "pretrain.cfg", "README.md"):
        assert absolute_paths(files[name].read_text(encoding="utf8")) == [], name
    assert meta["initialize"] is None
    config = load_config(path / "pretrain.cfg")
    for block in (meta["corpora"]["readers"]["train"], config["corpora"]["train"]):
        texts = [PurePath(text).name for text in texts_of(block)]
        assert texts
        assert set(texts) <= TEXTS
    stored = safetensors.torch.load_file(files["model.safetensors"])
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    loaded = load_bilm(path).state_dict()
    assert set(loaded) == set(stored)
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in stored.items())
    return meta


def test_what_setup_cfg_offers_is_there(root: Path) -> None:
    offered, _ = setup_cfg(root)
    folders = {path.parent for path in (root / "spacy_elmo" / "models").glob("*/model.safetensors")}
    assert set(offered.values()) == {f"spacy_elmo.models.{path.name}" for path in folders}
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg", encoding="utf8")
    assert ("spacy_elmo/models/*/LICENSE" in config["metadata"]["license_files"]) is bool(folders)
    for path in folders:
        meta = check_folder(path, root)
        assert meta["lang"] == path.name
        assert meta["corpora"]["train"]["sha256"] == TRAINED_ON[path.name]


@pytest.fixture(scope="module")
def pretrained(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a small model was pretrained, all paths relative."""
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "raw").mkdir()
    text = "The cat sat .\nThe dog ran .\n\n" * 30
    for name in ("raw/wikipedia.txt", "dev.txt"):
        (folder / name).write_text(text, encoding="utf8")
    sizes = {"model.lstm_dim": 8, "model.projection_dim": 4, "model.filters": [[1, 4]], "training.max_steps": 2}
    sizes |= {"training.rows": 2}
    paths = {"paths.raw": "raw", "paths.dev": "dev.txt", "paths.cache": "cache"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = load_config(root / "configs" / "pretrain.cfg", {**sizes, **paths})
        pretrain(config, Path("out"), stdout=io.StringIO(), stderr=io.StringIO(), command="elmo pretrain en.cfg out")
    return folder / "out" / "model-best"


MAKE = ("--version", "1.0", "--sources", "raw")


def test_the_script_makes_such_a_folder(
    root: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_builtin([str(pretrained), *MAKE, "--models", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "trained on: raw\n" in printed
    assert "still to be written: README.md, LICENSE" in printed
    folder = tmp_path / "en"
    by_hand = {"README.md": "Licence: MIT. By hand.\n", "LICENSE": "MIT, by hand.\n"}
    for name, text in by_hand.items():
        (folder / name).write_text(text, encoding="utf8")
    meta = check_folder(folder, root)
    assert (meta["name"], meta["version"], meta["license"], meta["lang"]) == ("en", "1.0", "MIT", "en")
    weights = (folder / "model.safetensors").read_bytes()
    make_builtin([str(pretrained), *MAKE, "--models", str(tmp_path), "--version", "1.1", "--name", "small"])
    assert {name: (folder / name).read_text(encoding="utf8") for name in by_hand} == by_hand
    again = check_folder(folder, root)
    assert (again["name"], again["version"]) == ("small", "1.1")
    assert (folder / "model.safetensors").read_bytes() == weights
    shown = CliRunner().invoke(elmo_cli, ["info", str(folder)])
    assert "name small, version 1.1, license MIT, " in shown.output


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "meta.json",
            '"path": "raw"',
            '"path": "raw/news.txt.xz"',
            r"trained on raw/news\.txt\.xz: not in --sources",
        ),
        ("meta.json", '"path": "dev.txt"', '"path": "/data/dev.txt"', r"meta\.json names paths .* \(/data/dev\.txt\)"),
        ("meta.json", "en.cfg out", "en.cfg ~/out", r"meta\.json names paths of one machine \(~/out\)"),
        ("pretrain.cfg", '"cache"', '"/tmp/cache"', r"pretrain\.cfg names paths of one machine \(/tmp/cache\)"),
    ],
)
def test_what_the_script_refuses(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, message: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(pretrained, source)
    text = (source / file).read_text(encoding="utf8")
    assert old in text
    (source / file).write_text(text.replace(old, new), encoding="utf8")
    with pytest.raises(SystemExit):
        make_builtin([str(source), *MAKE, "--models", str(tmp_path / "models")])
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "models").exists()


def test_the_script_takes_what_was_pretrained_here(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_builtin([str(folder), *MAKE, "--models", str(tmp_path / "models")])
    assert "has no meta.json and no pretrain.cfg of `elmo pretrain`" in capsys.readouterr().err


def test_texts_of_readers() -> None:
    raw = {"@readers": "spacy-elmo.RawText.v1", "path": "a/b.txt"}
    docs = {"@readers": "spacy-elmo.InstalledDocs.v1", "split": "train"}
    mix = {"@readers": "spacy-elmo.Mix.v1", "sources": {"one": raw, "two": docs}, "weights": {"one": 1.0, "two": 1.0}}
    assert list(texts_of(mix)) == ["a/b.txt", "spacy-elmo.InstalledDocs.v1"]


@pytest.mark.parametrize(
    "text",
    [
        "/tmp/run",
        "path = '/data/x'",
        "--paths.raw=/data",
        "~/texts",
        "C:\\texts",
        "D:/x",
        "\\\\server",
        "file:///data",
    ],
)
def test_absolute_paths_are_found(text: str) -> None:
    assert len(absolute_paths(json.dumps(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "raw/*.gz",
        "../raw/x",
        "${paths.raw}/x",
        "**/x",
        "https://pypi.org/project/x/",
        "km/h, and / or",
        "Linux-6.1-x86_64",
    ],
)
def test_relative_paths_and_addresses_are_none(text: str) -> None:
    assert absolute_paths(json.dumps(text)) == []


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("model.safetensors", True),
        ("config.json", True),
        ("meta.json", True),
        ("pretrain.cfg", True),
        ("README.md", True),
        ("LICENSE", True),
        ("softmax.safetensors", False),
        ("vocabulary.txt", False),
    ],
)
def test_what_a_wheel_gets_of_a_model(root: Path, name: str, there: bool) -> None:
    _, patterns = setup_cfg(root)
    assert in_the_wheel(name, patterns) is there


def test_what_setup_cfg_offers_is_installed(root: Path) -> None:
    offered, _ = setup_cfg(root)
    installed = {model.name for model in builtin_models() if model.package == "spacy-elmo"}
    assert set(offered) <= installed, "entry points are written by pip: install again, `pip install -e .`"


# float16


def test_float16_is_half_as_large_and_rounded_to_the_nearest(bilm: BiLM, tmp_path: Path) -> None:
    save_bilm(bilm, tmp_path / "float32")
    save_bilm(bilm, tmp_path / "float16", dtype="float16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("float32", "float16")]
    n = sum(tensor.numel() for tensor in bilm.state_dict().values())
    assert sizes[0] - sizes[1] == pytest.approx(2 * n, abs=16)  # the header is padded to whole 8 bytes
    found = load_bilm(tmp_path / "float16").state_dict()
    for name, tensor in bilm.state_dict().items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], tensor.half().float()), name
    # What was rounded once is not rounded again.
    save_bilm(load_bilm(tmp_path / "float16"), tmp_path / "again", dtype="float16")
    names = [path.name for path in sorted((tmp_path / "again").iterdir())]
    assert names == ["config.json", "model.safetensors"]
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "float16" / name).read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_files_of_sixteen_bits_are_loaded_exactly(bilm: BiLM, tmp_path: Path, dtype: torch.dtype) -> None:
    save_bilm(bilm, tmp_path / "bilm")
    file = tmp_path / "bilm" / "model.safetensors"
    with safetensors.safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = {name: tensor.to(dtype) for name, tensor in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(tensors, file, metadata=metadata)
    for name, tensor in load_bilm(tmp_path / "bilm").state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, tensors[name].float()), name


@given(
    values=arrays.arrays(
        "float32", (8,), elements=st.floats(-65519, 65519, width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_any_value_in_range_comes_back_as_what_it_was_rounded_to(tmp_path_factory: Any, values: Any) -> None:
    bilm = random_bilm(lstm_dim=2, projection_dim=2, n_layers=1, filters=[[1, 2]], char_dim=2)
    bias = bilm.state_dict()["forward_lstm.layers.0.bias"]
    bias.copy_(torch.from_numpy(values))
    folder = tmp_path_factory.mktemp("bilm")
    save_bilm(bilm, folder, dtype="float16")
    found = load_bilm(folder).state_dict()["forward_lstm.layers.0.bias"]
    assert torch.equal(found, torch.from_numpy(values.astype("float16").astype("float32")))


@pytest.mark.parametrize("value", [65520.0, -1e9])  # half-way from the largest float16 on, it rounds to infinity
def test_values_too_large_for_float16(tmp_path: Path, value: float) -> None:
    bilm = random_bilm(lstm_dim=2, projection_dim=2, n_layers=1, filters=[[1, 2]], char_dim=2)
    save_bilm(bilm, tmp_path / "bilm")
    before = (tmp_path / "bilm" / "model.safetensors").read_bytes()
    bilm.state_dict()["forward_lstm.layers.0.bias"][3] = value
    message = (
        f"'forward_lstm.layers.0.bias' has a value of {abs(value):g}, which is too large for float16: save float32"
    )
    with pytest.raises(WeightsError, match=re.escape(message)):
        save_bilm(bilm, tmp_path / "bilm", dtype="float16")
    assert (tmp_path / "bilm" / "model.safetensors").read_bytes() == before
    save_bilm(bilm, tmp_path / "bilm")
    assert load_bilm(tmp_path / "bilm").state_dict()["forward_lstm.layers.0.bias"][3] == value


def test_other_dtypes_and_formats_are_refused(bilm: BiLM, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="dtype is one of float32, float16, not 'bfloat16'"):
        save_bilm(bilm, tmp_path / "bilm", dtype="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(ElmoError, match="format 'bilm-hdf5' holds float32, not 'float16'"):
        save_bilm(bilm, tmp_path / "bilm", "bilm-hdf5", dtype="float16")
    assert list(tmp_path.iterdir()) == []
