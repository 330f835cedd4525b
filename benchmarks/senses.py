"""Whether vectors tell the senses of a word apart: the nearest sense, and the nearest context, by layer.

python -m benchmarks.senses training/bilm/model-best

senses.jsonl has ambiguous English nouns, each in ten sentences of our own, five for each of two senses, labelled by
hand.

- Nearest sense (the paper's section 5.3): a context is right if, by cosine, the mean of its sense's four other contexts
  is nearer than that of four of the other sense; each of these five is left out in turn, so that as many stand for
  either. Vectors that know nothing have 50%.
- Nearest context: it is right if the nearest of the nine others has its sense. A neighbour drawn by lot is right in
  four cases of nine.

What is equally near (to 1e-6) counts as half: so a static vector, which is the same in every context, has 50%, and
layer 0 is one. Layers are taken as they are, ``mean`` is their mean. Every sentence is encoded by itself, from the
weights' own start state.

Two controls look at the sentences alone: how many have the same word before the ambiguous one, and the mean share of
words in common (Jaccard). Intervals are of the mean over words, from 10,000 draws of as many words (bootstrap, 2.5% to
97.5%). Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import spacy

from spacy_elmo import BiLM, load_bilm
from spacy_elmo.errors import ElmoError

from .common import machine, positive, set_threads, table

DATA = Path(__file__).with_suffix(".jsonl")
TIE = 1e-6  # of a cosine
DRAWS = 10_000


class Context(NamedTuple):
    """A sentence with an ambiguous word. words: its tokens. place: of the word among them."""

    word: str
    sense: str
    words: list[str]
    place: int


def read_contexts(path: Path = DATA) -> dict[str, list[Context]]:
    """The contexts of each word, cut by spaCy's English tokenizer."""
    tokenizer = spacy.blank("en").tokenizer
    found: dict[str, list[Context]] = {}
    for line in path.read_text(encoding="utf8").splitlines():
        row = json.loads(line)
        words = [token.text for token in tokenizer(row["text"])]
        found.setdefault(row["word"], []).append(Context(row["word"], row["sense"], words, words.index(row["word"])))
    return found


def nearest(queries: np.ndarray, keys: np.ndarray, *, same: bool = False) -> Iterator[np.ndarray]:
    """Yield the rows of `keys` nearest to each query by cosine: several where they are equally near, to 1e-6.

    queries: (n, width). keys: (m, width). same: they are the same rows, of which none is its own neighbour.
    """
    units = [rows.astype(np.float64) for rows in (queries, keys)]
    for rows in units:
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    # One at a time: queries x keys may be many.
    for place, query in enumerate(units[0]):
        near = units[1] @ query
        if same:
            near[place] = -np.inf
        yield np.flatnonzero(near >= near.max() - TIE)


def of_contexts(vectors: np.ndarray, senses: Sequence[str]) -> float:
    """Share of contexts whose nearest other one has their sense, 0 to 1. vectors: (n, width)."""
    right = []
    for others, sense in zip(nearest(vectors, vectors, same=True), senses, strict=True):
        same = {senses[other] == sense for other in others.tolist()}
        right.append(0.5 if len(same) == 2 else float(same.pop()))
    return float(np.mean(right))


def of_senses(alike: Callable[[int, list[int]], float], senses: Sequence[str]) -> float:
    """Share of contexts that are nearer to their own sense, 0 to 1. alike: how near a context is to some others."""
    right = []
    for place, sense in enumerate(senses):
        own = [other for other, its in enumerate(senses) if its == sense and other != place]
        against = [other for other, its in enumerate(senses) if its != sense]
        near = alike(place, own)
        for left_out in against:
            gain = near - alike(place, [other for other in against if other != left_out])
            right.append(0.5 if abs(gain) <= TIE else float(gain > 0))
    return float(np.mean(right))


def by_means(vectors: np.ndarray, senses: Sequence[str]) -> float:
    """`of_senses` by the cosine with the others' mean. vectors: (n, width)."""
    vectors = vectors.astype(np.float64)

    def alike(place: int, others: list[int]) -> float:
        one, mean = vectors[place], vectors[others].mean(axis=0)
        return float(one @ mean / max(np.linalg.norm(one) * np.linalg.norm(mean), 1e-12))

    return of_senses(alike, senses)


