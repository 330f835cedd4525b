"""The arms: what each system changes of the task's config, and what files it needs."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import srsly
from spacy.util import dot_to_object, load_config
from thinc.api import Config

from spacy_elmo import load_bilm
from spacy_elmo.weights.builtin import builtin_model

from .tasks import SELECTION, TASKS, Task

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PLACE = "tok2vec."
NO_WEIGHT = -100.0  # a raw weight that is nothing beside a 0 after the softmax
ABLATIONS = ("top", "uniform", "output", "both")
# What a line of a plan may have beside its name.
PLAN: dict[str, type] = {"base": str, "set": dict, "material": str, "tasks": list, "shares": list, "seeds": int}
# Our own settings of an arm with ELMo: "layers", a fixed mix, weights of as many layers as the biLM has; "places",
# where the listener goes, "output" (beside what the encoder gives, instead of beside the embedding) or "both".
SETTINGS = {"layers": ("top", "uniform"), "places": ("input", "output", "both")}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A system that is trained.

    base: the built-in arm whose config it has. material: what that needs, the name of the option that gives its path,
    or a path. settings: changes of the config, dotted keys; those that begin with "tok2vec." are of the tok2vec,
    wherever the task has it.
    tasks, shares, seeds: to which the arm is limited; None: those that the options ask for.
    """

    name: str
    base: str
    material: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] | None = None
    shares: tuple[float, ...] | None = None
    seeds: int | None = None

    def runs(self, task: str, share: float) -> bool:
        """Whether the arm's own limits allow it."""
        return (self.tasks is None or task in self.tasks) and (self.shares is None or share in self.shares)


def _ablation(name: str, settings: Mapping[str, Any]) -> Arm:
    return Arm(name=name, base="elmo", material="elmo", settings=settings, tasks=("conll",), shares=(0.1,))


ARMS = {
    arm.name: arm
    for arm in (
        Arm(name="spacy", base="spacy"),
        Arm(name="pretrain", base="pretrain", material="init_tok2vec"),
        Arm(name="vectors", base="vectors", material="vectors"),
        Arm(name="glove", base="vectors", material="glove"),
        Arm(name="elmo", base="elmo", material="elmo"),
        Arm(name="adapted", base="elmo", material="adapted"),
        _ablation("top", {"layers": "top"}),
        _ablation("uniform", {"layers": "uniform"}),
        _ablation("output", {"places": "output"}),
        _ablation("both", {"places": "both"}),
        Arm(
            name="transformer",
            base="transformer",
            material="transformer",
            tasks=("conll",),
            shares=(0.1, 1.0),
            seeds=1,
        ),
    )
}


def read_plan(path: Path) -> list[Arm]:
    """Arms of a plan, a file of JSON lines: name, base (an arm), set (changes), and perhaps tasks, shares, seeds.

    Raises SystemExit for what is none.
    """
    try:
        lines = list(srsly.read_jsonl(path))
    except (OSError, ValueError) as error:
        raise SystemExit(f"--plan: {path} is no file of JSON lines: {error}") from error
    found: dict[str, Arm] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        _check_line(line, where)
        known = {**ARMS, **found}
        name = line["name"]
        if name in known:
            raise SystemExit(f"{where}: there is an arm {name!r} already")
        base = known.get(line.get("base", "elmo"))
        if base is None:
            raise SystemExit(f"{where}: there is no arm {line['base']!r}: {', '.join(known)}")
        settings = {**base.settings, **line.get("set", {})}
        for key, values in SETTINGS.items():
            # Misspelt, it would otherwise give the numbers of another arm.
            if key in settings and (base.base != "elmo" or settings[key] not in values):
                raise SystemExit(
                    f"{where}: {key}, of an arm with ELMo, is {' or '.join(values)}, not {settings[key]!r}"
                )
        found[name] = Arm(
            name=name,
            base=base.base,
            material=line.get("material", base.material),
            settings=settings,
            tasks=tuple(line["tasks"]) if "tasks" in line else base.tasks,
            shares=tuple(map(float, line["shares"])) if "shares" in line else base.shares,
            seeds=line.get("seeds", base.seeds),
        )
    return list(found.values())


