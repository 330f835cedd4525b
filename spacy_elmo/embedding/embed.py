"""Text files in, a file of vectors out: in steps of bounded size, so that a run that was killed can go on."""

from __future__ import annotations

import base64
import hashlib
import json
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, get_args
from uuid import uuid4
from weakref import WeakKeyDictionary

import numpy as np
import safetensors.torch
import spacy
import torch
from spacy.tokens import Doc
from tqdm import tqdm

from ..bilm import BiLM
from ..bilm.matmul import Precision, checked_precision
from ..bilm.model import BiLMState
from ..blank_pipeline import blank_pipeline
from ..errors import ElmoError, WeightsError, shown
from ..text_forms import TextForm, checked_text_form, doc_words, normalized
from ..weights import recognised
from ..weights.card import META_NAME
from ..weights.files import read_json
from .formats import Record, format_of
from .partial_file import PartialFile, names_beside
from .text_lines import Line, TextLines

Layers = Literal["all", "mean", "top"] | int
Dtype = Literal["float32", "float16"]
State = Literal["zero", "warm", "carry"]

# Bytes of vectors that are computed and written at a time, and what that may come to in words.
BYTES_PER_STEP = 100 * 10**6
FEWEST_WORDS, MOST_WORDS = 256, 65_536
# Of the files' layout and of the journal: a run of another version does not go on.
FORMAT = 2
MOST = 2**31 - 1  # of what is counted in an argument


@dataclass(frozen=True)
class Embedded:
    """What was written. sentences: lines of the texts. words: of all of them. resumed: sentences that were there."""

    path: Path
    sentences: int
    words: int
    resumed: int


class Sentence:
    """A line's words as they are written in the text, and as the biLM reads them."""

    __slots__ = ("line", "read", "tokens")

    def __init__(self, line: Line, tokens: list[str], read: list[str]) -> None:
        self.line = line
        self.tokens = tokens
        self.read = read


