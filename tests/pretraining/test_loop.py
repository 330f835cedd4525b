from __future__ import annotations

import io
import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from torch import Tensor

from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import CorpusError, PretrainingError
from spacy_elmo.pretraining.checkpoint import newest_checkpoint
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.weights import load_bilm, load_softmax, load_vocabulary

from .conftest import MakeConfig

FULL = {"@misc": "spacy-elmo.full_softmax.v1"}
ADAGRAD = {"@misc": "spacy-elmo.adagrad.v1", "learn_rate": 0.2}


def run(config: Any, output: Path, **kwargs: Any) -> tuple[PretrainingResult, str]:
    stdout = io.StringIO()
    result = pretrain(config, output, stdout=stdout, stderr=io.StringIO(), **kwargs)
    return result, stdout.getvalue()


def losses_of(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "losses.jsonl").read_text(encoding="utf8").splitlines()]


def dev_at_start(text: str) -> float:
    return next(float(line.split()[4]) for line in text.splitlines() if line.split()[:2] == ["0", "0"])


class BreakingSoftmax(FullSoftmax):
    """A softmax that does something to its loss at one step."""

    breaks: Callable[[Tensor], Tensor]
    at: int

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        loss = super().loss(hidden, targets, seed=seed)
        return self.breaks(loss) if seed == 2 * self.at else loss  # in the forward direction


def interrupt(loss: Tensor) -> Tensor:
    signal.raise_signal(signal.SIGINT)
    return loss


@spacy.registry.misc("test.breaking_softmax.v1")
def breaking_softmax(how: str, at: int) -> Callable[[int, int], FullSoftmax]:
    def create(n_words: int, width: int) -> FullSoftmax:
        softmax = BreakingSoftmax(n_words, width)
        softmax.at = at
        softmax.breaks = {
            "loss": lambda loss: loss * math.nan,
            # Finite, with a gradient that is not: d sqrt(x) at 0.
            "gradient": lambda loss: loss + (loss * 0.0).sqrt(),
            # More than any machine has: the allocator itself refuses.
            "memory": lambda loss: loss + torch.empty(1 << 60).sum(),
            "signal": interrupt,
        }[how]
        return softmax

    return create


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"objective": FULL, "optimizer": ADAGRAD, "training__schedule": "constant"},
        {"model__filters": None, "model__n_layers": 1, "model__projection_dim": 16},
    ],
    ids=["sampled-adamw", "full-adagrad", "word-table"],
)
def test_dev_perplexity_falls(toy_config: MakeConfig, tmp_path: Path, overrides: dict[str, Any]) -> None:
    result, text = run(toy_config(**overrides), tmp_path / "out")
    assert result.step == 40
    assert result.dev is not None
    assert result.dev.joint < 0.75 * dev_at_start(text)
    assert len(losses_of(tmp_path / "out")) == 40


def test_the_saved_model_is_the_one_that_was_measured(toy_config: MakeConfig, tmp_path: Path) -> None:
    config = toy_config(training__eval_tokens=1_000_000)
    result, _ = run(config, tmp_path / "out")
    assert result.best_step == 40
    report = measure(tmp_path / "out" / "model-best")  # the dev corpus of the config saved with it
    assert result.dev is not None
    assert report.total.n_targets == result.dev.n_targets
    assert report.total.joint == pytest.approx(result.dev.joint, rel=1e-6)
    assert report.unknown == 0
    meta = json.loads((tmp_path / "out" / "model-best" / "meta.json").read_text(encoding="utf8"))
    assert meta["step"] == 40
    assert meta["metrics"]["joint_perplexity"] == result.dev.joint
    assert meta["packages"]["spacy"] == spacy.__version__
    assert len(meta["corpora"]["train"]["sha256"]) == 64
    vocabulary = load_vocabulary(tmp_path / "out" / "model-best" / "vocabulary.txt")
    assert vocabulary[:5] == ["<S>", "</S>", "<UNK>", ".", "The"]


