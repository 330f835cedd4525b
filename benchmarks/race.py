"""Perplexity by training time: ours against bilm-tf, the same size of model, vocabulary, text, machine and wall time.

python -m benchmarks.race --bilm VENV/bin/python --raw "texts/*.txt.xz" --dev dev.txt --output training/race

Ours is ``elmo pretrain`` with a config as it is. bilm-tf has the recipe of its own training script: Adagrad at 0.2, 128
rows of 20 steps that carry their state, 8,192 negatives, dropout 0.1, clipping; and the config's cells, projection,
filters, highways and vocabulary. They train in turn, ``--slice`` minutes each, until ours is done and bilm-tf has had
as long. Time is that of training steps alone: no start, no reading of text, no evaluation.

Both are scored by our evaluator: the perplexity of the whole dev text by the full softmax, each sentence by itself. It
starts from zero, which only ours was trained for; so bilm-tf, of which TensorFlow's checkpoint is read, is also scored
from the mean of the states in which its training stands, and on running text whose rows go on from these states, as it
trains. What counts is the best of the three. (States that are made anew, by reading text from zero, will not do: cells
that saturate keep for ever what they began with.)

``--dev-words`` scores a sample from all over the text, for a race with less time between its turns. Everything is kept
in ``--output``; a race that was stopped goes on.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import srsly
import torch
from thinc.api import Config

from spacy_elmo import BiLM
from spacy_elmo.bilm.characters import character_ids
from spacy_elmo.bilm.model import BiLMState
from spacy_elmo.bilm.output_layer import OutputLayer
from spacy_elmo.pretraining.config import Settings, load_config, resolve
from spacy_elmo.pretraining.corpus import EncodedCorpus
from spacy_elmo.pretraining.measure import output_layer
from spacy_elmo.pretraining.perplexity import perplexity
from spacy_elmo.pretraining.prepare import Corpora, dev_sentences, prepare_corpora
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.pretraining.warm import with_start_state
from spacy_elmo.weights import recognised, save_vocabulary

from .common import existing, machine, parser_for, positive, progress, set_threads, table
from .peers.protocol import Peer

# bilm-tf's own, of its training script.
ROWS, UNROLL, NEGATIVES, DROPOUT, CLIP_NORM = 128, 20, 8192, 0.1, 10.0
# Windows of bilm-tf that are written at once: 16 MB a step.
WINDOWS = 60
OURS, BILM = "ours", "bilm-tf"
ALL = 10**9  # words

Entry = dict[str, Any]


class Ours:
    """``elmo pretrain`` in a process, stopped and resumed at slices."""

    def __init__(self, config: Config, folder: Path, evaluations: int, dev_words: int) -> None:
        self.folder = folder
        settings, _ = resolve(config)
        self.tokens = settings.training.step_rows * settings.training.unroll_steps
        self.max_steps = settings.training.max_steps
        every = math.ceil(self.max_steps / evaluations)
        training = {
            **config["training"],
            "eval_frequency": every,
            "eval_tokens": dev_words,
            "checkpoint_frequency": every,
        }
        logger = {"@loggers": "spacy-elmo.jsonl_logger.v1", "path": str(folder / "log.jsonl")}
        folder.mkdir(parents=True, exist_ok=True)
        Config({**config, "training": training, "logger": logger}).to_disk(folder / "ours.cfg")

    def entries(self) -> list[Entry]:
        """What was measured so far."""
        path = self.folder / "log.jsonl"
        lines = {entry["step"]: entry for entry in srsly.read_jsonl(path)} if path.exists() else {}
        return [
            {"seconds": entry["seconds"], "tokens": step * self.tokens, "perplexity": entry["joint_perplexity"]}
            for step, entry in sorted(lines.items())
            if step
        ]

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        entries = self.entries()
        return bool(entries) and entries[-1]["tokens"] >= self.max_steps * self.tokens

    def train(self, seconds: float) -> None:
        """Go on for about so long."""
        command = [sys.executable, "-m", "spacy", "elmo", "pretrain", str(self.folder / "ours.cfg")]
        losses = self.folder / "run" / "losses.jsonl"
        before = losses.stat().st_size if losses.exists() else 0
        with (self.folder / "output.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, str(self.folder / "run"), "--resume"], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            start: float | None = None
            while process.poll() is None and (start is None or time.monotonic() - start < seconds):
                time.sleep(0.5)
                if start is None and losses.exists() and losses.stat().st_size != before:
                    start = time.monotonic()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            if process.wait():
                raise SystemExit(f"elmo pretrain failed: see {self.folder / 'output.log'}")


class Rival:
    """bilm-tf in a process of its own environment."""

    def __init__(
        self, interpreter: Path, settings: Settings, corpora: Corpora, folder: Path, threads: int, dev_words: int
    ) -> None:
        self.folder, self.corpora, self.dev_words = folder, corpora, dev_words
        self.config = settings.bilm_config(len(corpora.vocabulary))
        options = replace(self.config, state="zero").to_options()
        options["char_cnn"]["n_characters"] = 261
        options |= {
            "dropout": DROPOUT,
            "all_clip_norm_val": CLIP_NORM,
            "batch_size": ROWS,
            "unroll_steps": UNROLL,
            "n_tokens_vocab": len(corpora.vocabulary),
            "n_negative_samples_batch": NEGATIVES,
        }
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "options.json").write_text(json.dumps(options))
        save_vocabulary(corpora.vocabulary.words, self.checkpoint / "vocabulary.txt")
        self.peer = Peer(interpreter, "benchmarks.peers.bilm_worker", threads=threads, models={"model": options})
        self.stream = Stream(corpora.train, corpora.vocabulary, rows=ROWS, unroll_steps=UNROLL, seed=0)
        path = folder / "entries.json"
        self.entries: list[Entry] = srsly.read_json(path) if path.exists() else []

    @property
    def seconds(self) -> float:
        """Training time so far."""
        return float(self.entries[-1]["seconds"]) if self.entries else 0.0

    def train(self, seconds: float) -> None:
        """Go on for so long, and score what came of it."""
        step = self.entries[-1]["tokens"] // (ROWS * UNROLL) if self.entries else 0
        spent = 0.0
        while spent < seconds:
            windows = self._write_windows(step)
            answer = self.peer.call(
                "train_for",
                model="model",
                windows=str(windows),
                seconds=seconds - spent,
                folder=str(self.checkpoint),
                step=step,
                keep_from=step,
            )
            step, spent = answer["step"], spent + answer["seconds"]
            windows.unlink()
            progress(f"{BILM}: step {step}, {self.seconds + spent:.0f} s, sampled loss {answer['losses'][-1]:.3f}")
        entry = {"seconds": self.seconds + spent, "tokens": step * ROWS * UNROLL, **self._scores(step)}
        self.entries.append(entry)
        srsly.write_json(self.folder / "entries.json", self.entries)

    def _write_windows(self, step: int) -> Path:
        words, columns = self.corpora.train.types, self.config.max_characters_per_token
        characters, targets = [], []
        for number in range(step, step + WINDOWS):
            window = self.stream.window(number)
            ids = character_ids([words[row] for row in window.type_rows.tolist()], columns).astype(np.uint16)
            characters.append(ids[np.stack([window.forward, window.backward])])
            targets.append(np.stack([window.forward_targets, window.backward_targets]).astype(np.int32))
        path = self.folder / "windows.npz"
        np.savez(path, characters=np.stack(characters), targets=np.stack(targets))
        return path

    def _scores(self, step: int) -> Entry:
        with recognised(self.checkpoint) as found:
            bilm = found.load()
            softmax, words = output_layer(self.checkpoint, found, bilm)
        dev = self.corpora.dev
        sentences = dev_sentences(dev, self.dev_words)
        states = read_states(self.checkpoint / f"states-{step}.npz")
        warm = with_start_state(bilm, {name: state.mean(dim=1) for name, state in states.tensors().items()})
        scores = {
            "from_zero": perplexity(bilm, softmax, words, sentences).joint,
            "from_mean_state": perplexity(warm, softmax, words, sentences).joint,
            "carried": carried_perplexity(bilm, softmax, Vocabulary(words), dev, states, self.dev_words),
        }
        return {**scores, "perplexity": min(scores.values())}


def read_states(path: Path) -> BiLMState:
    """Where bilm-tf's training stands: of each direction and layer the cells, (B, H), then the outputs, (B, P)."""
    with np.load(path) as file:
        arrays = [torch.from_numpy(file[f"arr_{number}"]) for number in range(len(file.files))]
    half = len(arrays) // 2
    ahead, behind = arrays[:half], arrays[half:]
    return BiLMState(
        forward_hidden=torch.stack(ahead[1::2]),
        forward_cell=torch.stack(ahead[::2]),
        backward_hidden=torch.stack(behind[1::2]),
        backward_cell=torch.stack(behind[::2]),
    )


