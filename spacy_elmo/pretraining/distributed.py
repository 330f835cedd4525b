"""Several processes that train one model: ranks, started by ``torchrun``, each with rows of its own of every window.

Every rank holds all weights and makes the same updates. What is exchanged are gradients, once a step: the mean over the
ranks, which is that of all rows. torch's DistributedDataParallel does not serve here: it sends sparse gradients as they
are, and wants the forward pass of one module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import PretrainingError

# What torchrun sets for each process.
RANK, WORLD_SIZE, LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"

# The others wait while the first rank evaluates and saves.
_PATIENCE = timedelta(hours=6)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which of how many processes this one is. Without others every method leaves things as they are.

    rank (int): from 0. size (int): number of processes. local (int): the rank on this machine, which is its GPU too.
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this process is the one that evaluates, prints and saves."""
        return self.rank == 0

    def rows(self, n: int) -> slice:
        """Which of n rows are this rank's. Raises PretrainingError if they do not divide evenly."""
        if n % self.size:
            raise PretrainingError(
                f"training.rows is {n}, which {self.size} processes cannot share evenly: give a multiple of {self.size}"
            )
        share = n // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks, the same numbers on each of them."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
            values /= self.size
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any rank says yes: what all of them must do together."""
        if self.size == 1:
            return flag
        found = torch.tensor(float(flag), device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def gathered(self, rows: Tensor, *, dim: int) -> Tensor:
        """The rows of all ranks, in order, on every rank. rows: this rank's along ``dim``; each has as many."""
        if self.size == 1:
            return rows
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts, dim=dim)

    def agreed(self, value: object) -> object:
        """The first rank's value (JSON-like data), on every rank."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def share_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by the mean over the ranks.

        Dense ones travel as one vector. Of sparse ones the rows that any rank has are made one dense block, so that
        what travels does not grow with the number of ranks: all have the same negatives.
        """
        if self.size == 1:
            return
        dense = []
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                parameter.grad = self._shared_rows(parameter.grad.coalesce())
            else:
                dense.append(parameter.grad)
        if dense:
            flat = self.mean(torch.cat([gradient.flatten() for gradient in dense]))
            for gradient, part in zip(dense, flat.split([gradient.numel() for gradient in dense]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _shared_rows(self, gradient: Tensor) -> Tensor:
        rows, values = gradient.indices()[0], gradient.values()
        counts = [torch.empty(1, dtype=torch.int64, device=rows.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
        lengths = torch.cat(counts).tolist()
        padded = [rows.new_empty(max(lengths)) for _ in lengths]
        dist.all_gather(padded, torch.cat([rows, rows.new_zeros(max(lengths) - len(rows))]))
        everyones = torch.unique(torch.cat([some[:length] for some, length in zip(padded, lengths, strict=True)]))
        block = values.new_zeros(len(everyones), *values.shape[1:])
        block.index_copy_(0, torch.searchsorted(everyones, rows), values)
        return torch.sparse_coo_tensor(
            everyones[None], self.mean(block), gradient.shape, is_coalesced=True, check_invariants=False
        )


@contextmanager
def joined_ranks(*, cuda: bool) -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started, if it did; leave them at the end.

    cuda (bool): whether tensors are on GPUs: then the ranks talk through NCCL, else through Gloo.
    RETURNS: who this process is. Raises PretrainingError if the others cannot be reached.
    """
    size = int(os.environ.get(WORLD_SIZE, "1"))
    if size == 1:
        yield Ranks()
        return
    local = int(os.environ.get(LOCAL_RANK, os.environ[RANK]))
    try:
        if cuda:
            torch.cuda.set_device(local)
        dist.init_process_group("nccl" if cuda else "gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise PretrainingError(f"the processes that torchrun started cannot talk to each other: {error}") from error
    try:
        yield Ranks(rank=dist.get_rank(), size=dist.get_world_size(), local=local)
    finally:
        dist.destroy_process_group()
