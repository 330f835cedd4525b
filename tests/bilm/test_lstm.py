from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spacy_elmo.bilm.buffers import Buffers
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.lstm import LSTMLayer, LSTMStack

SIZES = [(7, 4), (4, 4)]  # with and without a projection
CLIPS = [(None, None), (0.6, None), (None, 0.5), (0.6, 0.5)]


def config(cell: int = 7, width: int = 4, **options: Any) -> BiLMConfig:
    return BiLMConfig(**{"lstm_dim": cell, "projection_dim": width, "cell_clip": 0.6, "proj_clip": 0.5, **options})


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def drawn(module: nn.Module, seed: int = 0) -> Any:
    """The module in float64 with weights large enough for its clips."""
    module = module.double()
    for number, parameter in enumerate(module.parameters()):
        parameter.data = normal(*parameter.shape, seed=100 * seed + number, scale=0.8)
    return module


def loop(layer: LSTMLayer, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """The cell's formula, step by step, for autograd. Also counts how often the clips of cell and output were hit."""
    outputs = []
    hits = [0, 0]
    for step in inputs:
        a = torch.cat([step, hidden], dim=1) @ layer.kernel + layer.bias
        i, j, f, o = a.chunk(4, dim=1)
        cell = torch.sigmoid(f + 1.0) * cell + torch.sigmoid(i) * torch.tanh(j)
        if layer.cell_clip is not None:
            hits[0] += int((cell.abs() > layer.cell_clip).sum())
            cell = cell.clamp(-layer.cell_clip, layer.cell_clip)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if layer.projection is not None:
            hidden = hidden @ layer.projection
            if layer.proj_clip is not None:
                hits[1] += int((hidden.abs() > layer.proj_clip).sum())
                hidden = hidden.clamp(-layer.proj_clip, layer.proj_clip)
        outputs.append(hidden)
    return torch.stack(outputs), hidden, cell, hits


def start(
    rows: int, cell: int = 7, width: int = 4, *, layers: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    lead = () if layers is None else (layers,)
    return normal(*lead, rows, width, seed=seed + 50, scale=0.3), normal(*lead, rows, cell, seed=seed + 51, scale=0.3)


@pytest.mark.parametrize(("cell", "width"), SIZES)
@pytest.mark.parametrize(("cell_clip", "proj_clip"), CLIPS)
def test_formula(cell: int, width: int, cell_clip: float | None, proj_clip: float | None) -> None:
    layer = drawn(LSTMLayer(config(cell, width, cell_clip=cell_clip, proj_clip=proj_clip)))
    inputs = normal(6, 3, width)
    *expected, hits = loop(layer, inputs, *start(3, cell, width))
    assert (hits[0] > 0) == (cell_clip is not None)
    assert (hits[1] > 0) == (proj_clip is not None and width < cell)
    for found, wanted in zip(layer(inputs, *start(3, cell, width)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("cell", "width"), SIZES)
def test_gradcheck_with_both_clips_hit(cell: int, width: int) -> None:
    layer = drawn(LSTMLayer(config(cell, width)), seed=1)
    inputs, (hidden, state) = normal(4, 2, width), start(2, cell, width)
    *_, hits = loop(layer, inputs, hidden, state)
    assert hits[0] > 0
    assert (hits[1] > 0) == (width < cell)
    names = [name for name, _ in layer.named_parameters()]

    def function(inputs: Tensor, hidden: Tensor, cell: Tensor, *weights: Tensor) -> Any:
        values = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(layer, values, (inputs, hidden, cell))

    arguments = [inputs, hidden, state, *[p.detach().clone() for p in layer.parameters()]]
    for argument in arguments:
        argument.requires_grad_()
    assert torch.autograd.gradcheck(function, arguments, eps=1e-6, atol=1e-6)


def gradients_of(results: tuple[Tensor, Tensor, Tensor], wanted: list[Tensor], which: str) -> list[Tensor]:
    """Gradients of a weighted sum of those results that ``which`` names."""
    loss = sum(
        (result * normal(*result.shape, seed=n)).sum()
        for n, (name, result) in enumerate(zip(("outputs", "hidden", "cell"), results, strict=True))
        if name in which
    )
    assert isinstance(loss, Tensor)
    return list(torch.autograd.grad(loss, wanted))


@pytest.mark.parametrize("which", ["outputs", "hidden", "cell", "outputs, hidden and cell"])
@pytest.mark.parametrize(("cell", "width"), SIZES)
@pytest.mark.parametrize(("cell_clip", "proj_clip"), CLIPS)
def test_gradients_are_those_of_autograd_through_a_loop(
    cell: int, width: int, cell_clip: float | None, proj_clip: float | None, which: str
) -> None:
    layer = drawn(LSTMLayer(config(cell, width, cell_clip=cell_clip, proj_clip=proj_clip)), seed=2)
    arguments = [normal(7, 3, width), *start(3, cell, width)]
    for argument in arguments:
        argument.requires_grad_()
    wanted = [*arguments, *layer.parameters()]
    found = gradients_of(layer(*arguments), wanted, which)
    outputs, hidden, state, _ = loop(layer, *arguments)
    expected = gradients_of((outputs, hidden, state), wanted, which)
    for gradient, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-10)


def torch_lstm(layer: LSTMLayer) -> Any:
    """The same weights in torch's own projected LSTM: gate blocks i, f, g, o and the forget bias stored."""
    width, cell = layer.kernel.shape[0] // 2, layer.kernel.shape[1] // 4
    lstm: Any = nn.LSTM(width, cell, proj_size=width if layer.projection is not None else 0, dtype=torch.float64)

    def reordered(columns: Tensor) -> Tensor:
        i, j, f, o = columns.chunk(4, dim=-1)
        return torch.cat([i, f, j, o], dim=-1)

    bias = layer.bias.detach().clone()
    bias[2 * cell : 3 * cell] += 1.0
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(reordered(layer.kernel[:width]).t())
        lstm.weight_hh_l0.copy_(reordered(layer.kernel[width:]).t())
        lstm.bias_ih_l0.copy_(reordered(bias))
        lstm.bias_hh_l0.zero_()
        if layer.projection is not None:
            lstm.weight_hr_l0.copy_(layer.projection.t())
    return lstm


@pytest.mark.parametrize(("cell", "width"), SIZES)
def test_without_clips_it_is_torchs_lstm(cell: int, width: int) -> None:
    layer = drawn(LSTMLayer(config(cell, width, cell_clip=None, proj_clip=None)), seed=3)
    arguments = [normal(6, 3, width), *start(3, cell, width)]
    for argument in arguments:
        argument.requires_grad_()
    found = layer(*arguments)
    lstm = torch_lstm(layer)
    outputs, (hidden, state) = lstm(arguments[0], (arguments[1][None], arguments[2][None]))
    expected = (outputs, hidden[0], state[0])
    for result, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=0, atol=1e-10)

    everything = "outputs, hidden and cell"
    inputs = gradients_of(found, [*arguments, layer.kernel, layer.bias], everything)
    theirs = gradients_of(expected, [*arguments, lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0], everything)
    for ours, reference in zip(inputs[:3], theirs[:3], strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-10)
    for ours, reference in zip((inputs[3][:width], inputs[3][width:], inputs[4]), theirs[3:], strict=True):
        i, f, g, o = reference.t().chunk(4, dim=-1) if reference.dim() == 2 else reference.chunk(4)
        torch.testing.assert_close(ours, torch.cat([i, g, f, o], dim=-1), rtol=0, atol=1e-10)
    if layer.projection is not None:
        (mine,) = gradients_of(layer(*arguments), [layer.projection], everything)
        outputs, (hidden, state) = lstm(arguments[0], (arguments[1][None], arguments[2][None]))
        (reference,) = gradients_of((outputs, hidden[0], state[0]), [lstm.weight_hr_l0], everything)
        torch.testing.assert_close(mine, reference.t(), rtol=0, atol=1e-10)


def test_weights_get_a_gradient_where_the_inputs_need_none() -> None:
    layer = drawn(LSTMLayer(config()), seed=4)
    inputs, (hidden, cell) = normal(5, 2, 4), start(2)
    layer(inputs, hidden, cell)[0].sum().backward()
    first = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad()
    layer(inputs.clone().requires_grad_(), hidden, cell)[0].sum().backward()
    for name, parameter in layer.named_parameters():
        assert first[name].abs().max() > 0
        torch.testing.assert_close(parameter.grad, first[name], rtol=0, atol=1e-12)


def test_the_inputs_and_the_start_state_are_left_alone() -> None:
    layer = drawn(LSTMLayer(config()), seed=5)
    inputs, (hidden, cell) = normal(5, 2, 4), start(2)
    copies = [inputs.clone(), hidden.clone(), cell.clone()]
    outputs, last_hidden, last_cell = layer(inputs, hidden, cell)
    outputs.detach().zero_()
    last_hidden.detach().zero_()
    last_cell.detach().zero_()
    for tensor, copy in zip((inputs, hidden, cell), copies, strict=True):
        assert torch.equal(tensor, copy)


def test_a_window_continues_the_one_before() -> None:
    layer = drawn(LSTMLayer(config()), seed=6)
    inputs, state = normal(9, 2, 4), start(2)
    whole, *last = layer(inputs, *state)
    first, *middle = layer(inputs[:4], *state)
    second, *end = layer(inputs[4:], *middle)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_stack_of_layers_with_and_without_skips(skip: bool, n_layers: int) -> None:
    stack = drawn(LSTMStack(config(n_layers=n_layers, use_skip_connections=skip)), seed=10)
    inputs, (hidden, cell) = normal(6, 3, 4), start(3, layers=n_layers)
    outputs, last_hidden, last_cell = stack(inputs, hidden, cell)
    assert len(outputs) == n_layers
    assert last_hidden.shape == hidden.shape
    assert last_cell.shape == cell.shape
    below = inputs
    for depth, layer in enumerate(stack.layers):
        own, end, state, hits = loop(layer, below, hidden[depth], cell[depth])
        assert hits[1] > 0
        # Not on the first layer; added after the clip, and not fed back into the layer's own state.
        below = own + below if skip and depth > 0 else own
        torch.testing.assert_close(outputs[depth], below, rtol=0, atol=1e-12)
        torch.testing.assert_close(last_hidden[depth], end, rtol=0, atol=1e-12)
        torch.testing.assert_close(last_cell[depth], state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("skip", [True, False])
def test_gradients_of_a_stack(skip: bool) -> None:
    stack = drawn(LSTMStack(config(n_layers=3, use_skip_connections=skip)), seed=11)
    inputs, (hidden, cell) = normal(5, 2, 4).requires_grad_(), start(2, layers=3)
    wanted = [inputs, *stack.parameters()]
    weights = [normal(5, 2, 4, seed=n) for n in range(3)]
    outputs, *_ = stack(inputs, hidden, cell)
    loss = torch.stack([(w * y).sum() for w, y in zip(weights, outputs, strict=True)]).sum()
    found = torch.autograd.grad(loss, wanted)
    below: Tensor = inputs
    losses = []
    for depth, layer in enumerate(stack.layers):
        own = loop(layer, below, hidden[depth], cell[depth])[0]
        below = own + below if skip and depth > 0 else own
        losses.append((weights[depth] * below).sum())
    expected = torch.autograd.grad(torch.stack(losses).sum(), wanted)
    for gradient, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-10)


def test_the_skip_adds_what_dropout_left() -> None:
    stack = drawn(LSTMStack(config()), seed=12)
    with torch.no_grad():
        for parameter in stack.layers[1].parameters():
            parameter.zero_()  # this layer's own output is zero: what comes out is what the skip adds
    inputs, (hidden, cell) = normal(5, 40, 4), start(40, layers=2)
    hidden, cell = torch.zeros_like(hidden), torch.zeros_like(cell)
    torch.manual_seed(0)
    (below, above), *_ = stack(inputs, hidden, cell, 0.25)
    dropped = above == 0
    assert 0.15 < dropped.double().mean() < 0.35
    torch.testing.assert_close(above[~dropped], (below / 0.75)[~dropped], rtol=0, atol=1e-12)


def test_dropout_is_on_the_input_of_the_first_layer_too() -> None:
    stack = drawn(LSTMStack(config(n_layers=1)), seed=13)
    inputs, (hidden, cell) = normal(5, 3, 4), start(3, layers=1)
    torch.manual_seed(1)
    (found,), *_ = stack(inputs, hidden, cell, 0.5)
    torch.manual_seed(1)
    masked = torch.nn.functional.dropout(inputs, 0.5)
    (expected,), *_ = stack(masked, hidden, cell)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_an_argument_and_not_a_mode(training: bool) -> None:
    stack = drawn(LSTMStack(config()), seed=14).train(training)
    inputs, state = normal(5, 3, 4), start(3, layers=2)
    before = torch.get_rng_state()
    plain, again = stack(inputs, *state)[0][1], stack(inputs, *state)[0][1]
    assert torch.equal(plain, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(stack(inputs, *state, 0.5)[0][1], plain)


def test_sizes_of_the_weights() -> None:
    layer = LSTMLayer(config(7, 4))
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "kernel": (8, 28),
        "bias": (28,),
        "projection": (7, 4),
    }
    without = LSTMLayer(config(4, 4))
    assert without.projection is None
    assert without.proj_clip is None  # there is nothing that it could clip
    assert without.cell_clip == 0.6


@given(
    starts=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6),
    sizes=st.sampled_from(SIZES),
    seed=st.integers(0, 50),
)
@settings(deadline=None, max_examples=25)
def test_a_row_that_starts_afresh_knows_nothing_of_before(
    starts: list[list[bool]], sizes: tuple[int, int], seed: int
) -> None:
    layer = drawn(LSTMLayer(config(*sizes)), seed)
    inputs = normal(len(starts), 3, sizes[1], seed=seed).requires_grad_()
    hidden, cell = (tensor.requires_grad_() for tensor in start(3, *sizes, seed=seed))
    keep = (~torch.tensor(starts))[..., None].double()
    results = layer(inputs, hidden, cell, keep)
    # the same through the plain loop, one step at a time
    outputs, h, c = [], hidden, cell
    for t in range(len(starts)):
        _, h, c, _ = loop(layer, inputs[t : t + 1], h * keep[t], c * keep[t])
        outputs.append(h)
    expected = (torch.stack(outputs), h, c)
    wanted = [inputs, hidden, cell, *layer.parameters()]
    weights = [normal(*tensor.shape, seed=seed + 7 + i) for i, tensor in enumerate(expected)]
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    gradients = [
        torch.autograd.grad(sum((w * y).sum() for w, y in zip(weights, ys, strict=True)), wanted)
        for ys in (results, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("cell", "width"), SIZES)
def test_a_row_that_starts_afresh_forgets_any_state_to_the_bit(cell: int, width: int) -> None:
    layer = drawn(LSTMLayer(config(cell, width, cell_clip=None, proj_clip=None)), seed=15).float()
    inputs = normal(3, 2, width).float()
    hidden, state = (tensor.float() for tensor in start(2, cell, width))
    keep = torch.ones(3, 2, 1)
    keep[0, 1] = 0.0
    found = layer(inputs, hidden * 1e3, state * 1e6, keep)
    expected = layer(inputs, torch.zeros_like(hidden), torch.zeros_like(state), torch.ones(3, 2, 1))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[..., 1, :], other[..., 1, :])
        assert not torch.equal(one[..., 0, :], other[..., 0, :])


