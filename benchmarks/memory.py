"""How much memory does a long Doc take beyond its own vectors? Peak resident memory of annotating one Doc.

python -m benchmarks.memory --tokens 50000 --size original

The Doc has no punctuation, so it is one sequence to the biLM. Weights are random: memory does not depend on them.
Memory is in MB (10**6 bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import spacy
from spacy.tokens import Doc

from spacy_elmo import BiLM

from .common import SAMPLE, SIZES, machine, number, parser_for, peak_mb, set_threads, spelled, table, timed


def main(argv: Sequence[str] | None = None) -> None:
    """Annotate one Doc and print what it took."""
    parser = parser_for(__doc__, rounds=0)
    parser.add_argument("--tokens", type=int, default=50_000, help="of the Doc (default: %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="original", help="of the biLM (default: %(default)s)")
    parser.add_argument("--max-length", type=int, default=512, help="of a window (default: %(default)s)")
    parser.add_argument("--white-space", action="store_true", help="a white-space token every 20 words")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(f"{machine(args.threads)}; windows of {args.max_length}\n")
    generator = np.random.default_rng(args.seed)
    types = spelled(SAMPLE.n_types, generator)
    words = [types[rank] for rank in SAMPLE.draw(args.tokens, generator).tolist()]
    if args.white_space:
        words[::20] = [" "] * len(words[::20])
    nlp = spacy.blank("en")
    elmo: Any = nlp.add_pipe("elmo", config={"max_length": args.max_length})
    elmo.load_weights(BiLM(SIZES[args.size]).initialize(args.seed))
    nlp("A short text warms up what is made once .")
    doc = Doc(nlp.vocab, words=words)
    before = peak_mb()

    def annotate() -> int:
        elmo(doc)
        return len(doc)

    seconds, tokens = timed(annotate)
    peak, vectors = peak_mb(), doc._.elmo.layers.nbytes / 1e6
    table(
        ["biLM", "tokens", "MB before", "MB at the peak", "MB of vectors", "MB beyond both", "words/s"],
        [[args.size, f"{tokens:,}", *map(number, (before, peak, vectors, peak - before - vectors, tokens / seconds))]],
    )


if __name__ == "__main__":
    main()
