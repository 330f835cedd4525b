"""The task's own mix of the biLM's layers: ELMo_k = γ Σ_j s_j h_kj, s = softmax(w) (Peters et al., 2018, eq. 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import spacy
from thinc.api import Model
from thinc.types import Floats1d, Floats2d, Floats3d

from ..errors import ElmoError, shown
from .config_error import is_number

MIX_SETTINGS = "mix_settings"
# Keeps the normalisation of an all-zero row (a white-space token) at zero.
EPSILON = 1e-6
# Bounds raw weights, whose differences float32 has to hold; after the softmax 100 more is all there is already.
LARGEST = 1e30


@dataclass(frozen=True, kw_only=True)
class MixSettings:
    """What the config says of a mix: see ``ScalarMix_v1``. Like ``ListenerSettings`` of no kind that thinc writes."""

    l2: float
    weights: list[float] | None
    layer_norm: bool


@spacy.registry.architectures("spacy-elmo.ScalarMix.v1")
def ScalarMix_v1(
    *, l2: float = 0.0, weights: list[float] | None = None, layer_norm: bool = False
) -> Model[list[Floats3d], list[Floats2d]]:
    """Mix layers with softmax-normalised weights s_j and a scale γ, learned with the task.

    l2 (float): λ of a penalty λ Σ w_j² on the raw weights, which pulls s towards the plain average. The paper has
        0.001 for most tasks.
    weights (list[float] | None): fixed raw weights w, one a layer; γ is then fixed at 1 (as in AllenNLP). None: learn
        w from 0 and γ from 1.
    layer_norm (bool): bring each layer's vector of each token to mean 0 and variance 1 before the mix. The statistics
        are of that one vector, so they depend on no other token (unlike bilm-tf's, which are of the whole batch).

    The model maps layers (L+1, n, 2P) of each text to (n, 2P). Params: scalars (L+1,), gamma (1,).
    Raises ElmoError for a negative l2, and for weights that float32 does not hold.
    """
    if not is_number(l2):
        raise ElmoError(f"ScalarMix: l2 is at least 0, not {l2!r}")
    if weights is not None and not all(is_number(weight, least=-LARGEST, below=LARGEST) for weight in weights):
        raise ElmoError(f"ScalarMix: weights are numbers between -{LARGEST:g} and {LARGEST:g}, not {shown(weights)}")
    return Model(
        "scalar_mix",
        forward,
        init=init,
        dims={"nO": None, "nI": None, "nL": None if weights is None else len(weights)},
        params={"scalars": None, "gamma": None},
        attrs={MIX_SETTINGS: MixSettings(l2=l2, weights=weights, layer_norm=layer_norm)},
    )


def init(
    model: Model[list[Floats3d], list[Floats2d]], X: list[Floats3d] | None = None, Y: list[Floats2d] | None = None
) -> None:
    """Allocate the parameters for as many layers as the model was told or X shows."""
    if model.has_dim("nL") is None and X:
        model.set_dim("nL", X[0].shape[0])
    if model.has_dim("nL") is None:
        raise ElmoError("ScalarMix: the number of layers is not known yet: load the biLM's weights first")
    n_layers = model.get_dim("nL")
    fixed = model.attrs[MIX_SETTINGS].weights
    raw = model.ops.alloc1f(n_layers) if fixed is None else model.ops.asarray1f(fixed, dtype="f")
    model.set_param("scalars", raw)
    model.set_param("gamma", model.ops.alloc1f(1) + 1.0)


def weights_of(model: Model[Any, Any]) -> tuple[Floats1d, Floats1d]:
    """w and γ: where they are fixed the config's, whatever a file has brought; else the model's parameters."""
    fixed = model.attrs[MIX_SETTINGS].weights
    if fixed is not None:
        return model.ops.asarray1f(fixed, dtype="f"), model.ops.alloc1f(1) + 1.0
    return cast("Floats1d", model.get_param("scalars")), cast("Floats1d", model.get_param("gamma"))


def forward(
    model: Model[list[Floats3d], list[Floats2d]], layers: list[Floats3d], is_train: bool
) -> tuple[list[Floats2d], Callable[..., list[Floats3d]]]:
    """Mix, and give the gradients of s, γ and the layers.

    The callback takes the outputs' gradients, and `to_layers`: false where nobody takes those of the layers, which cost
    more than the others; it gives none then.
    """
    ops = model.ops
    settings = cast("MixSettings", model.attrs[MIX_SETTINGS])
    raw, gamma = weights_of(model)
    for x in layers:
        if x.shape[0] != raw.shape[0]:
            raise ElmoError(f"ScalarMix: it mixes {raw.shape[0]} layers, the biLM gives {x.shape[0]}")
    s = ops.softmax(raw.reshape((1, -1))).reshape((-1,))
    normalise = settings.layer_norm
    inputs: list[Any] = []
    scales: list[Any] = []
    for x in cast("list[Any]", layers):
        if normalise:
            centred = x - x.mean(axis=2, keepdims=True)
            scale = ops.xp.sqrt((centred**2).mean(axis=2, keepdims=True) + EPSILON)
            inputs.append(centred / scale)
            scales.append(scale)
        else:
            inputs.append(x)
    sums = [ops.xp.tensordot(s, x, axes=1) for x in inputs]

    def backprop(d_outputs: list[Any], to_layers: bool = True) -> list[Floats3d]:
        if settings.weights is None:
            d_gamma = ops.alloc1f(1)
            d_s = ops.alloc1f(raw.shape[0])
            for d_y, x, mixed in zip(d_outputs, inputs, sums, strict=True):
                d_gamma += (d_y * mixed).sum()
                d_s += gamma * (x.reshape((x.shape[0], -1)) @ d_y.reshape((-1,)))
            model.inc_grad("gamma", d_gamma)
            d_raw: Any = s * (d_s - (s * d_s).sum())
            # Once a batch, in however many parts an update takes it (accumulate_gradient): with the first gradient
            # after a step of the optimizer, which leaves zeros.
            if settings.l2 and not (model.has_grad("scalars") and ops.xp.any(model.get_grad("scalars"))):
                d_raw = d_raw + 2.0 * settings.l2 * raw
            model.inc_grad("scalars", d_raw)
        if not to_layers:
            return []
        d_layers = [(gamma * s)[:, None, None] * d_y[None] for d_y in d_outputs]
        if normalise:
            d_layers = [
                (d - d.mean(axis=2, keepdims=True) - x * (d * x).mean(axis=2, keepdims=True)) / scale
                for d, x, scale in zip(d_layers, inputs, scales, strict=True)
            ]
        return cast("list[Floats3d]", d_layers)

    return [cast("Floats2d", gamma * mixed) for mixed in sums], backprop
