"""What the runs of a grid say: means, paired differences, tables, the figure of sample efficiency."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spacy_elmo.figures import new_figure, picture
from spacy_elmo.weights.files import replacing

from ..common import number, table
from .arms import ABLATIONS, ARMS
from .tasks import TASKS

Result = dict[str, Any]
# What every run says of itself; a newer one says more.
RESULT = frozenset(("task", "share", "arm", "seed", "steps", "epochs", "dev_scores", "test_scores", "mixes")) | {
    f"{clock}{of}" for clock in ("seconds", "processor_seconds") for of in ("", "_per_epoch")
}
BASELINE, OURS = "spacy", "elmo"
LAYERS_AND_PLACES = {
    "top": ("the top one", "input"),
    "uniform": ("plain mean", "input"),
    OURS: ("learned", "input"),
    "output": ("learned", "output"),
    "both": ("learned", "both"),
}
ADAPTED = (
    "† The biLM has read the words of all training sentences of the task, without labels, at 10% and 1% too, and those "
    "of dev, which chose its best state; none of test."
)


class Cell(NamedTuple):
    """What was run with several seeds."""

    task: str
    share: float
    arm: str


class Difference(NamedTuple):
    """Of two arms, over the seeds that both have: mean and standard error of the paired differences, in points.

    reduction: share of the other arm's error (100 less its score) that is gone.
    """

    mean: float
    error: float
    n: int
    reduction: float

    @property
    def verdict(self) -> str:
        """Whether it is better by more than one standard error."""
        if self.n < 2:
            return "-"
        return "yes" if self.mean > self.error else "worse" if self.mean < -self.error else "no"


def cells_of(results: Sequence[Result]) -> dict[Cell, dict[int, Result]]:
    """The results by cell and seed."""
    found: dict[Cell, dict[int, Result]] = {}
    for result in results:
        found.setdefault(Cell(result["task"], result["share"], result["arm"]), {})[result["seed"]] = result
    order = {name: i for i, name in enumerate(ARMS)}
    tasks = list(TASKS)
    # Arms of a plan after the built-in ones, as they come.
    names = {cell.arm: order.get(cell.arm, len(order) + i) for i, cell in enumerate(found)}
    keys = sorted(found, key=lambda cell: (tasks.index(cell.task), cell.share, names[cell.arm], cell.arm))
    return {cell: dict(sorted(found[cell].items())) for cell in keys}


def scores(runs: Mapping[int, Result], metric: str, split: str = "test") -> dict[int, float]:
    """Scores by seed, in points: 0 to 100."""
    return {seed: 100 * run[f"{split}_scores"][metric] for seed, run in runs.items()}


def spread(values: Sequence[float]) -> float:
    """The standard deviation of a sample; of one value: NaN."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def difference(ours: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """Of two arms' scores by seed. NaN where they have no seed in common."""
    seeds = [seed for seed in ours if seed in other]
    if not seeds:
        return Difference(math.nan, math.nan, 0, math.nan)
    pairs = [ours[seed] - other[seed] for seed in seeds]
    mean = statistics.mean(pairs)
    missing = 100 - statistics.mean(other[seed] for seed in seeds)
    return Difference(mean, spread(pairs) / math.sqrt(len(pairs)), len(pairs), mean / missing if missing else math.nan)


def summary(results: Sequence[Result], speeds: Mapping[str, Any]) -> dict[str, Any]:
    """All that the tables are made of, for JSON."""
    cells = cells_of(results)
    rows = []
    for cell, runs in cells.items():
        for metric, name in TASKS[cell.task].metrics.items():
            test, dev = (scores(runs, metric, split) for split in ("test", "dev"))
            row: dict[str, Any] = {**cell._asdict(), "metric": name, "seeds": list(runs)}
            for split, values in (("dev", dev), ("test", test)):
                row |= {f"{split}_mean": statistics.mean(values.values()), f"{split}_sd": spread([*values.values()])}
            # Against every other arm of the same task and share.
            row["against"] = {
                other.arm: {**found._asdict(), "better": found.verdict}
                for other, others in cells.items()
                if (other.task, other.share) == (cell.task, cell.share) and other != cell
                if (found := difference(test, scores(others, metric))).n
            }
            for key in ("seconds_per_epoch", "processor_seconds_per_epoch", "seconds", "epochs"):
                row[key] = statistics.median(run[key] for run in runs.values())
            rows.append(row)
    # A time of other weights under the same name is none of these runs'.
    known = {(run["task"], run["arm"], material_hash(run)) for run in results}
    speed: dict[str, dict[str, list[float]]] = {}
    for task, by_arm in speeds.items():
        for arm, one in by_arm.items():
            if (task, arm, one["material"]) in known:
                speed.setdefault(task, {})[arm] = one["rates"]
    return _plain({"cells": rows, "speed": speed, "warnings": mixtures(results), "runs": list(results)})


