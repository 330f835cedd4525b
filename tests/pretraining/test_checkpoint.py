from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import spacy_elmo
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM, BiLMState
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining import checkpoint as module
from spacy_elmo.pretraining.checkpoint import (
    STATE_FILE,
    SUMS_FILE,
    TENSORS_FILE,
    DamagedError,
    existing_folder,
    keep_newest,
    load_checkpoint,
    newest_checkpoint,
    replaced_folder,
    restore,
    restore_folder,
    save_checkpoint,
    step_folder,
    write_sums,
)
from spacy_elmo.pretraining.optimizers import adagrad, adamw

SCORES = {f"{name}_perplexity": 9.5 for name in ("forward", "backward", "joint")}
RECORD: dict[str, Any] = {
    "seconds": 1.5,
    "best": {"score": -1.5, "step": None},
    "info": {
        "epoch": 0,
        "step": 1,
        "score": -1.5,
        "losses": {"bilm": 2.5},
        "other_scores": {**SCORES, "n_targets": 4, "tokens_per_second": 10.0},
        "seconds_left": None,
        "words": 12,
    },
    "corpora": {"train": "00", "dev": "11"},
    "config": {"a": {"b": None}},
}


def parts(seed: int) -> tuple[BiLM, FullSoftmax]:
    config = BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 4),), max_characters_per_token=8)
    bilm = BiLM(config).initialize(seed)
    softmax = FullSoftmax(7, 4)
    softmax.initialize(seed)
    return bilm, softmax


def update(bilm: BiLM, softmax: FullSoftmax, optimizer: torch.optim.Optimizer, state: BiLMState) -> BiLMState:
    ids = bilm.token_ids(["<S>", "</S>", "a", "b"])
    steps = torch.tensor([[0, 2, 3], [2, 3, 0]])
    forward, backward, state = bilm.hidden(ids, steps, steps, state, 0.5)
    loss = softmax.loss(forward.flatten(0, 1), torch.arange(6), seed=0)
    loss = loss + softmax.loss(backward.flatten(0, 1), torch.arange(6), seed=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return state


@pytest.mark.parametrize("make_optimizer", [adagrad(0.1), adamw(0.01)], ids=["adagrad", "adamw"])
def test_everything_comes_back_to_the_bit(tmp_path: Path, make_optimizer) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(3)
    bilm, softmax = parts(0)
    optimizer = make_optimizer([*bilm.parameters(), *softmax.parameters()])
    state = update(bilm, softmax, optimizer, bilm.zero_state(2))
    save_checkpoint(tmp_path / "c", step=1, bilm=bilm, softmax=softmax, optimizer=optimizer, state=state, record=RECORD)
    state = update(bilm, softmax, optimizer, state)  # with dropout: the random state counts

    torch.manual_seed(99)
    other_bilm, other_softmax = parts(1)
    other_optimizer = make_optimizer([*other_bilm.parameters(), *other_softmax.parameters()])
    checkpoint = load_checkpoint(tmp_path / "c")
    assert checkpoint.step == 1
    assert checkpoint.record == {"spacy_elmo": spacy_elmo.__version__, **RECORD}
    other_state = restore(checkpoint, bilm=other_bilm, softmax=other_softmax, optimizer=other_optimizer)
    other_state = update(other_bilm, other_softmax, other_optimizer, other_state)
    for name, tensor in {**bilm.state_dict(), **softmax.state_dict()}.items():
        assert torch.equal(tensor, {**other_bilm.state_dict(), **other_softmax.state_dict()}[name]), name
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, other_state.tensors()[name]), name