@torch.no_grad()
def carried_perplexity(
    bilm: BiLM,
    softmax: OutputLayer,
    vocabulary: Vocabulary,
    corpus: EncodedCorpus,
    states: BiLMState,
    words: int = ALL,
) -> float:
    """The joint perplexity of a corpus read as bilm-tf trains: 16 rows of running text, the state carried on.

    states: of 16 rows or more, the first of which go on from there. words: about so many are read, from 16 places.
    """
    stream = Stream(corpus, vocabulary, rows=16, unroll_steps=UNROLL, seed=0)
    state, total, n = states.rows(slice(stream.rows)), 0.0, 0
    for step in range(min(stream.steps_per_epoch, math.ceil(words / (stream.rows * UNROLL)))):
        window = stream.window(step)
        ids = bilm.token_ids([corpus.types[row] for row in window.type_rows.tolist()])
        forward, backward = torch.from_numpy(window.forward), torch.from_numpy(window.backward)
        ahead, behind, state = bilm.hidden(ids, forward, backward, state)
        for top, targets in zip((ahead, behind), (window.forward_targets, window.backward_targets), strict=True):
            losses = softmax.target_losses(top.flatten(0, 1), torch.from_numpy(targets).flatten())
            total, n = total + float(losses.double().sum()), n + len(losses)
    return math.exp(total / n)