def _check_line(line: Any, where: str) -> None:
    """Raises SystemExit for a line of a plan whose keys or values are of another kind."""
    unknown = not isinstance(line, dict) or set(line) - {"name", "comment", *PLAN}
    if unknown or not isinstance(line.get("name"), str):
        raise SystemExit(f"{where}: an arm has a name, base, set, material, tasks, shares, seeds, comment: {line}")
    name = line["name"]
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > 100:
        raise SystemExit(f"{where}: {name!r} is to be a file's name: letters, digits, '-', '_' and '.'")
    for key, kind in PLAN.items():
        if key in line and (not isinstance(line[key], kind) or isinstance(line[key], bool)):
            raise SystemExit(f"{where}: {key} is of the type {kind.__name__}, not {line[key]!r}")
    if wrong := [task for task in line.get("tasks", ()) if task not in list(TASKS)]:
        raise SystemExit(f"{where}: there are no tasks {', '.join(map(str, wrong))}: {', '.join(TASKS)}")
    if wrong := [one for one in line.get("shares", ()) if not isinstance(one, (int, float)) or not 0 < one <= 1]:
        raise SystemExit(f"{where}: shares are numbers above 0 and up to 1, not {', '.join(map(str, wrong))}")
    if line.get("seeds", 1) < 1:
        raise SystemExit(f"{where}: seeds are 1 or more, not {line['seeds']}")


def fingerprint(path: Path) -> str:
    """A hash of a file, or of all files in a folder and their names. A sentence of error where there is none."""
    if not path.exists():
        raise SystemExit(f"there is no {path}")
    digest = hashlib.sha256()
    inside = (one for one in path.rglob("*") if one.is_file() and one.name != "README.md")
    for file in [path] if path.is_file() else sorted(one for one in inside if "__pycache__" not in one.parts):
        digest.update(str(file.relative_to(path)).encode())
        with file.open("rb") as opened:
            for block in iter(lambda: opened.read(2**22), b""):
                digest.update(block)
    return digest.hexdigest()[:16]


