"""What the benchmarks share: sizes, text, rounds that alternate, tables, and what machine this is."""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import math
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from spacy_elmo import BiLMConfig

from .peers.protocol import Peer, PeerError

Sentences = list[list[str]]

# The published models; "tiny" lets a script run through in a moment.
SIZES = {
    "original": BiLMConfig(lstm_dim=4096, projection_dim=512, n_highway=2),
    "medium": BiLMConfig(lstm_dim=2048, projection_dim=256, n_highway=1),
    "small": BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1),
    "tiny": BiLMConfig(lstm_dim=32, projection_dim=8, n_highway=1, filters=((1, 4), (2, 8), (3, 16))),
}
# Between two jobs: thread pools stop spinning, and what was freed goes back.
PAUSE = 0.2


# Text

ALPHABET = "etaoinshrdlcumwfgypbvk"


class Zipf(NamedTuple):
    """The law of Zipf and Mandelbrot: p(rank r) ~ 1 / (r + shift)^exponent, r = 1, 2, ... n_types."""

    n_types: int
    exponent: float
    shift: float

    def draw(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Draw ranks from 0. RETURNS: (n,) int64."""
        cumulative = np.cumsum((np.arange(1, self.n_types + 1) + self.shift) ** -self.exponent)
        ranks: np.ndarray = np.searchsorted(cumulative, generator.random(n) * cumulative[-1], side="right")
        return np.minimum(ranks, self.n_types - 1)


# 11% of 40,000 words are types: as in the sample of English sentences on which the project's targets were set.
SAMPLE = Zipf(20_000, 1.24, 1.0)
# New words never end: 23% of 40,000 words are types, and 1,400 of the words that a training step reads. Wikipedia.
WIKIPEDIA = Zipf(800_000, 1.2, 2.7)


def spelled(n_types: int, generator: np.random.Generator) -> list[str]:
    """Make up distinct words, frequent ones short: 4 letters a running word and 7 a type, as in English."""
    weights = np.linspace(3.0, 0.3, len(ALPHABET))
    lengths = 1 + generator.poisson(1.5 + 0.55 * np.log1p(np.arange(n_types)))
    letters = np.frombuffer(ALPHABET.encode(), dtype=np.uint8)
    text = generator.choice(letters, size=int(lengths.sum()), p=weights / weights.sum()).tobytes().decode()
    ends = np.cumsum(lengths).tolist()
    words: dict[str, None] = {}
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        word = text[start:end]
        while word in words:
            word += ALPHABET[len(words) % len(ALPHABET)]
        words[word] = None
    return list(words)


def sentence_lengths(n: int, generator: np.random.Generator) -> np.ndarray:
    """Words of English sentences: log-normal with median 19, mean 20, 90% up to 34. RETURNS: (n,) int64."""
    return np.clip(np.exp(generator.normal(np.log(18.4), 0.47, size=n)).round(), 2, 100).astype(np.int64)


def sentence_stream(law: Zipf, seed: int) -> Iterator[list[str]]:
    """Sentences without end, in words of no language, each with a full stop at its end."""
    generator = np.random.default_rng(seed)
    types = spelled(law.n_types, generator)
    while True:
        lengths = sentence_lengths(1000, generator)
        words = (types[rank] for rank in law.draw(int(lengths.sum()), generator).tolist())
        for length in lengths.tolist():
            yield [*islice(words, length - 1), "."]


def made_up_sentences(n: int, seed: int) -> Sentences:
    """Sentences like those on which the project's targets were set: lengths, and variety of words.

    2,000 of them have 40,000 words, and 11% of these are types. In books it is 16%, in Wikipedia 22%: ``--text``.
    """
    return list(islice(sentence_stream(SAMPLE, seed), n))


def read_sentences(path: Path, n: int, seed: int, *, raw: bool) -> Sentences:
    """Draw sentences from a file, plain or compressed with gz, bz2 or xz.

    raw: the lines are paragraphs, to be split by spaCy's English tokenizer and the rule of pretraining. Else each line
        is a sentence, its words between white space.
    """
    opened = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf8") as file:  # type: ignore[operator]
        lines = [line.strip() for line in file if line.strip()]
    if not lines:
        raise SystemExit(f"{path} holds no text")
    random.Random(seed).shuffle(lines)
    if not raw:
        return [line.split() for line in lines[:n]]
    import spacy

    from spacy_elmo.pretraining.sentences import sentences_of

    nlp = spacy.blank("en")
    sentences: Sentences = []
    for line in lines:
        # More than are needed: of a paragraph's sentences not all are taken, so few come from the same one.
        if len(sentences) >= 4 * n:
            break
        sentences += sentences_of(nlp(line))
    random.Random(seed).shuffle(sentences)
    return sentences[:n]


def spread_by_length(sentences: Sentences, n: int) -> Sentences:
    """Take n sentences with the same spread of lengths, in the order in which they stood."""
    if n >= len(sentences):
        return sentences
    by_length = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    chosen = np.linspace(0, len(sentences) - 1, n + 2)[1:-1].round().astype(int)
    return [sentences[i] for i in sorted(by_length[place] for place in chosen)]


def n_words(sentences: Iterable[Sequence[Any]]) -> int:
    """Running words, without boundaries."""
    return sum(map(len, sentences))


def described(sentences: Sentences) -> str:
    """Numbers of sentences, words and types."""
    words, types = n_words(sentences), len({word for sentence in sentences for word in sentence})
    return f"{len(sentences):,} sentences, {words:,} words, {types:,} types ({types / max(1, words):.0%})"


# Options


def positive(text: str) -> int:
    """A whole number from 1 on, as an option's type."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def above_zero(text: str) -> float:
    """A finite number above 0, as an option's type."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number


def existing(text: str) -> Path:
    """The path of something that is there, as an option's type."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no {path}")
    return path


def parser_for(doc: str | None, *, rounds: int = 3) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark. doc: the script's own docstring. rounds: 0 for no such option."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=positive, default=2, help="threads of every process (default: %(default)s)")
    if rounds:
        parser.add_argument("--rounds", type=positive, default=rounds, help="medians are given (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def add_text_options(parser: argparse.ArgumentParser, sentences: int) -> None:
    """``--sentences``, ``--text``, ``--raw``: see ``sentences_for``."""
    parser.add_argument("--sentences", type=positive, default=sentences, help="number of them (default: %(default)s)")
    parser.add_argument("--text", type=existing, help="a file of sentences, one a line (else they are made up)")
    parser.add_argument("--raw", action="store_true", help="--text is untokenised, a paragraph a line")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """``--size``: biLMs to measure."""
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["original", "small"], help="of the biLM")


def sentences_for(args: argparse.Namespace) -> Sentences:
    """The sentences that the options ask for."""
    if args.text is None:
        return made_up_sentences(args.sentences, args.seed)
    return read_sentences(args.text, args.sentences, args.seed, raw=args.raw)


# Rounds


class Sample(NamedTuple):
    """One timed job: seconds, and how much was done in them (words, tokens, floating-point operations)."""

    seconds: float
    amount: float


@dataclass
class Row:
    """Something that is measured once a round.

    run: does it. warm_up: done once before the rounds, untimed. why: set once it failed, in the words of the failure.
    """

    label: str
    run: Callable[[], Sample]
    warm_up: Callable[[], object] = lambda: None
    samples: list[Sample] = field(default_factory=list)
    why: str = ""

    @property
    def rates(self) -> list[float]:
        """Amount a second, of each round."""
        return [sample.amount / sample.seconds for sample in self.samples]

    @property
    def rate(self) -> float:
        """The median amount a second. Of a missing row: NaN."""
        return statistics.median(self.rates) if self.samples else float("nan")

    def over(self, other: Row | None) -> float:
        """The median of how many times faster this row was than another in the same round; NaN if one is missing."""
        if other is None or self.why or other.why or not self.samples:
            return float("nan")
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=True))