def trained(layer: LSTMLayer, inputs: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor) -> list[Tensor]:
    """Outputs and gradients of two windows, the second one from where the first ended."""
    results = []
    for _ in range(2):
        layer.zero_grad()
        inputs.grad = None
        outputs, hidden, cell = layer(inputs, hidden.detach(), cell.detach(), keep)
        outputs.square().sum().backward()
        results += [outputs, hidden, cell]
        results += [tensor.grad.clone() for tensor in (inputs, *layer.parameters()) if tensor.grad is not None]
    return results


@pytest.mark.parametrize("bfloat16", [False, True])
def test_buffers_that_are_used_again_change_nothing(bfloat16: bool) -> None:
    layer = drawn(LSTMLayer(config()), seed=16).float()
    inputs = normal(5, 3, 4).float().requires_grad_()
    hidden, cell = (tensor.float() for tensor in start(3))
    keep = (normal(5, 3, 1) > -1.0).float()
    buffers = Buffers()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        expected = trained(layer, inputs, hidden, cell, keep)
        with buffers.in_use():
            first = trained(layer, inputs, hidden, cell, keep)
            kept = {tensor.data_ptr() for free in buffers._free.values() for tensor in free}
            again = trained(layer, inputs, hidden, cell, keep)
    assert {tensor.data_ptr() for free in buffers._free.values() for tensor in free} == kept
    for found in (first, again):
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_a_second_gradient_of_buffers_that_are_used_again_is_an_error() -> None:
    layer = drawn(LSTMLayer(config()), seed=17)
    arguments = normal(5, 2, 4), *start(2)
    total = layer(*arguments)[0].sum()
    first, second = (torch.autograd.grad(total, layer.kernel, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    with Buffers().in_use():
        total = layer(*arguments)[0].sum()
        torch.autograd.grad(total, layer.kernel, retain_graph=True)
        with pytest.raises(RuntimeError, match="asked for twice"):
            torch.autograd.grad(total, layer.kernel)


@pytest.mark.parametrize(("cell", "width"), [(24, 16), (16, 16)])
def test_bfloat16_products_are_near_those_of_float32(cell: int, width: int) -> None:
    # Without clips: a value that rounding moves to the other side of one gains or loses all of its gradient.
    stack = drawn(LSTMStack(config(cell, width, cell_clip=None, proj_clip=None)), seed=18).float()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.mul_(0.3)
    inputs = normal(6, 8, width).float().requires_grad_()
    state = [tensor.float() for tensor in start(8, cell, width, layers=2)]
    keep = (normal(6, 8, 1) > -1.0).float()

    def run(bfloat16: bool) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            outputs, hidden, cells = stack(inputs, *state, keep=keep)
        loss = (normal(6, 8, width).float() * outputs[-1]).sum()
        return [outputs[-1], hidden, cells, *torch.autograd.grad(loss, [inputs, *stack.parameters()])]

    for narrow, wide in zip(run(True), run(False), strict=True):
        assert narrow.dtype == torch.float32
        error = ((narrow - wide).norm() / wide.norm()).item()
        assert 1e-4 < error < 2e-2


def weight_dropped(
    layer: LSTMLayer, inputs: Tensor, hidden: Tensor, cell: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's formula step by step, for autograd, its recurrent weights times a mask."""
    assert layer.projection is not None
    width, size = inputs.shape[2], cell.shape[1]
    kernel = torch.cat([layer.kernel[:width], layer.kernel[width:] * mask])
    outputs = []
    for step in inputs:
        i, j, f, o = (torch.cat([step, hidden], dim=1) @ kernel + layer.bias).split(size, dim=1)
        cell = (torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(j)).clamp(-3.0, 3.0)
        hidden = ((torch.sigmoid(o) * torch.tanh(cell)) @ layer.projection).clamp(-3.0, 3.0)
        outputs.append(hidden)
    return torch.stack(outputs), hidden, cell


def test_recurrent_dropout_is_one_mask_on_the_recurrent_weights() -> None:
    torch.manual_seed(0)
    layer = LSTMLayer(BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 4),))).double()
    layer.initialize(torch.Generator().manual_seed(0))
    inputs, hidden, cell = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 3, 4), (3, 4), (3, 6)))
    parameters = list(layer.parameters())
    results = []
    for by_hand in (False, True):
        torch.manual_seed(5)
        if by_hand:
            mask = torch.nn.functional.dropout(torch.ones(4, 24, dtype=torch.float64), 0.4)
            assert set(mask.unique().tolist()) == {0.0, 1.0 / 0.6}
            found = weight_dropped(layer, inputs, hidden, cell, mask)
        else:
            found = layer(inputs, hidden, cell, None, 0.4)
        loss = torch.stack([(tensor * tensor.detach().cos()).sum() for tensor in found]).sum()
        results.append([*found, *torch.autograd.grad(loss, parameters)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    plain = layer(inputs, hidden, cell)
    assert not torch.allclose(results[0][0], plain[0])


def test_without_recurrent_dropout_nothing_is_drawn() -> None:
    layer = LSTMLayer(BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 4),)))
    layer.initialize(torch.Generator().manual_seed(0))
    given = torch.ones(5, 3, 4), torch.zeros(3, 4), torch.zeros(3, 6)
    before = torch.get_rng_state()
    for one, other in zip(layer(*given, None, 0.0), layer(*given), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
