"""``elmo debug-data``."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from .errors import clean_errors
from .overrides import config_overrides


def debug_data(
    ctx: typer.Context,
    config: Path = typer.Argument(..., help="Config file of the run"),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON"),
) -> None:
    """Look at the text of a config: size, vocabulary, duplicates, oddities, and what to do about them.

    Values of the config can be changed: --paths.raw my_text.txt
    """
    with clean_errors():
        from ..pretraining.config import load_config, resolve
        from ..pretraining.debug_data import debug_data as look

        report = look(*resolve(load_config(config, config_overrides(ctx.args))))
        typer.echo(json.dumps(report.figures(), indent=1) if as_json else report.text())
