"""How fast are Docs annotated? `nlp.pipe` and `nlp(text)` with `elmo`, with `tok2vec`, with spacy-transformers.

python -m benchmarks.pipeline --transformers VENV/bin/python

A text is a sentence. Weights are random. Words are spaCy's tokens. `elmo` starts each round without having seen a word.
`tok2vec` is spaCy's default, HashEmbedCNN. The share is that of the time which `nlp.pipe` spends inside
`bilm.encode`: what is left are the tokenizer, the way from Docs to words and the way back. spacy-transformers runs in a
process of its own and gets fewer texts, of the same spread of lengths.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language

from spacy_elmo import BiLM
from spacy_elmo.bilm.matmul import PRECISIONS

from .common import (
    SIZES,
    Peers,
    Row,
    add_sizes,
    add_text_options,
    described,
    machine,
    measure,
    number,
    parser_for,
    positive,
    rate_cells,
    ratio,
    sentences_for,
    set_threads,
    spread_by_length,
    table,
    timed,
)
from .peers.texts import write_text


@dataclass
class Pipeline:
    """A pipeline of this process, and how long it spent in `bilm.encode`."""

    nlp: Language
    bilm: BiLM | None = None
    shares: list[float] = field(default_factory=list)
    inside: float = 0.0

    @classmethod
    def with_elmo(cls, bilm: BiLM, precision: str) -> Pipeline:
        """The component alone, with a clock around `encode`."""
        nlp = spacy.blank("en")
        elmo: Any = nlp.add_pipe("elmo", config={"precision": precision})
        elmo.load_weights(bilm)
        pipeline = cls(nlp, bilm)
        encode = bilm.encode

        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return encode(*args, **kwargs)
            finally:
                pipeline.inside += time.perf_counter() - start

        bilm.encode = clocked  # type: ignore[method-assign]
        return pipeline

    @classmethod
    def with_tok2vec(cls) -> Pipeline:
        """spaCy's default `tok2vec`, initialised."""
        nlp = spacy.blank("en")
        nlp.add_pipe("tok2vec")
        nlp.initialize()
        return cls(nlp)

    def row(self, label: str, texts: list[str], few: list[str], *, one_by_one: bool = False) -> Row:
        """A row that annotates texts."""

        def annotate(some: list[str]) -> int:
            if one_by_one:
                return sum(len(self.nlp(text)) for text in some)
            return sum(len(doc) for doc in self.nlp.pipe(some))

        def run() -> Any:
            if self.bilm is not None:
                self.bilm.forget_words()
            self.inside = 0.0
            sample = timed(lambda: annotate(texts))
            if not one_by_one:
                self.shares.append(self.inside / sample.seconds)
            return sample

        return Row(label, run, lambda: annotate(few))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds, print the tables."""
    parser = parser_for(__doc__)
    add_text_options(parser, 10_000)
    add_sizes(parser)
    parser.add_argument("--peer-sentences", type=positive, default=1000, help="for transformers (default: %(default)s)")
    parser.add_argument("--alone", type=positive, default=100, help="texts one at a time (default: %(default)s)")
    parser.add_argument("--transformers", type=Path, help="Python of an environment with spacy-transformers")
    parser.add_argument("--transformer-sizes", nargs="*", default=["distilroberta", "MiniLM-L6"])
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(machine(args.threads))
    sentences = sentences_for(args)
    print(f"{described(sentences)}; medians of {args.rounds} rounds\n")
    parts = {"all": sentences, "fewer": spread_by_length(sentences, args.peer_sentences)}
    parts |= {"alone": spread_by_length(sentences, args.alone), "few": spread_by_length(sentences, 8)}
    lines = {name: [" ".join(words) for words in some] for name, some in parts.items()}

    pipelines = {"tokenizer alone": Pipeline(spacy.blank("en")), "tok2vec": Pipeline.with_tok2vec()}
    for size in args.size:
        for precision in PRECISIONS:
            bilm = BiLM(SIZES[size]).initialize(args.seed)
            pipelines[f"elmo, {size}, {precision}"] = Pipeline.with_elmo(bilm, precision)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        texts = {name: str(write_text(some, folder / f"{name}.txt")) for name, some in parts.items()}
        peers = Peers(stack, args.threads)
        peers.add(
            "transformers",
            args.transformers,
            "spacy_transformer_worker",
            sizes=args.transformer_sizes,
            texts=texts,
            folder=str(folder),
        )
        together = {name: one.row(name, lines["all"], lines["few"]) for name, one in pipelines.items()}
        alone = {
            name: one.row(f"{name}, one by one", lines["alone"], lines["few"], one_by_one=True)
            for name, one in pipelines.items()
        }
        few = {"text": "few"}
        for size in args.transformer_sizes:
            name = f"transformer, {size}-size, float32"
            together[name] = peers.row("transformers", name, "pipe", few, size=size, text="fewer")
            alone[name] = peers.row("transformers", f"{name}, one by one", "one_by_one", few, size=size, text="alone")
        measure([*together.values(), *alone.values()], args.rounds)
        print_tables(pipelines, together, alone, len(parts["alone"]))
        peers.print_facts()


def print_tables(pipelines: dict[str, Pipeline], together: dict[str, Row], alone: dict[str, Row], n_alone: int) -> None:
    """Docs together, and one by one."""
    reference = next((row for name, row in together.items() if name.startswith("transformer,")), None)
    table(
        ["nlp.pipe", "words/s", "min - max", f"÷ {reference.label if reference else 'transformer'}", "share in encode"],
        (
            [
                name,
                *rate_cells(row),
                ratio(row.over(reference)),
                f"{statistics.median(pipelines[name].shares):.1%}" if name.startswith("elmo") else "",
            ]
            for name, row in together.items()
        ),
    )
    print()
    table(
        ["nlp(text)", "words/s", "min - max", "ms a text"],
        (
            [name, *rate_cells(row), number(1000 * row.samples[0].amount / row.rate / n_alone) if row.samples else ""]
            for name, row in alone.items()
        ),
    )
    print()


if __name__ == "__main__":
    main()
