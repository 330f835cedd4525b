"""Encoding a large text for pretraining: speed, memory, and whether its windows come as fast as the model reads them.

python -m benchmarks.corpus --tokens 20_000_000

A made-up text of Wikipedia's variety, of so many tokens and of a tenth of them, is encoded by one process and by two;
then one epoch of its windows is read, and some steps are trained on them. Each in a process of its own, whose peak of
resident memory is given in MB (10**6 bytes): beyond what it held when its imports were done, where it says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .common import WIKIPEDIA, machine, number, parser_for, progress, sentence_stream, table
from .peers.protocol import Peer, PeerError
from .training import TRAINING_SIZES, UNROLL

DOCUMENT = 25  # sentences


def write_text(path: Path, tokens: int, types: int, seed: int) -> None:
    """A text of about so many tokens, a sentence a line, documents between blank lines."""
    sentences = sentence_stream(WIKIPEDIA._replace(n_types=types), seed)
    written = 0
    with path.open("w", encoding="utf8") as file:
        while written < tokens:
            document = list(islice(sentences, DOCUMENT))
            written += sum(map(len, document))
            file.write("\n".join(f"{' '.join(words[:-1])}{words[-1]}" for words in document) + "\n\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the texts, encode, feed, train; print the tables."""
    parser = parser_for(__doc__, rounds=0)
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of the text (default: %(default)s)")
    parser.add_argument("--types", type=int, default=3_000_000, help="that it draws from (default: %(default)s)")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2], help="that encode")
    parser.add_argument("--training-size", choices=TRAINING_SIZES, default="1024/128", help="(default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=50_000, help="rows of the softmax (default: %(default)s)")
    parser.add_argument("--negatives", type=int, default=8192, help="of the softmax (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="rows of a window (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of training (default: %(default)s)")
    args = parser.parse_args(argv)
    print(f"{machine(args.threads)}; windows of {args.batch} x {UNROLL}\n")
    characters = TRAINING_SIZES[args.training_size].max_characters_per_token
    built: list[list[str]] = []
    fed: list[list[str]] = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory()))

        def ask(text: Path, folder: Path, job: str, **arguments: Any) -> dict[str, Any]:
            progress(f"{text.name}: {job} {arguments}")
            options = {"text": str(text), "folder": str(folder), "rows": args.batch, "unroll_steps": UNROLL}
            peer = Peer(sys.executable, "benchmarks.peers.corpus_worker", threads=args.threads, **options)
            try:
                return peer.call(job, **arguments)
            finally:
                peer.close()

        for tokens in (args.tokens // 10, args.tokens):
            text = place / f"{tokens}.txt"
            progress(f"{text.name}: write")
            write_text(text, tokens, args.types, args.seed)
            folder = place / "none"
            hashes = set()
            for n_process in args.processes:
                folder = place / f"{tokens}-{n_process}"
                answer = ask(text, folder, "build", n_process=n_process, n_characters=characters)
                hashes.add(answer["hash"])
                built.append(
                    [
                        f"{answer['amount']:,}",
                        f"{answer['types']:,}",
                        str(n_process),
                        number(answer["amount"] / answer["seconds"]),
                        number(answer["peak"]),
                        number(answer["peak"] - answer["before"]),
                        number(answer["children"]),
                        number(answer["disk"]),
                    ]
                )
            if len(hashes) > 1:
                raise PeerError("the numbers of processes gave different corpora")
            answer = ask(text, folder, "feed", max_words=args.vocabulary, n_characters=characters)
            trained = ask(
                text,
                folder,
                "train",
                size=args.training_size,
                max_words=args.vocabulary,
                negatives=args.negatives,
                steps=args.steps,
            )
            feed, train = (one["amount"] / one["seconds"] for one in (answer, trained))
            fed.append(
                [
                    f"{answer['amount']:,}",
                    f"{answer['types']:,}",
                    number(answer["peak"]),
                    number(answer["peak"] - answer["before"]),
                    number(feed),
                    number(train),
                    f"{feed / train:.0f}",
                    f"{trained['share']:.2%}",
                ]
            )
    encoding = [
        "tokens",
        "types",
        "processes",
        "tokens/s",
        "peak MB",
        "beyond imports",
        "peak MB of a child",
        "MB on disk",
    ]
    table(encoding, built)
    print()
    eats = f"{args.training_size} trains, tokens/s"
    table(["tokens", "types", "peak MB", "beyond imports", "feeds, tokens/s", eats, "times", "share of a step"], fed)


if __name__ == "__main__":
    main()
