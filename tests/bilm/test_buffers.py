from __future__ import annotations

import threading

import torch

from spacy_elmo.bilm.buffers import Buffers


def test_what_was_given_back_is_taken_again() -> None:
    buffers, like = Buffers(), torch.zeros(1)
    first = buffers.take(3, 4, like=like)
    place = first.data_ptr()
    other = buffers.take(3, 4, like=like)
    assert other.data_ptr() != place  # it is in use
    assert buffers.give(first)
    assert buffers.take(3, 4, like=like).data_ptr() == place
    assert buffers.take(3, 4, like=like).data_ptr() not in (place, other.data_ptr())


def test_shape_and_dtype_decide() -> None:
    buffers, like = Buffers(), torch.zeros(1, dtype=torch.float64)
    taken = buffers.take(2, 3, like=like)
    assert taken.shape == (2, 3)
    assert taken.dtype == torch.float64
    buffers.give(taken)
    narrow = buffers.take(2, 3, like=like, dtype=torch.bfloat16)
    assert narrow.dtype == torch.bfloat16
    assert buffers.take(3, 2, like=like).data_ptr() != taken.data_ptr()


def test_they_are_in_use_in_their_block_and_thread_only() -> None:
    buffers, seen = Buffers(), []
    with buffers.in_use():
        assert Buffers.current() is buffers
        with Buffers().in_use():
            assert Buffers.current() is not buffers
        assert Buffers.current() is buffers
        thread = threading.Thread(target=lambda: seen.append(Buffers.current()))
        thread.start()
        thread.join()
    assert seen[0] is not buffers
    assert Buffers.current() is not buffers


def test_outside_of_a_block_nothing_is_kept() -> None:
    like = torch.zeros(1)
    current = Buffers.current()
    taken = current.take(2, 3, like=like)
    assert not current.give(taken)
    assert Buffers.current().take(2, 3, like=like).data_ptr() != taken.data_ptr()
