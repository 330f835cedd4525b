"""``elmo neighbors``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import List, Optional  # noqa: UP035

import typer

from ..errors import ElmoError
from .errors import clean_errors


# List[...], Optional[...]: typer 0.9 reads annotations itself and knows no X | None.
def neighbors(
    # readable=False: what cannot be read is said below, in one line; click would do it in its own way.
    model: str = typer.Argument(
        ..., help="Weights of any format that spacy-elmo reads, the name of built-in ones, or a pipeline with `elmo`"
    ),
    texts: List[Path] = typer.Argument(..., help="Files of text, a sentence a line", readable=False),  # noqa: UP006
    word: str = typer.Option(..., help="The word, as it is written in the text"),
    layer: str = typer.Option("top", help="Whose vectors: top, mean, or the number of a layer, from 0"),
    n: int = typer.Option(10, help="Neighbours of each occurrence"),
    any_word: bool = typer.Option(False, "--any", help="Other words may be neighbours too"),
    ignore_case: bool = typer.Option(False, "--ignore-case", help="Ignore case"),
    sentence: Optional[str] = typer.Option(  # noqa: UP045
        None, help="Ask about the word in this sentence, not in those of the text"
    ),
    occurrence: Optional[List[int]] = typer.Option(  # noqa: UP006, UP045
        None, help="Ask about this occurrence in the text, by number, from 1; may be given several times"
    ),
    first: int = typer.Option(10, help="Ask about the first N occurrences", metavar="N"),
    limit: Optional[int] = typer.Option(None, help="Read the first N sentences [default: all]", metavar="N"),  # noqa: UP045
    context: int = typer.Option(10, help="Words that are shown on each side"),
    precision: str = typer.Option("float32", help="Precision of matrix products: float32 or bfloat16"),
    state: Optional[str] = typer.Option(  # noqa: UP045
        None, help="zero or warm [default: as in the pipeline, or the weights' own policy]"
    ),
    pretokenized: bool = typer.Option(False, "--pretokenized", help="Split on white space; no tokenizer"),
    lang: Optional[str] = typer.Option(  # noqa: UP045
        None, help="Language of the tokenizer [default: the pipeline's, or that in the meta.json of the weights, or en]"
    ),
    text: Optional[str] = typer.Option(  # noqa: UP045
        None,
        help="What the biLM reads of a word: orth, lower, norm, or a registered function such as "
        "spacy-elmo.ptb_brackets.v1 [default: as in the pipeline, or orth]",
    ),
    component: Optional[str] = typer.Option(None, help="Of a pipeline: the component whose biLM is meant"),  # noqa: UP045
    as_json: bool = typer.Option(False, "--json", help="As JSON, with all digits"),
) -> None:
    """The most similar uses of a word elsewhere in a text: its contextual neighbours, as in the paper's table 4."""
    with clean_errors():
        from ..bilm.matmul import checked_precision
        from ..embedding import neighbors as find
        from ..pipeline.saved_bilm import is_pipeline, saved_bilm
        from ..text_forms import text_form_named

        form = None if text is None else text_form_named(text)
        saved = saved_bilm(model, component) if is_pipeline(model) else None
        if saved is None and component is not None:
            raise ElmoError(f"--component is for pipelines, and {model} is none")
        found = find(
            texts,
            model if saved is None else saved.bilm,
            word,
            layer=int(layer) if layer.isdecimal() and len(layer) < 10 else layer,  # type: ignore[arg-type]
            n=n,
            any_word=any_word,
            ignore_case=ignore_case,
            sentence=sentence,
            occurrences=occurrence or None,
            first=first,
            limit=limit,
            context=context,
            precision=checked_precision(precision),
            state=saved.state if state is None and saved is not None else state,
            pretokenized=pretokenized,
            lang=saved.lang if lang is None and saved is not None else lang,
            text=form or ("orth" if saved is None else saved.text),
        )
        if as_json:
            typer.echo(json.dumps([asdict(one) for one in found], ensure_ascii=False, indent=1))
            return
        for one in found:
            at = one.occurrence
            where = "the sentence" if at.file is None else f"{one.number}. {at.file}, line {at.line}"
            typer.echo(f"{where}: {at}")
            for near in one.nearest:
                at = near.occurrence
                typer.echo(f"  {near.similarity:.5f}  {at.file}, line {at.line}: {at}")
            if not one.nearest:
                typer.echo("  no other occurrence")
