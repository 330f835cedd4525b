"""Whether vectors tell the senses of a word apart: nearest neighbours by layer.

python -m benchmarks.senses training/bilm/model-best

senses.jsonl has ambiguous English nouns, each in ten sentences of our own, five for each of two senses, labelled by
hand. A context is right if the nearest of the word's nine other contexts, by cosine, has its sense. Where contexts of
both senses are equally near (to 1e-6), it counts as half: so a static vector, which is the same in every context, has
50%, and layer 0 is one. (A neighbour drawn by lot is right in four of nine cases.) Layers are taken as they are,
``mean`` is their mean. Every sentence is encoded by itself, from the weights' own start state.

Two controls look at the sentences alone, by the same rule of ties: the nearest have the same word before the ambiguous
one, or the largest share of words in common (Jaccard). Intervals are of the mean over words, from 10,000 draws of as
many words (bootstrap, 2.5% to 97.5%). Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def accuracy(vectors: np.ndarray, senses: Sequence[str]) -> float:
    """Share of contexts whose nearest other one has their sense, 0 to 1. vectors: (n, width)."""
    return _share(nearest(vectors, vectors, same=True), senses)


def _share(neighbours: Iterable[np.ndarray], senses: Sequence[str]) -> float:
    """Of contexts that are right. neighbours: the places of the nearest ones of each."""
    right = []
    for others, sense in zip(neighbours, senses, strict=True):
        same = {senses[other] == sense for other in others.tolist()}
        right.append(0.5 if len(same) == 2 else float(same.pop()))
    return float(np.mean(right))


def accuracies(bilm: BiLM, contexts: Sequence[Context]) -> list[float]:
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
    """`accuracy` by how much alike two sentences are."""

    def neighbours() -> Iterator[np.ndarray]:
        for one in contexts:
            near = np.array([-1.0 if other is one else alike(one, other) for other in contexts])
            yield np.flatnonzero(near == near.max())

    return _share(neighbours(), [context.sense for context in contexts])


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
    # Each word has as many contexts, so that the mean over words is that over contexts.
    shares = np.array(list(found.values()))
    low, high = interval(shares, args.seed)
    n_contexts = sum(map(len, words.values()))
    rows.append([f"all {len(found)}", f"{n_contexts} contexts", *(f"{share:.1%}" for share in shares.mean(axis=0))])
    rows.append(["", "95% over words", *(f"{a:.1%} - {b:.1%}" for a, b in zip(low, high, strict=True))])
    layers = [f"layer {layer}" for layer in range(bilm.config.n_layers + 1)]
    table(["word", "senses", *layers, "mean", *CONTROLS], rows)
    print("\nStatic vectors: 50% by the rule of ties. A neighbour drawn by lot: 4 of 9, 44.4%.")


if __name__ == "__main__":
    main()