def measure(rows: Sequence[Row], rounds: int) -> None:
    """Run all rows once a round, in turn. A row whose peer fails is left out from then on, and says why."""
    for number in range(rounds + 1):
        for row in rows:
            if row.why:
                continue
            try:
                if number == 0:
                    row.warm_up()
                    continue
                time.sleep(PAUSE)
                sample = row.run()
            except PeerError as error:
                row.samples, row.why = [], str(error)
                progress(f"{row.label}: missing: {error}")
                continue
            row.samples.append(sample)
            progress(f"round {number}/{rounds}  {row.label}: {sample.seconds:.2f} s")


def timed(work: Callable[[], float]) -> Sample:
    """Time a function that returns the amount it did."""
    start = time.perf_counter()
    amount = work()
    return Sample(time.perf_counter() - start, amount)


def progress(message: str) -> None:
    """Tell whoever waits; tables alone go to standard output."""
    print(message, file=sys.stderr, flush=True)


# Processes


class Peers:
    """Processes to measure, each started when it is first called. One that does not start is missing in all its rows.

    stack: ends the processes when it closes. threads: of each.
    """

    def __init__(self, stack: ExitStack, threads: int) -> None:
        self._stack = stack
        self._threads = threads
        self._how: dict[str, tuple[Path | str | None, str, dict[str, Any]]] = {}
        self._started: dict[str, Peer | PeerError] = {}

    def add(self, name: str, interpreter: Path | str | None, module: str, **options: Any) -> None:
        """Say how to start a worker of benchmarks/peers. interpreter: None if the user gave none."""
        self._how[name] = (interpreter, f"benchmarks.peers.{module}", options)

    def call(self, name: str, job: str, **arguments: Any) -> dict[str, Any]:
        """Run a job. Raises PeerError if the process is missing or the job fails."""
        if name not in self._started:
            self._started[name] = self._start(name)
        peer = self._started[name]
        if isinstance(peer, PeerError):
            raise peer
        return peer.call(job, **arguments)

    def _start(self, name: str) -> Peer | PeerError:
        interpreter, module, options = self._how[name]
        if interpreter is None:
            return PeerError(f"not given: --{name}")
        progress(f"starting {name}")
        try:
            peer = Peer(interpreter, module, threads=self._threads, **options)
        except PeerError as error:
            return error
        self._stack.callback(peer.close)
        return peer

    def row(self, name: str, label: str, job: str, warm_up: Mapping[str, Any], **arguments: Any) -> Row:
        """A row that is one job. warm_up: arguments that differ in the untimed call before the rounds."""

        def run() -> Sample:
            answer = self.call(name, job, **arguments)
            return Sample(answer["seconds"], answer["amount"])

        return Row(label, run, lambda: self.call(name, job, **{**arguments, **warm_up}))

    def print_facts(self) -> None:
        """Print what each process that was started says of itself, or why it is missing."""
        for name, peer in self._started.items():
            print(f"{name}: {peer.facts['facts'] if isinstance(peer, Peer) else f'missing: {peer}'}")


