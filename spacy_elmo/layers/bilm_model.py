"""The biLM as a thinc model: a shim around the torch module that can be empty until weights come."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

import spacy
import torch
from thinc.api import CupyOps, Model, Optimizer, get_current_ops, get_torch_default_device, torch2xp, xp2torch
from thinc.shims import Shim
from thinc.types import Floats3d, FloatsXd

from ..bilm import BiLM, BiLMConfig
from ..errors import ElmoError
from ..weights.native import bilm_from_bytes, bilm_to_bytes
from .config_error import is_number


class BiLMShim(Shim):
    """Lets thinc serialise, move and optimise a ``BiLM``; holds None until weights are set.

    thinc's own PyTorchShim needs a module of known shapes at construction and pickles it; here shapes come from the
    weights, as safetensors with the config in their header.
    """

    def __init__(self, bilm: BiLM | None = None) -> None:
        super().__init__(None)
        self.bilm = bilm
        # The biLM's learning rate as a multiple of the optimizer's.
        self.lr_factor = 1.0

    @property
    def bilm(self) -> BiLM | None:
        """The biLM, on the device of thinc's current ops when it was set."""
        return self._model

    @bilm.setter
    def bilm(self, bilm: BiLM | None) -> None:
        self._model = None if bilm is None else bilm.to(torch_device())
        # Other weights are another model to an optimizer, which keeps its moments by this number.
        with Shim.global_id_lock:
            Shim.global_id += 1
            self.id = Shim.global_id

    def copy(self) -> BiLMShim:
        """A copy with an id of its own, so that an optimizer keeps the two apart."""
        other = BiLMShim(copy.deepcopy(self._model))
        other.lr_factor = self.lr_factor
        return other

    def finish_update(self, optimizer: Optimizer) -> None:
        """Let the optimizer change every parameter that has a gradient, at ``lr_factor`` times its learning rate."""
        if self._model is None:
            return
        changed = False
        with _learning_at(optimizer, self.lr_factor):
            for name, parameter in self._model.named_parameters():
                if parameter.grad is None:
                    continue
                arrays = cast("list[FloatsXd]", [torch2xp(parameter.data), torch2xp(parameter.grad)])
                weights, _ = optimizer((self.id, name), *arrays)
                parameter.data = xp2torch(weights, device=parameter.device)
                parameter.grad = None
                changed = True
        if changed:
            self._model.invalidate()

    @contextlib.contextmanager
    def use_params(self, params: dict[Any, Any]) -> Iterator[None]:
        """Run with other parameters (an optimizer's averages), keyed like ``finish_update`` keys them."""
        backup = {}
        for name, parameter in [] if self._model is None else self._model.named_parameters():
            if (self.id, name) in params:
                backup[name] = parameter.data
                # A new tensor, not new contents: a graph that waits for its gradient keeps the old ones.
                parameter.data = xp2torch(params[self.id, name], device=parameter.device)
        if not backup:
            yield
            return
        self._model.invalidate()
        try:
            yield
        finally:
            for name, parameter in self._model.named_parameters():
                if name in backup:
                    parameter.data = backup[name]
            self._model.invalidate()

    def to_device(self, device_type: str, device_id: int) -> None:
        """Move the biLM; on Apple's GPUs it stays on the CPU."""
        if self._model is not None:
            self._model.to(torch.device("cuda", device_id) if device_type == "gpu" else torch.device("cpu"))
            self._model.invalidate()

    def to_bytes(self) -> bytes:
        """Safetensors with the config in the header; nothing for an empty shim."""
        return b"" if self._model is None else bilm_to_bytes(self._model)

    def from_bytes(self, data: bytes) -> BiLMShim:
        """The inverse of ``to_bytes``. Raises WeightsError for other bytes."""
        with torch.inference_mode(False):  # it may be trained later
            self.bilm = bilm_from_bytes(data) if data else None
        return self


