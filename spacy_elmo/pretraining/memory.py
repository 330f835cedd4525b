"""What to do where memory does not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from thinc.api import Config

from ..errors import PretrainingError
from .output import last_good_state


@contextmanager
def out_of_memory_explained(config: Config, output: Path) -> Iterator[None]:
    """Raises PretrainingError for any want of memory in the block: which settings to lower, and what is kept."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reasons = ("alloc", "size calculation overflowed")
        is_memory = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
        if not is_memory and not any(reason in str(error).lower() for reason in reasons):
            raise
        training, model = config["training"], config["model"]
        samples = config["objective"].get("n_samples")
        raise PretrainingError(
            f"out of memory: lower training.rows ({training['rows']}), training.unroll_steps "
            f"({training['unroll_steps']}){f' or objective.n_samples ({samples})' if samples else ''}, or the sizes of "
            f"the model: model.lstm_dim ({model['lstm_dim']}), model.projection_dim ({model['projection_dim']}), "
            f"vocabulary.max_words ({config['vocabulary']['max_words']}). Fewer rows and as much more "
            f"training.accumulate ({training.get('accumulate', 1)}) are the same training. {last_good_state(output)}"
        ) from error
