"""What is ELMo worth to a recognizer of entities, a tagger and parser, a classifier? Trains them all, and compares.

python -m benchmarks.downstream --data DIR --output downstream --elmo training/bilm/model-best

Four tasks at three shares of their training data, several systems ("arms"), each with several seeds. All arms of a task
have the same config of configs/ but for the words' vectors: the same steps, batches, optimizer, encoder. The model that
is best on 1,000 sentences of dev is scored on all of dev and on test. What is done is kept in ``--output`` and never
run again, so it can be stopped and started; a run that was killed begins anew. At the end, or with ``--report`` at
once: tables in Markdown, and in ``--output`` results.json, with every run, and sample-efficiency.svg.

Arms; those whose files are given are run, or those that ``--arms`` names:

    spacy        spaCy's default: hashed features of words, a window encoder
    pretrain     the same, begun with weights of `spacy pretrain`: --init-tok2vec
    vectors      the same, with static vectors in the embedding: --vectors
    glove        the same with others, of another text: --glove
    elmo         ELMo beside the embedding, the biLM frozen: --elmo, a path or a name of built-in weights
    adapted      the same, the biLM adapted to the task's text: --adapted "adapted/{task}/model-best"
    top, uniform, output, both
                 the top layer alone, the mean of the layers; beside the encoder's output, in both places: --elmo
    transformer  a pretrained transformer, fine-tuned: --transformer, --transformer-python

`python -m benchmarks.material` makes what the options of pretrain, vectors, glove and adapted take. docs/downstream.md
says how the data lie, what is left out unless it is asked for, what a ``--plan`` of further arms looks like, and what
the report compares.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import srsly
from thinc.api import Config

from spacy_elmo.errors import ElmoError
from spacy_elmo.pretraining.output import own_output
from spacy_elmo.weights.files import replacing

from .common import Peers, existing, machine, measure, positive, progress
from .grid.arms import ABLATIONS, ARMS, Arm, bilm_fingerprint, config_of, fingerprint, located, read_plan
from .grid.report import checked, draw, material_hash, name_of, percent, print_report, summary
from .grid.tasks import TASKS, prepared, seeds_for
from .peers.protocol import ROOT, THREAD_VARIABLES

SHARES = (1.0, 0.1, 0.01)
WORKER = "downstream_worker"  # of benchmarks/peers
MATERIALS = ("init_tok2vec", "vectors", "glove", "elmo", "adapted", "transformer")


@dataclass(frozen=True, eq=False)
class Run:
    """One pipeline to be trained and scored."""

    task: str
    share: float
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """Of its files."""
        return name_of({"task": self.task, "share": self.share, "arm": self.arm.name, "seed": self.seed})


def chosen_arms(args: argparse.Namespace) -> list[Arm]:
    """The arms that the options ask for. SystemExit for a name that is none, or one whose files are not given."""
    known = {**ARMS, **{arm.name: arm for arm in (read_plan(args.plan) if args.plan else [])}}
    if args.arms is None:
        return [arm for arm in known.values() if material_of(arm, args) or arm.material is None]
    chosen = []
    for name in args.arms:
        if name not in known:
            raise SystemExit(f"--arms: there is no {name!r}: {', '.join(known)}")
        arm = known[name]
        if arm.material and not material_of(arm, args):
            raise SystemExit(f"--arms: {name} needs --{arm.material.replace('_', '-')}")
        # Named, a built-in arm has no limits of its own, but for the one whose runs are the longest by far.
        lifted = name in ARMS and name != "transformer"
        chosen.append(Arm(**{**vars(arm), "tasks": None, "shares": None, "seeds": None}) if lifted else arm)
    return chosen


def material_of(arm: Arm, args: argparse.Namespace) -> str | None:
    """The path of what an arm needs; None where it was not given."""
    if arm.material is None:
        return None
    return getattr(args, arm.material) if arm.material in MATERIALS else arm.material


def planned(args: argparse.Namespace) -> list[Run]:
    """All runs of the grid, in their order."""
    arms = chosen_arms(args)
    runs = [
        (*_turn(task, share, arm, seed), list(TASKS).index(task), i, Run(task, share, arm, seed))
        for task in args.tasks
        for share in args.shares or SHARES
        for i, arm in enumerate(arms)
        if arm.runs(task, share)
        for seed in range(min(args.seeds or seeds_for(share), arm.seeds or sys.maxsize))
    ]
    ordered = [run for *_, run in sorted(runs, key=lambda one: one[:-1]) if args.all or not left_out(run, args)]
    # An option may name a thing twice, and two processes in one folder would be in each other's way.
    return list({run.name: run for run in ordered}.values())


def left_out(run: Run, args: argparse.Namespace) -> bool:
    """Whether a run says little for its time, and no option names its share or its arm."""
    elsewhere = run.task != "conll"
    if elsewhere and run.share < 0.03 and not args.shares:
        return True
    if args.arms:
        return False
    if elsewhere and (run.arm.name == "glove" or (run.arm.name == "adapted" and run.share > 0.5)):
        return True
    return run.arm.name in ABLATIONS and run.seed >= 3


def _turn(task: str, share: float, arm: Arm, seed: int) -> tuple[int, bool, int, bool]:
    few = 1 if share < 0.03 and task == "conll" else 2 if share > 0.5 else 3
    # Systems before variants, so that few seeds are a table already; what takes hours, last.
    return 0 if 0.03 <= share <= 0.5 else few, arm.base == "transformer", seed, arm.name in ABLATIONS


class Grid:
    """The runs of a grid and where their files lie."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.output: Path = args.output.resolve()
        self._known: dict[Path, str] = {}

    def result(self, run: Run) -> Path:
        """The file that says that a run is done."""
        return self.output / "results" / f"{run.name}.json"

    def folder(self, run: Run) -> Path:
        """What a run leaves: its config, its log and perhaps its model."""
        return self.output / "runs" / run.name

    def prepare(self, run: Run) -> tuple[Config, dict[str, Path], dict[str, Any]]:
        """The run's config, its data, and what is noted of it with the result."""
        task, args = TASKS[run.task], self.args
        # Each seed has its own sample: what is trained on few sentences depends on which.
        sample_seed = args.sample_seed + run.seed
        data = prepared(task, args.data, self.output / "data", run.share, sample_seed)
        given = material_of(run.arm, args)
        material = None if given is None else self._checked(run, given)
        steps = args.steps or task.steps_for(run.share)
        evaluations = min(steps, args.evaluations or task.evaluations)
        config = config_of(
            run.arm, task, data=data, material=material, steps=steps, evaluations=evaluations, seed=run.seed
        )
        # What the result depends on, wherever the files lie.
        text = config.to_str()
        for path in data.values():
            text = text.replace(str(path), path.name)
        if material is not None:
            text = text.replace(str(material), self._known[material])
        if run.arm.base == "elmo":
            config["components"]["elmo"] |= {"cache_dir": str(self.output / "cache"), "cache_disk_mb": args.cache_mb}
        notes = {
            "task": run.task,
            "share": run.share,
            "arm": run.arm.name,
            "seed": run.seed,
            "sample_seed": sample_seed,
            "steps": config["training"]["max_steps"],
            "material": None if material is None else {"path": str(given), "sha256": self._known[material]},
            "adapted": run.arm.material == "adapted",
            "settings": dict(run.arm.settings),
            "fingerprint": hashlib.sha256(f"{text}\n{data['test'].name}".encode()).hexdigest()[:16],
        }
        return config, data, notes

    def _checked(self, run: Run, given: str) -> Path:
        """What an arm needs, looked at once: a run would find only after minutes that it is not there, or no biLM."""
        given = _of_task(given, run.task)
        if run.arm.base != "elmo":
            material = Path(given).resolve()
            if material not in self._known:
                self._known[material] = fingerprint(material)
            return material
        try:
            material = self._bilm(given)
            if run.arm.material == "adapted" and self.args.elmo is not None:
                ours = self._known[self._bilm(_of_task(self.args.elmo, run.task))]
                about = material / "meta.json"
                begun = srsly.read_json(about).get("adapted_from") if about.exists() else None
                if begun != ours:
                    raise SystemExit(
                        f"{run.arm.name}: {material} was not adapted from the biLM of --elmo: `benchmarks.material "
                        f"adapt` notes {ours} in meta.json as adapted_from, which is {begun}"
                    )
        except ElmoError as error:
            raise SystemExit(f"{run.arm.name}: {error}") from error
        return material

    def _bilm(self, given: str) -> Path:
        material = located(given)
        if material not in self._known:
            self._known[material] = bilm_fingerprint(material)
        return material

    def interpreter(self, run: Run) -> str:
        """The Python that trains it."""
        return str(self.args.transformer_python or sys.executable) if run.arm.base == "transformer" else sys.executable

    def results(self) -> list[dict[str, Any]]:
        """Of all runs that were ever done in this folder."""
        found = []
        for path in sorted((self.output / "results").glob("*.json")):
            try:
                found.append(checked(srsly.read_json(path)))
            except (OSError, ValueError) as error:
                raise SystemExit(f"{path} is no result of a run, remove it: {error}") from error
        return [one for one in found if one["task"] in TASKS]

    def take(self, path: Path) -> None:
        """Take the runs and times of another folder's results.json as done here, but for those that are: all or none.

        Raises SystemExit where one is no run: it would be in the way ever after.
        """
        try:
            found = srsly.read_json(path)
            known = [checked(one) for one in found["runs"]]
            material = {(run["task"], run["arm"]): material_hash(run) for run in known}
            times: dict[str, dict[str, Any]] = {}
            for task, by_arm in found["speed"].items():
                for arm, rates in by_arm.items():
                    time_of = {"material": material[task, arm], "rates": [float(rate) for rate in rates]}
                    times.setdefault(task, {})[arm] = time_of
        except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            raise SystemExit(f"--known: {path} is no results.json of this program: {error!r}") from error
        runs = [(one, self.output / "results" / f"{name_of(one)}.json") for one in known]
        (self.output / "results").mkdir(exist_ok=True)
        for one, file in runs:
            if not file.exists():
                with replacing(file) as new:
                    srsly.write_json(new, one)
        ours = self.speeds()
        self._keep({task: {**times.get(task, {}), **ours.get(task, {})} for task in {**times, **ours}})

    def speeds(self) -> dict[str, dict[str, Any]]:
        """By task and arm: words a second, and of which material."""
        path = self.output / "speed.json"
        return srsly.read_json(path) if path.exists() else {}

    def _keep(self, speeds: Mapping[str, Any]) -> None:
        with replacing(self.output / "speed.json") as new:
            srsly.write_json(new, speeds)

    def train(self, runs: Sequence[Run]) -> list[str]:
        """Run what is not done, so many at a time. RETURNS: the names of those that failed."""
        waiting = []
        for run in runs:
            config, data, notes = self.prepare(run)
            if not self.result(run).exists():
                waiting.append((run, config, data, notes))
            elif srsly.read_json(self.result(run)).get("fingerprint") != notes["fingerprint"]:
                raise SystemExit(
                    f"{self.result(run)} is of other settings, data or weights: remove it, or give another --output"
                )
        progress(f"{len(runs) - len(waiting)} of {len(runs)} runs are done")
        running: dict[Run, tuple[subprocess.Popen[bytes], dict[str, Any]]] = {}
        failed = []
        try:
            while waiting or running:
                while waiting and len(running) < self.args.jobs:
                    run, config, data, notes = waiting.pop(0)
                    running[run] = (self._start(run, config, data), notes)
                time.sleep(0.2)
                for run, (process, notes) in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[run]
                    process.communicate()  # lets go of its standard input
                    if process.returncode:
                        failed.append(run.name)
                        progress(f"{run.name} failed: see {self.folder(run) / 'train.log'}")
                        continue
                    try:
                        self._finish(run, notes)
                    except (ElmoError, OSError) as error:  # a full disk: the others may find room
                        failed.append(run.name)
                        progress(f"{run.name} failed: its result cannot be kept: {error}")
                    progress(f"{len(waiting) + len(running)} left")
        finally:
            for process, _ in running.values():
                process.terminate()
                process.communicate()
        return failed

    def _start(self, run: Run, config: Config, data: Mapping[str, Path]) -> subprocess.Popen[bytes]:
        folder = self.folder(run)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir(parents=True)
        config.to_disk(folder / "config.cfg", interpolate=False)
        job = {"config": "config.cfg", "output": ".", "result": "result.json"}
        job = {key: str(folder / name) for key, name in job.items()} | {"test": str(data["test"])}
        srsly.write_json(folder / "job.json", job)
        # One thread a run: the runs go side by side.
        env = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "HF_HUB_OFFLINE": "1"}
        with (folder / "train.log").open("wb") as log:
            # Nothing is written to its standard input: it closes when this process ends, even killed, and the run ends
            # with it, which would else be in the way of the next one.
            return subprocess.Popen(
                [self.interpreter(run), "-m", f"benchmarks.peers.{WORKER}", str(folder / "job.json")],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=ROOT,
            )

    def _finish(self, run: Run, notes: Mapping[str, Any]) -> None:
        folder = self.folder(run)
        result = {**notes, "machine": machine(1), **srsly.read_json(folder / "result.json")}
        # First of all: the run is done, whatever comes.
        self.result(run).parent.mkdir(exist_ok=True)
        with replacing(self.result(run)) as new:
            srsly.write_json(new, result)
        # The first seed's model is there to be timed; of the others there may be hundreds.
        shutil.rmtree(folder / "model-last", ignore_errors=True)
        if run.seed and not self.args.keep_models:
            shutil.rmtree(folder / "model-best", ignore_errors=True)
        shown = ", ".join(f"{name} {100 * result['test_scores'][key]:.1f}" for key, name in _metrics(run).items())
        progress(f"{run.name}: {shown}, {result['seconds'] / 60:.1f} minutes")

    def time(self, runs: Sequence[Run]) -> None:
        """Words a second of a model of each arm and task on the test set, in rounds that alternate."""
        speeds = self.speeds()
        for task in self.args.tasks:
            models: dict[str, Run] = {}
            for run in sorted(runs, key=lambda run: -run.share):
                done = self.result(run).exists() and (self.folder(run) / "model-best").exists()
                if run.task == task and not run.seed and done:
                    models.setdefault(run.arm.name, run)
            if not models:
                continue
            test = prepared(TASKS[task], self.args.data, self.output / "data", 1.0, self.args.sample_seed)["test"]
            with ExitStack() as stack:
                peers = Peers(stack, 1)
                for interpreter in {self.interpreter(run) for run in models.values()}:
                    paths = {
                        name: str(self.folder(run) / "model-best")
                        for name, run in models.items()
                        if self.interpreter(run) == interpreter
                    }
                    peers.add(interpreter, interpreter, WORKER, pipelines=paths, test=str(test))
                rows = [
                    peers.row(self.interpreter(run), f"{task}, {name}", "annotate", {}, pipeline=name)
                    for name, run in models.items()
                ]
                measure(rows, self.args.rounds)
            for (name, run), row in zip(models.items(), rows, strict=True):
                if row.why:
                    progress(f"{task}, {name}: not timed: {row.why}")
                else:
                    material = material_hash(srsly.read_json(self.result(run)))
                    speeds.setdefault(task, {})[name] = {"material": material, "rates": row.rates}
            self._keep(speeds)

    def report(self) -> None:
        """Print the tables, write results.json and the figure."""
        found = summary(self.results(), self.speeds())
        if not found["runs"]:
            raise SystemExit(f"{self.output}: no run is done yet")
        print(machine(1))
        print_report(found)
        with replacing(self.output / "results.json") as new:
            srsly.write_json(new, found)
        try:
            draw(found, self.output / "sample-efficiency.svg")
        except ElmoError as error:  # no matplotlib
            progress(str(error))


