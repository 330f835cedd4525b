"""Does memory stay flat? Resident memory while `nlp.pipe` annotates sentence after sentence in one process.

python -m benchmarks.rss --sentences 100000
python -m benchmarks.rss --model en

The text goes on and on with new words, as Wikipedia does, so that what is remembered of words would show. Each size has
a process of its own. Memory is in MB (10**6 bytes).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from spacy_elmo.bilm.matmul import PRECISIONS

from .common import WIKIPEDIA, Peers, add_sizes, machine, number, parser_for, table
from .peers.protocol import PeerError

# Shares of all sentences after which memory is read.
MARKS = (0.0, 0.1, 0.25, 0.5, 1.0)


def main(argv: Sequence[str] | None = None) -> None:
    """Annotate with each size, print the table."""
    parser = parser_for(__doc__, rounds=0)
    add_sizes(parser)
    parser.add_argument("--model", help="name or path of weights, in place of random ones of each size")
    parser.add_argument("--sentences", type=int, default=100_000, help="number of them (default: %(default)s)")
    parser.add_argument("--types", type=int, default=WIKIPEDIA.n_types, help="of words (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    args = parser.parse_args(argv)
    print(f"{machine(args.threads)}\n")
    rows = []
    with ExitStack() as stack:
        peers = Peers(stack, args.threads)
        for size in args.size if args.model is None else [args.model]:
            peers.add(
                size,
                sys.executable,
                "annotate_worker",
                size=size,
                precision=args.precision,
                types=args.types,
                batch_size=max(1, min(1000, args.sentences // 100)),  # memory is read between batches
                seed=args.seed,
                model=args.model,
            )
            done = 0
            for mark in MARKS:
                more = round(mark * args.sentences) - done
                try:
                    answer = peers.call(size, "annotate", sentences=more)
                except PeerError as error:
                    rows.append([size, f"missing: {error}"])
                    break
                done += more
                speed = number(answer["amount"] / answer["seconds"]) if more else ""
                rows.append([size, f"{done:,}", number(answer["resident"]), number(answer["peak"]), speed])
    table([f"biLM, {args.precision}", "sentences", "resident MB", "peak MB", "words/s since the row before"], rows)


if __name__ == "__main__":
    main()
