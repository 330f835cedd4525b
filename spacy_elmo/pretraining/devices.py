"""Where a run computes: its device, and the state of torch while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import PretrainingError
from .distributed import Ranks


def device_of(gpu_id: int, ranks: Ranks) -> torch.device:
    """The device of a config's ``system.gpu_id``; of several processes each gets a GPU of its own.

    Raises PretrainingError for a GPU that torch does not find.
    """
    if gpu_id < 0:
        return torch.device("cpu")
    if ranks.size > 1:
        gpu_id = ranks.local  # each of a machine's processes has one of its own
    if gpu_id >= torch.cuda.device_count():
        wanted = f"process {ranks.rank} needs GPU {gpu_id}" if ranks.size > 1 else f"system.gpu_id is {gpu_id}"
        raise PretrainingError(
            f"{wanted}, but torch finds {torch.cuda.device_count()} CUDA devices: "
            "use -1 for the CPU, or install a torch that fits your GPU's driver"
        )
    if ranks.size > 1:
        torch.cuda.set_device(gpu_id)  # for what NCCL makes there
    return torch.device(f"cuda:{gpu_id}")


@contextmanager
def torch_state(threads: int, device: torch.device) -> Iterator[None]:
    """Threads (0: torch's own number), random state and GPU as the run needs them, and afterwards as they were before.

    Its GPU is the current one meanwhile: there Triton starts kernels, wherever their tensors are.
    """
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    on_gpu = device.type == "cuda"
    try:
        # -1: none is made the current one.
        with torch.cuda.device(device if on_gpu else -1), torch.random.fork_rng(devices=[device] if on_gpu else []):
            yield
    finally:
        torch.set_num_threads(before)
