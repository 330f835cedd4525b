"""What does speed depend on? Sentence length, sentences a call, threads, size of the corpus, vocabulary of training.

python -m benchmarks.scaling --size original small

The last column is the cost of a word (of a token of a training step) against the first row of its section. No word is
known before a row begins; within a row words are remembered from call to call.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from spacy_elmo import BiLM
from spacy_elmo.bilm.matmul import PRECISIONS

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
    parser_for,
    positive,
    rate_cells,
    ratio,
    sentences_for,
    set_threads,
    table,
    timed,
)
from .training import Training, add_training_options, corpus_for

LENGTHS = (5, 10, 20, 40, 80, 160, 320)
CALLS = (1, 4, 16, 64, 256, 1024)


def encoding(bilm: BiLM, args: argparse.Namespace, sentences: Sentences, *, call: int, threads: int) -> Row:
    """Encode sentences, so many a call, with so many threads."""

    def encode(some: Sentences) -> int:
        for start in range(0, len(some), call):
            bilm.encode(some[start : start + call], precision=args.precision)
        return n_words(some)

    def run() -> Sample:
        bilm.forget_words()
        torch.set_num_threads(threads)
        try:
            return timed(lambda: encode(sentences))
        finally:
            set_threads(args.threads)

    return Row("", run, lambda: encode(sentences[:8]))


def of_length(sentences: Sentences, length: int) -> Sentences:
    """The same running words in sentences of one length."""
    words = [word for sentence in sentences for word in sentence]
    return [words[start : start + length] for start in range(0, len(words) - length + 1, length)]


def encode_sections(bilm: BiLM, args: argparse.Namespace, sentences: Sentences) -> Iterator[tuple[str, str, Row]]:
    """Section, value, row."""
    base = {"call": len(sentences), "threads": args.threads}
    fewer = sentences[: args.fewer]

    def row(some: Sentences, **changes: int) -> Row:
        return encoding(bilm, args, some, **{**base, **changes})

    for length in (length for length in LENGTHS if length <= n_words(fewer)):
        yield "words a sentence", f"{length:,}", row(of_length(fewer, length))
    for call in CALLS:
        yield "sentences a call", f"{call:,}", row(fewer, call=call)
    for threads in sorted({1, args.threads}):
        yield "threads", f"{threads}", row(fewer, threads=threads)
    for count in sorted({max(1, len(sentences) // 10), len(sentences)}):
        yield "sentences in all", f"{count:,}", row(sentences[:count])


def training_row(training: Training, steps: int) -> Row:
    """Train for some steps."""
    return Row("", lambda: training.run(steps), lambda: training.run(1))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the sections, print one table."""
    parser = parser_for(__doc__)
    add_text_options(parser, 10_000)
    add_sizes(parser)
    parser.add_argument("--fewer", type=positive, default=1000, help="sentences, but for the last section of a size")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    add_training_options(parser, sizes=["1024/128"], vocabulary=[50_000, 200_000, 800_000])
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(machine(args.threads))
    sentences = sentences_for(args)
    print(f"{described(sentences)}; medians of {args.rounds} rounds; {args.precision}\n")
    sections: dict[tuple[str, str], list[tuple[str, Row]]] = {}

    def add(what: str, section: str, value: str, row: Row) -> None:
        row.label = f"{what}, {section}: {value}"
        sections.setdefault((what, section), []).append((value, row))

    for size in args.size:
        bilm = BiLM(SIZES[size]).initialize(args.seed)
        for section, value, row in encode_sections(bilm, args, sentences):
            add(f"encode, {size}", section, value, row)
    if args.training_size:
        corpus = corpus_for(args)
    for size in args.training_size:
        for n_vocabulary in args.vocabulary:
            training = Training(args, corpus, size=size, n_vocabulary=n_vocabulary, mode="float32")
            add(f"training step, {size}", "vocabulary", f"{n_vocabulary:,}", training_row(training, args.steps))
    for rows in sections.values():  # rounds within a section: what is compared runs close together
        measure([row for _, row in rows], args.rounds)
    table(
        ["", "", "", "words/s", "min - max", "cost ÷ first"],
        (
            [what, section, value, *rate_cells(row), ratio(rows[0][1].over(row))]
            for (what, section), rows in sections.items()
            for value, row in rows
        ),
    )


if __name__ == "__main__":
    main()
