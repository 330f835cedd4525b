"""The corpora of a run, encoded once and kept in a cache folder, and the vocabulary that comes from them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from spacy import Language
from thinc.api import Config
from tqdm import tqdm

from ..errors import CorpusError, PretrainingError
from .config import Reader, Settings
from .corpus import EncodedCorpus, corpus_key, encode_corpus
from .installed_docs import InstalledDocs, installed_docs_versions
from .notes import Notes
from .texts import Text, full_text, pipeline, texts_of
from .vocabulary import Vocabulary, build_vocabulary
from .workers import Workers

# Dev sentences are drawn with this seed whatever the run's is, so that two runs are measured on the same ones.
DEV_SEED = 0
# More would wait for the one process that reads.
MOST_PROCESSES = 16


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """What is read (``train``), what it is measured on (``dev``), each with types of its own, and the words that are
    predicted: the most frequent ones of ``train``.

    versions: of the packages that were read, where the docstrings of installed packages are the text.
    """

    train: EncodedCorpus
    dev: EncodedCorpus
    vocabulary: Vocabulary
    versions: dict[str, str]

    @property
    def hashes(self) -> dict[str, str]:
        """What tells these texts from others."""
        return {"train": self.train.meta["sha256"], "dev": self.dev.meta["sha256"]}


def prepare_corpora(settings: Settings, config: Config, *, stderr: IO[str] | None = None) -> Corpora:
    """Encode the corpora of a config, or open them where its cache folder has them.

    A cached corpus is known by its reader's fingerprint (paths, sizes and times of its files), the language, its
    tokenizer and spaCy's version. ``system.n_process`` processes encode; the result does not depend on them.

    stderr: for a progress bar, shown on a terminal only.
    Raises CorpusError for text that cannot be read, or too little of it; PretrainingError for a language or a cache
    folder that does not work.
    """
    nlp = pipeline(settings.nlp)
    cache = Path(settings.paths.cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PretrainingError(f"paths.cache: {cache} cannot be made a folder: {error.strerror}") from error
    stderr = stderr or sys.stderr
    blocks = config["corpora"]
    if settings.corpora.dev is not None:
        readers = {"dev": settings.corpora.dev, "train": settings.corpora.train}
        dev, train = (
            _encoded(cache, name, partial(_key, reader, nlp, blocks[name]), texts_of(reader, nlp), settings, stderr)
            for name, reader in readers.items()
        )
        _tell_notes("train", settings.corpora.train, train, stderr)
        _tell_notes("dev", settings.corpora.dev, dev, stderr)
    else:
        train, dev = _split(cache, settings, nlp, blocks["train"], stderr)
    vocabulary = build_vocabulary(train, settings.vocabulary.max_words, settings.vocabulary.min_count)
    installed = any(isinstance(reader, InstalledDocs) for reader in (settings.corpora.train, settings.corpora.dev))
    versions = installed_docs_versions() if installed else {}
    return Corpora(train=train, dev=dev, vocabulary=vocabulary, versions=versions)


def _tell_notes(name: str, reader: Reader, corpus: EncodedCorpus, stderr: IO[str]) -> None:
    """Print what reading left out or cut, now or when the corpus was put into the cache, and keep it in its meta."""
    notes = getattr(reader, "notes", None)
    if isinstance(notes, Notes) and notes.found:
        notes.save(corpus.folder)
    notes = Notes.load(corpus.folder)
    if notes.found:
        corpus.meta["notes"] = {what: n for what, (n, _) in notes.found.items()}
    for line in notes.lines():
        print(f"{name}: {line}", file=stderr, flush=True)


def dev_sentences(corpus: EncodedCorpus, max_tokens: int) -> list[list[str]]:
    """Sentences from all over a corpus, at most ``max_tokens`` words of them (but one sentence at least)."""
    sentences: list[list[str]] = []
    left = max_tokens
    for i in np.random.default_rng(DEV_SEED).permutation(corpus.n_sentences).tolist():
        start, end = corpus.sentence_starts[i], corpus.sentence_starts[i + 1]
        left -= int(end - start)
        if left < 0 and sentences:
            break
        sentences.append([corpus.types[type_id] for type_id in corpus.ids[start:end].tolist()])
    return sentences


def _split(
    cache: Path, settings: Settings, nlp: Language, block: dict[str, Any], stderr: IO[str]
) -> tuple[EncodedCorpus, EncodedCorpus]:
    """Split one corpus: a document goes to dev by the hash of its text, so that the same one always does."""
    reader, every = settings.corpora.train, settings.training.holdout

    def texts(part: str) -> Iterator[Text]:
        n_documents = n_aside = 0
        for text in texts_of(reader, nlp):
            content = full_text(text)
            if not content or content.isspace():
                continue
            n_documents += 1
            digest = hashlib.sha256(content.encode("utf8", "ignore")).digest()
            aside = int.from_bytes(digest[:8], "big") % every == 0
            n_aside += aside
            if aside == (part == "dev"):
                yield text
        if n_documents and n_aside in (0, n_documents):
            raise CorpusError(
                f"the text has {n_documents} documents, and one in {every} gives {n_aside} to hold out for dev: "
                "set training.holdout lower (in .txt files a blank line ends a document), or paths.dev"
            )

    def encoded(part: str) -> EncodedCorpus:
        return _encoded(
            cache, part, lambda: _key(reader, nlp, block, holdout=every, part=part), texts(part), settings, stderr
        )

    train = encoded("train")
    _tell_notes("train", reader, train, stderr)
    return train, encoded("dev")


def _key(reader: Reader, nlp: Language, block: dict[str, Any], **more: Any) -> str:
    # A reader that cannot tell whether its text has changed is known by its arguments alone.
    about = {} if hasattr(reader, "fingerprint") else {"block": block}
    return corpus_key(reader, nlp, settings={**about, **more})


def _encoded(
    cache: Path, name: str, make_key: Callable[[], str], texts: Iterator[Text], settings: Settings, stderr: IO[str]
) -> EncodedCorpus:
    key = make_key()

    def unchanged() -> Iterator[Text]:
        yield from texts
        if make_key() != key:
            raise CorpusError(f"the text of {name} was changed while it was read: start again when it is finished")

    n_process = settings.system.n_process or _cores()
    with tqdm(desc=f"Encoding {name}", unit=" words", unit_scale=True, disable=None, leave=False, file=stderr) as bar:
        return encode_corpus(
            unchanged(),
            cache / f"{name}-{key[:16]}",
            key=key,
            progress=bar.update,
            make_nlp=partial(pipeline, settings.nlp),
            workers=partial(Workers, settings.nlp, n_process) if n_process > 1 else None,
        )


def _cores() -> int:
    """How many cores this process may use, as far as one process can read for them."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n, MOST_PROCESSES)