def checked(run: Any) -> Result:
    """What was read as a run's result. Raises ValueError for what is none, or lacks what the tables are made of."""
    if missing := RESULT.difference(run if isinstance(run, dict) else ()):
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    name = name_of(run)
    if Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a file")
    if run["task"] in TASKS:  # those of a task that there was once are kept
        try:
            summary([run], {})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{name} has not the values of a run: {error!r}") from error
    return run


def name_of(run: Result) -> str:
    """Of a run's files."""
    return f"{run['task']}-{run['share']:g}-{run['arm']}-{run['seed']}"


def material_hash(run: Result) -> str | None:
    """Of the material of a run; None where it has none."""
    return (run.get("material") or {}).get("sha256")


def mixtures(results: Sequence[Result]) -> list[str]:
    """Sentences about runs that are put together and are not alike: they may come from several calls."""
    kinds: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run in results:
        of_arm = {"material": material_hash(run), "settings": run.get("settings"), **run.get("versions", {})}
        if "machine" in run:
            of_arm["machine"] = run["machine"]
        for where, about in (
            (f"{run['task']}, {run['arm']}", of_arm),
            (f"{run['task']}, {percent(run['share'])}", {"steps": run.get("steps")}),
        ):
            for what, value in about.items():
                of_kind = kinds.setdefault((where, what), {})
                of_kind.setdefault(json.dumps(value, sort_keys=True), []).append(name_of(run))
    found = []
    for (where, what), several in kinds.items():
        (usual, most), *others = sorted(several.items(), key=lambda one: -len(one[1]))
        if others:
            named = "; ".join(f"{value} in {', '.join(names)}" for value, names in others)
            found.append(f"{where}: {what} {usual} in {len(most)} of the runs, but {named}")
    return found


