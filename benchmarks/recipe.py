"""Which settings of pretraining give the lowest perplexity in the same wall time? Runs a list of trials.

python -m benchmarks.recipe --trials benchmarks/recipe.jsonl --raw "texts/*.xz" --dev dev.txt --output training/recipe

A trial is a line of JSON: its name, minutes, what it changes of ``--config`` ("set": {"training.rows": 64}; a whole
section may be given, {"objective": {...}}), and a comment. How many tokens a second it trains is measured first, all
trials in turn, each alone with all threads. It is then run by ``elmo pretrain`` for the steps that its minutes hold at
that speed, the schedule fitted to them; so what is measured does not depend on what else the machine does, and
``--at-once 2`` runs may share it. The perplexity is that of the dev text by the full softmax.

Everything is kept in ``--output``; a search that was stopped goes on where it was. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import srsly
from thinc.api import Config

from spacy_elmo.pretraining.config import load_config, resolve
from spacy_elmo.pretraining.distributed import ALONE
from spacy_elmo.pretraining.precision import onednn_products
from spacy_elmo.pretraining.start import make_parts, make_task, read_corpora
from spacy_elmo.pretraining.step import TrainingStep

from .common import existing, machine, parser_for, positive, progress, set_threads, table

Trial = dict[str, Any]
SPEEDS, LOG = "speeds.json", "evaluations.jsonl"


def config_of(trial: Trial, args: argparse.Namespace, **more: Any) -> Config:
    """The trial's config: that of the search, with what it changes."""
    changes: dict[str, Any] = {**trial.get("set", {}), **more}
    paths = {"paths.raw": args.raw, "paths.dev": args.dev, "paths.cache": str(args.output / "corpus")}
    config = load_config(args.config)
    sections = {key: value for key, value in changes.items() if "." not in key}
    overrides = {**paths, **{key: value for key, value in changes.items() if "." in key}}
    # Read again with the overrides, so that paths become readers.
    path = args.output / "trial.cfg"
    Config({**config, **sections}).to_disk(path)
    return load_config(path, overrides)


class Training:
    """A trial in training, to see how fast it is."""

    def __init__(self, config: Config) -> None:
        task, weights = make_task(
            config, ranks=ALONE, output=Path(), command=None, stdout=sys.stderr, stderr=sys.stderr
        )
        parts = make_parts(task, read_corpora(task), weights)
        training = task.training
        self.stream = parts.stream
        self.update = TrainingStep(
            bilm=parts.bilm,
            softmax=parts.softmax,
            optimizer=parts.optimizer,
            types=parts.corpora.train.types,
            settings=training,
        )
        self.tokens = training.step_rows * training.unroll_steps
        self.onednn = training.onednn
        self.state = parts.bilm.zero_state(training.step_rows)
        self.step = 0

    def speed(self, seconds: float) -> float:
        """Train on for so long. RETURNS: tokens a second."""
        start, before = time.perf_counter(), self.step
        with onednn_products(self.onednn):
            while self.step == before or time.perf_counter() - start < seconds:
                self.state = self.update(self.stream.window(self.step), self.state, self.step).state
                self.step += 1
        return (self.step - before) * self.tokens / (time.perf_counter() - start)


def speeds(trials: Sequence[Trial], args: argparse.Namespace) -> dict[str, float]:
    """Tokens a second of each trial: the median of the rounds. Those measured before are kept."""
    path = args.output / SPEEDS
    known: dict[str, float] = srsly.read_json(path) if path.exists() else {}
    new = {trial["name"]: Training(config_of(trial, args)) for trial in trials if trial["name"] not in known}
    rates: dict[str, list[float]] = {name: [] for name in new}
    for number in range(args.rounds + 1):
        for name, training in new.items():
            rate = training.speed(args.seconds)
            progress(f"round {number}/{args.rounds}  {name}: {rate:,.0f} tokens/s")
            if number:  # the first one compiles
                rates[name].append(rate)
    known |= {name: round(statistics.median(measured), 1) for name, measured in rates.items()}
    srsly.write_json(path, known)
    return known


