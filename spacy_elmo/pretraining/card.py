"""What a saved model says of itself: ``meta.json`` for programs, ``README.md`` for people."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..bilm.model import BiLM
from .config import Settings
from .prepare import Corpora

README = "README.md"
_PACKAGES = ("spacy", "thinc", "torch", "numpy", "safetensors")


def model_meta(
    settings: Settings,
    config: Mapping[str, Any],
    corpora: Corpora,
    bilm: BiLM,
    *,
    info: Mapping[str, Any] | None,
    seconds: float,
    initial: Mapping[str, Any] | None,
    command: str | None,
    processes: int = 1,
) -> dict[str, Any]:
    """Where a model comes from: what ``meta.json`` holds.

    info: of the evaluation. seconds: of training. initial: the weights that the run went on from, and their scores.
    command: the command line, if there was one. processes: how many trained it, now; each has a GPU of its own.
    """
    packages = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    read = {name: dict(block) for name, block in config["corpora"].items() if block}
    return {
        "spacy_elmo": __version__,
        "lang": settings.nlp.lang,
        "step": info["step"] if info else 0,
        "words": info["words"] if info else 0,
        "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in bilm.parameters()),
        "vocabulary": len(corpora.vocabulary),
        "metrics": {name: value for name, value in info["other_scores"].items() if name != "learn_rate"}
        if info
        else {},
        "corpora": {
            "train": corpora.train.meta,
            "dev": corpora.dev.meta,
            "versions": corpora.versions,
            "readers": read,
        },
        "initialize": dict(initial) if initial else None,
        "precision": settings.training.precision,
        "processes": processes,
        "command": command,
        "python": platform.python_version(),
        "packages": packages,
        "hardware": hardware(bilm.device, processes),
    }


def hardware(device: torch.device, processes: int = 1) -> dict[str, Any]:
    """What the model is trained on: processor, cores, threads, GPU, system, of this machine; number of GPUs, of all."""
    found = {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["gpus"] = processes
    return found


def _processor() -> str:
    with suppress(OSError):  # Linux; elsewhere Python knows it
        for line in Path("/proc/cpuinfo").read_text(encoding="utf8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def save_card(folder: Path, meta: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write ``meta.json`` and ``README.md`` into a model's folder. Raises OSError."""
    (folder / "meta.json").write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf8")
    (folder / README).write_text(model_card(meta, config), encoding="utf8")


def model_card(meta: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """``README.md`` of a model, in Markdown. meta: see `model_meta`. config: the resolved one."""
    model, lang = config["model"], meta["lang"]
    lines = [
        "---",
        f"language: {lang}",
        "library_name: spacy-elmo",
        "tags: [elmo, bilm, spacy]",
        "---",
        "",
        f"# ELMo biLM ({lang})",
        "",
        "A bidirectional language model whose layers are contextual word vectors (ELMo), pretrained with "
        f"spacy-elmo {meta['spacy_elmo']}.",
        "",
        "```python",
        "import spacy",
        "",
        f'nlp = spacy.blank("{lang}")',
        'nlp.add_pipe("elmo").load_weights("path/to/this/folder")',
        "```",
        "",
        "## Data",
        "",
        *_table(("", "documents", "lines", "sentences", "tokens", "types", "SHA-256"), _data(meta["corpora"])),
        "",
        *_sources(meta["corpora"]),
        "",
        "## Model",
        "",
        *_table(("", ""), _sizes(meta, model)),
        "",
        f"## {'Perplexity' if 'joint_perplexity' in meta['metrics'] else 'Loss'}",
        "",
        f"Of {meta['metrics']['n_targets']:,} targets in the dev text, after {meta['step']:,} steps "
        f"({meta['words']:,} tokens), each sentence by itself:",
        "",
        *_table(("", "forward", "backward", "joint", "bits a character"), _figures(meta)),
        *_start_state(meta.get("start_state")),
        "",
        "## Training",
        "",
        *_table(("", ""), _training(meta, config)),
        "",
        "Everything else stands in `pretrain.cfg`, the complete config of the run, and in `meta.json`.",
    ]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in cells]


