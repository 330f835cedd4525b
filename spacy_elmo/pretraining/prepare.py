"""The corpora of a run, encoded once and kept in a cache folder, and the vocabulary that comes from them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from spacy import Language
from spacy.tokens import Doc, DocBin
from thinc.api import Config
from tqdm import tqdm

from ..errors import CorpusError, PretrainingError
from .config import Reader, Settings
from .corpus import EncodedCorpus, corpus_key, encode_corpus
from .installed_docs import InstalledDocs, installed_docs_versions
from .notes import Notes
from .texts import pipeline
from .vocabulary import Vocabulary, build_vocabulary

# Dev sentences are drawn with this seed whatever the run's is, so that two runs are measured on the same ones.
DEV_SEED = 0


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
    tokenizer and spaCy's version.

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
        dev = _encoded(cache, "dev", _key(settings.corpora.dev, nlp, blocks["dev"]), settings.corpora.dev(nlp), stderr)
        train_key = _key(settings.corpora.train, nlp, blocks["train"])
        train = _encoded(cache, "train", train_key, settings.corpora.train(nlp), stderr)
        _tell_notes("dev", settings.corpora.dev, dev, stderr)
    else:
        train, dev = _split(cache, settings, nlp, blocks["train"], stderr)
    _tell_notes("train", settings.corpora.train, train, stderr)
    vocabulary = build_vocabulary(train, settings.vocabulary.max_words, settings.vocabulary.min_count)
    readers = (settings.corpora.train, settings.corpora.dev)
    versions = installed_docs_versions() if any(isinstance(reader, InstalledDocs) for reader in readers) else {}
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
    held_out: DocBin | None = None  # dev's share of the text, put aside while train's streams by

    def train_docs() -> Iterator[Doc]:
        nonlocal held_out
        aside, n_documents = DocBin(attrs=["ORTH", "SPACY", "SENT_START"]), 0
        for doc in reader(nlp):
            text = doc.text
            if not text or text.isspace():
                continue
            n_documents += 1
            digest = hashlib.sha256(text.encode("utf8", "ignore")).digest()
            if int.from_bytes(digest[:8], "big") % every:
                yield doc
            else:
                aside.add(doc)
        if n_documents and len(aside) in (0, n_documents):
            raise CorpusError(
                f"the text has {n_documents} documents, and one in {every} gives {len(aside)} to hold out for dev: "
                "set training.holdout lower (in .txt files a blank line ends a document), or paths.dev"
            )
        held_out = aside

    def dev_docs() -> Iterator[Doc]:
        if held_out is None:  # train was in the cache, and dev is not: read again for dev's share
            for _ in train_docs():
                pass
        assert held_out is not None
        yield from held_out.get_docs(nlp.vocab)

    keys = {part: _key(reader, nlp, block, holdout=every, part=part) for part in ("train", "dev")}
    train = _encoded(cache, "train", keys["train"], train_docs(), stderr)
    return train, _encoded(cache, "dev", keys["dev"], dev_docs(), stderr)


def _key(reader: Reader, nlp: Language, block: dict[str, Any], **more: Any) -> str:
    # A reader that cannot tell whether its text has changed is known by its arguments alone.
    about = {} if hasattr(reader, "fingerprint") else {"block": block}
    return corpus_key(reader, nlp, settings={**about, **more})


def _encoded(cache: Path, name: str, key: str, docs: Iterable[Doc], stderr: IO[str]) -> EncodedCorpus:
    with tqdm(desc=f"Encoding {name}", unit=" words", unit_scale=True, disable=None, leave=False, file=stderr) as bar:
        return encode_corpus(docs, cache / f"{name}-{key[:16]}", key=key, progress=bar.update)
