from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM, BiLMState
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import (
    TENSORS_FILE,
    existing_folder,
    load_checkpoint,
    replaced_folder,
    restore,
    save_checkpoint,
)
from spacy_elmo.pretraining.optimizers import adagrad, adamw


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
    record = {"best": {"score": -1.5}, "config": {"a": {"b": None}}}
    save_checkpoint(tmp_path / "c", step=1, bilm=bilm, softmax=softmax, optimizer=optimizer, state=state, record=record)
    state = update(bilm, softmax, optimizer, state)  # with dropout: the random state counts

    torch.manual_seed(99)
    other_bilm, other_softmax = parts(1)
    other_optimizer = make_optimizer([*other_bilm.parameters(), *other_softmax.parameters()])
    checkpoint = load_checkpoint(tmp_path / "c")
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert checkpoint.record == record
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
    save_checkpoint(tmp_path / "c", step=1, bilm=bilm, softmax=softmax, optimizer=optimizer, state=state, record={})
    checkpoint = load_checkpoint(tmp_path / "c")
    assert checkpoint is not None
    slower = adamw(0.001)([*bilm.parameters(), *softmax.parameters()])
    restore(checkpoint, bilm=bilm, softmax=softmax, optimizer=slower)
    assert [group["lr"] for group in slower.param_groups] == [0.001, 0.001]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "nothing") is None


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    bilm, softmax = parts(0)
    optimizer = adagrad()([*bilm.parameters(), *softmax.parameters()])
    folder = tmp_path / "c"
    save_checkpoint(
        folder, step=1, bilm=bilm, softmax=softmax, optimizer=optimizer, state=bilm.zero_state(1), record={}
    )
    file = folder / TENSORS_FILE
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(PretrainingError, match=str(folder)):
        load_checkpoint(folder)


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
    with replaced_folder(folder) as new:
        (new / "x").write_text("new")
    assert (folder / "x").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
