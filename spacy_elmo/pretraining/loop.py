"""The pretraining loop, from config to model folders. It reads top to bottom; its parts lie in the files beside."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from spacy import Language
from thinc.api import Config

from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..errors import PretrainingError
from ..weights.native import save_native, save_softmax
from ..weights.vocabulary import save_vocabulary
from .card import README, model_card, model_meta
from .checkpoint import (
    Checkpoint,
    copied_to_all,
    keep_newest,
    newest_checkpoint,
    replaced_folder,
    restore,
    save_checkpoint,
    step_folder,
    step_folders,
)
from .config import changed_keys, nlp_settings, resolve
from .curve import draw_curve
from .distributed import Ranks, joined_ranks
from .initialize import comparison, initial_weights
from .loggers import LogStep
from .objectives import check_objective, output_layer, prediction_targets
from .output import (
    BEST,
    CHECKPOINTS,
    EVALUATIONS,
    LAST,
    LOSSES,
    LossesFile,
    check_output,
    losses_until,
    own_output,
    write_evaluations,
)
from .perplexity import Evaluation, evaluate
from .plan import make_plan
from .precision import onednn_products
from .prepare import dev_sentences, prepare_corpora
from .step import TrainingStep
from .streams import Stream
from .texts import pipeline
from .warm import check_warm, store_start_states


@dataclass(frozen=True, kw_only=True)
class PretrainingResult:
    """How a run ended.

    step (int): updates done, those before a resume included.
    dev (Evaluation | None): perplexity or loss of the last evaluation; None if the run was not started (dry run).
    best_step (int | None): the step of the model in ``model-best``.
    stopped_by (int | None): the signal that stopped the run early.
    stopped_early (bool): whether it ended before ``max_steps`` because it had ceased to get better.
    """

    step: int
    dev: Evaluation | None = None
    best_step: int | None = None
    stopped_by: int | None = None
    stopped_early: bool = False


def pretrain(
    config: Config,
    output: Path | str,
    *,
    resume: bool = False,
    dry_run: bool = False,
    command: str | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
) -> PretrainingResult:
    """Pretrain a biLM as a config says.

    Writes ``model-best``, ``model-last``, ``checkpoints``, ``losses.jsonl`` (one line a step), ``evaluations.jsonl``
    and, where matplotlib is installed, ``training_curve.svg`` and ``.png`` into ``output``. Where ``torchrun`` started
    several processes each calls it, and trains on rows of its own; the first writes and prints.

    config: see ``load_config``.
    resume (bool): go on from the checkpoint in ``output``; without one, start at the beginning.
    dry_run (bool): encode the corpora, print the plan, and stop.
    command (str | None): the command line, for the model's card.
    Raises PretrainingError (wrong config; ``output`` in use, not to be written or with files of others; a resume that
    would not continue the run; a loss that is not finite; out of memory or disk), CorpusError for text that cannot be
    read. SIGINT and SIGTERM save a checkpoint and end the run without an error.
    """
    stdout, stderr = stdout or sys.stdout, stderr or sys.stderr
    output = Path(output)
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks())
        if not ranks.first:
            stdout = stderr = stack.enter_context(open(os.devnull, "w"))
        return _pretrain(
            config, output, ranks, resume=resume, dry_run=dry_run, command=command, stdout=stdout, stderr=stderr
        )


def _pretrain(
    config: Config,
    output: Path,
    ranks: Ranks,
    *,
    resume: bool,
    dry_run: bool,
    command: str | None,
    stdout: IO[str],
    stderr: IO[str],
) -> PretrainingResult:
    settings, config = resolve(config)
    training = settings.training
    own_rows = ranks.rows(training.rows, training.accumulate)

    device = _device(settings.system.gpu_id, ranks)
    if training.precision == "float16" and device.type == "cpu":
        raise PretrainingError("training.precision float16 is for GPUs: on the CPU take bfloat16 or float32")
    check_objective(settings.objective)
    start = initial_weights(settings.initialize)
    model_asked = config["model"]
    if start is not None:
        settings, config = start.resolved(settings, config)
    source = start.source if start is not None else None
    if ranks.agreed(source) != source:
        raise PretrainingError("the processes read different weights: give all machines the same files")

    with ExitStack() as stack:
        # Refuse what cannot work before the corpora are read.
        checkpoint, earlier_losses = None, b""
        if ranks.first and not dry_run:
            stack.enter_context(own_output(output))
            check_output(output, resume=resume)
            checkpoint = newest_checkpoint(output / CHECKPOINTS, lambda line: print(line, file=stdout, flush=True))
            if checkpoint is not None:
                _check_resumable(checkpoint, config, output)
            earlier_losses = losses_until(output / LOSSES, checkpoint.step if checkpoint is not None else 0)
        checkpoint = copied_to_all(checkpoint, ranks)

        stack.enter_context(_torch_state(training.threads, device))
        with ranks.one_a_machine_first():
            corpora = prepare_corpora(settings, config, stderr=stderr)
        if ranks.agreed(corpora.hashes) != corpora.hashes:
            raise PretrainingError("the processes read different texts: give all machines the same files and versions")
        if checkpoint is not None and checkpoint.record["corpora"] != corpora.hashes:
            raise PretrainingError(
                f"the text is not the one that the run in {output} read: restore it, or choose another folder"
            )
        if training.start_state == "warm":
            check_warm(corpora.train)
        vocabulary = corpora.vocabulary
        tokens_per_step = training.step_rows * training.unroll_steps
        stack.enter_context(_out_of_memory_explained(config, output))
        targets = prediction_targets(settings.objective, corpora)
        stream = Stream(
            corpora.train,
            targets,
            rows=training.step_rows,
            unroll_steps=training.unroll_steps,
            seed=settings.system.seed,
            own=own_rows,
        )

        # The model: the biLM, the output layer of its training, and their optimizer.
        if start is None:
            bilm_config = settings.bilm_config(len(vocabulary))
            bilm = BiLM(bilm_config, vocabulary=vocabulary.words if bilm_config.filters is None else None)
            bilm.initialize(settings.system.seed)
        else:
            bilm = start.start(vocabulary)
        bilm.to(device)
        softmax = output_layer(settings.objective, targets, bilm, len(vocabulary))
        softmax.initialize(settings.system.seed)
        rows_kept = start.fill(softmax, vocabulary, corpora.train) if start is not None else 0
        softmax.to(device)
        optimizer = settings.optimizer([*bilm.parameters(), *softmax.parameters()])

        products = stack.enter_context(onednn_products(training.onednn and device.type == "cpu"))
        print(make_plan(settings, corpora, stream, bilm, softmax, targets, products), file=stdout, flush=True)
        if start is not None:
            print(start.plan(model_asked, rows_kept, len(vocabulary)), file=stdout, flush=True)
        if ranks.size > 1:
            print(f"{ranks.size} processes, each with {training.rows // ranks.size} rows", file=stdout, flush=True)
        if dry_run:
            return PretrainingResult(step=0)

        # Where the run stands.
        step, state, seconds = 0, bilm.zero_state(training.step_rows), 0.0
        # Dropout; all else has generators of its own.
        torch.manual_seed(ranks.seed(settings.system.seed, checkpoint.step if checkpoint is not None else 0))
        best: dict[str, Any] = {"score": -1e9, "step": None}
        info: dict[str, Any] | None = None
        evaluations: list[dict[str, Any]] = []
        initial: dict[str, Any] | None = {"weights": start.source} if start is not None else None
        if checkpoint is not None:
            state = restore(checkpoint, bilm=bilm, softmax=softmax, optimizer=optimizer, ranks=ranks)
            step, seconds = checkpoint.step, checkpoint.record["seconds"]
            best, info = checkpoint.record["best"], checkpoint.record["info"]
            evaluations, initial = checkpoint.record.get("evaluations", []), checkpoint.record.get("initial")
            if start is not None:
                start.check(initial)
            print(f"Resuming at step {step}", file=stdout)
            if step and not earlier_losses:
                print(f"There is no {LOSSES} of the steps before: it begins here", file=stdout)
        elif resume:
            print(f"No checkpoint in {output}: starting at the beginning", file=stdout)

        def exhausted() -> bool:
            return 0 < training.patience <= best.get("stale", 0)

        def finish() -> PretrainingResult:
            if ranks.first and training.start_state == "warm":
                # Read as one process alone would.
                rows, unroll_steps = training.step_rows, training.unroll_steps
                whole = Stream(corpora.train, targets, rows=rows, unroll_steps=unroll_steps, seed=settings.system.seed)
                store_start_states(
                    [output / name for name in (LAST, BEST)],
                    whole,
                    corpora.train.types,
                    sentences,
                    settings=settings,
                    device=device,
                    stdout=stdout,
                )
            if initial is not None and info is not None:
                scores = {entry["step"]: entry for entry in evaluations}
                print(comparison(initial, scores[info["step"]], scores.get(best["step"])), file=stdout, flush=True)
            if ranks.first:
                _draw(output, stderr)
            return PretrainingResult(
                step=step, dev=_dev_of(info), best_step=best["step"], stopped_early=step < training.max_steps
            )

        state = state.rows(own_rows)
        sentences = dev_sentences(corpora.dev, training.eval_tokens)
        if step >= training.max_steps or exhausted():
            print(f"Nothing to do: {step} of {training.max_steps} steps are done", file=stdout)
            return finish()
        if start is not None and checkpoint is None:
            own = ranks.agreed(start.own_perplexity(sentences, device) if ranks.first else None)
            initial = {"weights": start.source, "own": None if own is None else own.scores()}
        start = None  # its memory

        training_step = TrainingStep(
            bilm=bilm, softmax=softmax, optimizer=optimizer, types=corpora.train.types, settings=training, ranks=ranks
        )
        if checkpoint is not None:
            training_step.restore(checkpoint)
        log_step: LogStep = _no_log
        losses: LossesFile | None = None
        if ranks.first:
            losses = stack.enter_context(closing(LossesFile(output / LOSSES, earlier_losses)))
            log_step, finish_log = settings.logger(_nlp_of(config), stdout, stderr)
            stack.callback(finish_log)
        signals = stack.enter_context(_stop_signals(ranks))

        def save(name: str) -> None:
            if ranks.first:
                meta = model_meta(
                    settings, config, corpora, bilm, info=info, seconds=seconds, initial=initial, command=command
                )
                _save_model(output / name, *training_step.shown, vocabulary.words, config, meta)

        def save_state() -> None:
            if losses is not None:
                losses.sync()
            record: dict[str, Any] = {
                "best": best,
                "info": info,
                "seconds": seconds,
                "corpora": corpora.hashes,
                "config": config,
            }
            record |= {"progress": training_step.record(), "evaluations": evaluations, "initial": initial}
            save_checkpoint(
                step_folder(output / CHECKPOINTS, step),
                step=step,
                bilm=bilm,
                softmax=softmax,
                optimizer=optimizer,
                state=state,
                record=record,
                more=training_step.tensors(),
                ranks=ranks,
            )
            if ranks.first:
                keep_newest(output / CHECKPOINTS, step, training.keep)

        if info is not None:
            log_step({**info, "resumed_at": step})
        recent: list[float] = []  # losses since the last evaluation
        recent_seconds, learn_rate = 0.0, None
        stopped_by = 0
        while True:
            # Evaluate: at the start, every so often, and at the end.
            due = step % training.eval_frequency == 0 or step == training.max_steps
            if info is None or (due and info["step"] < step):
                # The first rank measures, and from its figures all decide alike.
                started = time.perf_counter()
                dev = ranks.agreed(evaluate(*training_step.shown, targets, sentences) if ranks.first else None)
                evaluating = time.perf_counter() - started
                if not math.isfinite(dev.joint):
                    raise PretrainingError(f"the dev {dev.name} at step {step} is not finite. {_kept(output)}")
                training_step.evaluated(dev.score)
                # The untrained model is measured, but is never the best one.
                if step > 0 and dev.score > best["score"]:
                    best = {"score": dev.score, "step": step, "stale": 0}
                elif step > 0:
                    best = {**best, "stale": best.get("stale", 0) + 1}
                scores = dev.scores()
                if learn_rate is not None:
                    scores["learn_rate"] = learn_rate
                if initial is not None and step == 0:
                    initial = {**initial, "step_0": scores}
                evaluations.append({"step": step, "score": dev.score, **scores})
                if ranks.first:
                    write_evaluations(output / EVALUATIONS, evaluations)
                # What is left: steps, and the evaluations between them.
                steps_left = training.max_steps - step
                info = {
                    "epoch": step // stream.steps_per_epoch,
                    "step": step,
                    "score": dev.score,
                    "losses": {"bilm": math.fsum(recent) / len(recent)} if recent else {},
                    "other_scores": {
                        **scores,
                        "tokens_per_second": len(recent) * tokens_per_step / recent_seconds if recent else 0.0,
                    },
                    "checkpoints": [(best["score"], best["step"])],
                    "seconds": int(seconds),
                    "seconds_left": steps_left * recent_seconds / len(recent)
                    + math.ceil(steps_left / training.eval_frequency) * evaluating
                    if recent
                    else None,
                    "words": step * tokens_per_step,
                    # Loggers of MLflow load what they find there as a pipeline of spaCy, which these models are not.
                    "output_path": None,
                }
                log_step(info)
                recent, recent_seconds = [], 0.0
                if step > 0:
                    save(LAST)
                    if best["step"] == step:
                        save(BEST)
            if step >= training.max_steps or exhausted():
                save_state()
                break
            stopped_by = ranks.largest(signals[:1] or [0])[0]
            if stopped_by:
                save_state()
                print(f"Stopped by signal {stopped_by} at step {step}: go on with --resume", file=stdout, flush=True)
                break
            if (
                step > 0
                and step % training.checkpoint_frequency == 0
                and (checkpoint is None or step > checkpoint.step)
            ):
                save_state()

            started = time.perf_counter()
            try:
                result = training_step(stream.window(step), state, step)
            except PretrainingError as error:
                raise PretrainingError(f"{error}. {_kept(output)}") from error
            state = result.state
            step += 1
            spent = time.perf_counter() - started
            seconds += spent
            recent_seconds += spent
            learn_rate = result.learn_rate if result.learn_rate is not None else learn_rate
            if result.skipped is None:
                recent.append(result.loss)
            if losses is not None:
                losses.write({"step": step, **result.entry()})
            if result.note:
                print(f"Step {step}: {result.note}", file=stdout, flush=True)
            log_step(None)

        if exhausted() and step < training.max_steps:
            print(
                f"Stopped early at step {step}: {best['stale']} evaluations without a better one than step "
                f"{best['step']}'s",
                file=stdout,
                flush=True,
            )
        elif step < training.max_steps:
            if ranks.first:
                _draw(output, stderr)
            return PretrainingResult(step=step, dev=_dev_of(info), best_step=best["step"], stopped_by=stopped_by)
        return finish()


def _check_resumable(checkpoint: Checkpoint, config: Config, output: Path) -> None:
    before = checkpoint.record["config"]
    changed = changed_keys(before, config)
    if changed and all(key.startswith("corpora.") for key in changed):
        raise PretrainingError(
            f"the run in {output} was begun on {_text_of(before)} and cannot go on with {_text_of(config)}: "
            "give it the text that it had (--paths.raw), or choose another folder for a new run"
        )
    if changed:
        raise PretrainingError(
            f"the run in {output} cannot go on with another {', '.join(changed)}: "
            "give it the values of its checkpoint, or choose another folder for a new run"
        )


def _text_of(config: Mapping[str, Any]) -> str:
    """What a config's readers read, in words."""
    found = []
    for name, reader in config["corpora"].items():
        if reader:
            said = [f"{key} {value}" for key, value in reader.items() if key != "@readers" and value]
            found.append(f"{name} text {reader['@readers']} ({', '.join(said)})")
    return " and ".join(found)


