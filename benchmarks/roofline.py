"""How much of what this machine can do is done? Matrix products at their best, and what encode and training reach.

python -m benchmarks.roofline

The peak is that of the best product of a few shapes which occur in ELMo, by torch.mm and by oneDNN's operator on packed
weights, measured in each round beside the rest. What encode and a training step need is counted by the rule in
benchmarks/flops.py (no word is known before). Medians of the rounds; a share is the median of the rounds' shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from spacy_elmo import BiLM
from spacy_elmo.bilm.matmul import PRECISIONS, Precision

from .common import (
    SIZES,
    Row,
    Sample,
    Sentences,
    add_sizes,
    add_text_options,
    described,
    machine,
    measure,
    number,
    parser_for,
    sentences_for,
    set_threads,
    table,
    timed,
)
from .flops import encode_flops, training_flops
from .training import MODES, Training, add_training_options, corpus_for

# K, N, rows.
SHAPES = ((512, 16384, 128), (512, 16384, 256), (4096, 512, 256), (2048, 2048, 256), (128, 4096, 256))


@dataclass(frozen=True)
class Product:
    """A product that may be the fastest. flops: of one call."""

    name: str
    flops: int
    call: Callable[[], Tensor]

    def repeated(self, seconds: float) -> Sample:
        """Call it again and again for so long. RETURNS: seconds, operations."""
        self.call()
        times, start = 0, time.perf_counter()
        while times == 0 or time.perf_counter() - start < seconds:
            self.call()
            times += 1
        return Sample(time.perf_counter() - start, times * self.flops)


def products(dtype: torch.dtype) -> Iterator[Product]:
    """torch's product and oneDNN's, where there is one, of each shape."""
    for inner, outer, rows in SHAPES:
        x, weight = torch.randn(rows, inner).to(dtype), torch.randn(inner, outer).to(dtype)
        out = torch.empty(rows, outer, dtype=dtype)
        flops, shape = 2 * rows * inner * outer, f"({rows}, {inner}) x ({inner}, {outer})"
        yield Product(f"torch.mm, {shape}", flops, partial(torch.mm, x, weight, out=out))
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), rows)
            onednn = partial(torch.ops.mkldnn._linear_pointwise, x, packed, None, "none", [], "")
            onednn()
        except (AttributeError, RuntimeError):  # a private operator: not in every torch, nor on every processor
            continue
        yield Product(f"oneDNN, {shape}", flops, onednn)


class Peak:
    """The best product of a precision. seconds: for which each is repeated."""

    def __init__(self, precision: Precision, seconds: float) -> None:
        self.seconds = seconds
        self.products = list(products(getattr(torch, precision)))
        self.best = ""

    def run(self) -> Sample:
        """Run all. RETURNS: the sample of the fastest."""
        samples = {product.name: product.repeated(self.seconds) for product in self.products}
        self.best = max(samples, key=lambda name: samples[name].amount / samples[name].seconds)
        return samples[self.best]


def encode_row(size: str, precision: Precision, sentences: Sentences, seed: int) -> Row:
    """Encode sentences of which no word is known."""
    bilm = BiLM(SIZES[size]).initialize(seed)
    flops = encode_flops(bilm.config, sentences)

    def work() -> float:
        bilm.encode(sentences, precision=precision)
        return flops

    def run() -> Sample:
        bilm.forget_words()
        return timed(work)

    return Row(f"encode, {size}, {precision}", run, lambda: bilm.encode(sentences[:8], precision=precision))


def training_row(training: Training, label: str, steps: int, negatives: int) -> Row:
    """Train for some steps."""

    def run() -> Sample:
        first = len(training.losses)
        seconds, tokens = training.run(steps)
        flops = 0
        for step in range(first, first + steps):
            types = [training.corpus.types[row] for row in training.stream.window(step).type_rows]
            words = int(tokens) // steps
            flops += training_flops(training.config, words=words, types=types, negatives=negatives)
        return Sample(seconds, flops)

    return Row(label, run, lambda: training.run(1))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds, print the table."""
    parser = parser_for(__doc__)
    add_text_options(parser, 2000)
    add_sizes(parser)
    add_training_options(parser, sizes=["1024/128", "2048/256"], vocabulary=[50_000])
    parser.add_argument("--seconds", type=float, default=0.2, help="for each product (default: %(default)s)")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(machine(args.threads))
    sentences = sentences_for(args)
    print(f"{described(sentences)}; medians of {args.rounds} rounds\n")
    corpus = corpus_for(args)
    peaks = {precision: Peak(precision, args.seconds) for precision in PRECISIONS}
    peak_rows = {precision: Row(f"peak, {precision}", peak.run) for precision, peak in peaks.items()}
    rows = [encode_row(size, precision, sentences, args.seed) for size in args.size for precision in PRECISIONS]
    for size in args.training_size:
        for mode in MODES:
            training = Training(args, corpus, size=size, n_vocabulary=args.vocabulary[0], mode=mode)
            rows.append(training_row(training, f"training step, {size}, {mode}", args.steps, args.negatives))
    measure([*peak_rows.values(), *rows], args.rounds)

    labels = {f"peak, {precision}": f"peak, {precision}: {peak.best}" for precision, peak in peaks.items()}
    table(
        ["", "GFLOP/s", *(f"share of the {precision} peak" for precision in PRECISIONS)],
        (
            [labels.get(row.label, row.label), number(row.rate / 1e9)]
            + [f"{row.over(peak):.0%}" for peak in peak_rows.values()]
            for row in (*peak_rows.values(), *rows)
        ),
    )


if __name__ == "__main__":
    main()