def accuracies(
    bilm: BiLM, contexts: Sequence[Context], accuracy: Callable[[np.ndarray, Sequence[str]], float] = by_means
) -> list[float]:
    """Of one word: by layer, and of the mean of the layers."""
    layers = np.stack(
        [
            encoded[:, context.place].cpu().numpy()
            for context, encoded in zip(contexts, bilm.encode([one.words for one in contexts]), strict=True)
        ],
        axis=1,
    )
    senses = [context.sense for context in contexts]
    return [accuracy(vectors, senses) for vectors in [*layers, layers.mean(axis=0)]]


def same_word_before(one: Context, other: Context) -> float:
    """1 if the same word, or none, stands before the ambiguous one."""
    before = [context.words[context.place - 1].lower() if context.place else "" for context in (one, other)]
    return float(before[0] == before[1])


def words_in_common(one: Context, other: Context) -> float:
    """Share of the different words of both sentences that are in both, 0 to 1; the ambiguous one does not count."""
    first, second = (
        {word.lower() for word in context.words if any(map(str.isalnum, word))} - {context.word}
        for context in (one, other)
    )
    return len(first & second) / len(first | second)


CONTROLS: dict[str, Callable[[Context, Context], float]] = {
    "same word before": same_word_before,
    "words in common": words_in_common,
}


def control(contexts: Sequence[Context], alike: Callable[[Context, Context], float]) -> float:
    """`of_senses` by how much alike sentences are, in the mean."""

    def mean(place: int, others: list[int]) -> float:
        return float(np.mean([alike(contexts[place], contexts[other]) for other in others]))

    return of_senses(mean, [context.sense for context in contexts])


def interval(shares: np.ndarray, seed: int) -> np.ndarray:
    """95% of the means of words drawn with replacement. shares: (n_words, n). RETURNS: (2, n), from and to."""
    drawn = np.random.default_rng(seed).integers(len(shares), size=(DRAWS, len(shares)))
    return np.percentile(shares[drawn].mean(axis=1), [2.5, 97.5], axis=0)


def main(argv: Sequence[str] | None = None) -> None:
    """Load, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="what `spacy_elmo.load_bilm` takes")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of words (default: %(default)s)")
    parser.add_argument("--threads", type=positive, default=2, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(f"{machine(args.threads)}; {args.model}\n")
    try:
        bilm = load_bilm(args.model)
    except ElmoError as error:
        parser.error(str(error))
    words = read_contexts()
    found = {
        word: [*accuracies(bilm, contexts), *(control(contexts, alike) for alike in CONTROLS.values())]
        for word, contexts in words.items()
    }
    rows = [
        [word, ", ".join(dict.fromkeys(one.sense for one in words[word])), *(f"{share:.0%}" for share in shares)]
        for word, shares in found.items()
    ]
    n_contexts = f"{sum(map(len, words.values()))} contexts"
    nearest_context = [accuracies(bilm, contexts, of_contexts) for contexts in words.values()]
    # Each word has as many contexts, so that the mean over words is that over contexts.
    for what, shares in (("nearest sense", [*found.values()]), ("nearest context", nearest_context)):
        low, high = interval(np.array(shares), args.seed)
        rows.append([f"all {len(found)}, {what}", n_contexts, *(f"{share:.1%}" for share in np.mean(shares, axis=0))])
        rows.append(["", "95% over words", *(f"{a:.1%} - {b:.1%}" for a, b in zip(low, high, strict=True))])
    layers = [f"layer {layer}" for layer in range(bilm.config.n_layers + 1)]
    header = ["word", "senses", *layers, "mean", *CONTROLS]
    table(header, [row + [""] * (len(header) - len(row)) for row in rows])
    print("\nStatic vectors: 50% by the rule of ties. A context drawn by lot: 4 of 9, 44.4%; a sense: 50%.")


if __name__ == "__main__":
    main()
