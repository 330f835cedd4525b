"""``elmo init-config``."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Optional

import typer
from spacy.cli._util import COMMAND, string_to_list
from wasabi import msg

from ..errors import ElmoError
from .errors import clean_errors


# Optional[...]: typer 0.9 reads annotations itself and knows no X | None.
def init_config(
    output: Path = typer.Argument(..., help="Config to write, or - for stdout", allow_dash=True),
    lang: str = typer.Option("en", "--lang", "-l", help="Code of the language"),
    pipeline: str = typer.Option(
        "tagger,parser,ner", "--pipeline", "-p", help="Components to train, divided by commas; elmo is implied"
    ),
    optimize: str = typer.Option(
        "speed",
        "--optimize",
        "-o",
        help="speed: one small tok2vec for all components, the biLM in bfloat16; accuracy: a larger one with a mix of "
        "the layers of its own for each",
    ),
    weights: Optional[str] = typer.Option(  # noqa: UP045
        None,
        help="Weights of any format that spacy-elmo reads, or the name of built-in ones [default: the language's "
        "built-in ones, or to be given as --paths.elmo in training]",
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Replace OUTPUT if it exists"),
) -> None:
    """Make a complete config for `spacy train` with ELMo in it: what `spacy init config` makes, and the rest."""
    with clean_errors():
        from ..pipeline.training_config import checked_output, training_config, write_config
        from ..weights import builtin_model

        to_stdout = str(output) == "-"
        if not to_stdout:
            checked_output(output, overwrite=force)
        config = training_config(
            lang=lang,
            pipeline=string_to_list(pipeline),
            optimize=optimize,  # type: ignore[arg-type]
            weights=weights,
        )
        if to_stdout:
            typer.echo(config.to_str())
            return
        write_config(config, output, overwrite=force)
        msg.good("Saved config", str(output))
        folder = shlex.quote(f"training/{output.stem}")
        builtin = None
        with suppress(ElmoError):  # several packages offer some: one of them is to be named
            builtin = builtin_model(config["nlp"]["lang"])
        data = "--paths.train train.spacy --paths.dev dev.spacy"
        data += " --paths.elmo WEIGHTS" if weights is None and builtin is None else ""
        typer.echo(f"{COMMAND} train {shlex.quote(str(output))} --output {folder} {data}")
