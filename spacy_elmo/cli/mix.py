"""``elmo mix``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

import typer

from .errors import clean_errors


# Optional[...]: typer 0.9 reads annotations itself and knows no X | None.
def mix(
    pipeline: str = typer.Argument(..., help="A trained pipeline: its folder, or the name of its package"),
    as_json: bool = typer.Option(False, "--json", help="As JSON, with all digits"),
    plot: Optional[Path] = typer.Option(  # noqa: UP045
        None, help="A picture to draw too, .svg or .png", readable=False
    ),
) -> None:
    """What the biLM's layers weigh in each component that reads them: s_j after the softmax, and γ."""
    with clean_errors():
        from ..pipeline.mixes import mixes_of_pipeline, table

        mixes = mixes_of_pipeline(pipeline)
        if plot is not None:
            from ..pipeline.mix_figure import draw_mixes

            draw_mixes(mixes, plot)
        if as_json:
            typer.echo(json.dumps([one.as_dict() for one in mixes], indent=1))
            return
        rows = table(mixes)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
