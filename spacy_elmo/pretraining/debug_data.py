"""Look at the text of a run before it is trained on: how much there is, what is odd about it, and what to do."""

from __future__ import annotations

import sys
from typing import IO

import numpy as np
from thinc.api import Config

from ..weights import load_bilm
from .config import Settings
from .corpus import EncodedCorpus
from .debug.advice import advice_on
from .debug.figures import look_at_text
from .debug.report import DataReport
from .prepare import Corpora, prepare_corpora
from .vocabulary import oov_share


def debug_data(settings: Settings, config: Config, *, stderr: IO[str] | None = None) -> DataReport:
    """Look at the corpora of a config; they are encoded as ``pretrain`` would do first, or read from its cache.

    stderr: for progress and what reading left out.
    Raises what `prepare_corpora` raises, and WeightsError for weights to go on from that cannot be loaded: they say how
    much of a word is read.
    """
    corpora = prepare_corpora(settings, config, stderr=stderr or sys.stderr)
    return data_report(settings, corpora)


def data_report(settings: Settings, corpora: Corpora) -> DataReport:
    """The report of corpora that are at hand. Raises WeightsError, see `debug_data`."""
    weights = settings.initialize.weights
    config = settings.bilm_config(1) if weights is None else load_bilm(weights).config
    ranks = _ranks(corpora.dev, corpora.train)
    dev, dev_bytes, dev_hashes = look_at_text(corpora.dev, config, ranks, None)
    train, train_bytes, _ = look_at_text(corpora.train, config, np.arange(corpora.train.n_types), dev_hashes)
    report = DataReport(
        train=train,
        dev=dev,
        vocabulary=len(corpora.vocabulary),
        oov={name: oov_share(getattr(corpora, name), corpora.vocabulary) for name in ("train", "dev")},
        sentences_of_dev_in_train=dev_hashes.sentences.share_found(),
        documents_of_dev_in_train=dev_hashes.documents.share_found(),
        bytes_of_dev_only=np.flatnonzero(dev_bytes & ~train_bytes).tolist(),
        # A sentence is a step more than its words.
        epochs=settings.training.max_steps
        * settings.training.step_rows
        * settings.training.unroll_steps
        / int(corpora.train.sentence_steps[-1]),
        advice=[],
    )
    report.advice.extend(advice_on(report, settings, config))
    return report


def _ranks(corpus: EncodedCorpus, other: EncodedCorpus) -> np.ndarray:
    """Where each type of a corpus stands among the types of another; past their end if it does not."""
    numbers = {word: number for number, word in enumerate(corpus.types)}
    ranks = np.full(corpus.n_types, np.iinfo(np.int64).max)
    for rank, word in enumerate(other.types):
        number = numbers.get(word)
        if number is not None:
            ranks[number] = rank
    return ranks
