"""What the files of a biLM hold, in short: for `python -m spacy elmo info`, and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..bilm.config import PUBLISHED_FILTERS, BiLMConfig
from ..bilm.model import BiLM
from ..errors import WeightsError
from .card import META_NAME
from .files import exists, read_json
from .layout import OutputShape
from .recognise import Found, recognised
from .vocabulary import find_vocabulary, read_words

FIRST_WORDS = 10

# Sizes of AllenNLP's published models: lstm_dim, projection_dim, n_highway; all else is alike.
_PUBLISHED: Mapping[tuple[int, int, int], str] = {
    (1024, 128, 1): "AllenNLP's small",
    (2048, 256, 1): "AllenNLP's medium",
    (4096, 512, 2): "AllenNLP's original, original 5.5B and PubMed",
}
# The same, char_dim and word_dim of those of ELMoForManyLangs, which all have one size.
_MANY_LANGS = (4096, 512, 2, 50, 100)

# Where a parameter belongs, by how its name begins.
_PARTS = {
    "token_encoder.char_embed": "character table",
    "token_encoder.conv_": "convolutions",
    "token_encoder.highways": "highways",
    "token_encoder.word_embed": "word table",
    "token_encoder.embedding": "word table",
    "token_encoder.": "projection of tokens",
    "forward_lstm": "forward LSTM",
    "backward_lstm": "backward LSTM",
}


@dataclass(frozen=True, kw_only=True)
class Words:
    """Words of a table or a softmax. file: where they stand; None: in the weights' own file. first: the first ones."""

    size: int
    first: Sequence[str]
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a biLM is, and what lies beside it.

    family: of its files. path: of the file or folder that holds it.
    config: its sizes and options. parameters: how many, by part.
    size_of: the published models that have the same sizes; whether it is one of them, sizes cannot tell.
    word_table: of a biLM that reads words: which ones. n_characters: of one that reads characters: rows of their table.
    vocabulary: the words of the softmax; without a softmax, of the vocabulary that lies beside the weights.
    softmax: (V, P) of the output layer of its pretraining; None too where that predicts vectors.
    output_parameters: how many that layer has. start_state: whether it starts from a state of its own.
    meta: what `meta.json` holds. problems: what lies beside the weights and is broken, or does not fit them.
    """

    family: str
    path: Path
    config: BiLMConfig
    parameters: Mapping[str, int]
    size_of: str | None
    word_table: Words | None
    n_characters: int | None
    start_state: bool
    vocabulary: Words | None = None
    softmax: tuple[int, int] | None = None
    output_parameters: int = 0
    meta: Any = None
    problems: tuple[str, ...] = ()

    @property
    def n_parameters(self) -> int:
        """All of the biLM's; a softmax is no part of it."""
        return sum(self.parameters.values())

    def as_dict(self) -> dict[str, Any]:
        """All of it in what JSON knows."""
        return {
            "family": self.family,
            "path": str(self.path),
            "size_of": self.size_of,
            "layers": self.config.n_layers + 1,
            "width": self.config.width,
            "parameters": {"total": self.n_parameters, **self.parameters},
            "options": self.config.to_options(),
            "characters": self.n_characters,
            "word_table": _words_as_dict(self.word_table),
            "vocabulary": _words_as_dict(self.vocabulary),
            "softmax": self.softmax and {"words": self.softmax[0], "width": self.softmax[1]},
            "start_state": self.start_state,
            "meta": self.meta,
            "problems": list(self.problems),
        }


def summary(path: Path | str, weights: Path | str | None = None) -> Summary:
    """What the files of a biLM hold. The biLM is loaded, so that they are known to be whole; a softmax is not.

    path, weights: as `load_bilm` takes them.
    Raises WeightsError as `load_bilm` does. What is wrong with the files beside the weights is among the problems.
    """
    with recognised(path, weights) as found:
        result = summary_of(found.load(), family=found.family, path=found.path)
        problems: list[str] = []
        shape = _softmax_shape(found, result.config, problems)
        softmax = None if shape is None or shape.n_words is None else (shape.n_words, shape.width)
        result = replace(
            result,
            softmax=softmax,
            output_parameters=0 if shape is None else shape.n_parameters,
            vocabulary=_vocabulary(found, softmax, result.word_table, problems),
            meta=_meta(found.folder / META_NAME, problems),
        )
        if found.folder not in (found.path, found.path.parent):  # an archive, unpacked for the time being
            problems = [problem.replace(str(found.folder), str(found.path)) for problem in problems]
        return replace(result, problems=tuple(problems))


def summary_of(bilm: BiLM, *, family: str, path: Path) -> Summary:
    """What a biLM is that was loaded from a path."""
    config = bilm.config
    parameters = dict.fromkeys(_PARTS.values(), 0)
    for name, parameter in bilm.named_parameters():
        part = next(part for beginning, part in _PARTS.items() if name.startswith(beginning))
        parameters[part] += parameter.numel()
    table = bilm.vocabulary
    return Summary(
        family=family,
        path=path,
        config=config,
        parameters={part: count for part, count in parameters.items() if count},
        size_of=_size_of(config),
        word_table=None if table is None else Words(size=len(table), first=table[:FIRST_WORDS]),
        n_characters=None if config.filters is None else len(bilm.state_dict()["token_encoder.char_embed"]),
        start_state=config.state == "warm",
    )


def _size_of(config: BiLMConfig) -> str | None:
    if config.filters != PUBLISHED_FILTERS or config.n_layers != 2:
        return None
    sizes = (config.lstm_dim, config.projection_dim, config.n_highway)
    if config.is_many_langs:
        published = (*sizes, config.char_dim, config.word_dim) == _MANY_LANGS
        return "ELMoForManyLangs' published models" if published else None
    return _PUBLISHED.get(sizes) if config.char_dim == 16 else None


def _softmax_shape(found: Found, config: BiLMConfig, problems: list[str]) -> OutputShape | None:
    try:
        shape = found.softmax_shape() if found.softmax_shape is not None else None
    except WeightsError as error:
        problems.append(str(error))
        return None
    if shape is not None and shape.width != config.projection_dim:
        problems.append(
            f"the softmax reads vectors of {shape.width} numbers, but the biLM gives {config.projection_dim} in each "
            "direction: they are not of the same model"
        )
    return shape


def _vocabulary(
    found: Found, softmax: tuple[int, int] | None, word_table: Words | None, problems: list[str]
) -> Words | None:
    """Of the softmax; without one, what lies there for other programs, unless it is that of the word table."""
    words: list[str] | None = None
    name: str | None = None
    with suppress(WeightsError):  # whoever needs it says what is wrong with it
        path = find_vocabulary(found.folder)
        if path is not None:
            name = path.name
        if softmax is None and word_table is None and path is not None:
            words = read_words(path)
    if softmax is not None and found.softmax_words is not None:
        try:
            words = found.softmax_words(softmax[0])
        except WeightsError as error:
            problems.append(str(error))
        else:
            if len(words) != softmax[0]:
                problems.append(f"{name} has {len(words)} words, but the softmax predicts {softmax[0]}")
    return None if words is None else Words(size=len(words), first=words[:FIRST_WORDS], file=name)


def _meta(path: Path, problems: list[str]) -> Any:
    try:
        return read_json(path) if exists(path) else None
    except WeightsError as error:
        problems.append(str(error))
        return None


def _words_as_dict(words: Words | None) -> dict[str, Any] | None:
    return None if words is None else {"size": words.size, "first": list(words.first), "file": words.file}
