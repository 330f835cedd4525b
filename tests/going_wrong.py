"""Disks that are full, and warnings that are told once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to let a file grow further, as it does on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def told_once(match: str) -> Iterator[None]:
    """One warning of ours comes in the block, and it is this."""
    with pytest.warns(UserWarning, match=match) as told:
        yield
    ours = [str(one.message) for one in told if str(one.message).startswith("elmo: ")]
    assert len(ours) == 1, ours
