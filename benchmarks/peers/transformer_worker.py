"""Transformers of known sizes through PyPI ``transformers``, with random weights from a config: nothing is downloaded.

Speed does not depend on weights. A word counts as 1.25 pieces, as English does with a vocabulary of these sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers  # type: ignore[import-not-found]

from .protocol import Job, serve
from .texts import batches, read_texts

PIECES_PER_WORD = 1.25
# kind, layers, width, heads, inner width, vocabulary, positions
SIZES = {
    "distilroberta": ("roberta", 6, 768, 12, 3072, 50_265, 514),
    "MiniLM-L6": ("bert", 6, 384, 12, 1536, 30_522, 512),
    "tiny": ("bert", 1, 16, 2, 32, 1_000, 512),
}


def config_of(size: str) -> transformers.PretrainedConfig:
    """The config of a size."""
    kind, layers, width, heads, inner, vocabulary, positions = SIZES[size]
    return transformers.AutoConfig.for_model(
        kind,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position_embeddings=positions,
    )


def load(*, threads: int, sizes: list[str], texts: dict[str, str]) -> tuple[dict[str, Job], dict[str, Any]]:
    """sizes: names in SIZES. texts: files of sentences by name."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    models = {
        (size, precision): transformers.AutoModel.from_config(config_of(size)).eval().to(getattr(torch, precision))
        for size in sizes
        for precision in ("float32", "bfloat16")
    }
    sentences = read_texts(texts)
    longest = {size: config_of(size).max_position_embeddings - 4 for size in sizes}

    def padded(size: str, batch: list[list[str]]) -> dict[str, torch.Tensor]:
        """Ids (B, T) and the mask of padding, for sentences of descending length."""
        lengths = [min(round(PIECES_PER_WORD * len(sentence)) + 2, longest[size]) for sentence in batch]
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        ids = torch.randint(10, config_of(size).vocab_size, mask.shape)
        return {"input_ids": ids, "attention_mask": mask.long()}

    def encode(size: str, text: str, batch_size: int, *, precision: str, switch: bool = False) -> dict[str, Any]:
        """switch: let oneDNN compute float32 products through bfloat16."""
        inputs = [padded(size, batch) for batch in batches(sentences[text], batch_size, by_length=True)]
        with torch.no_grad(), onednn_switch(switch):
            start = time.perf_counter()
            for batch in inputs:
                models[size, precision](**batch)
            seconds = time.perf_counter() - start
        return {"seconds": seconds, "amount": sum(map(len, sentences[text]))}

    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    return {"encode": encode}, {"facts": versions}


@contextmanager
def onednn_switch(on: bool) -> Iterator[None]:
    """Let oneDNN make float32 products, by torch's public switch (2.9 or newer), and set it back."""
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16" if on else before
    try:
        yield
    finally:
        settings.fp32_precision = before


if __name__ == "__main__":
    serve(load)
