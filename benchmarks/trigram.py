"""What counting words gives: perplexity of a trigram of the same text, vocabulary and dev sentences as a biLM's.

python -m benchmarks.trigram --model training/bilm/model-best
python -m benchmarks.trigram --config training/bilm/model-best/pretrain.cfg

The trigram is interpolated, with modified Kneser-Ney smoothing (Chen and Goodman, 1999, section 3; Heafield et al.,
2013). Its text is the training text of a config of `elmo pretrain`, encoded as pretraining encodes it (a cache is
used), unknown words as <UNK>. Targets are those of `elmo perplexity`: the words of each dev sentence and its boundary.
The backward trigram is the same thing of the sentences reversed; joint is the exp of the mean of both, as of a biLM.

``--model``: a biLM with its softmax, whose figures stand beside the trigram's: those of `elmo perplexity`. Its own
config and its softmax's words are taken unless ``--config`` and ``--vocabulary`` name others.

Values of the config can be changed, as in `elmo pretrain`: --paths.raw "texts/*.txt.xz" --paths.dev dev.txt.xz
``--parts`` divides the dev text by documents, as pretraining counts them (one of more than 100,000 characters is
several): wikipedia=22 news=75 names its first 22 and the 75 that follow, and there are no more. Prints a table in
Markdown, memory and time. 30 million words take a minute of one core and 1.5 GB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spacy_elmo.cli.overrides import config_overrides
from spacy_elmo.errors import ElmoError
from spacy_elmo.pretraining.config import load_config, resolve
from spacy_elmo.pretraining.corpus import EncodedCorpus
from spacy_elmo.pretraining.measure import output_layer
from spacy_elmo.pretraining.perplexity import Perplexity
from spacy_elmo.pretraining.perplexity import perplexities as sentence_perplexities
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.pretraining.word_types import UNK_TYPE
from spacy_elmo.weights import recognised

from .common import existing, machine, peak_mb, set_threads, table

BEGIN, END = 0, 1  # ids of the two boundaries, which no word has
# Where a text is too small to tell: of the counts 1, 2, and 3 and more.
DISCOUNTS = (0.5, 1.0, 1.5)


class Order(NamedTuple):
    """The n-grams of one order, sorted, and what each history leaves to the order below.

    keys: (n,) int64, the words of an n-gram packed into one number, the last one in the lowest bits.
    shares: (n,) float64, (c - D(c)) / c(history), what an n-gram has for itself.
    histories: (m,) int64, keys of all but the last word. rests: (m,) float64, what the n-grams were discounted of.
    """

    keys: np.ndarray
    shares: np.ndarray
    histories: np.ndarray
    rests: np.ndarray


class Trigram:
    """p(word | the two before it in the sentence), interpolated modified Kneser-Ney.

    Of the orders below the highest, an n-gram counts as often as it has different words before it; those that begin a
    sentence, where nothing else can stand before, as often as they occur. The first order is interpolated with equal
    shares of all words but the begin mark, which is never predicted.

    ids: (n,) of the words of all sentences, one after the other. starts: (n_sentences + 1,) where each begins, and the
        end. n_words: V, ids 0 (begin) and 1 (end) included.
    """

    def __init__(self, ids: np.ndarray, starts: np.ndarray, n_words: int) -> None:
        self._bits = bits = int(n_words - 1).bit_length()
        self._mask = (1 << bits) - 1
        steps = with_boundaries(ids, starts)
        # Each place at which a trigram of one sentence ends: all but the two first ones of a sentence.
        ends = np.ones(len(steps), dtype=bool)
        begins = np.flatnonzero(steps == BEGIN)
        ends[begins] = ends[begins + 1] = False
        firsts = steps[begins + 1]
        places = np.flatnonzero(ends).astype(np.int32 if len(steps) < 2**31 else np.int64)
        keys = steps[places - 2].astype(np.int64) << 2 * bits
        keys |= steps[places - 1].astype(np.int64) << bits
        keys |= steps[places]
        del places, ends, steps
        keys, counts = _counted(keys)
        self._third = _order(keys, counts, bits)
        pairs, continuations = _counted(keys & ((1 << 2 * bits) - 1))
        first_pairs, first_counts = _counted((BEGIN << bits) | firsts.astype(np.int64))
        # A pair with the begin mark is the smallest of all, and no trigram ends in one.
        pairs = np.concatenate([first_pairs, pairs])
        self._second = _order(pairs, np.concatenate([first_counts, continuations]), bits)
        counts = np.bincount(pairs & self._mask, minlength=n_words)
        known = np.flatnonzero(counts)
        first = _order(known.astype(np.int64), counts[known], bits)
        self._first = np.full(n_words, first.rests[0] / (n_words - 1))
        self._first[known] += first.shares
        self._first[BEGIN] = 0.0

    def probabilities(self, before: np.ndarray, last: np.ndarray, words: np.ndarray) -> np.ndarray:
        """p(word | before, last) of each of n words. RETURNS: (n,) float64.

        before: -1 where ``last`` is the begin mark.
        """
        last, words = np.asarray(last, dtype=np.int64), np.asarray(words, dtype=np.int64)
        history = (np.asarray(before, dtype=np.int64) << self._bits) | last
        found = _interpolated(self._second, last, words, self._first[words], self._bits)
        return np.where(np.asarray(before) < 0, found, _interpolated(self._third, history, words, found, self._bits))

    def losses(self, ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """-ln p of the words of each sentence and its end, summed. RETURNS: (n_sentences,) float64."""
        steps = with_boundaries(ids, starts).astype(np.int64)
        begins = np.flatnonzero(steps == BEGIN)
        before = np.concatenate([[-1], steps[:-1]])
        before[begins] = -1
        targets = np.ones(len(steps), dtype=bool)
        targets[begins] = False
        places = np.flatnonzero(targets)
        losses = -np.log(self.probabilities(before[places - 1], steps[places - 1], steps[places]))
        return np.add.reduceat(losses, begins - np.arange(len(begins)))


def with_boundaries(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The words of all sentences, each between its begin and its end mark. RETURNS: (n + 2 n_sentences,) int32."""
    lengths = np.diff(starts)
    steps = np.full(len(ids) + 2 * len(lengths), END, dtype=np.int32)
    begins = np.asarray(starts[:-1]) + 2 * np.arange(len(lengths))
    inside = np.ones(len(steps), dtype=bool)
    inside[begins] = inside[begins + lengths + 1] = False
    steps[inside] = ids
    steps[begins] = BEGIN
    return steps


