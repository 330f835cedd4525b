"""A pretraining step to be measured: a made-up corpus, a biLM with its softmax and optimizer, and the steps."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

from spacy_elmo import BiLM, BiLMConfig
from spacy_elmo.bilm.softmax import SampledSoftmax
from spacy_elmo.pretraining.config import TrainingSettings
from spacy_elmo.pretraining.corpus import EncodedCorpus
from spacy_elmo.pretraining.optimizers import adagrad
from spacy_elmo.pretraining.precision import onednn_products
from spacy_elmo.pretraining.step import TrainingStep
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.pretraining.word_types import SPECIAL_TYPES, Types

from .common import SIZES, WIKIPEDIA, Sample, positive, sentence_lengths, spelled
from .peers.protocol import PeerError

UNROLL = 20
# How the products of a step are computed: [training] of the config.
MODES: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, oneDNN": {"onednn": True},
    "bfloat16": {"onednn": True, "precision": "bfloat16"},
}
# Cells and projection; all with 2,048 filters and 2 highways.
TRAINING_SIZES = {
    **{
        f"{h}/{p}": BiLMConfig(lstm_dim=h, projection_dim=p, n_highway=2)
        for h, p in ((1024, 128), (2048, 256), (4096, 512))
    },
    "tiny": SIZES["tiny"],
}


def add_training_options(
    parser: argparse.ArgumentParser, *, sizes: list[str], vocabulary: list[int], size_option: str = "--training-size"
) -> None:
    """What a step is made of: see ``Training``."""
    parser.add_argument(size_option, dest="training_size", nargs="+", choices=TRAINING_SIZES, default=sizes)
    parser.add_argument("--vocabulary", nargs="+", type=positive, default=vocabulary, help="rows of the softmax")
    parser.add_argument("--negatives", type=positive, default=8192, help="of the softmax (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=128, help="rows of a window (default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=4, help="of a row in a round (default: %(default)s)")
    parser.add_argument("--corpus-words", type=positive, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--corpus-types", type=positive, default=WIKIPEDIA.n_types, help="(default: %(default)s)")


def corpus_for(args: argparse.Namespace) -> EncodedCorpus:
    """A corpus in memory, of Wikipedia's variety, in documents of 50 sentences.

    The rank by which a word is drawn stands for its place in the order of frequency, in which a corpus has its types.
    """
    generator = np.random.default_rng(args.seed)
    law = WIKIPEDIA._replace(n_types=args.corpus_types)
    types = [*SPECIAL_TYPES, *spelled(law.n_types, generator)]
    lengths = sentence_lengths(args.corpus_words // 20, generator)
    ids = law.draw(int(lengths.sum()), generator) + len(SPECIAL_TYPES)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return EncodedCorpus(
        folder=Path(),
        types=Types.of(types),
        counts=np.bincount(ids, minlength=len(types)),
        ids=ids.astype(np.int32),
        sentence_starts=starts,
        sentence_steps=starts + np.arange(len(starts)),
        document_starts=np.append(np.arange(0, len(lengths), 50), len(lengths)),
        meta={},
    )


class Training:
    """A model in training, as pretraining does it.

    args: of ``add_training_options``. size: in TRAINING_SIZES. n_vocabulary: V, rows of the softmax. mode: in MODES.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        corpus: EncodedCorpus,
        *,
        size: str,
        n_vocabulary: int,
        mode: str,
        reset: Literal["sentence"] | None = None,
    ) -> None:
        self.corpus = corpus
        self.settings = TrainingSettings(rows=args.batch, unroll_steps=UNROLL, reset=reset, **MODES[mode])
        vocabulary = Vocabulary(corpus.types[:n_vocabulary])
        self.stream = Stream(corpus, vocabulary, rows=args.batch, unroll_steps=UNROLL, seed=args.seed)
        bilm = BiLM(TRAINING_SIZES[size]).initialize(args.seed)
        softmax = SampledSoftmax(n_vocabulary, bilm.config.projection_dim, n_samples=args.negatives)
        softmax.initialize(args.seed)
        self.config = bilm.config
        self.update = TrainingStep(
            bilm=bilm,
            softmax=softmax,
            optimizer=adagrad()([*bilm.parameters(), *softmax.parameters()]),
            types=corpus.types,
            settings=self.settings,
        )
        self.state = bilm.zero_state(args.batch)
        self.losses: list[float] = []
        self.input_shares: list[float] = []

    def run(self, steps: int) -> Sample:
        """Train on for some steps. RETURNS: seconds, tokens. Raises PeerError where the mode is not to be had."""
        in_stream = 0.0
        with onednn_products(self.settings.onednn) as outcome:
            if outcome is not None and outcome.startswith("without"):
                raise PeerError(outcome)
            start = time.perf_counter()
            for _ in range(steps):
                before = time.perf_counter()
                window = self.stream.window(len(self.losses))
                in_stream += time.perf_counter() - before
                result = self.update(window, self.state, len(self.losses))
                self.state = result.state
                self.losses.append(result.loss)
            seconds = time.perf_counter() - start
        self.input_shares.append(in_stream / seconds)
        return Sample(seconds, steps * self.stream.rows * self.stream.unroll_steps)
