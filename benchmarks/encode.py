"""How fast are sentences encoded? Words a second of ours, AllenNLP's ELMo, torch.nn.LSTM and transformers.

python -m benchmarks.encode --allennlp VENV/bin/python --transformers VENV/bin/python

Each program is a process of its own, which waits while another one works; in every round each row runs once. Weights
are random: speed does not depend on them. Words are counted without boundaries. "Cold": no word was seen before the
row began; "warm": all were. Batches of the others hold 64 sentences. Slow peers get fewer sentences, of the same spread
of lengths. How each peer's environment is made is said in benchmarks/peers.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spacy_elmo import BiLM
from spacy_elmo.bilm.matmul import PRECISIONS
from spacy_elmo.weights import save_bilm_hdf5

from .common import (
    SIZES,
    Peers,
    Row,
    Sentences,
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
)
from .peers.protocol import PeerError
from .peers.texts import write_text

# Parts of ours that can be switched off, and by which environment variables.
VARIANTS: dict[str, dict[str, str]] = {
    "ours": {},
    "ours, not compiled": {"SPACY_ELMO_COMPILED": "0"},
    "ours, not compiled, no oneDNN op": {"SPACY_ELMO_COMPILED": "0", "SPACY_ELMO_ONEDNN": "0"},
}
BATCH = 64


@dataclass(frozen=True)
class Key:
    """What a row measures: whose program, at which size of the biLM ("" for transformers), and how."""

    program: str
    size: str
    how: str
    one_by_one: bool = False


def rows_of(peers: Peers, sizes: Sequence[str], transformers: Sequence[str]) -> dict[Key, Row]:
    """All rows, in the order of the tables."""
    rows: dict[Key, Row] = {}

    def add(name: str, key: Key, text: str, **arguments: Any) -> None:
        label = ", ".join(filter(None, (key.size, key.program, key.how, "one by one" if key.one_by_one else "")))
        rows[key] = peers.row(name, label, "encode", {"text": "few"}, text=text, **arguments)

    for size in sizes:
        for name in VARIANTS:
            for precision in PRECISIONS:
                for cold in (True, False) if name == "ours" else (True,):
                    key = Key(name, size, f"{precision}, {'cold' if cold else 'warm'}")
                    add(name, key, "all", size=size, precision=precision, cold=cold)
        for how, by_length in (("as they come", False), ("sorted first", True)):
            add("allennlp", Key("AllenNLP", size, how), "fewer", size=size, batch_size=BATCH, by_length=by_length)
        add("lstm", Key("torch.nn.LSTM alone", size, "sorted first"), "fewer", size=size, batch_size=BATCH)
    for model in transformers:
        for precision, switch in (("float32", False), ("float32", True), ("bfloat16", False)):
            how = f"{precision}{', oneDNN switch' if switch else ''}, sorted first"
            key = Key(f"{model}-size transformer", "", how)
            add("transformers", key, "fewer", size=model, batch_size=BATCH, precision=precision, switch=switch)
    # One at a time.
    for size in sizes:
        for name in ("ours", "ours, not compiled"):
            for precision in PRECISIONS:
                key = Key(name, size, f"{precision}, cold", True)
                add(name, key, "alone", size=size, precision=precision, cold=True, one_by_one=True)
        add("allennlp", Key("AllenNLP", size, "", True), "alone", size=size, batch_size=1, by_length=False)
    for model in transformers:
        key = Key(f"{model}-size transformer", "", "float32", True)
        add("transformers", key, "alone", size=model, batch_size=1, precision="float32")
    return rows


def print_rows(rows: Mapping[Key, Row], sentences: Mapping[str, Sentences], transformers: Sequence[str]) -> None:
    """Two tables: sentences together, and one by one."""

    def over(row: Row, *key: Any) -> str:
        baseline = rows.get(Key(*key))
        return "-" if baseline is row else ratio(row.over(baseline))

    def name(key: Key) -> str:
        return ", ".join(filter(None, (key.program, key.how)))

    all_sizes = f"{len(sentences['all']):,}, AllenNLP, LSTM and transformers {len(sentences['fewer']):,}"
    first = f"{transformers[0]}-size transformer" if transformers else ""
    together = ["biLM", f"sentences together ({all_sizes})", "words/s", "min - max"]
    together += ["÷ AllenNLP", "÷ AllenNLP sorted", f"÷ {first or 'transformer'}"]
    table(
        together,
        (
            [
                key.size,
                name(key),
                *rate_cells(row),
                over(row, "AllenNLP", key.size, "as they come"),
                over(row, "AllenNLP", key.size, "sorted first"),
                over(row, first, "", "float32, sorted first"),
            ]
            for key, row in rows.items()
            if not key.one_by_one
        ),
    )
    print()
    alone = len(sentences["alone"])
    headers = ["biLM", f"one by one ({alone:,} sentences)", "words/s", "min - max", "ms a sentence", "÷ AllenNLP"]
    table(
        headers,
        (
            [
                key.size,
                name(key),
                *rate_cells(row),
                number(1000 * row.samples[0].amount / row.rate / alone) if row.samples else "",
                over(row, "AllenNLP", key.size, "", True),
            ]
            for key, row in rows.items()
            if key.one_by_one
        ),
    )


def print_agreement(peers: Peers, sizes: Sequence[str], folder: Path) -> None:
    """Whether all compute the same: largest and mean difference of vectors."""

    def vectors(name: str, size: str, **arguments: Any) -> np.ndarray:
        path = folder / "vectors.npz"
        peers.call(name, "vectors", size=size, text="few", path=str(path), **arguments)
        with np.load(path) as file:
            return np.concatenate([file[array].reshape(-1) for array in file.files])

    def compared(size: str, name: str, **arguments: Any) -> list[str]:
        label = ", ".join([name, *arguments.values()])
        try:
            ours = vectors("ours", size, precision="float32")
            differences = np.abs(vectors(name, size, **arguments) - ours)
        except PeerError as error:
            return [size, label, f"missing: {error}"]
        figures = (differences.max(), differences.mean(), ours.std())
        return [size, label, *(f"{figure:.1e}" for figure in figures)]

    print()
    others: list[tuple[str, dict[str, Any]]] = [("allennlp", {}), ("ours", {"precision": "bfloat16"})]
    others += [(name, {"precision": precision}) for name in list(VARIANTS)[1:] for precision in PRECISIONS]
    table(
        ["biLM", "vectors against ours float32 (random weights)", "largest difference", "mean", "std of the vectors"],
        [compared(size, name, **arguments) for size in sizes for name, arguments in others],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds, print the tables."""
    parser = parser_for(__doc__)
    add_text_options(parser, 2000)
    add_sizes(parser)
    parser.add_argument("--peer-sentences", type=positive, default=640, help="for slow peers (default: %(default)s)")
    parser.add_argument("--alone", type=positive, default=50, help="sentences one at a time (default: %(default)s)")
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    parser.add_argument("--allennlp", type=Path, help="Python of an environment with AllenNLP")
    parser.add_argument("--transformers", type=Path, help="Python of an environment with transformers")
    parser.add_argument("--transformer-sizes", nargs="*", default=["distilroberta", "MiniLM-L6"])
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(machine(args.threads))
    every = sentences_for(args)
    sentences = {
        "all": every,
        "fewer": spread_by_length(every, args.peer_sentences),
        "alone": spread_by_length(every, args.alone),
        "few": spread_by_length(every, 8),
    }
    print(described(every))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        texts = {name: str(write_text(some, folder / f"{name}.txt")) for name, some in sentences.items()}
        folders = {size: str(folder / size) for size in args.size}
        for size in args.size:
            save_bilm_hdf5(BiLM(SIZES[size]).initialize(args.seed), folders[size])
        peers = processes(args, stack, folders, texts)
        rows = rows_of(peers, args.size, args.transformer_sizes)
        rows = {key: row for key, row in rows.items() if re.search(args.rows, row.label)}
        print(f"medians of {args.rounds} rounds; a ratio is the median of the rounds' ratios\n")
        measure(list(rows.values()), args.rounds)
        print_rows(rows, sentences, args.transformer_sizes)
        print_agreement(peers, args.size, folder)
        print()
        peers.print_facts()


def processes(args: argparse.Namespace, stack: ExitStack, folders: dict[str, str], texts: dict[str, str]) -> Peers:
    """How to start each process."""
    peers = Peers(stack, args.threads)
    here = Path(sys.executable)
    for name, env in VARIANTS.items():
        peers.add(name, here, "ours_worker", env=env, folders=folders, texts=texts)
    peers.add("allennlp", args.allennlp, "allennlp_worker", folders=folders, texts=texts)
    sizes = {size: (SIZES[size].lstm_dim, SIZES[size].projection_dim) for size in args.size}
    peers.add("lstm", here, "lstm_worker", sizes=sizes, texts=texts)
    sizes_of = args.transformer_sizes
    peers.add("transformers", args.transformers, "transformer_worker", sizes=sizes_of, texts=texts)
    return peers


if __name__ == "__main__":
    main()