def reversed_sentences(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The words of each sentence from its last to its first, the sentences where they are."""
    lengths = np.diff(starts)
    mirrored = np.repeat(np.asarray(starts[:-1]) + np.asarray(starts[1:]) - 1, lengths)
    mirrored -= np.arange(len(ids))
    return np.asarray(ids)[mirrored]


def discounts(counts: np.ndarray) -> np.ndarray:
    """What is taken of a count of 0, 1, 2, and 3 or more (Chen and Goodman, equation 17). RETURNS: (4,) float64."""
    one, two, three, four = (int((counts == n).sum()) for n in (1, 2, 3, 4))
    if min(one, two, three) == 0:
        return np.array([0.0, *DISCOUNTS])
    y = one / (one + 2 * two)
    found = np.array([0.0, 1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three])
    return found if (found >= 0).all() else np.array([0.0, *DISCOUNTS])


def _counted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different keys, sorted, and how often each is there. Sorts in place, to hold them once."""
    keys.sort()
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[firsts], np.diff(np.append(firsts, len(keys)))


def _order(keys: np.ndarray, counts: np.ndarray, bits: int) -> Order:
    taken = discounts(counts)[np.minimum(counts, 3)]
    histories = keys >> bits
    firsts = np.flatnonzero(np.concatenate([[True], histories[1:] != histories[:-1]]))
    totals = np.add.reduceat(counts, firsts)
    rests = np.add.reduceat(taken, firsts) / totals
    shares = (counts - taken) / np.repeat(totals, np.diff(np.append(firsts, len(keys))))
    return Order(keys, shares, histories[firsts], rests)


def _interpolated(order: Order, history: np.ndarray, words: np.ndarray, below: np.ndarray, bits: int) -> np.ndarray:
    """p of an order from that of the order below; the same where the history was never seen."""
    rests = _looked_up(order.histories, order.rests, history, 1.0)
    return _looked_up(order.keys, order.shares, (history << bits) | words, 0.0) + rests * below


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray, default: float) -> np.ndarray:
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], default)


def measured(train: EncodedCorpus, dev: EncodedCorpus, vocabulary: Vocabulary) -> np.ndarray:
    """-ln p of each dev sentence. RETURNS: (n_sentences, 2) float64, forward and backward."""
    losses = []
    # A boundary's mark that stands in the text as a word is an unknown one.
    known, dev_known = (np.maximum(vocabulary.ids(one.types), UNK_TYPE).astype(np.int32) for one in (train, dev))
    ids, dev_ids = known[train.ids], dev_known[dev.ids]
    for turned in (False, True):
        if turned:
            ids = reversed_sentences(ids, train.sentence_starts)
            dev_ids = reversed_sentences(dev_ids, dev.sentence_starts)
        trigram = Trigram(ids, train.sentence_starts, len(vocabulary))
        losses.append(trigram.losses(dev_ids, dev.sentence_starts))
        del trigram  # before the next one
    return np.stack(losses, axis=1)