# Tables


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(f"| {' | '.join(headers)} |")
    print(f"|{' --- |' * len(headers)}")
    for row in rows:
        print(f"| {' | '.join([*row, *[''] * (len(headers) - len(row))])} |")
    sys.stdout.flush()


def rate_cells(row: Row) -> list[str]:
    """Median, and smallest and largest rate of a row; of a missing one, why."""
    if row.why:
        return [f"missing: {row.why}", ""]
    return [number(row.rate), f"{number(min(row.rates))} - {number(max(row.rates))}"]


def number(value: float) -> str:
    """Three digits at least, a dash for NaN."""
    if np.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """How many times, a dash for NaN."""
    return "-" if np.isnan(value) else f"{value:.2f}"


# The machine


def machine(threads: int) -> str:
    """Processor, its instructions for small floats, cores, versions, threads."""
    model, flags = platform.processor() or platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line]
        facts = {name.strip(): value.strip() for name, value in lines}
        family = f"family {facts.get('cpu family', '?')} model {facts.get('model', '?')}"
        model, flags = f"{facts.get('model name', model)} ({family})", facts.get("flags", "")
    known = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if flag in flags.split()]
    return (
        f"{model}, {os.cpu_count()} cores, {' '.join(known) or 'instructions unknown'}; {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}; {threads} threads"
    )


def set_threads(threads: int) -> None:
    """Fix the number of threads in this process."""
    torch.set_num_threads(threads)


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB (10**6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
