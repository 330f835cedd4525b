"""Compares the Triton kernels, in Triton's interpreter, with the plain functions: a process of test_cuda.py."""

from __future__ import annotations

import torch

from spacy_elmo.bilm import cell, cell_triton, cuda
from tests.bilm.test_cuda import SHAPES, Rows, drawn
from tests.bilm.twins import make_bilm


def compare_stacks() -> int:
    """The step of inference, by all ways to the gates."""
    done = 0
    for name in ("as published", "no projection", "no clips", "no skip connections"):
        for cuda.FEW_ROWS, cuda.WIDE in ((100, 0), (0, 0), (0, 10**6)):
            bilm = make_bilm(**SHAPES[name])
            rows = Rows(bilm, [3, 3, 3, 1, 1, 1], n_types=2)  # six rows count as eight, then three as four
            plain, interpreted = (cuda.CudaStacks(bilm, "float32") for _ in range(2))
            interpreted._ops = cell_triton  # what it reads is on the CPU anyway
            wanted, found = (rows.run(stacks, [2, 1]) for stacks in (plain, interpreted))
            for one, other in zip([*found[0], *found[1:]], [*wanted[0], *wanted[1:]], strict=True):
                torch.testing.assert_close(one, other, rtol=0.0, atol=2e-6)
            done += 1
    return done


def compare_training(size: int, clip: float | None) -> int:
    """The step of training and its gradient; of some numbers, NaN among them."""
    gates, before, d_squashed, d_cell = (drawn(3, n, seed=n) for n in (4 * size, size, size, size))
    gates[0, 0] = torch.nan
    results = []
    for kernels in (cell, cell_triton):
        activations, c, m, d_gates, d_c = gates.clone(), before * 0, before * 0, gates * 0, d_cell.clone()
        kernels.forward(activations, before, c, m, clip)
        kernels.backward(activations, before, c, d_squashed, d_c, d_gates, clip)
        results.append((activations, c, m, d_gates, d_c))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=2e-6, equal_nan=True)
    assert results[0][1][0, 0].isnan()
    return 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    number = compare_stacks()
    number += sum(compare_training(size, clip) for size in (5, 1024, 1500) for clip in (None, 0.5))
    print(f"{number} comparisons")