def _of_task(path: str, task: str) -> str:
    """A path that was given, with the task's name in it. (Braces of its own are none of ours.)"""
    return path.replace("{task}", task)


def _metrics(run: Run) -> Mapping[str, str]:
    return TASKS[run.task].metrics


def dry_run(runs: Sequence[Run], grid: Grid) -> None:
    """Print what would be run, and about how long that takes."""
    for run in runs:
        print(f"{run.name}{': done' if grid.result(run).exists() else ''}")
    waiting = [run for run in runs if not grid.result(run).exists()]
    hours = estimates(waiting, grid)
    for task, share in dict.fromkeys((run.task, run.share) for run in hours):
        several = [hours[run] for run in hours if (run.task, run.share) == (task, share)]
        print(f"{task}, {percent(share)}: {len(several)} runs, {sum(several):.1f} core hours")
    usual = f", {sum(hours.values()):.1f} core hours by those that are done" if hours else ""
    print(f"{len(runs)} runs, {len(waiting)} not done{usual}")


def estimates(runs: Sequence[Run], grid: Grid) -> dict[Run, float]:
    """Core hours of runs: their steps, times the median time of a step of what is done and most like each: of its task,
    share and arm, or of fewer of these. Nothing where nothing is done.
    """
    of_step: dict[tuple[Any, ...], list[float]] = {}
    for one in grid.results():
        cell = (one["task"], one["share"], one["arm"])
        for n in range(4):
            of_step.setdefault(cell[:n], []).append(one["processor_seconds"] / one["steps"] / 3600)
    found = {}
    for run in runs if of_step else ():
        cell = (run.task, run.share, run.arm.name)
        like = next(cell[:n] for n in (3, 2, 1, 0) if cell[:n] in of_step)
        found[run] = statistics.median(of_step[like]) * (grid.args.steps or TASKS[run.task].steps_for(run.share))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, time, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("tasks"), help="folder of the tasks' data (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="folder of everything that is kept")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--shares", nargs="+", type=float, help="of the training data, up to 1 (default: 1 0.1 0.01)")
    parser.add_argument("--arms", nargs="+", help="names (default: all whose files are given)")
    parser.add_argument("--all", action="store_true", help="also what is left out: see above")
    parser.add_argument("--plan", type=existing, help="a file of JSON lines: more arms")
    parser.add_argument("--seeds", type=positive, help="of each cell (default: 3 at 100%%, else 5)")
    parser.add_argument("--known", type=existing, metavar="FILE", help="results.json of before: its runs are done")
    parser.add_argument("--sample-seed", type=int, default=0, help="of the first seed's shares (default: %(default)s)")
    parser.add_argument("--steps", type=positive, help="of a run (default: by task and share)")
    parser.add_argument("--evaluations", type=positive, help="on dev in a run (default: by task)")
    for name in MATERIALS:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="PATH", help="{task} in it is the task's name")
    parser.add_argument("--transformer-python", type=existing, metavar="PYTHON", help="with spacy-transformers")
    parser.add_argument("--jobs", type=positive, default=2, help="runs side by side, one thread each")
    parser.add_argument("--cache-mb", type=positive, default=20000, help="of vectors on disk (default: %(default)s)")
    parser.add_argument("--keep-models", action="store_true", help="of all seeds, not of the first alone")
    parser.add_argument("--speed", action="store_true", help="time inference at the end; nothing else should run then")
    parser.add_argument("--rounds", type=positive, default=3, help="of --speed (default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="of what is done, nothing is run")
    parser.add_argument("--dry-run", action="store_true", help="print the runs in their order")
    args = parser.parse_args(argv)
    if not all(0 < share <= 1 for share in args.shares or SHARES):
        parser.error("--shares are above 0 and up to 1")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # its processes are to end with it
    try:
        run_grid(parser, args)
    except (ElmoError, OSError) as error:
        raise SystemExit(str(error)) from error


def run_grid(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """What the options ask for."""
    grid = Grid(args)
    if args.known:
        with own_output(grid.output):
            grid.take(args.known)
    if args.report:
        grid.report()
        return
    runs = planned(args)
    if not runs:
        parser.error("no arm runs on these tasks and shares")
    if args.dry_run:
        dry_run(runs, grid)
        return
    with own_output(grid.output):
        failed = grid.train(runs)
        if args.speed:
            grid.time(runs)
    if grid.results() or not failed:
        grid.report()
    if failed:
        raise SystemExit(f"{len(failed)} runs failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
