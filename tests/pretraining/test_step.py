from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax, SampledSoftmax, _expected_counts, sample_log_uniform
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import TrainingSettings
from spacy_elmo.pretraining.distributed import ALONE, Ranks
from spacy_elmo.pretraining.optimizers import adagrad, adamw
from spacy_elmo.pretraining.step import TrainingStep, merged_gradients
from spacy_elmo.pretraining.streams import Window

ROWS, STEPS, WORDS = 3, 5, 40
TYPES = ["<S>", "</S>", *(f"w{n}" for n in range(WORDS - 2))]


def window(seed: int = 0) -> Window:
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, WORDS, (4, ROWS, STEPS))
    type_rows, inverse = np.unique(tokens[:2], return_inverse=True)
    forward, backward = inverse.reshape(2, ROWS, STEPS)
    return Window(
        type_rows=type_rows,
        forward=forward,
        backward=backward,
        forward_targets=tokens[2],
        backward_targets=tokens[3],
        starts=(starts := draw.random((ROWS, STEPS)) < 0.3),
        document_starts=starts & (draw.random((ROWS, STEPS)) < 0.5),
    )


def parts(objective: str = "sampled", **options: Any) -> tuple[BiLM, FullSoftmax]:
    sizes = {"filters": ((1, 4), (2, 6)), "max_characters_per_token": 8, **options}
    bilm = BiLM(BiLMConfig(lstm_dim=6, projection_dim=4, **sizes), vocabulary=TYPES if "n_words" in options else None)
    softmax = FullSoftmax(WORDS, 4) if objective == "full" else SampledSoftmax(WORDS, 4, n_samples=9)
    return bilm.initialize(1), softmax.initialize(1)


def training_step(
    bilm: BiLM, softmax: FullSoftmax, optimizer: Any = None, ranks: Ranks = ALONE, **settings: Any
) -> tuple[TrainingStep, torch.optim.Optimizer]:
    optimizer = (optimizer or adagrad(0.2))([*bilm.parameters(), *softmax.parameters()])
    fixed = {"rows": ROWS, "unroll_steps": STEPS, "dropout": 0.0, "schedule": "constant", **settings}
    step = TrainingStep(
        bilm=bilm,
        softmax=softmax,
        optimizer=optimizer,
        types=TYPES,
        settings=TrainingSettings(**fixed),
        ranks=ranks,
    )
    return step, optimizer


def plain_losses(bilm: BiLM, softmax: FullSoftmax, read: Window, number: int, starts: bool = True) -> list[Tensor]:
    """Both directions' losses for autograd, by their formula."""
    ids = bilm.token_ids([TYPES[i] for i in read.type_rows])
    *hidden, _ = bilm.hidden(
        ids,
        torch.from_numpy(read.forward),
        torch.from_numpy(read.backward),
        bilm.zero_state(ROWS),
        0.0,
        torch.from_numpy(read.starts) if starts else None,
    )
    losses = []
    for direction, targets in enumerate((read.forward_targets, read.backward_targets)):
        expected = torch.from_numpy(targets).flatten()
        logits = hidden[direction].flatten(0, 1) @ softmax.W.T + softmax.b
        if isinstance(softmax, SampledSoftmax):
            ranks, draws = sample_log_uniform(WORDS, 9, 2 * number + direction)
            logits = logits - _expected_counts(torch.arange(WORDS), WORDS, 9, draws).log().float()
            out = torch.ones(len(expected), WORDS, dtype=torch.bool)
            out[:, ranks] = False
            out.scatter_(1, expected[:, None], False)
            logits = logits.masked_fill(out, -math.inf)
        losses.append(torch.nn.functional.cross_entropy(logits, expected))
    return losses


@pytest.mark.parametrize("clip_norm", [0.3, 1e6])
@pytest.mark.parametrize("objective", ["full", "sampled"])
def test_a_step_is_bilm_tfs_formula(objective: str, clip_norm: float) -> None:
    bilm, softmax = parts(objective)
    step, _ = training_step(bilm, softmax, clip_norm=clip_norm)
    reference_bilm, reference_softmax = parts(objective)
    losses = plain_losses(reference_bilm, reference_softmax, window(), 7)
    (STEPS * 0.5 * (losses[0] + losses[1])).backward()
    references = [*reference_bilm.parameters(), *reference_softmax.parameters()]
    gradients = [p.grad.double().numpy() for p in references if p.grad is not None]
    assert len(gradients) == len(references)
    norm = math.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients))
    assert 0.3 < norm < 1e6

    result = step(window(), bilm.zero_state(ROWS), 7)
    assert result.forward == pytest.approx(losses[0].item(), rel=1e-5)
    assert result.backward == pytest.approx(losses[1].item(), rel=1e-5)
    assert result.loss == 0.5 * (result.forward + result.backward)
    scale = min(1.0, clip_norm / norm)
    for parameter, reference, gradient in zip(
        [*bilm.parameters(), *softmax.parameters()], references, gradients, strict=True
    ):
        moved = 0.2 * scale * gradient / np.sqrt(1.0 + (scale * gradient) ** 2)
        assert np.abs(moved).max() > 0
        expected = reference.detach().double().numpy() - moved
        np.testing.assert_allclose(parameter.detach().numpy(), expected, atol=2e-6)