def _data(corpora: Mapping[str, Any]) -> Iterator[list[str]]:
    for name in ("train", "dev"):
        meta = corpora[name]
        counts = (meta.get(f"n_{what}") for what in ("documents", "lines", "sentences", "words", "types"))
        yield [name, *("" if count is None else f"{count:,}" for count in counts), f"`{meta['sha256'][:16]}`"]


def _sources(corpora: Mapping[str, Any]) -> Iterator[str]:
    for name, block in corpora.get("readers", {}).items():
        reader = next((value for key, value in block.items() if key.startswith("@")), "")
        settings = ", ".join(f"{key} = {value!r}" for key, value in block.items() if not key.startswith("@"))
        yield f"- {name}: `{reader}`" + (f", {settings}" if settings else "")
    if "dev" not in corpora.get("readers", {}):
        yield "- dev: held out of train"
    for name in ("train", "dev"):
        for what, count in corpora[name].get("notes", {}).items():
            yield f"- {name}, left out or cut: {what}: {count:,}"
    if corpora["versions"]:
        yield f"- text of {', '.join(f'{package} {number}' for package, number in corpora['versions'].items())}"


def _sizes(meta: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "parameters", f"{meta['parameters']:,}, without the output layer"
    yield "vectors", f"{model['n_layers'] + 1} layers of width {2 * model['projection_dim']}"
    yield (
        "LSTMs",
        f"{model['n_layers']} layers a direction, {model['lstm_dim']} cells, {model['projection_dim']} outputs",
    )
    if model["filters"]:
        filters = ", ".join(f"{count} of width {width}" for width, count in model["filters"])
        yield "characters", f"embeddings of {model['char_dim']}, filters: {filters}, {model['n_highway']} highways"
    else:
        yield "words", "from a table"
    yield "predicted words", f"{meta['vocabulary']:,}"


def _figures(meta: Mapping[str, Any]) -> Iterator[list[str]]:
    initial = meta.get("initialize") or {}
    rows = [
        ("before, with its own vocabulary", initial.get("own")),
        ("before, step 0", initial.get("step_0")),
        ("this model", meta["metrics"]),
    ]
    for name, scores in rows:
        for measure, digits in (("perplexity", 2), ("loss", 4)):
            if scores and f"joint_{measure}" in scores:
                figures = [f"{scores[f'{which}_{measure}']:.{digits}f}" for which in ("forward", "backward", "joint")]
                bits = scores.get("bits_per_character")
                yield [name, *figures, "" if bits is None else f"{bits:.4f}"]


def _start_state(figures: Mapping[str, Any] | None) -> list[str]:
    if figures is None:
        return []
    parts = [f"{name} words {figures['zero'][name]:.2f} and {figures['warm'][name]:.2f}" for name in ("1-5", "all")]
    return ["", f"A start state lies with the weights. Joint perplexity from zero and from it: {', '.join(parts)}."]


def _training(meta: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    training, machine = config["training"], meta["hardware"]
    rows = training["rows"] * training["accumulate"]
    yield "step", f"{rows} rows of {training['unroll_steps']} tokens"
    yield "time", f"{meta['seconds']:,.0f} s"
    # What models of earlier versions do not tell is left out.
    if "precision" in meta:
        yield "precision", meta["precision"]
    if meta.get("processes", 1) > 1:
        yield "processes", str(meta["processes"])
    for name in ("objective", "optimizer"):
        block = config[name]
        settings = ", ".join(f"{key} {value}" for key, value in block.items() if not key.startswith("@"))
        yield name, f"`{block.get('@misc', '')}`" + (f", {settings}" if settings else "")
    if meta["initialize"]:
        source = meta["initialize"]["weights"]
        yield "went on from", f"`{source['path']}` ({source['family']}, SHA-256 of the values {source['sha256'][:16]})"
    yield "command", f"`{meta['command']}`" if meta["command"] else "none: called from Python"
    cores = f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads"
    gpus = f"{machine['gpus']} x " if machine.get("gpus", 1) > 1 else ""
    yield "hardware", ", ".join([*([f"{gpus}{machine['gpu']}"] if "gpu" in machine else []), cores, machine["system"]])
    packages = ", ".join(f"{name} {number}" for name, number in meta["packages"].items())
    yield "versions", f"spacy-elmo {meta['spacy_elmo']}, Python {meta['python']}, {packages}"