def test_the_new_configs_learning_rate_counts_after_a_resume(tmp_path: Path) -> None:
    bilm, softmax = parts(0)
    optimizer = adamw(0.01)([*bilm.parameters(), *softmax.parameters()])
    state = update(bilm, softmax, optimizer, bilm.zero_state(2))
    save_checkpoint(tmp_path / "c", step=1, bilm=bilm, softmax=softmax, optimizer=optimizer, state=state, record=RECORD)
    checkpoint = load_checkpoint(tmp_path / "c")
    slower = adamw(0.001)([*bilm.parameters(), *softmax.parameters()])
    restore(checkpoint, bilm=bilm, softmax=softmax, optimizer=slower)
    assert [group["lr"] for group in slower.param_groups] == [0.001, 0.001]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "nothing", print) is None
    (tmp_path / "step-000003.new").mkdir()  # unfinished
    assert newest_checkpoint(tmp_path, print) is None


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    bilm, softmax = parts(0)
    optimizer = adagrad()([*bilm.parameters(), *softmax.parameters()])
    folder = tmp_path / "c"
    save_checkpoint(
        folder, step=1, bilm=bilm, softmax=softmax, optimizer=optimizer, state=bilm.zero_state(1), record=RECORD
    )
    file = folder / TENSORS_FILE
    file.write_bytes(file.read_bytes()[:100])
    write_sums(folder)
    with pytest.raises(PretrainingError, match=str(folder)):
        load_checkpoint(folder)


def saved(folder: Path) -> Path:
    """A checkpoint after one step of AdamW."""
    bilm, softmax = parts(0)
    optimizer = adamw(0.01)([*bilm.parameters(), *softmax.parameters()])
    state = update(bilm, softmax, optimizer, bilm.zero_state(2))
    save_checkpoint(folder, step=1, bilm=bilm, softmax=softmax, optimizer=optimizer, state=state, record=RECORD)
    return folder


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        *((lambda state, key=key: state.pop(key), key) for key in ("format", "spacy_elmo", "step", *RECORD)),
        (lambda state: state.update(step="1"), "step"),
        (lambda state: state.update(step=-1), "step"),
        (lambda state: state.update(seconds=None), "seconds"),
        (lambda state: state.update(config=[]), "config"),
        (lambda state: state.update(corpora={"train": 1}), "corpora"),
        (lambda state: state["best"].pop("score"), r"best\.score"),
        (lambda state: state.update(info={}), r"info\.step"),
        (lambda state: state["info"]["other_scores"].pop("n_targets"), r"other_scores\.n_targets"),
    ],
)
def test_a_damaged_state_names_the_file_and_the_key(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object], named: str
) -> None:
    file = saved(tmp_path / "c") / STATE_FILE
    state = json.loads(file.read_text(encoding="utf8"))
    damage(state)
    file.write_text(json.dumps(state), encoding="utf8")
    write_sums(tmp_path / "c")
    with pytest.raises(PretrainingError, match=rf"(?s){STATE_FILE} is damaged .*{named}"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"format": 1', '{"format": 9}', ""])
def test_a_state_that_is_something_else(tmp_path: Path, text: str) -> None:
    (saved(tmp_path / "c") / STATE_FILE).write_text(text, encoding="utf8")
    write_sums(tmp_path / "c")
    with pytest.raises(PretrainingError, match=STATE_FILE):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(
    "name",
    ["bilm/token_encoder.char_embed", "softmax/W", "optimizer/0.exp_avg", "state/forward_cell", "random/cpu"],
)
@pytest.mark.parametrize("how", ["missing", "shape"])
def test_a_damaged_tensor_is_named(tmp_path: Path, name: str, how: str) -> None:
    file = saved(tmp_path / "c") / TENSORS_FILE
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    tensor = tensors.pop(name)
    if how == "shape":
        tensors[name] = tensor[:1].clone()
    save_file(tensors, file)
    write_sums(tmp_path / "c")
    with pytest.raises(PretrainingError, match=rf"{TENSORS_FILE} is damaged \({name} missing"):
        load_checkpoint(tmp_path / "c")


def test_an_optimizer_without_its_state_is_never_resumed_afresh(tmp_path: Path) -> None:
    file = saved(tmp_path / "c") / TENSORS_FILE
    save_file({key: value for key, value in load_file(file).items() if not key.startswith("optimizer/")}, file)
    write_sums(tmp_path / "c")
    with pytest.raises(PretrainingError, match=r"optimizer/0\.exp_avg"):
        load_checkpoint(tmp_path / "c")


def test_tensors_of_another_kind_are_one_error(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    checkpoint = load_checkpoint(tmp_path / "c")
    checkpoint.tensors["random/cpu"] = torch.zeros(3)  # no bytes
    bilm, softmax = parts(1)
    optimizer = adamw(0.01)([*bilm.parameters(), *softmax.parameters()])
    with pytest.raises(PretrainingError, match=TENSORS_FILE):
        restore(checkpoint, bilm=bilm, softmax=softmax, optimizer=optimizer)


def test_a_failed_write_keeps_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    with replaced_folder(folder) as new:
        (new / "x").write_text("old")
    with pytest.raises(RuntimeError), replaced_folder(folder) as new:  # noqa: PT012
        (new / "x").write_text("new")
        raise RuntimeError
    assert (folder / "x").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    with replaced_folder(folder) as new:
        (new / "y").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["y"]
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_between_the_two_renames_the_old_one_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    with replaced_folder(folder) as new:
        (new / "x").write_text("old")
    folder.rename(tmp_path / "f.old")  # where a process that dies between them leaves it
    found = existing_folder(folder)
    assert found is not None
    assert (found / "x").read_text() == "old"
    restore_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (folder / "x").read_text() == "old"
    folder.rename(tmp_path / "f.old")
    with replaced_folder(folder) as new:
        (new / "x").write_text("new")
    assert (folder / "x").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "disk" / "kept").mkdir(parents=True)
    link = tmp_path / "f"
    link.symlink_to(tmp_path / "disk" / "kept", target_is_directory=True)
    for text in ("one", "two"):
        with replaced_folder(link) as new:
            (new / "x").write_text(text)
        assert link.is_symlink()
        assert (tmp_path / "disk" / "kept" / "x").read_text() == text
    (tmp_path / "disk" / "kept").rename(tmp_path / "disk" / "kept.old")  # killed between the renames
    restore_folder(link)
    assert (link / "x").read_text() == "two"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "f", "kept", "x"]