def bilm_fingerprint(path: Path) -> str:
    """A hash of what a biLM's vectors depend on, in whatever files it lies. Raises ElmoError where there is none."""
    bilm = load_bilm(path)
    about = [bilm.config.to_options(), bilm.vocabulary, bilm.characters]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, value in sorted(bilm.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def located(weights: str) -> Path:
    """The path of a biLM, which may be given by the name of built-in weights. Raises ElmoError where these are gone."""
    offered = None if Path(weights).exists() else builtin_model(weights)
    return (Path(weights) if offered is None else offered.path()).resolve()


def config_of(
    arm: Arm,
    task: Task,
    *,
    data: Mapping[str, Path],
    material: Path | None,
    steps: int,
    evaluations: int,
    seed: int,
) -> Config:
    """The config of a run: the task's own of configs/, with what the arm changes.

    data: the splits, see ``tasks.prepared``. material: what the arm needs.
    Raises SystemExit for a change of something that the config does not have.
    """
    config = load_config(CONFIGS / f"{task.config}{'_elmo' if arm.base == 'elmo' else ''}.cfg", interpolate=False)
    changes: dict[str, Any] = {
        "paths.train": str(data["train"]),
        "paths.dev": str(data["dev"]),
        "system.seed": seed,
        # Tokens and sentences are those of the data.
        "corpora.train.gold_preproc": True,
        "corpora.dev.gold_preproc": True,
        # The first of a random order (``tasks.prepared``) choose the model, which is then scored on all of dev.
        "corpora.dev.limit": SELECTION,
        # All arms run as long; the best model on dev is the one that is scored.
        "training.patience": 0,
        "training.max_steps": steps,
        "training.eval_frequency": -(-steps // evaluations),
        "training.logger": {"@loggers": "benchmarks.timed_logger.v1"},
        **task.settings,
    }
    if arm.base == "elmo":
        changes["paths.elmo"] = str(material)
    elif arm.base == "pretrain":
        changes["initialize.after_init"] = {"@callbacks": "benchmarks.init_tok2vec.v1", "path": str(material)}
    elif arm.base == "vectors":
        changes["paths.vectors"] = str(material)
        changes["tok2vec.embed.include_static_vectors"] = True
    elif arm.base == "transformer":
        changes |= _transformer(config, str(material), steps)
    settings = dict(arm.settings)
    places = settings.pop("places", "input")
    if "layers" in settings:
        assert material is not None
        settings = {"tok2vec.elmo.mix.weights": _fixed(settings.pop("layers"), material), **settings}
    for key, value in {**changes, **settings}.items():
        place = f"{task.tok2vec}.{key.removeprefix(PLACE)}" if key.startswith(PLACE) else key
        _set(config, place, copy.deepcopy(value), f"{arm.name}, {task.name}: {key}")
    if places != "input":
        # The listener as the config and the settings have it: what is tuned for one place holds for the others.
        tok2vec = dot_to_object(config, task.tok2vec)
        tok2vec["elmo_output"] = copy.deepcopy(tok2vec["elmo"])
        if places == "output":
            tok2vec["elmo"] = None
    return config


def _set(config: dict[str, Any], place: str, value: Any, where: str) -> None:
    *sections, last = place.split(".")
    block: Any = config
    for section in sections:
        block = block.get(section) if isinstance(block, dict) else None
    # A misspelt setting would otherwise give the numbers of another arm.
    if not isinstance(block, dict) or last not in block:
        raise SystemExit(f"{where}: the config has no {place}")
    block[last] = value


def _fixed(layers: str, weights: Path) -> list[float]:
    n_layers = load_bilm(weights).config.n_layers + 1
    return [NO_WEIGHT if layers == "top" else 0.0] * (n_layers - 1) + [0.0]


def _transformer(config: Config, name: str, steps: int) -> dict[str, Any]:
    """A transformer in the place of the tok2vec, fine-tuned, as spaCy's `init config --gpu` has it."""
    config["components"] = {
        "transformer": {
            "factory": "transformer",
            "max_batch_items": 4096,
            "model": {
                "@architectures": "spacy-transformers.TransformerModel.v3",
                "name": name,
                "get_spans": {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 128, "stride": 96},
                "tokenizer_config": {"use_fast": True},
                "transformer_config": {},
                "mixed_precision": False,
            },
        },
        **{name: block for name, block in config["components"].items() if name != "tok2vec"},
    }
    listener = {
        "@architectures": "spacy-transformers.TransformerListener.v1",
        "grad_factor": 1.0,
        "pooling": {"@layers": "reduce_mean.v1"},
        "upstream": "*",
    }
    changes: dict[str, Any] = {
        "nlp.pipeline": list(config["components"]),
        "training.accumulate_gradient": 3,
        "training.batcher": {
            "@batchers": "spacy.batch_by_padded.v1",
            "discard_oversize": True,
            "size": 2000,
            "buffer": 256,
            "get_length": None,
        },
        "training.optimizer.learn_rate": {
            "@schedules": "warmup_linear.v1",
            # The template's 250 are of 20,000 steps.
            "warmup_steps": min(250, steps // 10),
            "total_steps": "${training.max_steps}",
            "initial_rate": 5e-5,
        },
    }
    for component, block in config["components"].items():
        if component != "transformer":
            changes[f"components.{component}.model.tok2vec"] = listener
            if "use_upper" in block["model"]:
                changes[f"components.{component}.model.use_upper"] = False
    return changes
