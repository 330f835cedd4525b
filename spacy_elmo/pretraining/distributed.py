"""Several processes that train one model: ranks, started by ``torchrun``, each with rows of its own of every window.

Every rank holds all weights and makes the same updates. What is exchanged are gradients, once a step: the mean over the
ranks, which is that of all rows. torch's DistributedDataParallel does not serve here: it sends sparse gradients as they
are, and wants the forward pass of one module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import ElmoError, PretrainingError

# What torchrun sets for each process.
RANK, WORLD_SIZE, LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"
MACHINES, LOCAL_SIZE = "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"

# What is said on the CPU, through Gloo: there the others wait while the first rank encodes, evaluates and saves. One
# that dies is noticed at once all the same.
_PATIENCE = timedelta(days=2)
# What goes between GPUs, through NCCL. All have it ready at about the same time, as they spoke on the CPU just before:
# who waits longer waits for a rank that hangs, and nothing else would tell.
_PATIENCE_OF_GPUS = timedelta(minutes=15)
_TOLD = "spacy_elmo/told"  # the key in torch's store under which the first rank to tell an error says so
_FIRST_TELLS = timedelta(seconds=2)
_TIME_TO_TELL = 1.0  # seconds until another rank ends, whereupon torchrun ends the one that tells too

# The group of NCCL, while `joined_ranks` has one. The first group, of Gloo, is for all else.
_nccl: Any = None


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which of how many processes this one is. Without others every method leaves things as they are.

    Each method is called by all ranks, in the same order. Raises PretrainingError if one of them is gone.

    rank (int): from 0. size (int): number of processes. local (int): the rank on this machine, which is its GPU too.
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this process is the one that evaluates, prints and saves."""
        return self.rank == 0

    def rows(self, n: int, accumulate: int = 1) -> slice:
        """Which of the n × accumulate rows of a window are this rank's.

        Raises PretrainingError if the n that are read at a time do not divide evenly.
        """
        if n % self.size:
            raise PretrainingError(
                f"training.rows is {n}, which {self.size} processes cannot share evenly: give a multiple of {self.size}"
            )
        share = n // self.size * accumulate
        return slice(self.rank * share, (self.rank + 1) * share)

    def seed(self, seed: int, step: int) -> int:
        """The seed of this rank's dropout from a step on: on the first rank ``seed`` itself."""
        if self.first:
            return seed
        return int(np.random.SeedSequence([seed, self.rank, step]).generate_state(1, np.uint64)[0])

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks, the same numbers on each of them. May write to ``values``."""
        if self.size > 1:
            with _talking():
                dist.all_reduce(values, group=_group_for(values))
            values /= self.size
        return values

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest number of any rank, place by place."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values)
        with _talking():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return [int(value) for value in found]

    def each(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, in order, on every rank. They are of one shape and dtype."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with _talking():
            dist.all_gather(parts, tensor.contiguous(), group=_group_for(tensor))
        return parts

    def agreed(self, value: Any) -> Any:
        """The first rank's value (JSON-like data), on every rank."""
        values = [value]
        if self.size > 1:
            with _talking():
                dist.broadcast_object_list(values)
        return values[0]

    def copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first rank's tensors, of any shape and dtype and on the CPU, on every rank."""
        if self.size == 1:
            return dict(tensors)
        kinds = self.agreed({name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()})
        copies = {}
        for name, (shape, dtype) in kinds.items():
            copy = tensors[name].contiguous() if self.first else torch.empty(shape, dtype=dtype)
            copies[name] = copy
            if copy.numel():
                with _talking():
                    dist.broadcast(copy.view(-1).view(torch.uint8), 0)  # as bytes: not every dtype is known there
        return copies

    @contextmanager
    def one_a_machine_first(self) -> Iterator[None]:
        """Let the first rank do the block alone, then the first one of each other machine, and then all others.

        So each finds the work of those before it done, if it sees their disk.
        """
        before = 0 if self.first else 2 if self.local else 1
        for _ in range(before):
            self.largest([0])
        yield
        for _ in range(2 - before):
            self.largest([0])

    def share_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by the mean over the ranks; where only others have one this rank's counts as 0.

        Dense ones travel as one vector. Of sparse ones the rows that any rank has are made one dense block, so that
        what travels does not grow with the number of ranks: all have the same negatives.
        """
        if self.size == 1:
            return
        # 0: none, 1: sparse, 2: dense.
        kinds = self.largest([0 if p.grad is None else 1 if p.grad.is_sparse else 2 for p in parameters])
        dense = []
        for parameter, kind in zip(parameters, kinds, strict=True):
            gradient = parameter.grad
            if kind == 2:
                if gradient is None:
                    gradient = torch.zeros_like(parameter)
                parameter.grad = gradient.to_dense() if gradient.is_sparse else gradient
                dense.append(parameter.grad)
            elif kind == 1:
                if gradient is None:
                    rows = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
                    values = parameter.new_zeros(0, *parameter.shape[1:])
                    gradient = torch.sparse_coo_tensor(rows, values, parameter.shape)
                parameter.grad = self._shared_rows(gradient.coalesce())
        if dense:
            flat = self.mean(torch.cat([gradient.flatten() for gradient in dense]))
            for gradient, part in zip(dense, flat.split([gradient.numel() for gradient in dense]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _shared_rows(self, gradient: Tensor) -> Tensor:
        rows, values = gradient.indices()[0], gradient.values()
        lengths = [int(length) for length in self.each(torch.tensor([len(rows)]))]
        padded = self.each(torch.cat([rows, rows.new_zeros(max(lengths) - len(rows))]))
        everyones = torch.unique(torch.cat([some[:length] for some, length in zip(padded, lengths, strict=True)]))
        block = values.new_zeros(len(everyones), *values.shape[1:])
        block.index_copy_(0, torch.searchsorted(everyones, rows), values)
        return torch.sparse_coo_tensor(
            everyones[None], self.mean(block), gradient.shape, is_coalesced=True, check_invariants=False
        )


# A process without others.
ALONE = Ranks()


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started, if it did; leave them at the end.

    Tensors on GPUs go through NCCL, those on the CPU through Gloo. Where an ElmoError ends the block on several ranks
    all but one get the mark ``told``: the first rank's message, if it has one, is enough. After an error the process is
    to end: where there are GPUs, torch's groups are left as they are.

    RETURNS: who this process is. Raises PretrainingError if the others cannot be reached.
    """
    global _nccl
    if dist.is_available() and dist.is_initialized():  # by a block around this one, or by the caller
        yield _ranks()
        return
    if int(os.environ.get(WORLD_SIZE, "1")) == 1 or RANK not in os.environ:
        yield ALONE
        return
    try:
        gpus = _has_gpus()
        dist.init_process_group("gloo", timeout=_PATIENCE)
        _nccl = dist.new_group(backend="nccl", timeout=_PATIENCE_OF_GPUS) if gpus else None
    except (RuntimeError, ValueError, AttributeError) as error:
        raise PretrainingError(f"the processes that torchrun started cannot talk to each other: {error}") from error
    try:
        ranks = _ranks()
        yield ranks
        ranks.largest([0])  # the first one may still be writing, longer than NCCL waits
    except BaseException as error:
        if isinstance(error, ElmoError):
            error.told = _told_by_another()
        # To end NCCL's group waits for the others, who do not come: they wait for this rank until its process is gone.
        # What is left at the end of a process is aborted by torch, without the others.
        if not gpus:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()
    _nccl = None


