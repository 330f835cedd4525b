"""``elmo curve``."""

from __future__ import annotations

from pathlib import Path

import typer

from .errors import clean_errors


def curve(
    output: Path = typer.Argument(..., help="Output folder of `elmo pretrain`, of a run that goes on too"),
) -> None:
    """Draw the course of a run: training_curve.svg and .png in its folder."""
    with clean_errors():
        from ..pretraining.curve import draw_curve

        for path in draw_curve(output):
            typer.echo(str(path))
