"""Large tensors of training that are used again at every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_current: ContextVar[Buffers | None] = ContextVar("spacy_elmo_buffers", default=None)


class Buffers:
    """Hands out tensors of any content, and takes them back to hand them out again.

    Why: what an allocator gets anew from the system costs a page fault every 4 kB when it is first written. Without
    this a fifth of an LSTM layer's time goes there (2,560 tokens, 1024/128, one core).
    """

    def __init__(self) -> None:
        self._free: defaultdict[tuple[torch.Size, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    @classmethod
    def current(cls) -> Buffers:
        """Those in use in this thread (see ``in_use``); else some that allocate anew and take nothing back."""
        return _current.get() or _Fresh()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let what trains in this thread take its buffers here while the block lasts.

        Gradients of a graph that is built in the block can be asked for once (``retain_graph`` is of no use).
        """
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def take(self, *shape: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of any content, on the device of ``like`` and, without ``dtype``, of its dtype."""
        free = self._free[torch.Size(shape), dtype or like.dtype, like.device]
        return free.pop() if free else like.new_empty(shape, dtype=dtype)

    def give(self, *tensors: Tensor) -> bool:
        """Take back what ``take`` gave. RETURNS: whether somebody else may write to them from now on."""
        for tensor in tensors:
            self._free[tensor.shape, tensor.dtype, tensor.device].append(tensor)
        return True


class _Fresh(Buffers):
    """Every tensor is a new one."""

    def give(self, *tensors: Tensor) -> bool:
        return False
