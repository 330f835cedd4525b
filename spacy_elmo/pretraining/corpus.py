"""A corpus on disk: what a reader gives, encoded once into plain arrays that are memory-mapped.

No step holds the text, neither the one that writes nor those that read: memory grows with the number of word *types*.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc

from ..bilm.config import BiLMConfig
from ..errors import CorpusError, PretrainingError
from .locks import locked
from .shards import Shard, digest_of, encode_shard, merge_shards
from .texts import Text, Tokenizing, full_text
from .word_types import Types, characters_file, mapped, smallest_dtype
from .workers import Workers

# Of the folder's layout and of the rules that fill it: another number is another key, hence another corpus.
_FORMAT = 2
_ARRAYS = ("types", "type_starts", "counts", "ids", "sentence_starts", "sentence_steps", "document_starts")
# meta.json alone says little: pipelines have one too.
_TELLING_FILES = frozenset(f"{name}.bin" for name in _ARRAYS)
_FILES = ("meta.json", *sorted(_TELLING_FILES))
# Characters of the documents of a shard: what is lost when a build is killed, and what each process holds.
_SHARD_SIZE = 1 << 20
# Shards. For fewer it does not pay to start processes.
_ALONE = 4
# Bytes of a corpus that may stay in memory.
_KEPT = 64 << 20


def corpus_key(reader: Callable[[Language], Iterator[Doc]], nlp: Language, *, settings: Any = None) -> str:
    """Identify what encoding `reader` with `nlp` will give, for `encode_corpus`.

    reader: its ``fingerprint()`` is asked where it has one (RawText: names, sizes and times of the files).
    nlp: language, tokenizer (of a saved pipeline: its rules too) and spaCy's version count.
    settings: anything else that counts, as JSON data; for a reader without ``fingerprint`` its config block.
    RETURNS: a hex digest.
    """
    fingerprint = getattr(reader, "fingerprint", None)
    about_reader = fingerprint() if fingerprint is not None else type(reader).__qualname__
    about_nlp = [spacy.__version__, nlp.lang, nlp.config["nlp"]["tokenizer"]]
    if nlp.path is not None:
        about_nlp.append(_digest(nlp.to_bytes(exclude=["vocab", "meta.json", "config.cfg", *nlp.component_names])))
    return _digest(json.dumps([_FORMAT, about_nlp, about_reader, settings], sort_keys=True).encode("utf8"))


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedCorpus:
    """A corpus as arrays on disk, all memory-mapped.

    types: the word types. The first three are ``<S>``, ``</S>`` and ``<UNK>`` (literal ones in the text, if any);
        then descending frequency, ties by string.
    counts: (n_types,) int64, how often each type occurs.
    ids: (n_words,) uint8, uint16 or uint32, whatever n_types needs: the type of each word of each sentence, one after
        the other.
    sentence_starts: (n_sentences + 1,) int64, where in `ids` each sentence begins, and the end.
    sentence_steps: (n_sentences + 1,) int64, the same in steps, of which a sentence has one more than words.
    document_starts: (n_documents + 1,) int64, which sentence each document begins with, and the end.
    meta: key, n_documents, n_lines (lines with words), n_sentences, n_words, n_types, sha256 of types, ids and starts.
    maps: of the files; see `release`.
    """

    folder: Path
    types: Types
    counts: np.ndarray
    ids: np.ndarray
    sentence_starts: np.ndarray
    sentence_steps: np.ndarray
    document_starts: np.ndarray
    meta: dict[str, Any]
    maps: Sequence[mmap.mmap] = ()

    @classmethod
    def open(cls, folder: str | Path) -> EncodedCorpus:
        """Open a finished folder. RAISES: CorpusError if it is missing, of another format or incomplete."""
        folder = Path(folder)
        arrays: dict[str, np.ndarray] = {}
        maps = []
        try:
            meta = srsly.read_json(folder / "meta.json")
            if meta["format"] != _FORMAT:
                raise ValueError(f"format {meta['format']}, not {_FORMAT}")
            n_types, n_sentences = meta["n_types"], meta["n_sentences"]
            kinds = {
                "type_starts": ("<i8", n_types + 1),
                "counts": ("<i8", n_types),
                "ids": (smallest_dtype(n_types), meta["n_words"]),
                "sentence_starts": ("<i8", n_sentences + 1),
                "sentence_steps": ("<i8", n_sentences + 1),
                "document_starts": ("<i8", meta["n_documents"] + 1),
            }
            for name, (dtype, n) in kinds.items():
                arrays[name], memory = mapped(folder / f"{name}.bin", dtype, n)
                maps.append(memory)
            type_starts = arrays.pop("type_starts")
            text, memory = mapped(folder / "types.bin", "<u1", int(type_starts[-1]))
            maps.append(memory)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorpusError(
                f"'{folder}' is not a whole encoded corpus ({error!r}): remove the folder and encode it again"
            ) from error
        return cls(folder=folder, types=Types(text, type_starts, folder), meta=meta, maps=maps, **arrays)

    def release(self) -> None:
        """Give back the memory of what was read, as far as the system can: it is read again where it is needed.

        Otherwise all that was ever touched counts as this process's memory until the system is short of it. A small
        corpus is kept.
        """
        if hasattr(mmap, "MADV_DONTNEED") and sum(map(len, self.maps)) > _KEPT:
            for memory in self.maps:
                memory.madvise(mmap.MADV_DONTNEED)

    @property
    def n_types(self) -> int:
        """Number of types, the three special ones included."""
        return len(self.types)

    @property
    def n_words(self) -> int:
        """Number of words."""
        return len(self.ids)

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.sentence_starts) - 1

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return len(self.document_starts) - 1

    def sentences(self) -> Iterator[list[str]]:
        """Yield the words of each sentence, in the order of the text."""
        for start, end in zip(self.sentence_starts[:-1], self.sentence_starts[1:], strict=True):
            yield [self.types[index] for index in self.ids[start:end].tolist()]

    def truncated_words(self, config: BiLMConfig) -> int:
        """Count the words of more bytes (or code points) than the C - 2 that a biLM's token encoder reads."""
        lengths = self.types.lengths(code_points=config.is_many_langs)
        return int(self.counts[lengths > config.max_characters_per_token - 2].sum())