def embed_file(
    texts: str | Path | Iterable[str | Path],
    output: str | Path,
    weights: BiLM | str | Path,
    *,
    layers: Layers = "all",
    dtype: Dtype = "float32",
    precision: Precision = "float32",
    state: State | None = None,
    pretokenized: bool = False,
    lang: str | None = None,
    text: TextForm = "orth",
    batch_words: int | None = None,
    max_length: int = 512,
    resume: bool = True,
    overwrite: bool = False,
    stderr: IO[str] | None = None,
) -> Embedded:
    """Write the vectors of every line of some texts to a file.

    A line is a sentence, and has a number, from 0, through all files: blank lines too, which have no words. White space
    between words has no vector. Memory holds the vectors of ``batch_words`` words, or of the longest line.

    The work lies in ``output`` + ``.partial`` and ``.journal`` until it is whole. A call with the same arguments goes
    on where an earlier one ended, by whatever cause, and gives the same file to the bit (on the same machine).

    texts: files in UTF-8, plain, ``.gz``, ``.bz2`` or ``.xz``.
    output: ``.h5`` or ``.hdf5`` (bilm-tf's layout), ``.npz`` or ``.parquet``; docs/embedding.md says what each holds.
    weights: a biLM, or what ``load_bilm`` reads.
    layers: "all": (L + 1, n, 2P) a sentence of n words; "mean" of all layers, "top", or the number of one: (n, 2P).
    dtype: of the vectors. precision: of the biLM's matrix products, as in ``BiLM.encode``.
    state: where the LSTMs start: "zero", "warm", None (the weights' own policy): every sentence by itself. "carry":
        each where the one before ended, one after another, as bilm-tf's dump does; slow.
    pretokenized: words are what white space divides; else what spaCy's tokenizer of ``lang`` finds.
    lang: None: the language in the ``meta.json`` of the folder of weights, as pretraining writes it, or else "en".
    text: what the biLM reads of a word: "orth", "lower", "norm", or what a function makes of a line's words. A run goes
        on with the same function, which another process knows by its attribute ``config``, a config's block, or by the
        name that it has in its module.
    batch_words: words that are computed and written at a time. None: as many as make 100 MB of vectors.
    max_length: steps that run at once; longer lines run in windows, with the same result.
    resume: False: what an unfinished run left is thrown away. overwrite: an existing output is replaced.
    stderr: for a progress bar, shown on a terminal only.
    Raises CorpusError for text that cannot be read (naming file and line), WeightsError for weights, ElmoError for
        settings that make no sense or differ from those of the unfinished run, and for files that cannot be written.
    """
    output = checked_path(output, "output")
    if isinstance(texts, (str, os.PathLike)):
        texts = [texts]
    elif not isinstance(texts, Iterable):
        raise ElmoError(f"texts are paths of files, not {shown(texts)}")
    lines = TextLines([checked_path(path, "a text") for path in texts])
    file_format = format_of(output)
    written = [output, *names_beside(output)]
    for path in lines.paths:
        _refuse_over(written, path, "one of the texts")
    if not isinstance(weights, BiLM):
        _refuse_over(written, checked_path(weights, "weights, if no biLM,"), "the weights")
    if not isinstance(dtype, str) or dtype not in get_args(Dtype):
        raise ElmoError(f"dtype is one of {', '.join(get_args(Dtype))}, not {shown(dtype)}")
    if state is not None and (not isinstance(state, str) or state not in get_args(State)):
        raise ElmoError(f"state is one of {', '.join(get_args(State))} or None, not {shown(state)}")
    for name, value, kind in (
        ("lang", "en" if lang is None else lang, str),
        ("precision", precision, str),
        ("pretokenized", pretokenized, bool),
        ("resume", resume, bool),
        ("overwrite", overwrite, bool),
    ):
        if not isinstance(value, kind):
            raise ElmoError(f"{name} is a {kind.__name__}, not {shown(value)}")
    batch_words = None if batch_words is None else checked_count(batch_words, "batch_words")
    max_length = checked_count(max_length, "max_length")
    bilm, split = read_weights(weights, checked_text_form(text), lang, pretokenized, written=written)
    layer = checked_layer(layers, bilm.config.n_layers)
    encode = _Encoder(bilm, layer, np.dtype(dtype), checked_precision(precision), state, max_length)
    if batch_words is None:
        most = BYTES_PER_STEP // ((bilm.config.n_layers + 1) * bilm.config.width * np.dtype(np.float32).itemsize)
        batch_words = min(max(most, FEWEST_WORDS), MOST_WORDS)
    settings = {
        "format": FORMAT,
        "texts": [dict(zip(("file", "size", "changed"), one, strict=True)) for one in lines.fingerprint],
        "weights": _digest(bilm),
        "layers": layer,
        "dtype": dtype,
        "precision": precision,
        "state": state,
        "words": split.settings(),
        "batch_words": batch_words,
        "max_length": max_length,
    }
    in_place = file_format.in_place
    with PartialFile(output, settings, resume=resume, overwrite=overwrite, in_place=in_place) as file:
        resumed = file.records
        if not file.final:
            shape = (bilm.config.n_layers + 1, bilm.config.width) if layer == "all" else (bilm.config.width,)
            writer = file_format(file, shape, encode.dtype)
            encode.restore(file.last.get("state"))
            rest = iter(lines)
            for _ in islice(rest, file.records):
                pass
            if file.records and lines.digest != file.last["text"]:
                raise ElmoError(
                    f"{file.path} was begun with another text: its first {file.records} lines are not what they were. "
                    "Begin anew (--no-resume, resume=False)"
                )
            with tqdm(
                total=lines.size,
                initial=lines.position,
                desc=output.name,
                unit="B",
                unit_scale=True,
                disable=None,
                leave=False,
                file=stderr or sys.stderr,
            ) as bar:
                for step in _steps(rest, split, batch_words):
                    records = [
                        Record(sentence.tokens, vectors) for sentence, vectors in zip(step, encode(step), strict=True)
                    ]
                    note = writer.write(file.records, records)
                    words = sum(len(record.tokens) for record in records)
                    state_now = encode.carried()
                    file.commit(records=len(records), words=words, note=note, state=state_now, text=lines.digest)
                    bar.update(lines.position - bar.n)
            if not file.records:
                raise ElmoError(f"there is no line of text in {', '.join(map(str, lines.paths))}")
            writer.finish()
        file.publish()
        return Embedded(output, file.records, file.words, resumed)


