"""How a run starts: from its config to the parts that train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch
from thinc.api import Config

from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..errors import PretrainingError
from .config import Settings, TrainingSettings, resolve
from .devices import device_of
from .distributed import Ranks
from .initialize import InitialWeights, initial_weights
from .objectives import check_objective, initialize_output, output_layer, prediction_targets
from .plan import make_plan
from .precision import chosen_precision
from .prepare import Corpora, dev_sentences, prepare_corpora
from .streams import Stream
from .text_files import STDIN
from .vectors import Targets


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What is to be done, checked as far as that goes without the text.

    settings, config: the resolved config; [model] has the sizes of given weights, where there are any. A precision
        "auto" is still one in ``config``; ``settings`` has what it means here.
    model_asked: [model] as the config had it.
    ranks, own_rows: the processes, and which rows of a step are this one's. device: where it trains.
    output: the folder. command: the command line, for the model's card. stdout, stderr: of this process.
    """

    settings: Settings
    config: Config
    model_asked: Mapping[str, Any]
    ranks: Ranks
    own_rows: slice
    device: torch.device
    output: Path
    command: str | None
    stdout: IO[str]
    stderr: IO[str]

    @property
    def training(self) -> TrainingSettings:
        """[training] of the config."""
        return self.settings.training

    def say(self, text: str) -> None:
        """Tell the user."""
        print(text, file=self.stdout, flush=True)


def make_task(
    config: Config, *, ranks: Ranks, output: Path, command: str | None, stdout: IO[str], stderr: IO[str]
) -> tuple[Task, InitialWeights | None]:
    """Resolve a config, and read the weights that it goes on from. RETURNS: None for these if there are none.

    Raises PretrainingError for a config that cannot work, and WeightsError for such weights.
    """
    settings, config = resolve(config)
    training = settings.training
    if ranks.size > 1 and _reads_stdin(config["corpora"]):
        raise PretrainingError(
            f"{ranks.size} processes cannot share the standard input: put the text into a file, and give its path"
        )
    own_rows = ranks.rows(training.rows, training.accumulate)
    device = device_of(settings.system.gpu_id, ranks)
    if training.precision == "float16" and device.type == "cpu":
        raise PretrainingError("training.precision float16 is for GPUs: on the CPU take bfloat16 or float32")
    # Processors may differ: all do what the first one's can.
    training = training.model_copy(update={"precision": ranks.agreed(chosen_precision(training.precision, device))})
    settings = settings.model_copy(update={"training": training})
    check_objective(settings.objective)
    weights = initial_weights(settings.initialize)
    model_asked = config["model"]
    if weights is not None:
        settings, config = weights.resolved(settings, config)
    source = weights.source if weights is not None else None
    if ranks.agreed(source) != source:
        raise PretrainingError("the processes read different weights: give all machines the same files")
    task = Task(
        settings=settings,
        config=config,
        model_asked=model_asked,
        ranks=ranks,
        own_rows=own_rows,
        device=device,
        output=output,
        command=command,
        stdout=stdout,
        stderr=stderr,
    )
    return task, weights


def _reads_stdin(blocks: Mapping[str, Any]) -> bool:
    """Whether one of these blocks of readers, or one inside them, has the standard input as its path."""
    return blocks.get("path") == STDIN or any(
        _reads_stdin(block) for block in blocks.values() if isinstance(block, Mapping)
    )


def read_corpora(task: Task) -> Corpora:
    """Encode the task's text, or open what was encoded before: the first process, then the first one of each other
    machine, then all others.

    Raises what `prepare_corpora` does, and PretrainingError if the processes read different texts.
    """
    with task.ranks.one_a_machine_first():
        corpora = prepare_corpora(task.settings, task.config, stderr=task.stderr)
    if task.ranks.agreed(corpora.hashes) != corpora.hashes:
        raise PretrainingError("the processes read different texts: give all machines the same files and versions")
    return corpora


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """All that a run is made of, as it is before the first step.

    corpora: the text. targets: what is predicted of it. stream: the windows of this process's rows.
    bilm, softmax: the biLM, and the output layer of its training, on the task's device. optimizer: of both.
    taken: what was taken from given weights, in words.
    """

    task: Task
    corpora: Corpora
    targets: Targets
    stream: Stream
    bilm: BiLM
    softmax: OutputLayer
    optimizer: torch.optim.Optimizer
    taken: str | None

    @cached_property
    def sentences(self) -> list[list[str]]:
        """The sentences of the dev text that the model is measured on."""
        return dev_sentences(self.corpora.dev, self.task.training.eval_tokens)

    def whole_stream(self) -> Stream:
        """The windows of all rows, as one process alone would read them."""
        return _stream(self.task, self.corpora, self.targets, slice(None))

    def plan(self, products: str | None) -> str:
        """What the run is going to do, in numbers. products: which library makes them, see `make_plan`."""
        task = self.task
        plan = make_plan(task.settings, self.corpora, self.stream, self.bilm, self.softmax, self.targets, products)
        lines = [plan] if self.taken is None else [plan, self.taken]
        if task.ranks.size > 1:
            lines.append(f"{task.ranks.size} processes, each with {task.training.rows // task.ranks.size} rows")
        return "\n".join(lines)


def make_parts(task: Task, corpora: Corpora, weights: InitialWeights | None) -> Parts:
    """Make the parts of a run: new, or from given weights.

    Raises PretrainingError or CorpusError for a text that the task cannot be done with, ElmoError for sizes of a model
    that are out of range.
    """
    settings, vocabulary = task.settings, corpora.vocabulary
    targets = prediction_targets(settings.objective, corpora)
    stream = _stream(task, corpora, targets, task.own_rows)
    if weights is None:
        bilm_config = settings.bilm_config(len(vocabulary))
        bilm = BiLM(bilm_config, vocabulary=vocabulary.words if bilm_config.filters is None else None)
        bilm.initialize(settings.system.seed)
    else:
        bilm = weights.start(vocabulary)
    bilm.to(task.device)
    softmax = output_layer(settings.objective, targets, bilm, len(vocabulary))
    initialize_output(settings.objective, softmax, corpora, settings.system.seed)
    taken = None
    if weights is not None:
        rows_kept = weights.fill(softmax, vocabulary, corpora.train)
        taken = weights.plan(task.model_asked, rows_kept, len(vocabulary))
    softmax.to(task.device)
    optimizer = settings.optimizer([*bilm.parameters(), *softmax.parameters()])
    return Parts(
        task=task,
        corpora=corpora,
        targets=targets,
        stream=stream,
        bilm=bilm,
        softmax=softmax,
        optimizer=optimizer,
        taken=taken,
    )


def _stream(task: Task, corpora: Corpora, targets: Targets, own: slice) -> Stream:
    training, seed = task.training, task.settings.system.seed
    rows, unroll_steps = training.step_rows, training.unroll_steps
    return Stream(corpora.train, targets, rows=rows, unroll_steps=unroll_steps, seed=seed, own=own)
