"""torch.nn.LSTM with a projection, of ELMo's sizes and nothing else: no characters, no clips, no layers kept.

What PyTorch itself reaches on the recurrent part: two stacks of two layers over random vectors, packed sequences.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from .protocol import Job, serve
from .texts import batches, read_texts


def load(
    *, threads: int, sizes: dict[str, tuple[int, int]], texts: dict[str, str]
) -> tuple[dict[str, Job], dict[str, Any]]:
    """sizes: cells and projection of each."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    stacks = {
        size: [torch.nn.LSTM(width, cells, num_layers=2, proj_size=width) for _ in ("forward", "backward")]
        for size, (cells, width) in sizes.items()
    }
    sentences = read_texts(texts)

    def packed(size: str, batch: list[list[str]]) -> PackedSequence:
        # Boundaries are read too.
        return pack_sequence([torch.randn(len(sentence) + 2, sizes[size][1]) for sentence in batch])

    def encode(size: str, text: str, batch_size: int) -> dict[str, Any]:
        inputs = [packed(size, batch) for batch in batches(sentences[text], batch_size, by_length=True)]
        start = time.perf_counter()
        with torch.no_grad():
            for batch in inputs:
                for stack in stacks[size]:
                    stack(batch)
        return {"seconds": time.perf_counter() - start, "amount": sum(map(len, sentences[text]))}

    return {"encode": encode}, {"facts": f"torch {torch.__version__}"}


if __name__ == "__main__":
    serve(load)