def reached(entries: Sequence[Entry], wanted: float) -> float | None:
    """Seconds until a perplexity was reached, between two measurements by its logarithm. None: never."""
    before: Entry | None = None
    for entry in entries:
        if entry["perplexity"] <= wanted:
            if before is None:
                return float(entry["seconds"])
            high, low, at = (math.log(value) for value in (before["perplexity"], entry["perplexity"], wanted))
            share = (high - at) / (high - low)
            return float(before["seconds"] + share * (entry["seconds"] - before["seconds"]))
        before = entry
    return None


def report(ours: Sequence[Entry], bilm: Sequence[Entry]) -> None:
    """The tables."""
    rows = [[OURS, f"{e['seconds'] / 60:.1f}", f"{e['tokens']:,}", f"{e['perplexity']:,.1f}"] for e in ours]
    for entry in bilm:
        parts = [f"{entry[name]:,.1f}" for name in ("from_zero", "from_mean_state", "carried")]
        cells = [f"{entry['seconds'] / 60:.1f}", f"{entry['tokens']:,}", f"{entry['perplexity']:,.1f}"]
        rows.append([BILM, *cells, *parts])
    headers = ["", "minutes", "tokens", "dev perplexity", "each sentence from zero", "from its mean state", "carried"]
    table(headers, rows)
    if ours and bilm:
        final = bilm[-1]
        when = reached(ours, final["perplexity"])
        how = "never" if when is None else f"in {when / 60:.1f} minutes: {when / final['seconds']:.3f} of its time"
        print(f"\nbilm-tf's {final['perplexity']:,.1f} of {final['seconds'] / 60:.1f} minutes is reached {how}")


def plot(ours: Sequence[Entry], bilm: Sequence[Entry], path: Path) -> None:
    """Both curves as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, entries in ((OURS, ours), (BILM, bilm)):
        minutes = [entry["seconds"] / 60 for entry in entries]
        axes.plot(minutes, [entry["perplexity"] for entry in entries], marker="o", markersize=3, label=name)
    axes.set(xlabel="minutes of training", ylabel="dev perplexity (full softmax)", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Race, then print the tables."""
    parser = parser_for(__doc__, rounds=0)
    parser.add_argument("--bilm", type=Path, help="Python of an environment with TensorFlow and bilm")
    parser.add_argument("--config", type=existing, default=Path("configs/pretrain-small.cfg"), help="of ours")
    parser.add_argument("--raw", required=True, help="text to train on, as for `elmo pretrain --paths.raw`")
    parser.add_argument("--dev", required=True, help="text to measure on")
    parser.add_argument("--output", type=Path, required=True, help="folder of everything that is kept")
    parser.add_argument("--max-steps", type=positive, help="of ours, in place of the config's")
    parser.add_argument("--slice", type=float, default=10.0, help="minutes of a turn (default: %(default)s)")
    parser.add_argument("--evaluations", type=positive, default=24, help="of ours (default: %(default)s)")
    parser.add_argument("--dev-words", type=positive, default=ALL, help="of the dev text (default: all)")
    parser.add_argument("--plot", type=Path, help="write the curves to this file (.svg, .png)")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # its processes are to end with it
    print(f"{machine(args.threads)}\n", flush=True)
    paths = {"paths.raw": args.raw, "paths.dev": args.dev, "paths.cache": str(args.output / "corpus")}
    steps = {"training.max_steps": args.max_steps} if args.max_steps else {}
    config = load_config(args.config, {**paths, "training.threads": args.threads, **steps})
    settings, filled = resolve(config)
    corpora = prepare_corpora(settings, filled)
    ours = Ours(config, args.output / OURS, args.evaluations, args.dev_words)
    bilm: list[Entry] = []
    with ExitStack() as stack:
        rival: Rival | None = None
        if args.bilm is not None:
            rival = Rival(args.bilm, settings, corpora, args.output / BILM, args.threads, args.dev_words)
            stack.callback(rival.peer.close)
        while True:
            if not ours.done:
                ours.train(args.slice * 60)
            time_of_ours = ours.entries()[-1]["seconds"] if ours.entries() else 0.0
            if rival is not None and (not ours.done or rival.seconds < time_of_ours - 1):
                left = time_of_ours - rival.seconds if ours.done else math.inf
                rival.train(min(args.slice * 60, left))
                bilm = rival.entries
            elif ours.done:
                break
    report(ours.entries(), bilm)
    if args.plot:
        plot(ours.entries(), bilm, args.plot)


if __name__ == "__main__":
    main()