def encode_corpus(
    texts: Iterable[Text],
    folder: str | Path,
    *,
    key: str,
    progress: Callable[[int], object] | None = None,
    make_nlp: Callable[[], Language] = lambda: spacy.blank("en"),
    workers: Callable[[], Workers] | None = None,
) -> EncodedCorpus:
    """Encode documents into a folder, or open what is there.

    A finished folder of the same key is opened and `texts` left untouched; one of another key is replaced. The new
    corpus is built in ``<folder>.partial``, shard by shard, and renamed when it is whole. A build that was killed goes
    on from the shards that lie there, as far as the documents are still the same. Processes that want the same folder
    take turns: one encodes, the others wait and open what it made. Foreign files in the folder are left there.

    The result is the same to the bit however many processes made it and however often it was interrupted.

    texts: documents; sentences are found by `split_sentences`. Read once, never held.
    folder: where the corpus lies.
    key: identifies source and settings, see `corpus_key`.
    progress: called with the number of further words now and then (``tqdm.update``).
    make_nlp: makes the pipeline that tokenises text here.
    workers: makes the processes that tokenise a large text; None: this process does all. Docs are never sent.
    RAISES: CorpusError if there are no words, a tokenizer fails, or the folder holds something else;
        PretrainingError if the folder cannot be written, or a process of `workers` dies.
    """
    folder = Path(folder)
    partial, lock = (folder.with_name(folder.name + suffix) for suffix in (".partial", ".lock"))
    try:
        corpus = _opened(folder, key)
        if corpus is not None:
            return corpus
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait=f"Waiting for another process that encodes the same text into {folder}"):
            corpus = _opened(folder, key)  # what that process made
            if corpus is not None:
                return corpus
            partial.mkdir(exist_ok=True)
            try:
                shards = _encode_shards(texts, partial, key, Tokenizing(make_nlp), workers, progress)
                new = partial / "corpus"
                _remove(new)
                new.mkdir()
                meta = merge_shards(shards, new)
            except CorpusError:
                _remove(partial)  # another text has to come
                raise
            srsly.write_json(new / "meta.json", {"format": _FORMAT, "key": key, **meta})
            for name in _FILES:
                _flush_to_disk(new / name)
            _replace(folder, new)
            shutil.rmtree(partial, ignore_errors=True)
            return EncodedCorpus.open(folder)
    except OSError as error:
        raise PretrainingError(
            f"cannot encode text into {folder}: {error}. Once this is put right, it goes on where it stopped"
        ) from error