def test_what_cannot_be_written_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a file where a folder must be made")
    with pytest.raises(PretrainingError, match=r"cannot write .*deep"), replaced_folder(tmp_path / "f" / "deep"):
        raise AssertionError("never entered")


# ----------------------------------------------------------------------------------------------------- several of them


def several(folder: Path, *steps: int) -> Path:
    """Checkpoints of these steps, each whole. The state of all is that of step 1."""
    one = saved(folder.parent / "one")
    for step in steps:
        target = step_folder(folder, step)
        shutil.copytree(one, target)
        state = json.loads((target / STATE_FILE).read_text(encoding="utf8"))
        (target / STATE_FILE).write_text(json.dumps({**state, "step": step}), encoding="utf8")
        write_sums(target)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    folder = saved(tmp_path / "c")
    expected = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in (STATE_FILE, TENSORS_FILE)
    ]
    assert (folder / SUMS_FILE).read_text(encoding="ascii").splitlines() == expected


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = saved(Path(name) / "c")
        file = folder / data.draw(st.sampled_from([STATE_FILE, TENSORS_FILE, SUMS_FILE]))
        content = bytearray(file.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        with pytest.raises(DamagedError, match=str(folder)):
            load_checkpoint(folder)


@pytest.mark.parametrize("name", [STATE_FILE, TENSORS_FILE, SUMS_FILE])
@pytest.mark.parametrize("damage", [Path.unlink, lambda file: os.truncate(file, 10), lambda file: os.truncate(file, 0)])
def test_a_damaged_newest_one_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    folder = several(tmp_path / "all", 5, 900_000, 1_000_000)  # in the order of numbers
    damage(step_folder(folder, 1_000_000) / name)
    said: list[str] = []
    checkpoint = newest_checkpoint(folder, said.append)
    assert checkpoint is not None
    assert checkpoint.step == 900_000
    assert checkpoint.folder == folder / "step-900000"
    assert len(said) == 1
    assert re.match(rf"{folder}/step-1000000/.*: going back to the checkpoint before$", said[0])
    assert "start anew" not in said[0]
    damage(step_folder(folder, 900_000) / name)
    damage(step_folder(folder, 5) / name)
    with pytest.raises(DamagedError, match=r"step-1000000/.* \(and 2 older ones are damaged too\)"):
        newest_checkpoint(folder, said.append)
    assert len(said) == 1


def test_another_version_is_not_fallen_back_from(tmp_path: Path) -> None:
    folder = several(tmp_path / "all", 5, 6)
    file = step_folder(folder, 6) / STATE_FILE
    file.write_text(file.read_text(encoding="utf8").replace('"format": 2', '"format": 9'), encoding="utf8")
    write_sums(file.parent)
    with pytest.raises(PretrainingError, match=r"step-000006.* was written by another version"):
        newest_checkpoint(folder, print)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    folder = several(tmp_path / "all", 5, 10, 15, 20)
    (folder / "step-000012.new").mkdir()  # a killed process was writing it
    (folder / "step-000010-of-mine").mkdir()
    (folder / "notes.txt").write_text("mine")
    keep_newest(folder, 20, 2)
    assert names(folder) == ["notes.txt", "step-000010-of-mine", "step-000015", "step-000020"]
    keep_newest(folder, 20, 1)
    assert names(folder) == ["notes.txt", "step-000010-of-mine", "step-000020"]


def test_what_was_gone_back_from_goes_with_the_next_one(tmp_path: Path) -> None:
    folder = several(tmp_path / "all", 5, 10, 15)
    keep_newest(folder, 10, 3)
    assert names(folder) == ["step-000005", "step-000010"]


UNREADABLE: list[tuple[str, Exception, str]] = [
    ("load_file", MemoryError(), "not enough memory to read .*: free some"),
    ("load_file", RuntimeError("Cannot allocate memory (12)"), "not enough memory to read .*: free some"),
    *(
        (name, OSError(number, os.strerror(number)), f"cannot be read .*{os.strerror(number)}.*: try again")
        for name in ("_sha256", "load_file")
        for number in (errno.EIO, errno.EACCES, errno.EMFILE)
    ),
]


@pytest.mark.parametrize(("name", "error", "says"), UNREADABLE)
def test_one_that_cannot_be_read_just_now_is_not_gone_back_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, says: str
) -> None:
    """It was called damaged; the run went on from the one before, and the whole one was removed with the next."""
    folder = several(tmp_path / "all", 5, 10)
    whole = getattr(module, name)

    def failing(file: Path) -> Any:
        if file.parent.name == "step-000010" and file.name == TENSORS_FILE:
            raise error
        return whole(file)

    said: list[str] = []
    monkeypatch.setattr(module, name, failing)
    with pytest.raises(PretrainingError, match=rf"(?s){says}") as raised:
        newest_checkpoint(folder, said.append)
    assert "step-000010" in str(raised.value)
    assert not isinstance(raised.value, DamagedError)
    assert said == []
    monkeypatch.undo()
    checkpoint = newest_checkpoint(folder, said.append)
    assert checkpoint is not None
    assert checkpoint.step == 10


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.cuda.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")]
)
def test_want_of_memory_is_no_damage(tmp_path: Path, error: Exception) -> None:
    """The message was that the file does not fit the config, or is damaged."""
    checkpoint = load_checkpoint(saved(tmp_path / "c"))
    with pytest.raises(type(error)) as raised, checkpoint.fitting():
        raise error
    assert raised.value is error
    with pytest.raises(PretrainingError, match="or is damaged: size mismatch"), checkpoint.fitting():
        raise RuntimeError("size mismatch")


def test_folders_inside_a_folder_are_written_too(tmp_path: Path) -> None:
    """ "Is a directory": one that a user had put into model-best ended a finished run with an error."""
    with replaced_folder(tmp_path / "f") as new:
        (new / "mine" / "deep").mkdir(parents=True)
        (new / "mine" / "deep" / "x").write_text("kept")
    assert (tmp_path / "f" / "mine" / "deep" / "x").read_text() == "kept"