def test_a_step_is_bilm_tfs(toy_config: MakeConfig, tmp_path: Path) -> None:
    """The gradient is that of unroll_steps * mean of both directions' losses, clipped by one norm over everything."""
    config = toy_config(
        objective=FULL,
        optimizer=ADAGRAD,
        training__max_steps=1,
        training__dropout=0.0,
        training__schedule="constant",
        training__warmup_steps=0,
        training__clip_norm=0.5,
    )
    run(config, tmp_path / "out")

    settings, filled = resolve(config)
    corpora = prepare_corpora(settings, filled)
    window = Stream(corpora.train, corpora.vocabulary, rows=4, unroll_steps=6, seed=0).window(0)
    bilm = BiLM(settings.bilm_config(len(corpora.vocabulary))).initialize(0)
    softmax = FullSoftmax(len(corpora.vocabulary), 8)
    softmax.initialize(0)
    named = {**dict(bilm.named_parameters()), **dict(softmax.named_parameters())}
    ids = bilm.token_ids([corpora.train.types[i] for i in window.type_rows])
    hidden = bilm.hidden(ids, torch.tensor(window.forward), torch.tensor(window.backward), bilm.zero_state(4))
    total = torch.zeros(())
    for vectors, targets in zip(hidden[:2], (window.forward_targets, window.backward_targets), strict=True):
        logits = vectors.flatten(0, 1) @ softmax.W.T + softmax.b
        total = total - logits.log_softmax(dim=1).gather(1, torch.tensor(targets).flatten()[:, None]).mean()
    (6 * 0.5 * total).backward()
    assert losses_of(tmp_path / "out")[0]["loss"] == pytest.approx(0.5 * total.item(), rel=1e-5)
    gradients = {name: parameter.grad.numpy() for name, parameter in named.items() if parameter.grad is not None}
    assert gradients.keys() == named.keys()
    norm = math.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients.values()))
    assert norm > 0.5  # the clip acts
    found = (
        load_bilm(tmp_path / "out" / "model-last").state_dict()
        | load_softmax(tmp_path / "out" / "model-last").state_dict()
    )
    for name, parameter in named.items():
        gradient = gradients[name] * (0.5 / norm)
        expected = parameter.detach().numpy() - 0.2 * gradient / np.sqrt(1.0 + gradient**2)
        np.testing.assert_allclose(found[name].numpy(), expected, atol=1e-5, err_msg=name)


def test_the_same_run_twice_is_the_same(toy_config: MakeConfig, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run(toy_config(training__max_steps=8), tmp_path / "one")
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random state is left alone
    torch.rand(5)
    run(toy_config(training__max_steps=8), tmp_path / "two")
    assert losses_of(tmp_path / "one") == losses_of(tmp_path / "two")
    run(toy_config(training__max_steps=8, system__seed=1), tmp_path / "three")
    assert losses_of(tmp_path / "one") != losses_of(tmp_path / "three")


def test_dry_run_plans_and_writes_nothing(toy_config: MakeConfig, tmp_path: Path) -> None:
    result, text = run(toy_config(), tmp_path / "out", dry_run=True)
    assert result == PretrainingResult(step=0)
    assert not (tmp_path / "out").exists()
    for expected in ("40 of 4 rows x 6 = 24 tokens", "documents", "vocabulary", "parameters"):
        assert expected in text


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_run_goes_on_to_the_bit(toy_config: MakeConfig, tmp_path: Path) -> None:
    steps = 90
    config = toy_config(training__max_steps=steps, training__eval_frequency=30, training__checkpoint_frequency=7)
    whole, _ = run(config, tmp_path / "whole")

    resolve(config)[1].to_disk(tmp_path / "run.cfg")
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from spacy_elmo.pretraining.config import load_config\n"
        "from spacy_elmo.pretraining.loop import pretrain\n"
        "pretrain(load_config(sys.argv[1]), sys.argv[2])\n"
    )
    output = tmp_path / "killed"
    until = random.randint(5, 70)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run.cfg"), str(output)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        losses = output / "losses.jsonl"
        while process.poll() is None and not (losses.exists() and losses.read_bytes().count(b"\n") >= until):
            time.sleep(0.001)
        process.kill()
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    done = losses.read_bytes().count(b"\n")
    assert until <= done < steps
    checkpoint = newest_checkpoint(output / "checkpoints", print)
    assert checkpoint is None or 0 < checkpoint.step <= done + 1

    resumed, text = run(config, output, resume=True)
    assert ("No checkpoint" if checkpoint is None else f"Resuming at step {checkpoint.step}") in text
    assert losses_of(output) == losses_of(tmp_path / "whole"), f"killed after {until} steps"
    assert resumed == whole
    for name, tensor in load_bilm(tmp_path / "whole" / "model-best").state_dict().items():
        assert torch.equal(tensor, load_bilm(output / "model-best").state_dict()[name]), name


