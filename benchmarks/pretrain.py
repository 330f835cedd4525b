"""How fast is pretraining? Tokens a second of a step of ours and of bilm on TensorFlow.

python -m benchmarks.pretrain --bilm VENV/bin/python

bilm-tf's options: 128 rows of 20 steps, 8,192 negatives, dropout 0.1, clipping, Adagrad, 2,048 filters, 2 highways, 2
layers. The text is made up, with Wikipedia's variety of words; ours and bilm read the same windows. bilm runs in a
process of its own. All rows run in turn, some steps each; those before the first round are not counted. The last column
is the share of a step's time that making its window takes. "oneDNN" is training.onednn of the config.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spacy_elmo.bilm.characters import character_ids
from spacy_elmo.pretraining.config import TrainingSettings
from spacy_elmo.pretraining.corpus import EncodedCorpus

from .common import Peers, Row, machine, measure, parser_for, rate_cells, ratio, set_threads, table
from .training import MODES, TRAINING_SIZES, UNROLL, Training, add_training_options, corpus_for

# The mode in which vocabularies are compared: what does not depend on them takes the least time.
FASTEST = "float32, oneDNN"
# Windows that bilm goes round: more would only take memory, since its speed does not depend on the words.
PEER_WINDOWS = 8


@dataclass(frozen=True)
class Key:
    """What a row measures."""

    size: str
    program: str
    n_vocabulary: int


def bilm_options(args: argparse.Namespace, size: str) -> dict[str, Any]:
    """What bilm-tf's training reads, for the first vocabulary."""
    options = TRAINING_SIZES[size].to_options()
    options["char_cnn"]["n_characters"] = 261
    return {
        **options,
        "dropout": TrainingSettings().dropout,
        "all_clip_norm_val": TrainingSettings().clip_norm,
        "batch_size": args.batch,
        "unroll_steps": UNROLL,
        "n_tokens_vocab": args.vocabulary[0],
        "n_negative_samples_batch": args.negatives,
    }


def write_windows(training: Training, path: Path) -> Path:
    """The first windows as bilm reads them: characters of every word, and targets."""
    words = training.corpus.types
    columns = training.config.max_characters_per_token
    characters, targets = [], []
    for step in range(PEER_WINDOWS):
        window = training.stream.window(step)
        ids = character_ids([words[row] for row in window.type_rows], columns).astype(np.uint16)
        characters.append(ids[np.stack([window.forward, window.backward])])
        targets.append(np.stack([window.forward_targets, window.backward_targets]).astype(np.int32))
    np.savez(path, characters=np.stack(characters), targets=np.stack(targets))
    return path


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds, print the tables."""
    parser = parser_for(__doc__)
    sizes = ["1024/128", "2048/256"]
    add_training_options(parser, sizes=sizes, vocabulary=[50_000, 800_000], size_option="--size")
    parser.add_argument("--bilm", type=Path, help="Python of an environment with TensorFlow and bilm")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(machine(args.threads))
    base = args.vocabulary[0]
    trainings = trainings_for(args, corpus_for(args))
    first = next(iter(trainings.values()))
    types = statistics.mean(len(first.stream.window(step).type_rows) for step in range(PEER_WINDOWS))
    print(
        f"{args.batch} rows of {UNROLL} steps, {args.negatives:,} negatives; {types:,.0f} word types a step; "
        f"medians of {args.rounds} rounds of {args.steps} steps\n"
    )
    rows = {
        key: Row(
            f"{key.size}, V {key.n_vocabulary:,}, {key.program}",
            partial(training.run, args.steps),
            partial(training.run, 2),
        )
        for key, training in trainings.items()
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        windows = write_windows(first, folder / "windows.npz")
        models = {size: bilm_options(args, size) for size in args.training_size}
        peers = Peers(stack, args.threads)
        peers.add("bilm", args.bilm, "bilm_worker", models=models, windows=str(windows))
        for size in args.training_size:
            key = Key(size, "bilm, TensorFlow", base)
            label = f"{size}, {key.program}"
            rows[key] = peers.row("bilm", label, "train", {"steps": 2}, model=size, steps=args.steps)
        measure(list(rows.values()), args.rounds)
        print_rows(rows, trainings, base)
        print()
        for size in args.training_size:
            print(f"loss of ours, {size}: {losses_of(trainings[Key(size, next(iter(MODES)), base)].losses)}")
        peers.print_facts()


def trainings_for(args: argparse.Namespace, corpus: EncodedCorpus) -> dict[Key, Training]:
    """Every mode at the first vocabulary, the fastest also at the others."""
    base = args.vocabulary[0]
    keys = [
        Key(size, mode, n_vocabulary)
        for size in args.training_size
        for n_vocabulary in args.vocabulary
        for mode in (MODES if n_vocabulary == base else [FASTEST])
    ]
    return {key: Training(args, corpus, size=key.size, n_vocabulary=key.n_vocabulary, mode=key.program) for key in keys}


def print_rows(rows: dict[Key, Row], trainings: dict[Key, Training], base: int) -> None:
    """Speed, against bilm, against the first vocabulary, and the share of the input pipeline."""
    headers = ["size", "V", "step", "tokens/s", "min - max", "÷ bilm", f"cost ÷ at V = {base:,}", "input pipeline"]
    cells = []
    for key, row in rows.items():
        shares = trainings[key].input_shares if key in trainings else []
        at_base = rows[Key(key.size, key.program, base)]
        cells.append(
            [
                key.size,
                f"{key.n_vocabulary:,}",
                key.program,
                *rate_cells(row),
                ratio(row.over(rows[Key(key.size, "bilm, TensorFlow", base)])),
                "" if at_base is row else ratio(at_base.over(row)),
                f"{statistics.median(shares):.1%}" if shares else "",
            ]
        )
    table(headers, cells)


def losses_of(losses: Sequence[float]) -> str:
    """First and last loss: whether it trains."""
    return f"{losses[0]:.2f} at step 1, {losses[-1]:.2f} at step {len(losses)}"


if __name__ == "__main__":
    main()
