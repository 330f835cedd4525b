"""``elmo info``."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from .errors import clean_errors


def info(model: Path = typer.Argument(..., help="Weights of any format that spacy-elmo reads")) -> None:
    """What a biLM's files hold: its sizes, where it comes from, how good it was on its dev text."""
    with clean_errors():
        from ..weights import load_bilm

        bilm = load_bilm(model)
        typer.echo(f"{sum(parameter.numel() for parameter in bilm.parameters()):,} parameters")
        typer.echo(f"{bilm.config.n_layers + 1} layers of vectors of width {bilm.config.width}")
        typer.echo(json.dumps(bilm.config.to_options(), indent=1))
        meta = model / "meta.json"
        if meta.is_file():
            typer.echo(meta.read_text(encoding="utf8", errors="replace"))
