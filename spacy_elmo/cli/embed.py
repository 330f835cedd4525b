"""``elmo embed``."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional  # noqa: UP035

import typer

from .errors import clean_errors


# List[...], Optional[...]: typer 0.9 reads annotations itself and knows no X | None.
def embed(
    # readable=False: what cannot be read is said below, in one line; click would do it in its own way.
    texts: List[Path] = typer.Argument(..., help="Files of text, a sentence a line", readable=False),  # noqa: UP006
    output: Path = typer.Argument(
        ..., help="File to write: .h5 or .hdf5 (bilm-tf's layout), .npz or .parquet", readable=False
    ),
    weights: str = typer.Option(..., help="Weights of any format that spacy-elmo reads, or the name of built-in ones"),
    layers: str = typer.Option("all", help="all, mean, top, or the number of one, from 0"),
    dtype: str = typer.Option("float32", help="Type of the vectors: float32 or float16"),
    precision: str = typer.Option("float32", help="Precision of matrix products: float32 or bfloat16"),
    state: Optional[str] = typer.Option(  # noqa: UP045
        None, help="zero, warm, or carry: from line to line, as bilm-tf's dump does [default: the weights' own policy]"
    ),
    pretokenized: bool = typer.Option(False, "--pretokenized", help="Split on white space; no tokenizer"),
    lang: Optional[str] = typer.Option(  # noqa: UP045
        None, help="Language of the tokenizer [default: that in the meta.json of the weights, or en]"
    ),
    text: str = typer.Option(
        "orth",
        help="What the biLM reads of a word: orth, lower, norm, or a registered function such as "
        "spacy-elmo.ptb_brackets.v1",
    ),
    batch: Optional[int] = typer.Option(  # noqa: UP045
        None, help="Words that are computed and written at a time [default: 100 MB of vectors]"
    ),
    resume: bool = typer.Option(True, help="Continue where an unfinished run of the same command ended, or begin anew"),
    force: bool = typer.Option(False, "--force", help="Replace OUTPUT if it exists"),
) -> None:
    """Write the vectors of every line of some texts to a file. Killed and started again, it continues."""
    with clean_errors():
        from ..bilm.matmul import checked_precision
        from ..embedding import embed_file
        from ..text_forms import text_form_named

        done = embed_file(
            texts,
            output,
            weights,
            layers=int(layers) if layers.isdecimal() and len(layers) < 10 else layers,  # type: ignore[arg-type]
            dtype=dtype,  # type: ignore[arg-type]
            precision=checked_precision(precision),
            state=state,  # type: ignore[arg-type]
            pretokenized=pretokenized,
            lang=lang,
            text=text_form_named(text),
            batch_words=batch,
            resume=resume,
            overwrite=force,
        )
        before = f" ({done.resumed:,} of them from the run before)" if done.resumed else ""
        typer.echo(f"{done.sentences:,} sentences{before}, {done.words:,} words: {done.path}")
