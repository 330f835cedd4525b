"""The GPU of a run is the current one while it lasts, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

from spacy_elmo.pretraining.devices import torch_state
from spacy_elmo.pretraining.optimizers import adagrad

from .test_step import ROWS, parts, training_step, window


def test_a_runs_gpu_is_the_current_one_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def device(gpu: torch.device) -> Iterator[None]:
        current.append(gpu.index)
        try:
            yield
        finally:
            current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    with torch_state(0, torch.device("cuda:1")):
        assert current == [0, 1]
    with pytest.raises(ZeroDivisionError), torch_state(0, torch.device("cuda:2")):
        assert 1 / 0
    assert current == [0]


def test_threads_and_random_state_are_put_back() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch_state(threads + 1, torch.device("cpu")):
        assert torch.get_num_threads() == threads + 1
        torch.rand(1)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("in_a_run", [True, False])
def test_the_second_gpu_trains_as_the_cpu_does(in_a_run: bool) -> None:
    results = []
    for device in (torch.device("cpu"), torch.device("cuda:1")):
        bilm, softmax = parts()
        bilm.to(device)
        softmax.to(device)
        step, _ = training_step(bilm, softmax, adagrad())
        state, losses = bilm.zero_state(ROWS), []
        with torch_state(0, device) if in_a_run else nullcontext():
            for number in range(4):
                result = step(window(number), state, number)
                state = result.state
                losses += [result.forward, result.backward]
        results.append(losses)
        assert torch.cuda.current_device() == 0
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-4)
