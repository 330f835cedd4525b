"""``spacy-elmo.torch_optimizer.v1``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import optimizer_state, optimizer_tensors
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.optimizers import torch_optimizer

from .conftest import MakeConfig
from .test_optimizers import row_gradients, set_gradients, tables

MATRICES_ONLY = "Muon"
NAMES = sorted(
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam", MATRICES_ONLY)
)


@pytest.mark.filterwarnings("ignore:torch's .* cannot read sparse gradients")
@pytest.mark.parametrize("name", NAMES)
def test_each_is_torchs_and_goes_on_from_a_checkpoint_to_the_bit(name: str) -> None:
    ours, torchs = tables(), tables()
    optimizer = torch_optimizer(name, {"lr": 0.1})(ours)
    reference = getattr(torch.optim, name)(torchs, lr=0.1)
    for number, (rows, values) in enumerate(row_gradients(6)):
        set_gradients(ours, rows, values, True)
        set_gradients(torchs, rows, values, False)
        optimizer.step()
        reference.step()
        if number == 2:
            state = optimizer_tensors(optimizer.state_dict()["state"], optimizer)
            ours = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
            optimizer = torch_optimizer(name, {"lr": 0.1})(ours)
            copies = optimizer_state({key: value.clone() for key, value in state.items()})
            optimizer.load_state_dict({**optimizer.state_dict(), "state": copies})
    for one, other, start in zip(ours, torchs, tables(), strict=True):
        tolerance = 1e-6 if name in ("SGD", "Adagrad") else 0.0  # rows only: added up in another order
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
        assert not torch.equal(one, start)


@pytest.mark.parametrize(
    ("name", "settings"), [("SGD", {"momentum": 0.9}), ("SGD", {"weight_decay": 0.1}), ("NAdam", {}), ("Adam", {})]
)
def test_what_cannot_read_sparse_gradients_says_once_what_that_costs(name: str, settings: dict[str, Any]) -> None:
    parameters = tables()
    optimizer = torch_optimizer(name, settings)(parameters)
    (first, *rest) = row_gradients(3)
    set_gradients(parameters, *first, True)
    with pytest.warns(UserWarning, match=rf"torch's {name} cannot .* moves all 21 numbers of the softmax's"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for rows, values in rest:
            set_gradients(parameters, rows, values, True)
            optimizer.step()


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_rows_without_a_gradient_are_not_touched_where_torch_can_tell(name: str) -> None:
    parameters = tables()
    optimizer = torch_optimizer(name, {"lr": 0.1})(parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for rows, values in row_gradients(2):
            set_gradients(parameters, rows, values, True)
            optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.is_sparse for parameter in parameters)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Adamm", None, "optimizer.name is Adamm, but torch.optim has ASGD, .*AdamW.*SGD"),
        ("Optimizer", None, "optimizer.name is Optimizer, but torch.optim has"),
        ("LBFGS", None, "LBFGS, which asks for the loss several times"),
        ("SparseAdam", None, r"SparseAdam, which takes no dense gradients \(spacy-elmo.adamw.v1"),
        ("Adam", {"learn_rate": 0.1, "beta": 3}, "Adam has no beta, learn_rate; its settings are lr, betas, eps"),
        ("Adam", {"differentiable": True}, "Adam has no differentiable"),
        ("Adam", {"lr": -1.0}, "torch's Adam cannot be made: Invalid learning rate: -1"),
        ("Adam", {"lr": "fast"}, "torch's Adam cannot be made"),
        ("Adam", {"betas": [0.9]}, "torch's Adam cannot be made"),
        ("Adam", {"betas": [0.9, 2.0]}, "torch's Adam cannot be made: Invalid beta"),
    ],
)
def test_what_is_wrong_is_one_error(name: str, settings: Any, said: str) -> None:
    with pytest.raises(PretrainingError, match=said):
        torch_optimizer(name, settings)


@pytest.mark.skipif(not hasattr(torch.optim, MATRICES_ONLY), reason="this torch has no such optimizer")
def test_one_for_matrices_only_is_one_error() -> None:
    with pytest.raises(PretrainingError, match="torch's Muon cannot be made"):
        torch_optimizer(MATRICES_ONLY)(tables())


def test_a_run_with_one(toy_config: MakeConfig, tmp_path: Path) -> None:
    block = {"@misc": "spacy-elmo.torch_optimizer.v1", "name": "NAdam", "settings": {"lr": 0.01, "betas": [0.9, 0.99]}}
    config = toy_config(optimizer=block, training__max_steps=20)
    with open(tmp_path / "log", "w") as log, pytest.warns(UserWarning, match="NAdam cannot read sparse gradients"):
        result = pretrain(config, tmp_path / "out", stdout=log, stderr=log)
    assert result.dev is not None
    assert result.best_step == 20
    changed = toy_config(optimizer={**block, "name": "RAdam"})
    with open(tmp_path / "log", "w") as log, pytest.raises(PretrainingError, match=r"another optimizer\.name"):
        pretrain(changed, tmp_path / "out", resume=True, stdout=log, stderr=log)


def test_thincs_optimizers_are_refused_with_what_to_take(toy_config: MakeConfig) -> None:
    with pytest.raises(PretrainingError, match=r"thinc's optimizers \(@optimizers\).*spacy-elmo\.adamw\.v1"):
        resolve(toy_config(optimizer={"@optimizers": "Adam.v1", "learn_rate": 0.001}))