def test_an_interrupt_saves_and_stops(toy_config: MakeConfig, tmp_path: Path) -> None:
    def config(at: int) -> Any:
        return toy_config(
            objective={"@misc": "test.breaking_softmax.v1", "how": "signal", "at": at}, training__max_steps=12
        )

    handler = signal.getsignal(signal.SIGINT)
    run(config(99), tmp_path / "whole")
    result, text = run(config(4), tmp_path / "out")
    assert signal.getsignal(signal.SIGINT) is handler
    assert result.stopped_by == signal.SIGINT
    assert result.step == 5  # the step that it came in was finished
    assert "--resume" in text
    resumed, _ = run(config(99), tmp_path / "out", resume=True)
    assert resumed.stopped_by is None
    assert losses_of(tmp_path / "out") == losses_of(tmp_path / "whole")


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_what_is_not_finite_stops_the_run_and_the_last_good_state_stays(
    toy_config: MakeConfig, tmp_path: Path, how: str
) -> None:
    def config(at: int) -> Any:
        return toy_config(
            objective={"@misc": "test.breaking_softmax.v1", "how": how, "at": at},
            training__max_steps=12,
            training__eval_frequency=4,
            training__checkpoint_frequency=3,
        )

    with pytest.raises(PretrainingError, match=rf"{how} at step 9 is .*{tmp_path.name}"):
        run(config(8), tmp_path / "out")
    checkpoint = newest_checkpoint(tmp_path / "out" / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.step == 6
    assert all(torch.isfinite(tensor).all() for tensor in checkpoint.tensors.values() if tensor.is_floating_point())
    load_bilm(tmp_path / "out" / "model-last")
    run(config(99), tmp_path / "whole")
    run(config(99), tmp_path / "out", resume=True)
    assert losses_of(tmp_path / "out") == losses_of(tmp_path / "whole")


def test_out_of_memory_names_what_to_lower(toy_config: MakeConfig, tmp_path: Path) -> None:
    objective = {"@misc": "test.breaking_softmax.v1", "how": "memory", "at": 2}
    with pytest.raises(PretrainingError, match=r"out of memory.*rows \(4\).*unroll_steps \(6\)"):
        run(toy_config(objective=objective), tmp_path / "out")


def test_a_folder_with_a_run_is_not_overwritten(toy_config: MakeConfig, tmp_path: Path) -> None:
    run(toy_config(training__max_steps=3), tmp_path / "out")
    before = (tmp_path / "out" / "losses.jsonl").read_bytes()
    with pytest.raises(
        PretrainingError,
        match=r"holds a run already \(checkpoints, model-best, model-last, losses.jsonl, evaluations.jsonl\).*--resume",
    ):
        run(toy_config(), tmp_path / "out")
    with pytest.raises(PretrainingError, match=r"model\.lstm_dim, training\.rows"):
        run(toy_config(model__lstm_dim=32, training__rows=2), tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "losses.jsonl").read_bytes() == before
    result, text = run(toy_config(training__max_steps=3), tmp_path / "out", resume=True)
    assert "Nothing to do" in text
    assert result.dev is not None
    # More steps of the same run are another matter.
    result, _ = run(toy_config(training__max_steps=5), tmp_path / "out", resume=True)
    assert result.step == 5
    assert [entry["step"] for entry in losses_of(tmp_path / "out")] == [1, 2, 3, 4, 5]


def test_a_changed_text_is_not_resumed(toy_config: MakeConfig, toy_text: Path, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_bytes(toy_text.read_bytes())
    config = toy_config(corpora__train={"@readers": "spacy-elmo.RawText.v1", "path": str(text)}, training__max_steps=2)
    run(config, tmp_path / "out")
    text.write_text(text.read_text(encoding="utf8") + "\nOne more sentence .\n", encoding="utf8")
    with pytest.raises(PretrainingError, match="not the one that the run"):
        run(config, tmp_path / "out", resume=True)


def test_resume_without_a_checkpoint_starts_and_says_so(toy_config: MakeConfig, tmp_path: Path) -> None:
    result, text = run(toy_config(training__max_steps=2), tmp_path / "out", resume=True)
    assert result.step == 2
    assert "No checkpoint" in text


def test_a_gpu_that_is_not_there_is_named(toy_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(PretrainingError, match="gpu_id is 77"):
        run(toy_config(system__gpu_id=77), tmp_path / "out")


def test_held_out_documents_are_not_trained_on(toy_config: MakeConfig, toy_text: Path) -> None:
    settings, config = resolve(toy_config())
    corpora = prepare_corpora(settings, config)
    assert corpora.train.n_documents + corpora.dev.n_documents == 60
    assert 3 <= corpora.dev.n_documents <= 20
    documents = [part.replace("\n", " ") for part in toy_text.read_text(encoding="utf8").split("\n\n")]
    train, dev = ([" ".join(words) for words in corpus.sentences()] for corpus in (corpora.train, corpora.dev))
    train_text, dev_text = " ".join(train), " ".join(dev)
    assert all((document in train_text) != (document in dev_text) for document in documents)


def test_too_few_documents_to_hold_any_out(toy_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("One document only .\n", encoding="utf8")
    config = toy_config(
        corpora__train={"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path / "one.txt")},
        paths__cache=str(tmp_path / "cache"),
    )
    with pytest.raises(CorpusError, match=r"1 documents.*training\.holdout.*paths\.dev"):
        run(config, tmp_path / "out")


def test_dev_text_of_its_own(toy_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("The cat purrs at the zebra .\n", encoding="utf8")
    config = toy_config(
        corpora__dev={"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path / "dev.txt")},
        paths__cache=str(tmp_path / "cache"),
        training__max_steps=2,
    )
    result, text = run(config, tmp_path / "out")
    assert result.dev is not None
    assert result.dev.n_targets == 8
    assert "14.29% of the tokens out of vocabulary" in text  # the zebra
