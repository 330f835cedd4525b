"""``elmo info``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer

from ..errors import ElmoError
from .errors import clean_errors

if TYPE_CHECKING:
    from ..weights.summary import Summary, Words

_LONGEST = 60  # characters of one value of meta.json


# Optional[...]: typer 0.9 reads annotations itself and knows no X | None.
def info(
    model: Optional[str] = typer.Argument(  # noqa: UP045
        None,
        help="Weights of any format that spacy-elmo reads, the name of built-in ones, or a pipeline with `elmo` "
        "[default: list the built-in ones]",
    ),
    weights: Optional[Path] = typer.Option(None, help="The .hdf5 file, if it is not beside the options at MODEL"),  # noqa: UP045
    component: Optional[str] = typer.Option(None, help="Of a pipeline: the component whose biLM is meant"),  # noqa: UP045
    as_json: bool = typer.Option(False, "--json", help="Everything, as JSON"),
) -> None:
    """What a biLM's files hold: family, sizes, parameters, vocabulary, softmax, where it comes from."""
    with clean_errors():
        from ..pipeline.saved_bilm import bilm_of_pipeline, is_pipeline
        from ..weights.summary import summary, summary_of

        if model is None:
            if weights is not None or component is not None:
                raise ElmoError("--weights and --component are of a MODEL: give one")
            _list_builtin(as_json)
            return
        if is_pipeline(model):
            found = summary_of(bilm_of_pipeline(model, component), family="pipeline of spaCy", path=Path(model))
        elif component is not None:
            raise ElmoError(f"--component is for pipelines, and {model} is none")
        else:
            found = summary(model, weights)
        if as_json:
            typer.echo(json.dumps(found.as_dict(), indent=1))
        else:
            for name, text in _rows(found):
                typer.echo(f"{name:<14} {text}")


def _list_builtin(as_json: bool) -> None:
    """The built-in weights, each with its package and where it lies, or what is wrong with it."""
    from ..weights import builtin_models

    rows: list[dict[str, Any]] = []
    for model in builtin_models():
        row: dict[str, Any] = {"name": model.name, "package": model.package, "path": None, "error": None}
        try:
            row["path"] = str(model.path())
        except ElmoError as error:
            row["error"] = str(error)
        rows.append(row)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        typer.echo(f"{row['name']:<14} {row['package']:<14} {row['path'] or row['error']}")
    if not rows:
        typer.echo("No installed package offers built-in weights. `elmo info PATH` tells what is at a path.")


def _rows(found: Summary) -> Iterator[tuple[str, str]]:
    config = found.config
    yield "path", str(found.path)
    yield "family", found.family
    yield "parameters", f"{found.n_parameters:,}" + (f", sizes as of {found.size_of}" if found.size_of else "")
    for part, count in found.parameters.items():
        yield "", f"{count:>11,} {part}"
    yield "vectors", f"{config.n_layers + 1} layers of width {config.width}"
    layers = _count(config.n_layers, "layer")
    yield "LSTMs", f"{layers} a direction, {config.lstm_dim} cells, outputs of {config.projection_dim}"
    clips = [f"{clip:g}" if clip else "none" for clip in (config.cell_clip, config.proj_clip)]
    skips = "with" if config.use_skip_connections else "without"
    yield "", f"{skips} skip connections; clips: cells {clips[0]}, outputs {clips[1]}"
    if config.filters is not None:
        filters = ", ".join(f"{count} of width {width}" for width, count in config.filters)
        kind = "code points" if config.is_many_langs else "bytes and marks"
        yield (
            "characters",
            f"{found.n_characters} {kind}, embeddings of {config.char_dim}, at most {config.max_characters_per_token} "
            f"a word; {config.activation}, {_count(config.n_highway, 'highway')}",
        )
        yield "filters", f"{config.n_filters}: {filters}"
    if found.word_table is not None:
        yield "word table", _words(found.word_table)
    yield "start state", "stored with the weights" if found.start_state else "zeros"
    if found.softmax is None:
        vectors = f": {found.output_parameters:,} parameters that predict vectors" if found.output_parameters else ""
        yield "softmax", f"none{vectors}, so no perplexity can be measured"
    else:
        fits = found.vocabulary is not None and found.vocabulary.size == found.softmax[0]
        fits = fits and found.softmax[1] == config.projection_dim
        more = f"{found.output_parameters:,} parameters more"
        yield "softmax", f"over {found.softmax[0]:,} words, {more}" + ("" if fits else "; it cannot be used:")
    if found.vocabulary is not None:
        yield "vocabulary", _words(found.vocabulary)
    if origin := _origin(found.meta):
        yield "meta.json", origin
    for problem in found.problems:
        yield "problem", problem


def _words(words: Words) -> str:
    where = f" in {words.file}" if words.file else ""
    more = ", ..." if words.size > len(words.first) else ""
    return f"{words.size:,} words{where}: {', '.join(map(repr, words.first))}{more}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _origin(meta: Any) -> str:
    """Plain values of meta.json, and its metrics; of whatever else it holds (lists of packages, of files) nothing."""
    if not isinstance(meta, Mapping):
        return ""
    metrics = meta.get("metrics")
    pairs = [*meta.items(), *(metrics.items() if isinstance(metrics, Mapping) else ())]
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in pairs if _is_plain(value))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, str) and 0 < len(value) <= _LONGEST)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