def test_the_state_goes_on_and_no_step_knows_of_the_one_before() -> None:
    bilm, softmax = parts()
    step, _ = training_step(bilm, softmax, reset=None)
    state = bilm.zero_state(ROWS)
    for number in range(3):
        expected = plain_losses(bilm, softmax, window(number), number, starts=False) if number == 0 else None
        ids = bilm.token_ids([TYPES[i] for i in window(number).type_rows])
        read = torch.from_numpy(window(number).forward), torch.from_numpy(window(number).backward)
        *_, wanted = bilm.hidden(ids, *read, state)
        result = step(window(number), state, number)
        state = result.state
        for name, tensor in state.tensors().items():
            torch.testing.assert_close(tensor, wanted.tensors()[name], rtol=0, atol=1e-6)
            assert not tensor.requires_grad
        if expected is not None:
            assert result.forward == pytest.approx(expected[0].item(), rel=1e-5)


def test_the_learning_rate_follows_the_schedule() -> None:
    bilm, softmax = parts()
    step, optimizer = training_step(
        bilm, softmax, adamw(0.01), warmup_steps=4, max_steps=20, schedule="cosine", rows=ROWS
    )
    state = bilm.zero_state(ROWS)
    rates = []
    for number in (0, 3, 12, 19):
        state = step(window(), state, number).state
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert rates[0] == [0.0025, 0.0025]
    assert rates[1] == [0.01, 0.01]
    assert rates[2] == pytest.approx([0.0055, 0.0055])
    assert 0.001 < rates[3][0] < 0.0012


@pytest.mark.parametrize("optimizer", [adagrad(), adamw()], ids=["adagrad", "adamw"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_changes_nothing(what: str, optimizer: Any) -> None:
    class Broken(FullSoftmax):
        def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
            loss = super().loss(hidden, targets, seed=seed)
            # Finite, with a gradient that is not: d sqrt(x) at 0.
            return loss * math.nan if what == "loss" else loss + (loss * 0.0).sqrt()

    bilm, _ = parts()
    softmax = Broken(WORDS, 4).initialize(1)
    step, made = training_step(bilm, softmax, optimizer)
    before = [p.detach().clone() for p in (*bilm.parameters(), *softmax.parameters())]
    with pytest.raises(PretrainingError, match=rf"the {what} at step 6 is (nan|not finite)$"):
        step(window(), bilm.zero_state(ROWS), 5)
    for parameter, value in zip((*bilm.parameters(), *softmax.parameters()), before, strict=True):
        assert torch.equal(parameter, value)
    for values in made.state_dict()["state"].values():
        assert float(values["step"]) == 0


def test_a_gradient_that_names_a_row_twice_counts_as_its_sum() -> None:
    table, bias, unused = (nn.Parameter(torch.zeros(shape)) for shape in ((4, 2), (3,), (2,)))
    rows = torch.tensor([[2, 0, 2]])
    values = torch.tensor([[1.0, 0.0], [0.0, 5.0], [2.0, 4.0]])
    table.grad = torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=True)
    bias.grad = torch.tensor([1.0, 2.0, 3.0])
    gradients = merged_gradients([table, bias, unused])
    assert [gradient.tolist() for gradient in gradients] == [[[0.0, 5.0], [3.0, 4.0]], [1.0, 2.0, 3.0]]
    for gradient in gradients:
        gradient.mul_(2.0)
    assert table.grad.to_dense().tolist() == [[0.0, 10.0], [0.0, 0.0], [6.0, 8.0], [0.0, 0.0]]
    assert bias.grad.tolist() == [2.0, 4.0, 6.0]


def test_words_from_a_table() -> None:
    bilm, softmax = parts(filters=None, max_characters_per_token=50, n_words=WORDS)
    step, _ = training_step(bilm, softmax)
    assert isinstance(bilm.token_encoder.embedding, Tensor)
    before = bilm.token_encoder.embedding.detach().clone()
    expected = plain_losses(bilm, softmax, window(), 0)
    result = step(window(), bilm.zero_state(ROWS), 0)
    assert result.loss == pytest.approx(0.5 * sum(loss.item() for loss in expected), rel=1e-5)
    moved = (bilm.token_encoder.embedding != before).any(dim=1)
    assert torch.nonzero(moved).flatten().tolist() == window().type_rows.tolist()


def test_bfloat16_is_near_float32_and_keeps_float32_weights() -> None:
    results = []
    for precision in ("float32", "bfloat16"):
        bilm, softmax = parts()
        step, _ = training_step(bilm, softmax, precision=precision)
        state, losses = bilm.zero_state(ROWS), []
        for number in range(4):
            result = step(window(number), state, number)
            state = result.state
            losses.append(result.loss)
        assert {p.dtype for p in (*bilm.parameters(), *softmax.parameters())} == {torch.float32}
        assert {tensor.dtype for tensor in state.tensors().values()} == {torch.float32}
        results.append(losses)
    assert results[0] != results[1]
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", [adagrad(), adamw()], ids=["adagrad", "adamw"])
def test_a_gpu_does_the_same_steps(optimizer: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        bilm, softmax = parts()
        bilm.to(device)
        softmax.to(device)
        step, _ = training_step(bilm, softmax, optimizer)
        state, losses = bilm.zero_state(ROWS), []
        for number in range(4):
            result = step(window(number), state, number)
            state = result.state
            losses += [result.forward, result.backward]
        results.append(losses)
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-4)