def launcher(ranks: Ranks) -> list[str]:
    """How a command line of this process begins, up to ``-m``. What torchrun was told of where machines meet is left
    out.
    """
    if ranks.size == 1:
        return ["python"]
    machines = int(os.environ.get(MACHINES, "1"))
    where = ["--standalone"] if machines == 1 else ["--nnodes", str(machines)]
    return ["torchrun", *where, "--nproc_per_node", os.environ.get(LOCAL_SIZE, str(ranks.size // machines))]


def _has_gpus() -> bool:
    return torch.cuda.is_available() and dist.is_nccl_available()


def _group_for(tensor: Tensor) -> Any:
    """The group through which a tensor goes. None is the first one, or the one that a caller made."""
    return _nccl if tensor.is_cuda else None


def _ranks() -> Ranks:
    rank = dist.get_rank()
    return Ranks(rank=rank, size=dist.get_world_size(), local=int(os.environ.get(LOCAL_RANK, rank)))


def _told_by_another() -> bool:
    """Whether another rank tells the user what went wrong. If not, this one says that it will."""
    with suppress(RuntimeError, KeyError, ValueError):  # nobody to ask any more
        # The store that init_process_group used too.
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=_FIRST_TELLS
        )
        key = f"{_TOLD}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        if dist.get_rank():
            with suppress(RuntimeError):
                store.wait([key], _FIRST_TELLS)
        if store.add(key, 1) > 1:
            time.sleep(_TIME_TO_TELL)
            return True
    return False


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise PretrainingError(f"one of the processes ended, or cannot be reached: {error}") from error
