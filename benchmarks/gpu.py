"""How fast is a CUDA GPU? Products at their best, encode, one sentence, torch.nn.LSTM and training, in one table.

python -m benchmarks.gpu

Weights are random: speed does not depend on them. Words are counted without boundaries, and none is known before a
row's turn begins. In every round each row runs once; medians are given. "TFLOP/s" are counted by the rule in
benchmarks/flops.py, "of the peak" is the share of the best product of the same precision in the same round: square
matrices, or a step's recurrent product. "TF32" is float32 with torch's switch on. torch.nn.LSTM (cuDNN) has neither
clips nor characters: it is no ELMo. It takes some minutes; spaCy is not needed, but by training.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from spacy_elmo import BiLM, BiLMConfig
from spacy_elmo.bilm.matmul import Precision
from spacy_elmo.bilm.softmax import SampledSoftmax
from spacy_elmo.pretraining.config import TrainingSettings
from spacy_elmo.pretraining.streams import Window

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
    n_words,
    number,
    parser_for,
    progress,
    rate_cells,
    sentences_for,
    set_threads,
    spelled,
    table,
)
from .flops import encode_flops, lstm_flops, training_flops
from .peers.protocol import PeerError

Mode = Literal["float32", "TF32", "bfloat16"]
MODES: tuple[Mode, ...] = ("float32", "TF32", "bfloat16")
UNROLL, N_VOCABULARY, NEGATIVES, TYPES = 20, 50_000, 8192, 60_000


@dataclass
class Line:
    """A row of the table. unit: of its amount. flops: for each unit."""

    row: Row
    mode: Mode
    unit: str
    flops: float


class GPU:
    """The device, and how to wait for it. It may be the CPU, to try the script."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def wait(self) -> None:
        """Until all that was asked for is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, mode: Mode, work: Callable[[], float]) -> Sample:
        """Seconds, and the amount that ``work`` returns."""
        with tf32(mode == "TF32"):
            self.wait()
            start = time.perf_counter()
            amount = work()
            self.wait()
            return Sample(time.perf_counter() - start, amount)

    def describe(self) -> str:
        """Names and versions."""
        if self.device.type != "cuda":
            return "no GPU: the CPU stands in for it, and the figures say nothing of GPUs"
        properties = torch.cuda.get_device_properties(self.device)
        facts = [
            properties.name,
            f"{properties.total_memory / 1e9:.0f} GB",
            f"compute capability {properties.major}.{properties.minor}",
            f"CUDA {torch.version.cuda}",
            f"cuDNN {torch.backends.cudnn.version()}",
            f"Triton {triton_version()}",
            f"driver {driver_version()}",
        ]
        return ", ".join(facts)


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """torch's switch, for products and for cuDNN, and afterwards as it was."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = wanted
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def triton_version() -> str:
    """Of the compiler of the kernels."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return "missing"


def driver_version() -> str:
    """The driver's, where it says so."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf8") as file:
            return file.readline().split("  ")[1].strip()
    except (OSError, IndexError):
        return "unknown"


def dtype_of(mode: Mode) -> torch.dtype:
    """What is multiplied."""
    return torch.bfloat16 if mode == "bfloat16" else torch.float32


def precision_of(mode: Mode) -> Precision:
    """What ``encode`` and pretraining call it."""
    return "bfloat16" if mode == "bfloat16" else "float32"


# Products


def product_line(gpu: GPU, mode: Mode, label: str, shape: tuple[int, int, int, int], seconds: float) -> Line:
    """Products of (batch, rows, inner) and (batch, inner, outer), for so long. Numbers are random: zeros are faster."""
    batch, rows, inner, outer = shape
    left = torch.randn(batch, rows, inner, device=gpu.device).to(dtype_of(mode))
    right = torch.randn(batch, inner, outer, device=gpu.device).to(dtype_of(mode))
    out = torch.empty(batch, rows, outer, device=gpu.device, dtype=left.dtype)
    flops = 2.0 * batch * rows * inner * outer

    def repeat(times: int) -> Sample:
        def work() -> float:
            for _ in range(times):
                torch.bmm(left, right, out=out)
            return float(times)

        return gpu.timed(mode, work)

    times = [1]

    def warm_up() -> None:
        repeat(2)
        times[0] = max(1, int(seconds / repeat(3).seconds * 3))

    size = f"{rows} x {inner} x {outer}" + (f", {batch} at once" if batch > 1 else "")
    return Line(Row(f"{label}: {size}, {mode}", lambda: repeat(times[0]), warm_up), mode, "products", flops)