def measured_bilm(model: Path | str, dev: EncodedCorpus, vocabulary: Vocabulary) -> np.ndarray:
    """The same under a biLM, as `elmo perplexity` computes it.

    Raises ElmoError for weights without a softmax, or of other words.
    """
    with recognised(model) as found:
        bilm = found.load()
        softmax, words = output_layer(model, found, bilm)
    if set(words) != set(vocabulary.words):
        raise ElmoError(f"{model} predicts other words than the trigram: leave out --vocabulary and --config")
    _, each = sentence_perplexities(bilm, softmax, words, list(dev.sentences()))
    return np.log([(one.forward, one.backward) for one in each]) * [[one.n_targets] for one in each]


def check_parts(parts: Sequence[tuple[str, int]], n_documents: int) -> None:
    """ElmoError if the parts are not the whole dev text, or two have one name."""
    named = sum(n for _, n in parts)
    if parts and named != n_documents:
        raise ElmoError(f"--parts names {named} documents, the dev text has {n_documents}")
    if len({"all", *(name for name, _ in parts)}) <= len(parts):
        raise ElmoError("--parts: each has a name of its own, and 'all' is taken")


def perplexities(losses: np.ndarray, dev: EncodedCorpus, parts: Sequence[tuple[str, int]]) -> dict[str, Perplexity]:
    """By the name of each part of the dev text, and of "all". parts: names and numbers of documents, in order."""
    targets = np.diff(dev.sentence_starts) + 1
    ends = np.cumsum([0, *(n for _, n in parts)])
    sentences = dev.document_starts[ends]
    spans = {name: slice(a, b) for (name, _), a, b in zip(parts, sentences[:-1], sentences[1:], strict=True)}
    spans["all"] = slice(0, dev.n_sentences)
    found = {}
    for name, span in spans.items():
        forward, backward = losses[span].sum(axis=0).tolist()
        found[name] = Perplexity.from_nll(forward, backward, int(targets[span].sum()))
    return found


def part(text: str) -> tuple[str, int]:
    """`name=documents` of the command line."""
    name, _, number = text.partition("=")
    if not (name and number.isdecimal() and int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is not name=documents")
    return name, int(number)


def main(argv: Sequence[str] | None = None) -> None:
    """Count, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=existing, help="of `elmo pretrain` (default: the model's)")
    parser.add_argument("--model", type=existing, help="a folder of `elmo pretrain`, to be measured too")
    parser.add_argument(
        "--vocabulary",
        type=existing,
        help="vocabulary.txt (default: the model's, or what the config makes of the text)",
    )
    parser.add_argument("--parts", type=part, nargs="+", default=[], help="name=documents, in the dev text's order")
    parser.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
    args, rest = parser.parse_known_args(argv)
    set_threads(args.threads)
    if args.model is not None:
        args.config = args.config or args.model / "pretrain.cfg"
        args.vocabulary = args.vocabulary or args.model / "vocabulary.txt"
    if args.config is None:
        parser.error("give a --config or a --model")
    print(f"{machine(args.threads)}; {args.model or args.config}\n")
    start = time.perf_counter()
    try:
        corpora = prepare_corpora(*resolve(load_config(args.config, config_overrides(rest))))
        check_parts(args.parts, corpora.dev.n_documents)  # before the work
        vocabulary = corpora.vocabulary if args.vocabulary is None else Vocabulary.from_disk(args.vocabulary)
        losses = {"trigram": measured(corpora.train, corpora.dev, vocabulary)}
        if args.model is not None:
            losses["biLM"] = measured_bilm(args.model, corpora.dev, vocabulary)
        found = [perplexities(one, corpora.dev, args.parts) for one in losses.values()]
    except ElmoError as error:
        parser.error(str(error))
    rows = [
        [
            name,
            f"{one.n_targets:,}",
            *(
                f"{value:,.2f}"
                for each in found
                for value in (each[name].joint, each[name].forward, each[name].backward)
            ),
        ]
        for name, one in found[0].items()
    ]
    table(
        ["part", "targets", *(f"{which}, {what}" for which in losses for what in ("joint", "forward", "backward"))],
        rows,
    )
    seconds = time.perf_counter() - start
    words = corpora.train.n_words
    print(f"\n{words:,} words of text, {len(vocabulary):,} in the vocabulary: {seconds:.0f} s, {peak_mb():,.0f} MB")


if __name__ == "__main__":
    main()