def _plain(value: Any) -> Any:
    """NaN is no JSON."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def points(mean: float | None, error: float | None, *, sign: bool = False) -> str:
    """A mean and what it is uncertain by."""
    if mean is None:
        return "-"
    return f"{mean:{'+' if sign else ''}.1f}" + ("" if error is None else f" ± {error:.1f}")


def print_report(found: Mapping[str, Any]) -> None:
    """Print the tables of a ``summary``."""
    for warning in found["warnings"]:
        print(f"\n**Not alike:** {warning}")
    rows = found["cells"]
    adapted = {run["arm"] for run in found["runs"] if run.get("adapted")}
    shown = {row["arm"]: f"{row['arm']} †" if row["arm"] in adapted else row["arm"] for row in rows}
    for task in TASKS.values():
        for name in task.metrics.values():
            of_metric = [row for row in rows if (row["task"], row["metric"]) == (task.name, name)]
            if of_metric:
                print(f"\n{task.title}: {name}, mean ± standard deviation; against `{BASELINE}`: ± standard error\n")
                header = ["training data", "arm", "seeds", "dev", "test", f"against `{BASELINE}`", "error reduction"]
                table([*header, "better", "s / epoch", "minutes"], [_cells(row, shown) for row in of_metric])
    ours = [row for row in rows if row["arm"] == OURS]
    if any(row["against"] for row in ours):
        print(f"\n`{OURS}` less the others, test, ± standard error\n")
        table(
            ["task", "training data", "less", "seeds", "difference", "error reduction", "better"],
            [
                [
                    f"{row['task']}, {row['metric']}",
                    percent(row["share"]),
                    shown[other],
                    str(one["n"]),
                    points(one["mean"], one["error"], sign=True),
                    reduction(one["reduction"]),
                    one["better"],
                ]
                for row in ours
                for other, one in row["against"].items()
                if other not in ABLATIONS
            ],
        )
    if adapted:
        print(f"\n{ADAPTED}")
        hashes = {(run["task"], run["arm"]): material_hash(run) for run in found["runs"]}
        for (task_name, arm), one in hashes.items():
            if arm in adapted and one is not None and one == hashes.get((task_name, OURS)):
                print(f"Not adapted: {task_name}. No later state was better on dev, so `{arm}` is `{OURS}` there.")
    _print_ablations(found["runs"])
    _print_short(found["runs"])
    _print_mixes(found["runs"])
    if found["speed"]:
        print("\nWords a second at inference, one thread, a test set new to the pipeline: median (slowest - fastest)\n")
        table(
            ["task", "arm", "words/s", ""],
            [
                [task, arm, number(statistics.median(rates)), f"({number(min(rates))} - {number(max(rates))})"]
                for task, by_arm in found["speed"].items()
                for arm, rates in by_arm.items()
            ],
        )


def percent(share: float) -> str:
    """A share of the training data."""
    return f"{100 * share:g}%"


def reduction(share: float | None) -> str:
    """How much of the error is gone, in percent."""
    return "-" if share is None else f"{100 * share:.0f}%"


def _cells(row: Mapping[str, Any], shown: Mapping[str, str]) -> list[str]:
    other = row["against"].get(BASELINE)
    return [
        percent(row["share"]),
        shown[row["arm"]],
        str(len(row["seeds"])),
        points(row["dev_mean"], row["dev_sd"]),
        points(row["test_mean"], row["test_sd"]),
        *(
            [points(other["mean"], other["error"], sign=True), reduction(other["reduction"]), other["better"]]
            if other
            else ["", "", ""]
        ),
        number(row["processor_seconds_per_epoch"]),
        f"{row['seconds'] / 60:.1f}",
    ]


def _print_ablations(results: Sequence[Result]) -> None:
    cells = cells_of(results)
    rows = []
    for cell in cells:
        arms = {arm: runs for arm in LAYERS_AND_PLACES if (runs := cells.get(cell._replace(arm=arm)))}
        seeds = set.intersection(*map(set, arms.values())) if arms else set()
        if cell.arm != OURS or len(arms) < 2 or not seeds:
            continue
        for metric, name in TASKS[cell.task].metrics.items():
            # Of seeds that all have: there are more of the learned mix at the input.
            by_arm = {arm: scores({seed: runs[seed] for seed in sorted(seeds)}, metric) for arm, runs in arms.items()}
            for arm, values in by_arm.items():
                one = difference(values, by_arm[OURS])
                mean, sd, less, error = _plain(
                    [statistics.mean(values.values()), spread([*values.values()]), one.mean, one.error]
                )
                against = ["", ""] if arm == OURS else [points(less, error, sign=True), one.verdict]
                task = [f"{cell.task}, {name}", percent(cell.share), arm]
                rows.append([*task, *LAYERS_AND_PLACES[arm], str(len(seeds)), points(mean, sd), *against])
    if rows:
        print(f"\nLayers and places of ELMo, the same seeds of all; against `{OURS}`: test, ± standard error\n")
        header = ["task", "training data", "arm", "layers", "place", "seeds", "test", f"against `{OURS}`", "better"]
        table(header, rows)


def _print_short(results: Sequence[Result]) -> None:
    short = []
    for cell, runs in cells_of(results).items():
        known = [run for run in runs.values() if "best_step" in run]
        last = sum(run["best_step"] == run["evaluations"][-1]["step"] for run in known)
        if 2 * last > len(known):
            short.append(f"{cell.task} {percent(cell.share)} {cell.arm} ({last} of {len(known)})")
    if short:
        print(f"\nThe last evaluation was the best in most seeds, so training may be too short: {', '.join(short)}")


def _print_mixes(results: Sequence[Result]) -> None:
    rows = []
    for cell, runs in cells_of(results).items():
        by_place: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for run in runs.values():
            for mix in run["mixes"]:
                if mix["learned"]:
                    by_place.setdefault((mix["component"], mix["place"] or ""), []).append(mix)
        for (component, place), several in by_place.items():
            weights = [statistics.mean(of_layer) for of_layer in zip(*(mix["weights"] for mix in several), strict=True)]
            where = f"{component}, {'output' if place.endswith('elmo_output') else 'input'}"
            gamma = statistics.mean(mix["gamma"] for mix in several)
            shown = " ".join(f"{weight:.2f}" for weight in weights)
            rows.append([cell.task, percent(cell.share), cell.arm, where, shown, f"{gamma:.2f}"])
    if rows:
        print("\nWeights of the layers, the token encoder's first, learned with the task: mean over the seeds\n")
        table(["task", "training data", "arm", "listener", "s_j", "γ"], rows)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the test score by share of the training data, a panel for each task, a line for each built-in arm."""
    panels = [
        (task, name, of_task)
        for task in TASKS.values()
        for name in list(task.metrics.values())[:1]
        if (of_task := [row for row in found["cells"] if (row["task"], row["metric"]) == (task.name, name)])
    ]
    figure = new_figure(4.2 * len(panels), 3.6, what="the figure of sample efficiency")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    # Variants of one arm at one share are no line.
    arms = [name for name, arm in ARMS.items() if arm.tasks is None or name == "transformer"]
    for axis, (task, name, rows) in zip(axes, panels, strict=True):
        for i, arm in enumerate(arms):
            line = [row for row in rows if row["arm"] == arm]
            if line:
                axis.errorbar(
                    [100 * row["share"] for row in line],
                    [row["test_mean"] for row in line],
                    yerr=[row["test_sd"] or 0.0 for row in line],
                    label=arm,
                    color=f"C{i}",
                    marker="o",
                    markersize=4,
                    capsize=2,
                )
        shares = sorted({row["share"] for row in rows})
        axis.set_xscale("log")
        axis.set_xticks([100 * share for share in shares], [percent(share) for share in shares])
        axis.set_xticks([], minor=True)
        axis.set_title(task.title, fontsize=10)
        axis.set_xlabel("of the training data")
        axis.set_ylabel(f"{name}, test")
        axis.grid(alpha=0.3)
    lines = dict(zip(*reversed(_legend(axes)), strict=True))
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), frameon=False)
    with replacing(path.resolve()) as new:
        new.write_bytes(picture(figure, path.suffix.lower()[1:] or "svg"))


def _legend(axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    handles: list[Any] = []
    names: list[str] = []
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.append(handle)
            names.append(name)
    return handles, names