class Run:
    """A trial's process."""

    def __init__(self, trial: Trial, speed: float, args: argparse.Namespace) -> None:
        self.trial, self.folder = trial, args.output / trial["name"]
        settings, _ = resolve(config_of(trial, args))
        self.tokens = settings.training.step_rows * settings.training.unroll_steps
        self.steps = max(1, round(trial["minutes"] * 60 * speed / self.tokens))
        every = math.ceil(self.steps / args.evaluations)
        fitted = {
            "training.max_steps": self.steps,
            "training.warmup_steps": round(self.steps * settings.training.warmup_steps / settings.training.max_steps),
            "training.eval_frequency": every,
            "training.checkpoint_frequency": every,
            "training.threads": max(1, args.threads // args.at_once),
            "system.seed": args.seed,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        config_of(trial, args, **fitted).to_disk(self.folder / "trial.cfg")
        command = [sys.executable, "-m", "spacy", "elmo", "pretrain", str(self.folder / "trial.cfg")]
        self._log = (self.folder / "output.log").open("ab")
        self.process = subprocess.Popen(
            [*command, str(self.folder / "run"), "--resume"], stdout=self._log, stderr=subprocess.STDOUT
        )

    def result(self) -> list[dict[str, Any]]:
        """The evaluations so far."""
        path = self.folder / "run" / LOG
        return list(srsly.read_jsonl(path)) if path.exists() else []


def finished(trial: Trial, args: argparse.Namespace) -> bool:
    """Whether a trial was run to its end."""
    return (args.output / f"{trial['name']}.json").exists()


def run_all(trials: Sequence[Trial], rates: Mapping[str, float], args: argparse.Namespace) -> None:
    """Run what is not finished, so many at once."""
    waiting = [trial for trial in trials if not finished(trial, args)]
    running: list[Run] = []
    try:
        while waiting or running:
            while waiting and len(running) < args.at_once:
                trial = waiting.pop(0)
                running.append(Run(trial, rates[trial["name"]], args))
            time.sleep(1.0)
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                evaluations = run.result()
                if run.process.returncode or not evaluations or evaluations[-1]["step"] < run.steps:
                    raise SystemExit(f"{run.trial['name']} failed: see {run.folder / 'output.log'}")
                curve = [[entry["step"] * run.tokens, entry["joint_perplexity"]] for entry in evaluations]
                speed = rates[run.trial["name"]]
                found = {**run.trial, "tokens_per_second": speed, "steps": run.steps, "curve": curve}
                srsly.write_json(args.output / f"{run.trial['name']}.json", found)
                progress(f"{run.trial['name']}: {curve[-1][1]:,.1f}")
    finally:
        for run in running:
            run.process.terminate()
            run.process.wait()


def report(trials: Sequence[Trial], args: argparse.Namespace) -> None:
    """A table of what is finished, the lowest perplexity first."""
    found = [srsly.read_json(args.output / f"{trial['name']}.json") for trial in trials if finished(trial, args)]
    rows = [
        [
            trial["name"],
            str(trial["minutes"]),
            ", ".join(f"{key} = {json.dumps(value)}" for key, value in trial.get("set", {}).items()),
            f"{trial['tokens_per_second']:,.0f}",
            f"{trial['steps']:,}",
            f"{trial['curve'][-1][1]:,.1f}",
        ]
        for trial in sorted(found, key=lambda trial: (trial["minutes"], trial["curve"][-1][1]))
    ]
    table(["trial", "minutes", "settings", "tokens/s", "steps", "dev perplexity"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure speeds, run the trials, print the table."""
    parser = parser_for(__doc__, rounds=3)
    parser.add_argument("--trials", type=existing, required=True, help="a file of JSON lines")
    parser.add_argument("--config", type=existing, default=Path("configs/pretrain-small.cfg"))
    parser.add_argument("--raw", required=True, help="text to train on, as for `elmo pretrain --paths.raw`")
    parser.add_argument("--dev", required=True, help="text to measure on")
    parser.add_argument("--output", type=Path, required=True, help="folder of everything that is kept")
    parser.add_argument("--at-once", type=positive, default=1, help="trials that run together (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a trial in a round (default: %(default)s)")
    parser.add_argument("--evaluations", type=positive, default=5, help="of a trial (default: %(default)s)")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # its processes are to end with it
    args.output.mkdir(parents=True, exist_ok=True)
    print(f"{machine(args.threads)}\n")
    trials: list[Trial] = list(srsly.read_jsonl(args.trials))
    rates = speeds([trial for trial in trials if not finished(trial, args)], args)
    run_all(trials, rates, args)
    report(trials, args)


if __name__ == "__main__":
    main()