def checked_layer(layers: Any, n_layers: int) -> str | int:
    """ "all", "mean", or the number of a layer. Raises ElmoError for anything else."""
    if isinstance(layers, str) and layers in ("all", "mean"):
        return layers
    number = n_layers if isinstance(layers, str) and layers == "top" else _integer(layers)
    if number is not None and 0 <= number <= n_layers:
        return number
    raise ElmoError(f"layers is 'all', 'mean', 'top', or the number of one, 0 to {n_layers}, not {shown(layers)}")


def checked_count(value: Any, name: str) -> int:
    """A number of at least 1. Raises ElmoError, naming the argument, for anything else."""
    number = _integer(value)
    if number is None or not 1 <= number <= MOST:
        raise ElmoError(f"{name} is a number from 1 to {MOST:,}, not {shown(value)}")
    return number


def _integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def checked_path(value: Any, name: str) -> Path:
    """A path. Raises ElmoError, naming the argument, for what is none."""
    try:
        return Path(value)
    except TypeError as error:
        raise ElmoError(f"{name} is a path, a str or a Path, not {shown(value)}") from error


def _digest(bilm: BiLM) -> str:
    """Tells weights apart, wherever they lie."""
    described = [bilm.config.to_options(), bilm.vocabulary, bilm.characters]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name, tensor in sorted(bilm.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()


def _steps(lines: Iterator[Line], split: Splitter, batch_words: int) -> Iterator[list[Sentence]]:
    """Cut the lines into steps of at least ``batch_words`` words, a line's end counted as one; the last has less."""
    while True:
        step: list[Sentence] = []
        size = 0
        # What spaCy keeps of words that it has met is forgotten after each step.
        with split.memory():
            while size < batch_words and (line := next(lines, None)) is not None:
                step.append(split(line))
                size += len(step[-1].tokens) + 1
        if not step:
            return
        yield step


class Splitter:
    """Makes words of a line. text: what is read of them. lang: whose tokenizer and norms are used.

    pretokenized: words are what white space divides.
    """

    def __init__(self, text: TextForm, lang: str, pretokenized: bool) -> None:
        self._text = text
        self._pretokenized = pretokenized
        self._nlp = None if pretokenized and text not in ("lower", "norm") else blank_pipeline(lang)

    def settings(self) -> dict[str, Any]:
        """All that the words depend on."""
        text = self._text if isinstance(self._text, str) else _known_by(self._text)
        known = None if self._nlp is None else {"lang": self._nlp.lang, "version": spacy.__version__}
        return {"pretokenized": self._pretokenized, "text": text, "spacy": known}

    def memory(self) -> AbstractContextManager[Any]:
        """Where this ends, so does spaCy's memory of the words that came up in it."""
        return nullcontext() if self._nlp is None else self._nlp.memory_zone()

    def __call__(self, line: Line) -> Sentence:
        """The words of a line. Raises ElmoError, naming the line, where the text form gives something else."""
        try:
            if self._nlp is None:
                tokens = line.text.split()
                return Sentence(line, tokens, tokens if isinstance(self._text, str) else normalized(tokens, self._text))
            words = line.text.split() if self._pretokenized else None
            doc = self._nlp.make_doc(line.text) if words is None else Doc(self._nlp.vocab, words=words)
            tokens, _ = doc_words(doc)
            return Sentence(line, tokens, tokens if self._text == "orth" else doc_words(doc, self._text)[0])
        except ElmoError as error:
            raise ElmoError(f"{line}: {error}") from error


# Of functions that nothing else tells apart. An address does not: it is another's when a function is gone.
_keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _known_by(function: Any) -> Any:
    """What tells a function from all others: its config, or its name in its module; else it is known here only."""
    config = getattr(function, "config", None)
    if isinstance(config, dict) and config:
        try:
            return json.loads(json.dumps(config))
        except (TypeError, ValueError, RecursionError) as error:
            raise ElmoError(f"text: the attribute `config` of {shown(function)} is no block of a config") from error
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is function:
            return f"{module}.{name}"
    key = uuid4().hex
    with suppress(TypeError):  # what cannot be a key is another function each time
        key = _keys.setdefault(function, key)
    name = name if isinstance(name, str) else type(function).__name__
    return f"a function without `config`, to be known by ({name:.80}, {key})"


def read_weights(
    weights: BiLM | str | Path, text: TextForm, lang: str | None, pretokenized: bool, *, written: Iterable[Path] = ()
) -> tuple[BiLM, Splitter]:
    """The biLM, and what makes words of its texts.

    lang: None: the language that the `meta.json` of the weights' own folder names, or else "en".
    written: files that are to be written; they cannot be the weights.
    Raises WeightsError for weights that cannot be read, naming the package of built-in ones, and ElmoError for a
        language without a tokenizer and for weights that would be written over.
    """
    if isinstance(weights, BiLM):
        return weights, Splitter(text, "en" if lang is None else lang, pretokenized)
    with recognised(weights) as found:
        _refuse_over(written, found.path, "the weights")
        # Before the weights are read: a language that does not work shows at once.
        split = Splitter(text, _lang_in(found.folder) if lang is None else lang, pretokenized)
        return found.load(), split


def _lang_in(folder: Path) -> str:
    meta: object = None
    with suppress(WeightsError):  # there is none, or it is another program's
        meta = read_json(folder / META_NAME)
    lang = meta.get("lang") if isinstance(meta, dict) else None
    return lang if isinstance(lang, str) else "en"


def _refuse_over(written: Iterable[Path], source: Path, what: str) -> None:
    """ElmoError if a source is one of the files that are to be written. what: it is."""
    for path in written:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise ElmoError(f"{path} is {what}: give another name for the vectors")


class _Encoder:
    """Vectors of a step's sentences, as they are to be written.

    Nothing is remembered from step to step, token vectors included: by what came before, rounding would differ, and so
    a file that was gone on with.
    """

    def __init__(
        self,
        bilm: BiLM,
        layer: str | int,
        dtype: np.dtype[Any],
        precision: Precision,
        state: State | None,
        max_length: int,
    ) -> None:
        self.dtype = dtype
        self._bilm = bilm
        self._layer = layer
        self._carries = state == "carry"
        self._encode: Callable[[list[list[str]]], list[torch.Tensor]] = lambda sentences: bilm.encode(
            sentences, state, precision=precision, max_length=max_length, cache_words=0
        )
        self._encode([])  # says so if an option makes no sense

    def __call__(self, step: Sequence[Sentence]) -> Iterator[np.ndarray]:
        sentences = [sentence.read for sentence in step]
        if self._carries:
            layers = [one for sentence in sentences for one in self._encode([sentence])]
        else:
            layers = self._encode(sentences)
        for sentence, of_all in zip(step, layers, strict=True):
            vectors = np.ascontiguousarray(self._chosen(of_all).cpu().numpy())
            try:
                with np.errstate(over="raise"):
                    yield vectors.astype(self.dtype, copy=False)
            except FloatingPointError as error:
                raise ElmoError(f"{sentence.line}: a vector is too large for {self.dtype}: use float32") from error

    def _chosen(self, layers: torch.Tensor) -> torch.Tensor:
        if self._layer == "mean":
            return layers.mean(dim=0)
        return layers if isinstance(self._layer, str) else layers[self._layer]

    def carried(self) -> str | None:
        """Where the LSTMs stand, as text for the journal; None unless their states are carried."""
        state = self._bilm.runtime().carried if self._carries else None
        if state is None:
            return None
        tensors = {name: tensor.cpu().contiguous() for name, tensor in state.tensors().items()}
        return base64.b64encode(safetensors.torch.save(tensors)).decode()

    def restore(self, carried: str | None) -> None:
        """Go on from there; None: from the beginning."""
        if not self._carries:
            return
        self._bilm.reset_state()
        if carried is not None:
            tensors = safetensors.torch.load(base64.b64decode(carried))
            state = {name: tensor.to(self._bilm.device) for name, tensor in tensors.items()}
            self._bilm.runtime().carried = BiLMState.from_tensors(state)