def _device(gpu_id: int, ranks: Ranks) -> torch.device:
    if gpu_id < 0:
        return torch.device("cpu")
    if ranks.size > 1:
        gpu_id = ranks.local  # each of a machine's processes has one of its own
    if gpu_id >= torch.cuda.device_count():
        wanted = f"process {ranks.rank} needs GPU {gpu_id}" if ranks.size > 1 else f"system.gpu_id is {gpu_id}"
        raise PretrainingError(
            f"{wanted}, but torch finds {torch.cuda.device_count()} CUDA devices: "
            "use -1 for the CPU, or install a torch that fits your GPU's driver"
        )
    if ranks.size > 1:
        torch.cuda.set_device(gpu_id)  # for what NCCL makes there
    return torch.device(f"cuda:{gpu_id}")


@contextmanager
def _torch_state(threads: int, device: torch.device) -> Iterator[None]:
    """Threads and random state as the run needs them, and afterwards as they were before."""
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _stop_signals(ranks: Ranks) -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them; a second one acts as ever.

    Not so under torchrun: Ctrl-C comes from the terminal and again from torchrun, which itself ends who takes too long.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may set handlers
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def reset() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        received.append(number)
        if ranks.size == 1:
            reset()

    for number in previous:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        reset()


@contextmanager
def _out_of_memory_explained(config: Config, output: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reasons = ("alloc", "size calculation overflowed")
        is_memory = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
        if not is_memory and not any(reason in str(error).lower() for reason in reasons):
            raise
        training, model = config["training"], config["model"]
        samples = config["objective"].get("n_samples")
        raise PretrainingError(
            f"out of memory: lower training.rows ({training['rows']}), training.unroll_steps "
            f"({training['unroll_steps']}){f' or objective.n_samples ({samples})' if samples else ''}, or the sizes of "
            f"the model: model.lstm_dim ({model['lstm_dim']}), model.projection_dim ({model['projection_dim']}), "
            f"vocabulary.max_words ({config['vocabulary']['max_words']}). Fewer rows and as much more "
            f"training.accumulate ({training.get('accumulate', 1)}) are the same training. {_kept(output)}"
        ) from error


def _kept(output: Path) -> str:
    found = step_folders(output / CHECKPOINTS)
    return f"The last good state is kept in {found[0]}" if found else "There was no checkpoint yet"


def _draw(output: Path, stderr: IO[str]) -> None:
    """The training curve; where it cannot be drawn a line says why, and that is all."""
    try:
        draw_curve(output)
    except PretrainingError as error:
        print(f"No picture of the training curve: {error}", file=stderr, flush=True)


def _dev_of(info: Mapping[str, Any] | None) -> Evaluation | None:
    return None if info is None else Evaluation.from_scores(info["other_scores"])


def _nlp_of(config: Config) -> Language:
    """A blank pipeline whose config holds the run's, where loggers look for it.

    spaCy's and spacy-loggers' ones read max_steps, eval_frequency and score_weights (columns that spaCy multiplies
    by 100: none of ours).
    """
    nlp = pipeline(nlp_settings(config["nlp"]))
    merged = nlp.config
    for name, section in config.items():
        if name == "nlp":
            continue  # spaCy's own section has more in it, and other things by the same names
        merged[name] = {**merged.get(name, {}), **section}
    merged["training"]["score_weights"] = {}
    nlp.config = merged
    return nlp


def _save_model(
    folder: Path, bilm: BiLM, softmax: OutputLayer, vocabulary: Sequence[str], config: Config, meta: Mapping[str, Any]
) -> None:
    with replaced_folder(folder) as new:
        save_native(bilm, new)
        save_softmax(softmax, new)
        save_vocabulary(vocabulary, new / "vocabulary.txt")
        config.to_disk(new / "pretrain.cfg")
        (new / "meta.json").write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf8")
        (new / README).write_text(model_card(meta, config), encoding="utf8")


def _no_log(info: dict[str, Any] | None) -> None:
    """The logger of all ranks but the first."""
