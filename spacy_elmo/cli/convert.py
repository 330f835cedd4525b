"""``elmo convert``."""

from __future__ import annotations

import warnings
from enum import Enum
from pathlib import Path
from typing import Optional

import typer

from ..errors import ElmoError
from .errors import clean_errors, warn


class Format(str, Enum):
    """What `elmo convert` writes."""

    native = "native"
    bilm_hdf5 = "bilm-hdf5"


class Dtype(str, Enum):
    """What its values are stored as."""

    float32 = "float32"
    float16 = "float16"


# Optional[...]: typer 0.9 reads annotations itself and knows no X | None.
def convert(
    source: str = typer.Argument(
        ..., help="Weights of any format that spacy-elmo reads, the name of built-in ones, or a pipeline with `elmo`"
    ),
    target: str = typer.Argument(..., help="Folder to write"),
    to: Format = typer.Option(Format.native, help="native: safetensors; bilm-hdf5: bilm-tf's and AllenNLP's format"),
    token_embeddings: Optional[Path] = typer.Option(  # noqa: UP045
        None, help="Vocabulary, one word a line (.gz: compressed): with bilm-hdf5, write its token embeddings too"
    ),
    component: Optional[str] = typer.Option(None, help="Of a pipeline: the component whose biLM is meant"),  # noqa: UP045
    dtype: Dtype = typer.Option(Dtype.float32, help="Of the stored values; float16, with native, halves the file"),
    softmax: bool = typer.Option(True, help="Take the output layer of pretraining and its vocabulary along"),
) -> None:
    """Convert the weights of a biLM. Values are copied as they are, unless float16 is asked for.

    The output layer of pretraining and its vocabulary go along where the source has them and the format can hold them,
    unless --no-softmax is given; so do meta.json, pretrain.cfg, README.md and LICENSE of a model that was pretrained
    here, from our own format to our own.
    """
    with clean_errors(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        from ..pipeline.saved_bilm import bilm_of_pipeline, is_pipeline
        from ..weights import load_output_layer, recognised, save_bilm, save_native, save_token_embeddings
        from ..weights.card import read_card
        from ..weights.files import as_path, is_folder
        from ..weights.folders import TOKEN_EMBEDDINGS_NAME, refuse_beside_output_layer
        from ..weights.token_embeddings import check_token_embeddings
        from ..weights.vocabulary import read_words

        as_path(source)  # an empty string would be the working folder
        target_path = as_path(target)

        if token_embeddings is not None and to is not Format.bilm_hdf5:
            raise ElmoError("--token-embeddings are part of bilm-tf's format: add --to bilm-hdf5")
        if dtype is not Dtype.float32 and to is not Format.native:
            raise ElmoError("--dtype float16 is for our own format: leave out --to bilm-hdf5")
        words = None if token_embeddings is None else read_words(token_embeddings)
        output, card = None, {}
        if is_pipeline(source):
            bilm, family = bilm_of_pipeline(source, component), "pipeline"
        elif component is not None:
            raise ElmoError(f"--component is for pipelines, and {source} is none")
        else:
            with recognised(source) as found:
                bilm, family = found.load(), found.family
                output = load_output_layer(found) if softmax and to is Format.native else None
                card = read_card(found.folder) if found.family == "spacy-elmo" else {}
        if to is Format.native:
            if output is None and is_folder(target_path):
                refuse_beside_output_layer(target_path)
            save_native(bilm, target_path, output, card, dtype=dtype.value)
        else:
            if words is not None:
                check_token_embeddings(bilm, words, target_path / TOKEN_EMBEDDINGS_NAME)
            save_bilm(bilm, target_path, "bilm-hdf5")
        typer.echo(f"{family}: {source}")
        typer.echo(f"{to.value}: {target}")
        if output is not None:
            n_words = output.softmax.n_words
            typer.echo("with its output layer" if n_words is None else f"with its softmax over {n_words:,} words")
            if output.words is None and n_words is not None:
                warn(f"The softmax has no vocabulary: {output.why}")
        if card and to is Format.native:
            typer.echo(f"with its {', '.join(card)}")
        if words is not None:
            rows = save_token_embeddings(bilm, words, target_path)
            typer.echo(f"with token embeddings of {len(rows):,} words")
            added = [word for word in rows[:3] if word not in words]
            if added:
                warn(f"Not in {token_embeddings}, and put first: {', '.join(added)}")
        for one in caught:
            if issubclass(one.category, UserWarning):
                warn(str(one.message))
