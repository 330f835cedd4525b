"""A killed run goes on to the bit, whatever is switched on."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.pretraining.checkpoint import newest_checkpoint
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.weights import load_bilm, load_softmax

from .breaking import same_weights
from .conftest import MakeConfig

STEPS = 40
EVERYTHING: dict[str, Any] = {
    "training__max_steps": STEPS,
    "training__eval_frequency": 4,
    "training__checkpoint_frequency": 5,
    "training__rows": 2,
    "training__accumulate": 2,
    "training__dropout": 0.2,
    "training__recurrent_dropout": 0.3,
    "training__schedule": "plateau",
    "training__plateau_patience": 1,
    "training__ema": 0.9,
    # Too much: the plateau schedule has something to do.
    "optimizer__learn_rate": 1.0,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "halve": {"training__non_finite": "halve", "objective": {"@misc": "test.breaking_at.v1"}},
    "skip": {
        "training__non_finite": "skip",
        "objective": {"@misc": "test.breaking_at.v1"},
        "optimizer": {"@misc": "spacy-elmo.torch_optimizer.v1", "name": "NAdam", "settings": {"lr": 0.05}},
        "training__schedule": {"@schedules": "compounding.v1", "start": 1.0, "stop": 0.1, "compound": 0.97},
        "training__warmup_steps": 0,
    },
}


def train(config: Any, output: Path, resume: bool) -> None:
    pretrain(config, output, resume=resume, stdout=io.StringIO(), stderr=io.StringIO())


def losses_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "losses.jsonl").read_text(encoding="utf8").splitlines()]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork, no SIGKILL")
@pytest.mark.filterwarnings("ignore:torch's NAdam cannot read", "ignore:.*multi-threaded.*fork")
@pytest.mark.parametrize("name", OPTIONS)
def test_killed_at_random_steps(toy_config: MakeConfig, tmp_path: Path, name: str) -> None:
    options = {**EVERYTHING, **OPTIONS[name]}
    # Each of the two parts of a window counts.
    steps = [15, 15, 15, 24, 31] if name == "halve" else [15, 16, 24, 31]
    options["objective"] = {**options["objective"], "steps": steps}
    config = toy_config(**options)
    train(config, tmp_path / "whole", False)

    output = tmp_path / "killed"
    losses = output / "losses.jsonl"
    stops = sorted(random.sample(range(4, STEPS - 6), 2))
    for until in stops:
        process = multiprocessing.get_context("fork").Process(target=train, args=(config, output, True))
        process.start()
        assert process.pid is not None
        while process.is_alive() and not (losses.exists() and losses.read_bytes().count(b"\n") >= until):
            time.sleep(0.0005)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, stops
    train(config, output, True)

    assert losses_of(output) == losses_of(tmp_path / "whole"), stops
    for folder in ("model-best", "model-last"):
        one, other = output / folder, tmp_path / "whole" / folder
        assert same_weights(load_bilm(one), load_bilm(other)), (folder, stops)
        assert same_weights(load_softmax(one), load_softmax(other)), (folder, stops)
    killed, whole = (newest_checkpoint(path / "checkpoints", print) for path in (output, tmp_path / "whole"))
    assert killed is not None
    assert whole is not None
    assert killed.record["progress"] == whole.record["progress"]
    assert killed.tensors.keys() == whole.tensors.keys()
    for key, tensor in killed.tensors.items():
        assert torch.equal(tensor, whole.tensors[key]), (key, stops)
    progress = whole.record["progress"]
    assert (progress["halved"], progress["skipped"]) == {"halve": (4, 0), "skip": (0, 4)}[name]
    # Both are in the checkpoint, the weights and their averages; what is saved as a model are the averages.
    last = load_bilm(output / "model-last").state_dict()
    averages = {key.removeprefix("0."): value for key, value in killed.group("averages").items()}
    assert all(torch.equal(last[key], averages[key]) for key in last)
    assert any(not torch.equal(last[key], value) for key, value in killed.group("bilm").items())
    assert (progress["plateau"] < 1.0) == (name == "halve")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no fork, no SIGKILL")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_killed_twenty_times_at_random_instants(toy_config: MakeConfig, tmp_path: Path) -> None:
    """Half of them at any instant, the start and evaluations included, half of them while a checkpoint is written."""

    def config(steps: int) -> Any:
        return toy_config(**{**EVERYTHING, "training__max_steps": steps, "training__eval_frequency": 10})

    output = tmp_path / "killed"
    losses = output / "losses.jsonl"

    def unfinished(pattern: str) -> set[tuple[Path, int]]:
        """Folders that are being written, or that a killed process left so."""
        found = set()
        for path in output.glob(pattern):
            with suppress(FileNotFoundError):
                found.add((path, path.stat().st_mtime_ns))
        return found

    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    found = {"killed": 0, "writing a checkpoint": 0, "writing a model": 0, "before its first step": 0}
    for number in range(20):
        before = losses.read_bytes() if losses.exists() else b""
        left = unfinished("*/*.new") | unfinished("*.new")
        process = multiprocessing.get_context("fork").Process(target=train, args=(config(100_000), output, True))
        process.start()
        assert process.pid is not None
        # Each run gets somewhere, so that there is something to lose.
        until = before.count(b"\n") + draw.randrange(1, 15) if number % 2 or not before else 0
        while process.is_alive() and not (losses.exists() and losses.read_bytes().count(b"\n") >= until):
            time.sleep(0.001)
        if number % 2:
            while process.is_alive() and not unfinished("checkpoints/*.new") - left:
                pass
            time.sleep(draw.uniform(0.0, 0.004))
        else:
            time.sleep(draw.uniform(0.0, 3.0))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, seed
        found["killed"] += 1
        found["writing a checkpoint"] += bool(unfinished("checkpoints/*.new") - left)
        found["writing a model"] += bool(unfinished("model-*.new") - left)
        found["before its first step"] += losses.exists() and losses.read_bytes() == before
    steps = losses.read_bytes().count(b"\n") + 10
    train(config(steps), output, True)
    train(config(steps), tmp_path / "whole", False)

    print(f"{found}, {steps} steps, seed {seed}")
    assert found["writing a checkpoint"] >= 3, (found, seed)
    newest = f"checkpoints/step-{steps:06d}/tensors.safetensors"
    models = [
        f"{folder}/{name}"
        for folder in ("model-best", "model-last")
        for name in ("config.json", "model.safetensors", "softmax.safetensors", "vocabulary.txt")
    ]
    for name in ("losses.jsonl", newest, *models):
        assert (output / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (name, seed)
    assert not list(output.rglob("*.new")) + list(output.rglob("*.old"))
