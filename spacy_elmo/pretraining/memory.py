"""What to do where memory does not suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from thinc.api import Config

from ..errors import PretrainingError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is some allocator's: torch has no class for those of the CPU."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    reasons = ("alloc", "size calculation overflowed")
    return isinstance(error, RuntimeError) and any(reason in str(error).lower() for reason in reasons)


@contextmanager
def out_of_memory_explained(config: Config, kept: Callable[[], str]) -> Iterator[None]:
    """Raises PretrainingError for any want of memory in the block: which settings to lower, and what is kept.

    kept: says what is safe of the run.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        training, model = config["training"], config["model"]
        samples = config["objective"].get("n_samples")
        raise PretrainingError(
            f"out of memory: lower training.rows ({training['rows']}), training.unroll_steps "
            f"({training['unroll_steps']}){f' or objective.n_samples ({samples})' if samples else ''}, or the sizes of "
            f"the model: model.lstm_dim ({model['lstm_dim']}), model.projection_dim ({model['projection_dim']}), "
            f"vocabulary.max_words ({config['vocabulary']['max_words']}). Fewer rows and as much more "
            f"training.accumulate ({training.get('accumulate', 1)}) are the same training. {kept()}"
        ) from error