@contextlib.contextmanager
def _learning_at(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Let an optimizer learn at a multiple of its rate.

    Scaled gradients would not do: Adam divides by their size. Nor thinc's ``lr_scale``: its RAdam does not look at it.
    """
    rate = optimizer.learn_rate
    optimizer.learn_rate = rate * factor
    try:
        yield
    finally:
        optimizer.learn_rate = rate


@spacy.registry.architectures("spacy-elmo.BiLM.v1")
def BiLM_v1() -> Model[list[list[str]], list[Floats3d]]:
    """A biLM that is still empty: ``elmo.load_weights``, ``[initialize]`` or from_disk bring weights and sizes.

    The model maps sentences (lists of words) to layers (L + 1, n, 2P), float32.
    """
    return Model("elmo_bilm", forward, init=init, shims=[BiLMShim()])


def init(model: Model[list[list[str]], list[Floats3d]], X: Any = None, Y: Any = None) -> None:
    """Nothing to allocate. (thinc's default would hold on to the model that a copy was made of.)"""


def forward(
    model: Model[list[list[str]], list[Floats3d]], sentences: list[list[str]], is_train: bool
) -> tuple[list[Floats3d], Callable[[list[Floats3d]], list[list[str]]]]:
    """Sentences to layers, with the weights' own start state."""
    bilm = get_bilm(model)
    outputs = bilm(sentences) if is_train else bilm.encode(sentences)

    def backprop(d_layers: list[Floats3d]) -> list[list[str]]:
        pairs = [(y, xp2torch(d)) for y, d in zip(outputs, d_layers, strict=True) if y.requires_grad and y.numel()]
        if pairs:
            torch.autograd.backward([y for y, _ in pairs], [d for _, d in pairs])
        return []

    return cast("list[Floats3d]", [torch2xp(y.detach()) for y in outputs]), backprop


def get_bilm(model: Model[Any, Any]) -> BiLM:
    """The biLM in a ``BiLM.v1`` model. Raises ElmoError while there is none."""
    bilm = find_bilm(model)
    if bilm is None:
        raise ElmoError("the biLM has no weights yet")
    return bilm


def find_bilm(model: Model[Any, Any]) -> BiLM | None:
    """The biLM in a ``BiLM.v1`` model, or None while there is none."""
    shim = model.shims[0] if model.shims else None
    if not isinstance(shim, BiLMShim):
        raise ElmoError(f"the model {model.name!r} is not one of spacy-elmo.BiLM.v1")
    return shim.bilm


def set_bilm(model: Model[Any, Any], bilm: BiLM) -> None:
    """Put a biLM into a ``BiLM.v1`` model."""
    find_bilm(model)
    model.shims[0].bilm = bilm  # type: ignore[attr-defined]


def set_lr_factor(model: Model[Any, Any], lr_factor: float) -> None:
    """Let the biLM in a ``BiLM.v1`` model learn at this multiple of the optimizer's learning rate.

    Raises ElmoError for one that is negative or not finite.
    """
    if not is_number(lr_factor):
        raise ElmoError(f"lr_factor is a multiple of the learning rate, at least 0, not {lr_factor!r}")
    find_bilm(model)
    model.shims[0].lr_factor = lr_factor  # type: ignore[attr-defined]


@spacy.registry.misc("spacy-elmo.random_bilm.v1")
def random_bilm(
    *,
    lstm_dim: int = 64,
    projection_dim: int = 16,
    n_layers: int = 2,
    cell_clip: float | None = 3.0,
    proj_clip: float | None = 3.0,
    use_skip_connections: bool = True,
    filters: list[list[int]] = [[1, 8], [2, 8], [3, 16], [4, 32]],  # noqa: B006 - read only, and shown by the config
    activation: str = "relu",
    n_highway: int = 1,
    char_dim: int = 8,
    max_characters_per_token: int = 50,
    seed: int = 0,
) -> BiLM:
    """A biLM with random weights of any size, for tests and for training from nothing together with a component.

    The arguments are those of ``BiLMConfig``; seed: of the draw. Raises ElmoError for a value out of range.
    """
    config = BiLMConfig(
        lstm_dim=lstm_dim,
        projection_dim=projection_dim,
        n_layers=n_layers,
        cell_clip=cell_clip,
        proj_clip=proj_clip,
        use_skip_connections=use_skip_connections,
        filters=filters,  # type: ignore[arg-type]
        activation=activation,  # type: ignore[arg-type]
        n_highway=n_highway,
        char_dim=char_dim,
        max_characters_per_token=max_characters_per_token,
    )
    return BiLM(config).initialize(seed)


def torch_device() -> torch.device:
    """thinc's device, but never Apple's: its LSTM steps are slower than the CPU's and lack float64."""
    device = get_torch_default_device()
    return torch.device("cpu") if device.type == "mps" else device


def on_gpu() -> bool:
    """Whether biLMs go to a GPU here. (To ask for the device begins CUDA, which a forked process may not.)"""
    return isinstance(get_current_ops(), CupyOps)
