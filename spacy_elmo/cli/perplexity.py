"""``elmo perplexity``."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer

from .errors import clean_errors


# Optional[...]: typer 0.9 reads annotations itself and knows no X | None.
def perplexity(
    model: str = typer.Argument(..., help="Weights with their softmax: a folder of `elmo pretrain`, a checkpoint"),
    text: Optional[str] = typer.Argument(None, help="Raw text; without it, the dev corpus of the config"),  # noqa: UP045
    per_sentence: bool = typer.Option(False, "--per-sentence", help="A line for each sentence"),
    by_position: bool = typer.Option(
        False, "--by-position", help="Of the first five words of a sentence, and the rest"
    ),
    config: Optional[Path] = typer.Option(None, help="Config of the dev corpus [default: the model's own]"),  # noqa: UP045
    lang: Optional[str] = typer.Option(None, help="Language of the tokenizer [default: the model's own]"),  # noqa: UP045
    precision: str = typer.Option("float32", help="Precision of matrix products: float32 or bfloat16"),
    pretokenized: bool = typer.Option(
        False, "--pretokenized", help="TEXT is a sentence a line, split on white space; no tokenizer"
    ),
    output: Optional[Path] = typer.Option(None, help="Write the figures to this file too, as JSON"),  # noqa: UP045
) -> None:
    """Perplexity of a text under a biLM that has its softmax: all of it, each sentence by itself."""
    with clean_errors():
        from ..bilm.matmul import checked_precision
        from ..pretraining.measure import check_figures_file, measure, write_figures

        if output is not None:  # before the work
            check_figures_file(output)
        report = measure(
            model,
            text=text,
            config=config,
            lang=lang,
            per_sentence=per_sentence,
            by_position=by_position,
            precision=checked_precision(precision),
            pretokenized=pretokenized,
        )
        if per_sentence:
            typer.echo("joint\tforward\tbackward\ttargets\tsentence")
            for one, words in report.sentences:
                typer.echo(
                    f"{one.joint:.2f}\t{one.forward:.2f}\t{one.backward:.2f}\t{one.n_targets}\t{' '.join(words)}"
                )
        if by_position:
            typer.echo("position\tjoint\tforward\tbackward\ttargets")
            for name, part in report.positions.items():
                typer.echo(f"{name}\t{part.joint:.2f}\t{part.forward:.2f}\t{part.backward:.2f}\t{part.n_targets}")
        figures = report.figures()
        for name, value in figures.items():
            if "_at_" in name:  # in the table above
                continue
            typer.echo(f"{name.replace('_', ' '):<20} {value:{',' if isinstance(value, int) else ',.4f'}}")
        if output is not None:
            write_figures(figures, output)
