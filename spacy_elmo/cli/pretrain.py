"""``elmo pretrain`` and ``elmo corpus``."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import typer

from .errors import clean_errors
from .overrides import config_overrides


def pretrain(
    ctx: typer.Context,
    config: Path = typer.Argument(..., help="Config file of the run; the repository has configs/pretrain.cfg"),
    output: Path = typer.Argument(..., help="Folder for model-best, model-last and the checkpoints"),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the plan and stop"),
    resume: bool = typer.Option(False, "--resume", help="Resume from the newest checkpoint in OUTPUT, if there is one"),
) -> None:
    """Pretrain a biLM from raw text. Values of the config can be changed: --training.max_steps 5000"""
    with clean_errors():
        from ..pretraining.config import load_config
        from ..pretraining.distributed import joined_ranks, launcher
        from ..pretraining.loop import pretrain as run

        line = ["-m", "spacy", "elmo", "pretrain", str(config), str(output), *["--resume"] * resume, *ctx.args]
        with joined_ranks() as ranks:
            loaded = load_config(config, config_overrides(ctx.args))
            command = shlex.join([*launcher(ranks), *line])
            result = run(loaded, output, resume=resume, dry_run=dry_run, command=command)
    if result.stopped_by == signal.SIGINT:
        raise typer.Exit(130)  # as a shell reports it: what follows in a workflow must not run


def corpus(
    ctx: typer.Context,
    config: Path = typer.Argument(..., help="Config file of the run"),
) -> None:
    """Encode the corpora of a config, as `elmo pretrain` would do first.

    Values of the config can be changed: --paths.raw my_text.txt
    """
    with clean_errors():
        from ..pretraining.config import load_config, resolve
        from ..pretraining.prepare import prepare_corpora

        settings, filled = resolve(load_config(config, config_overrides(ctx.args)))
        corpora = prepare_corpora(settings, filled)
        for name, encoded in (("train", corpora.train), ("dev", corpora.dev)):
            typer.echo(
                f"{name}: {encoded.n_documents:,} documents, {encoded.n_sentences:,} sentences, "
                f"{encoded.n_words:,} tokens, {encoded.n_types:,} types, in {encoded.folder}"
            )