def _encode_shards(
    texts: Iterable[Text],
    folder: Path,
    key: str,
    tokenizing: Tokenizing,
    workers: Callable[[], Workers] | None,
    progress: Callable[[int], object] | None,
) -> dict[Path, bytes]:
    """Encode documents into the shards of a folder, but for those that are there already.

    RETURNS: the shards in order, and the digests of what they hold.
    """
    shards: dict[Path, bytes] = {}
    running: deque[Future[int]] = deque()

    def done(n_words: int) -> None:
        if progress is not None:
            progress(n_words)

    with ExitStack() as stack:
        pieces = _pieces(texts)
        first = [] if workers is None else list(islice(pieces, _ALONE))
        large = len(first) == _ALONE and not isinstance(first[0][0], Doc)
        pool = stack.enter_context(workers()) if workers is not None and large else None
        for piece in chain(first, pieces):
            path, source = folder / f"{len(shards):06}.npz", digest_of(piece, key)
            shards[path] = source
            earlier = Shard.load(path, source)
            if earlier is not None:
                done(len(earlier.ids))
            elif pool is None or any(isinstance(text, Doc) for text in piece):
                done(encode_shard(piece, path, source=source, tokenizing=tokenizing))
            else:
                running.append(pool.encode(piece, path, source))
                # Two more than there are processes, so that none waits for the next.
                while len(running) > pool.n_process + 2:
                    done(running.popleft().result())
        while running:
            done(running.popleft().result())
    return shards


def _pieces(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Cut documents into pieces of about `_SHARD_SIZE` characters."""
    piece: list[Text] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(full_text(text))
        if size >= _SHARD_SIZE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _flush_to_disk(path: Path) -> None:
    if path.exists():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _opened(folder: Path, key: str) -> EncodedCorpus | None:
    """The corpus in a folder, if it is whole and of this key. CorpusError for a folder that holds no corpus at all."""
    if not folder.exists():
        return None
    # Hidden files are no one's work (.DS_Store).
    names = {file.name for file in folder.iterdir() if not file.name.startswith(".")} if folder.is_dir() else {""}
    if names and names.isdisjoint(_TELLING_FILES):
        raise CorpusError(f"'{folder}' is there and not an encoded corpus: give another folder, or remove it")
    try:
        corpus = EncodedCorpus.open(folder)
    except CorpusError:
        return None  # not whole: built anew
    return corpus if corpus.meta.get("key") == key else None


def _replace(folder: Path, new: Path) -> None:
    """Put a new corpus in the place of an old one, with the foreign files that lie there."""
    if folder.exists():
        for old in (*(folder / name for name in _FILES), *folder.glob(characters_file("*"))):
            old.unlink(missing_ok=True)
        for foreign in folder.iterdir():
            os.replace(foreign, new / foreign.name)
        folder.rmdir()
    os.replace(new, folder)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
