"""``elmo convert``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer

from .errors import clean_errors


class Format(str, Enum):
    """What `elmo convert` writes."""

    native = "native"
    bilm_hdf5 = "bilm-hdf5"


def convert(
    source: Path = typer.Argument(..., help="Weights of any format that spacy-elmo reads"),
    target: Path = typer.Argument(..., help="Folder to write"),
    to: Format = typer.Option(Format.native, help="native: safetensors; bilm-hdf5: bilm-tf's and AllenNLP's format"),
) -> None:
    """Convert the weights of a biLM. Values are copied as they are."""
    with clean_errors():
        from ..weights import load_bilm, save_bilm, save_bilm_hdf5

        bilm = load_bilm(source)
        (save_bilm if to is Format.native else save_bilm_hdf5)(bilm, target)
        typer.echo(f"{to.value}: {target}")