# Inference


@contextmanager
def graphs(wanted: bool) -> Iterator[None]:
    """Whether stacks that are packed in this block may use CUDA graphs."""
    before = os.environ.get("SPACY_ELMO_GRAPHS")
    os.environ["SPACY_ELMO_GRAPHS"] = "1" if wanted else "0"
    try:
        yield
    finally:
        del os.environ["SPACY_ELMO_GRAPHS"]
        if before is not None:
            os.environ["SPACY_ELMO_GRAPHS"] = before


def encode_lines(gpu: GPU, size: str, bilm: BiLM, sentences: Sentences, mode: Mode, with_graphs: bool) -> list[Line]:
    """All sentences at once, and one at a time."""
    precision = precision_of(mode)
    # Some of middle length.
    few = sorted(sentences, key=len)[len(sentences) // 2 :][:20]

    def encode(some: Sentences) -> None:
        with graphs(with_graphs):
            bilm.encode(some, precision=precision)

    def warm_up() -> None:
        with tf32(mode == "TF32"):
            for _ in range(3):  # kernel by kernel, captured, from graphs
                encode(sentences)
                for sentence in few:
                    encode([sentence])

    def all_at_once() -> Sample:
        def work() -> float:
            encode(sentences)
            return float(n_words(sentences))

        bilm.forget_words()
        return gpu.timed(mode, work)

    def one_by_one() -> Sample:
        def work() -> float:
            for sentence in few:
                encode([sentence])
                gpu.wait()
            return float(n_words(few))

        bilm.forget_words()
        return gpu.timed(mode, work)

    how = f"{size}, {mode}" + ("" if with_graphs else ", without CUDA graphs")
    return [
        Line(Row(f"encode, {how}", all_at_once, warm_up), mode, "words", per_word(bilm.config, sentences)),
        Line(Row(f"encode one by one, {how}", one_by_one), mode, "words", per_word(bilm.config, few)),
    ]


def per_word(config: BiLMConfig, sentences: Sentences) -> float:
    """Operations a word."""
    return encode_flops(config, sentences) / n_words(sentences)


def lstm_line(gpu: GPU, size: str, config: BiLMConfig, sentences: Sentences, mode: Mode) -> Line:
    """torch.nn.LSTM of the biLM's sizes over the same lengths, each direction a network of its own, as in a biLM."""
    dtype = dtype_of(mode)
    lengths = torch.tensor(sorted((len(sentence) + 2 for sentence in sentences), reverse=True))
    steps = torch.tensor([int((lengths > step).sum()) for step in range(int(lengths[0]))])
    state: list[Any] = []

    def warm_up() -> None:
        projected = config.projection_dim if config.has_projection else 0
        networks = [nn.LSTM(config.projection_dim, config.lstm_dim, config.n_layers, proj_size=projected) for _ in "fb"]
        words = torch.randn(int(lengths.sum()), config.projection_dim, device=gpu.device, dtype=dtype)
        state.append([network.to(gpu.device, dtype) for network in networks])
        for network in state[0]:
            network.flatten_parameters()
        state.append(nn.utils.rnn.PackedSequence(words, steps))
        run()

    def run() -> Sample:
        def work() -> float:
            with torch.no_grad():
                for network in state[0]:
                    network(state[1])
            return float(n_words(sentences))

        return gpu.timed(mode, work)

    flops = lstm_flops(config, int(lengths.sum())) / n_words(sentences)
    return Line(Row(f"torch.nn.LSTM alone, {size}, {mode}", run, warm_up), mode, "words", flops)


def difference(bilm: BiLM, gpu: GPU, sentences: Sentences) -> str:
    """How far the GPU's float32 vectors are from the CPU's."""
    with tf32(False):
        found = torch.cat([layers.cpu() for layers in bilm.encode(sentences)], dim=1)
    wanted = torch.cat(bilm.cpu().encode(sentences), dim=1)
    bilm.to(gpu.device)
    apart = (found - wanted).abs()
    return (
        f"at most {apart.max():.1e}, in the mean {apart.mean():.1e}, where vectors have a spread of {wanted.std():.2f}"
    )


# Training


class Training:
    """Pretraining's own step on made-up windows: token encoder, stacks, sampled softmax, clipping and Adagrad."""

    def __init__(self, gpu: GPU, config: BiLMConfig, mode: Mode, rows: int, *, small: bool, seed: int) -> None:
        try:
            from spacy_elmo.pretraining.optimizers import adagrad
            from spacy_elmo.pretraining.step import TrainingStep
        except ImportError as error:
            raise PeerError(str(error)) from error
        generator = np.random.default_rng(seed)
        n_types, self.n_vocabulary = (500, 400) if small else (TYPES, N_VOCABULARY)
        self.negatives = min(NEGATIVES, self.n_vocabulary // 2)
        self.config, self.tokens = config, rows * UNROLL
        self.types = spelled(n_types, generator)
        self.windows = [self._window(rows, generator) for _ in range(4)]
        bilm = BiLM(config).initialize(seed).to(gpu.device)
        softmax = SampledSoftmax(self.n_vocabulary, config.projection_dim, n_samples=self.negatives)
        softmax.initialize(seed).to(gpu.device)
        settings = TrainingSettings(
            rows=rows,
            unroll_steps=UNROLL,
            max_steps=10**6,
            reset=None,
            schedule="constant",
            precision=precision_of(mode),
        )
        optimizer = adagrad()([*bilm.parameters(), *softmax.parameters()])
        self._train = TrainingStep(bilm=bilm, softmax=softmax, optimizer=optimizer, types=self.types, settings=settings)
        self._state, self._step = bilm.zero_state(rows), 0

    def _window(self, rows: int, generator: np.random.Generator) -> Window:
        chances = (np.arange(len(self.types)) + 2.7) ** -1.2
        ids = generator.choice(len(self.types), size=(rows, UNROLL + 1), p=chances / chances.sum())
        read, index = np.unique(ids, return_inverse=True)
        index = index.reshape(ids.shape)
        targets = np.minimum(ids, self.n_vocabulary - 1)
        nowhere = np.zeros((rows, UNROLL), dtype=np.bool_)  # the state is carried on
        return Window(
            type_rows=read,
            forward=index[:, :-1],
            backward=index[:, :0:-1],
            forward_targets=targets[:, 1:],
            backward_targets=targets[:, -2::-1],
            starts=nowhere,
            document_starts=nowhere,
        )

    def run(self, steps: int) -> float:
        """Train. RETURNS: tokens."""
        for _ in range(steps):
            window = self.windows[self._step % len(self.windows)]
            self._state = self._train(window, self._state, self._step).state
            self._step += 1
        return float(steps * self.tokens)

    @property
    def flops(self) -> float:
        """Operations a token."""
        words, negatives = self.tokens, self.negatives
        types = [[self.types[row] for row in window.type_rows] for window in self.windows]
        counts = [training_flops(self.config, words=words, types=some, negatives=negatives) for some in types]
        return statistics.mean(counts) / self.tokens


def training_line(gpu: GPU, size: str, mode: Mode, rows: int, seed: int) -> Line:
    """Some steps. The model is there from its warm-up on."""
    line = Line(Row("", lambda: Sample(1.0, 0.0)), mode, "tokens", 0.0)
    made: list[Training] = []

    def warm_up() -> None:
        made.append(Training(gpu, SIZES[size], mode, rows, small=size == "tiny", seed=seed))
        line.flops = made[0].flops
        gpu.timed(mode, lambda: made[0].run(3))

    line.row = Row(f"training, {size}, {rows} rows, {mode}", lambda: gpu.timed(mode, lambda: made[0].run(5)), warm_up)
    return line


# All of it


def cells(line: Line, best: Row | None) -> list[str]:
    """The row's cells in the table."""
    row = line.row
    if row.why or not row.samples:
        return [row.label, *rate_cells(row)]
    median, spread = rate_cells(row)
    shares = []
    if best is not None and line.unit != "products":
        pairs = zip(row.rates, best.rates, strict=True)
        shares = [f"{statistics.median(rate * line.flops / peak for rate, peak in pairs):.0%}"]
    return [row.label, f"{median} {line.unit}", spread, number(row.rate * line.flops / 1e12), *shares]


def best_products(lines: Sequence[Line], mode: Mode) -> Row | None:
    """Operations a second of the best product of each round."""
    products = [line for line in lines if line.unit == "products" and line.mode == mode and line.row.samples]
    if not products:
        return None
    rounds = zip(*([rate * line.flops for rate in line.row.rates] for line in products), strict=True)
    return Row("", lambda: Sample(1.0, 0.0), samples=[Sample(1.0, max(rates)) for rates in rounds])


def lines_of(args: argparse.Namespace, gpu: GPU, sentences: Sentences) -> tuple[list[Line], dict[str, BiLM]]:
    """All rows of the table, and the biLMs that they use."""
    lines = []
    side = 64 if args.device == "cpu" else 8192
    for mode in MODES:
        lines.append(product_line(gpu, mode, "square product", (1, side, side, side), args.seconds))
        for size in args.size:
            config = SIZES[size]
            shape = (2, 8 if args.device == "cpu" else 1024, 2 * config.projection_dim, 4 * config.lstm_dim)
            lines.append(product_line(gpu, mode, f"recurrent product, {size}", shape, args.seconds))
    bilms = {}
    for size in args.size:
        bilms[size] = BiLM(SIZES[size]).initialize(args.seed).to(gpu.device)
        for mode in MODES:
            lines += encode_lines(gpu, size, bilms[size], sentences, mode, with_graphs=True)
            lines.append(lstm_line(gpu, size, SIZES[size], sentences, mode))
        without = BiLM(SIZES[size]).initialize(args.seed).to(gpu.device)
        lines += encode_lines(gpu, size, without, sentences, "bfloat16", with_graphs=False)
    for size in args.training_size:
        for rows in args.batch:
            lines += [training_line(gpu, size, mode, rows, args.seed) for mode in MODES]
    return lines, bilms


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds, print the table."""
    parser = parser_for(__doc__)
    add_text_options(parser, 4000)
    add_sizes(parser)
    parser.add_argument("--training-size", nargs="*", choices=SIZES, default=["original", "small"])
    parser.add_argument("--batch", nargs="+", type=int, default=[128, 512], help="rows (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each product (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="cpu: only to try the script (default: %(default)s)")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(machine(args.threads))
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA GPU on this machine: nothing was measured")
    gpu = GPU(args.device)
    sentences = sentences_for(args)
    print(gpu.describe())
    print(f"{described(sentences)}; medians of {args.rounds} rounds\n")
    started = time.perf_counter()
    lines, bilms = lines_of(args, gpu, sentences)
    measure([line.row for line in lines], args.rounds)
    table(
        ["", "a second", "min - max", "TFLOP/s", "of the peak"],
        [cells(line, best_products(lines, line.mode)) for line in lines],
    )
    print()
    for size, bilm in bilms.items():
        print(f"float32 on GPU and CPU, {size}: {difference(bilm, gpu, sentences[:20])}")
    if gpu.device.type == "cuda":
        progress(f"peak GPU memory: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    progress(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
