"""What each layer holds: parts of speech by a linear probe, and categories of ambiguous words by nearest neighbours.

python -m benchmarks.probes training/bilm/model-best --ud train.conllu test.conllu --ner train.conll test.conll

As in section 5.3 of Peters et al. (2018), on frozen vectors, forward and backward halves together; ``mean`` is the mean
of the layers. Every sentence is encoded by itself, from the weights' own start state.

1. Tags. Multinomial logistic regression from the vector of a word to its XPOS and to its UPOS. The vectors are
   whitened, so that neither the scale of the columns nor their correlation matters, and 50 iterations of L-BFGS get
   near the optimum (on standardised columns they do not). There is no learning rate and no order of words to choose.
   The L2 penalty is the best of a few on a tenth of the training sentences, drawn by the seed; then all are fitted.
   Controls: the most frequent tag, and the most frequent one of the word (for unknown words: of all). ``ambiguous`` are
   words with two tags or more in the training data, ``unknown`` those that are not in it.
2. Nearest neighbours. Of words that have two categories or more, each --least times in the training data: has the
   nearest training occurrence of the same word, by cosine, the category of the test occurrence? Equally near ones (to
   1e-6) vote, so that a static vector, and layer 0 is one, has exactly what the word's most frequent category has.
   Categories: UPOS; the lemma ("left": leave or left); of entities (CoNLL columns, the word first and its IOB tag last;
   their vector is the mean of their words') the type, "Washington" being a PER, an ORG or a LOC; and the nearest sense
   of ``benchmarks.senses``, where an occurrence is compared with the means of the others. Each is given over
   occurrences and as the mean over words.

All vectors lie on disk (in TMPDIR); a layer at a time, and it whitened, are in memory: 8 bytes x words x width. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from spacy.training import iob_to_biluo
from spacy.training.iob_utils import tags_to_entities
from torch import Tensor
from torch.nn import functional as F

from spacy_elmo import BiLM, load_bilm
from spacy_elmo.errors import CorpusError, ElmoError
from spacy_elmo.weights.files import replacing

from . import senses
from .common import Sentences, existing, machine, n_words, positive, progress, set_threads, table
from .grid.tasks import tagged_sentences

# On the mean loss of a word. Strong ones first: each fit starts where the one before it stopped.
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
HELD_OUT = 0.1
ITERATIONS = 50
# At once: sentences that are encoded, rows of which the covariance is taken.
CHUNK = 1000
ROWS = 10_000


class Token(NamedTuple):
    """A word of a treebank."""

    form: str
    lemma: str
    upos: str
    xpos: str


class Occurrence(NamedTuple):
    """Words start to end - 1 of a sentence, and the category that they have there."""

    sentence: int
    start: int
    end: int
    form: str
    category: str


# Data


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what goes wrong in reading a file into one CorpusError that names it."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from error


def read_conllu(path: Path) -> list[list[Token]]:
    """The syntactic words of each sentence. Raises CorpusError, with the line's number, for what is not CoNLL-U."""
    with readable(path):
        lines = path.read_text(encoding="utf8").split("\n")
    sentences: list[list[Token]] = [[]]
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        if not line.strip():
            sentences.append([])
        elif line.startswith("#"):
            continue
        elif len(columns) != 10 or not re.fullmatch(r"\d+([-.]\d+)?", columns[0]) or not columns[1]:
            raise CorpusError(
                f"{path}, line {number}: not CoNLL-U, which is ten columns with tabs between them, "
                "in the first the number of the word, in the second the word"
            )
        elif columns[0].isdecimal():  # else a multiword token or an empty node
            sentences[-1].append(Token(*columns[1:5]))
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise CorpusError(f"{path}: holds no sentence")
    return sentences


def read_entities(path: Path) -> tuple[Sentences, list[Occurrence]]:
    """The sentences of a file of IOB tags, and its entities. Raises CorpusError for what has no such tags."""
    with readable(path):
        rows = list(tagged_sentences(path))
    found = []
    for index, sentence in enumerate(rows):
        for word, tag in sentence:
            if not re.fullmatch(r"O|[BI]-.+", tag):
                raise CorpusError(
                    f"{path}, sentence {index + 1}: {tag!r}, at {word!r}, is no IOB tag (O, B-PER, I-PER)"
                )
        for label, start, last in tags_to_entities(iob_to_biluo([tag for _, tag in sentence])):
            form = " ".join(word for word, _ in sentence[start : last + 1])
            found.append(Occurrence(index, start, last + 1, form, label))
    if not rows:
        raise CorpusError(f"{path}: holds no sentence")
    return [[word for word, _ in sentence] for sentence in rows], found


def words_of(sentences: Sequence[Sequence[Token]]) -> Sentences:
    """What the biLM reads."""
    return [[token.form for token in sentence] for sentence in sentences]


def sample(sentences: list[list[Token]], words: int | None, seed: int) -> list[list[Token]]:
    """Sentences in an order drawn by the seed, as many as have so many words (None: all)."""
    drawn = list(sentences)
    random.Random(seed).shuffle(drawn)
    if words is not None:
        before = np.cumsum([0, *map(len, drawn)])[:-1]
        drawn = drawn[: int((before < words).sum())]
    return drawn


@dataclass(frozen=True)
class Ambiguous:
    """Occurrences of words that have several categories, each of which occurs often enough in the training data."""

    name: str
    train: list[Occurrence]
    test: list[Occurrence]

    @classmethod
    def of(cls, name: str, train: list[Occurrence], test: list[Occurrence], least: int) -> Ambiguous:
        """Choose them. Rarer categories of the same words are left out. Raises CorpusError if there are none."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for one in train:
            counts[one.form][one.category] += 1
        often = {form: {name for name, n in of_form.items() if n >= least} for form, of_form in counts.items()}
        kept = {(form, name) for form, names in often.items() if len(names) > 1 for name in names}
        chosen = [[one for one in part if (one.form, one.category) in kept] for part in (train, test)]
        if not chosen[1]:
            raise CorpusError(
                f"{name}: no word of the test data has two categories, each {least} times or more, in the training "
                "data. Give more data or a smaller --least"
            )
        return cls(name, *chosen)


def ambiguous_words(train: list[list[Token]], test: list[list[Token]], least: int) -> list[Ambiguous]:
    """By UPOS and by lemma, whose case is no difference. A set without any word is left out.

    Raises CorpusError if both are.
    """
    found: list[Ambiguous] = []
    errors: list[CorpusError] = []
    for name, category in {"UPOS": lambda token: token.upos, "lemma": lambda token: token.lemma.casefold()}.items():
        parts = [
            [
                Occurrence(index, place, place + 1, token.form, category(token))
                for index, sentence in enumerate(part)
                for place, token in enumerate(sentence)
            ]
            for part in (train, test)
        ]
        try:
            found.append(Ambiguous.of(name, parts[0], parts[1], least))
        except CorpusError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def needed(sentences: Sentences, occurrences: list[Occurrence]) -> tuple[Sentences, list[Occurrence]]:
    """The sentences with an occurrence in them, and the occurrences numbered by these."""
    kept = sorted({one.sentence for one in occurrences})
    new = {old: index for index, old in enumerate(kept)}
    return [sentences[old] for old in kept], [one._replace(sentence=new[one.sentence]) for one in occurrences]


# Vectors


class Vectors:
    """The layers of all words of some sentences, in a file.

    starts: (sentences + 1,) int64, the row of each sentence's first word.
    """

    def __init__(self, bilm: BiLM, sentences: Sentences, path: Path) -> None:
        self.starts = np.cumsum([0, *map(len, sentences)])
        self.n_layers = bilm.config.n_layers + 1
        shape = (self.n_layers, int(self.starts[-1]), bilm.config.width)
        self._file = np.memmap(path, dtype=np.float32, mode="w+", shape=shape)
        for first in range(0, len(sentences), CHUNK):
            encoded = bilm.encode(sentences[first : first + CHUNK])
            rows = slice(self.starts[first], self.starts[first + len(encoded)])
            self._file[:, rows] = torch.cat(encoded, dim=1).cpu().numpy()

    def layer(self, number: int) -> np.ndarray:
        """A copy of a layer, or, past the last one, of their mean. RETURNS: (words, width) float32."""
        if number == self.n_layers:
            return np.asarray(self._file.mean(axis=0))
        return np.array(self._file[number])

    def of(self, occurrences: Sequence[Occurrence], layer: np.ndarray) -> np.ndarray:
        """The mean of the words of each. layer: what `layer` gave. RETURNS: (n, width) float32."""
        return np.stack(
            [layer[self.starts[one.sentence] + one.start :][: one.end - one.start].mean(axis=0) for one in occurrences]
        )


# Tags


@dataclass(frozen=True)
class Tags:
    """What is to be told of each word, and which words are hard.

    train: (n,) int64. test: (m,) int64, -1 for a tag that is not in the training data. most: (m,) the most frequent tag
    of the word, for unknown words of all. parts: (m,) bool each, of the test words.
    """

    name: str
    names: list[str]
    train: np.ndarray
    test: np.ndarray
    most: np.ndarray
    parts: dict[str, np.ndarray]

    @classmethod
    def of(cls, name: str, train: list[list[Token]], test: list[list[Token]]) -> Tags:
        """name: XPOS or UPOS."""
        pairs = [[(t.form, getattr(t, name.lower())) for sentence in part for t in sentence] for part in (train, test)]
        names = sorted({tag for _, tag in pairs[0]})
        index = {tag: number for number, tag in enumerate(names)}
        counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for form, tag in pairs[0]:
            counts[form][index[tag]] += 1
        overall = Counter(index[tag] for _, tag in pairs[0])
        forms = [form for form, _ in pairs[1]]
        return cls(
            name,
            names,
            np.array([index[tag] for _, tag in pairs[0]]),
            np.array([index.get(tag, -1) for _, tag in pairs[1]]),
            np.array([most_frequent(counts.get(form, overall))[0] for form in forms]),
            {
                "all": np.full(len(forms), True),
                "ambiguous": np.array([len(counts.get(form, ())) > 1 for form in forms]),
                "unknown": np.array([form not in counts for form in forms]),
            },
        )

    def accuracies(self, predicted: np.ndarray) -> dict[str, float | None]:
        """Of all words and of the hard ones, 0 to 1; None where there are none. predicted: (m,)."""
        right = predicted == self.test
        return {part: float(right[chosen].mean()) if chosen.any() else None for part, chosen in self.parts.items()}


def whiten(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn and scale both alike, so that the columns of train have mean 0, standard deviation 1 and no correlation.

    Directions without any spread are left out. RETURNS: (n, at most width) and (m, the same) float32.
    """
    mean = train.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((train.shape[1], train.shape[1]))
    for first in range(0, len(train), ROWS):
        rows = train[first : first + ROWS] - mean
        covariance += rows.T @ rows / len(train)
    spread, directions = np.linalg.eigh(covariance)
    kept = spread > 1e-9 * spread.max()
    matrix = (directions[:, kept] / np.sqrt(spread[kept])).astype(np.float32)
    return (train - mean.astype(np.float32)) @ matrix, (test - mean.astype(np.float32)) @ matrix


def fit(vectors: Tensor, tags: Tensor, weight: Tensor, bias: Tensor, penalty: float) -> None:
    """Logistic regression from where the parameters are, in place.

    vectors: (n, width). tags: (n,). weight: (width, tags). bias: (tags,). penalty: half of it times the squared weights
    is added to the mean loss.
    """
    optimizer = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()],
        max_iter=ITERATIONS,
        tolerance_grad=1e-5,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(torch.addmm(bias, vectors, weight), tags) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    weight.requires_grad_(False)
    bias.requires_grad_(False)


def probe(train: np.ndarray, tags: np.ndarray, test: np.ndarray, n_fit: int) -> tuple[np.ndarray, float]:
    """Fit on the first rows, choose the penalty by the rest, fit on all, predict.

    train: (n, width) float32, white. tags: (n,) int64 from 0. test: (m, width) float32.
    RETURNS: (m,) int64, and the penalty.
    """
    vectors, targets = torch.from_numpy(train), torch.from_numpy(tags)
    weight, bias = torch.zeros(train.shape[1], int(tags.max()) + 1), torch.zeros(int(tags.max()) + 1)
    best = (-1, 0.0, weight, bias)
    for penalty in PENALTIES:
        fit(vectors[:n_fit], targets[:n_fit], weight, bias, penalty)
        predicted = torch.addmm(bias, vectors[n_fit:], weight).argmax(dim=1)
        right = int((predicted == targets[n_fit:]).sum())
        if right < best[0]:  # weaker ones would overfit more
            break
        if right > best[0]:
            best = (right, penalty, weight.clone(), bias.clone())
    _, penalty, weight, bias = best
    fit(vectors, targets, weight, bias, penalty)
    return torch.addmm(bias, torch.from_numpy(test), weight).argmax(dim=1).numpy(), penalty


# Neighbours


def most_frequent(counts: Counter[int] | Counter[str]) -> list:
    """Those with the highest count, in order."""
    most = max(counts.values())
    return sorted(name for name, n in counts.items() if n == most)


def vote(counts: Counter[str], category: str) -> float:
    """Whether the most frequent category is this one: 1 or 0, or a share where several are as frequent."""
    winners = most_frequent(counts)
    return (category in winners) / len(winners)


def by_form(occurrences: Sequence[Occurrence]) -> dict[str, list[int]]:
    """The places of each form among the occurrences."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(occurrences):
        places[one.form].append(place)
    return places


def majority(words: Ambiguous) -> np.ndarray:
    """By the most frequent category of the form. RETURNS: (test occurrences,), 0 to 1."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in words.train:
        counts[one.form][one.category] += 1
    return np.array([vote(counts[one.form], one.category) for one in words.test])


def by_neighbour(words: Ambiguous, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """By the nearest training occurrences of the form. train, test: (occurrences, width) each.

    RETURNS: (test occurrences,), 0 to 1.
    """
    keys = by_form(words.train)
    right = np.zeros(len(words.test))
    for form, places in by_form(words.test).items():
        categories = [words.train[key].category for key in keys[form]]
        for place, near in zip(places, senses.nearest(test[places], train[keys[form]]), strict=True):
            right[place] = vote(Counter(categories[key] for key in near.tolist()), words.test[place].category)
    return right


def summary(words: Ambiguous, right: np.ndarray) -> dict[str, float]:
    """Over occurrences, and the mean over forms."""
    return {
        "occurrences": float(right.mean()),
        "forms": float(np.mean([right[places].mean() for places in by_form(words.test).values()])),
    }


def facts(words: Ambiguous) -> dict:
    """A row of the second table, before any layer is known."""
    return {
        "set": words.name,
        "forms": len(by_form(words.test)),
        "occurrences": len(words.test),
        "majority": summary(words, majority(words)),
        "layers": [],
    }


# All of it


class Treebank:
    """What is asked about a treebank. Raises CorpusError where there is nothing to ask.

    n_fit: training words that are not held out.
    """

    def __init__(self, train: Path, test: Path, *, words: int | None, least: int, seed: int) -> None:
        self.train, self.test = sample(read_conllu(train), words, seed), read_conllu(test)
        if len(self.train) < 2:
            raise CorpusError(f"{train}: one sentence is too little to fit a probe and to choose its penalty")
        kinds = [Tags.of(name, self.train, self.test) for name in ("XPOS", "UPOS")]
        self.kinds = [kind for kind in kinds if len(kind.names) > 1]
        if not self.kinds:
            raise CorpusError(f"{train}: all words have the same tag")
        self.sets = ambiguous_words(self.train, self.test, least)
        self.n_fit = n_words(self.train[: -max(1, round(HELD_OUT * len(self.train)))])


def probe_treebank(bilm: BiLM, treebank: Treebank, folder: Path) -> tuple[list[dict], list[dict]]:
    """The tags, and the ambiguous words."""
    train, test, kinds, sets = treebank.train, treebank.test, treebank.kinds, treebank.sets
    progress(f"encoding {n_words(train):,} and {n_words(test):,} words")
    vectors = Vectors(bilm, words_of(train), folder / "train"), Vectors(bilm, words_of(test), folder / "test")
    neighbours = [facts(one) for one in sets]
    tags: list[dict] = [
        {
            "tags": kind.name,
            "names": kind.names,
            "words": {part: int(chosen.sum()) for part, chosen in kind.parts.items()},
            "most frequent": kind.accuracies(np.full(len(kind.test), most_frequent(Counter(kind.train.tolist()))[0])),
            "most frequent of the word": kind.accuracies(kind.most),
            "layers": [],
        }
        for kind in kinds
    ]
    for number in range(bilm.config.n_layers + 2):
        layers = [part.layer(number) for part in vectors]
        for words, found in zip(sets, neighbours, strict=True):
            pair = vectors[0].of(words.train, layers[0]), vectors[1].of(words.test, layers[1])
            found["layers"].append(summary(words, by_neighbour(words, *pair)))
        layers = list(whiten(*layers))
        for kind, found in zip(kinds, tags, strict=True):
            progress(f"{layer_names(bilm)[number]}: {kind.name}")
            predicted, penalty = probe(layers[0], kind.train, layers[1], treebank.n_fit)
            found["layers"].append({**kind.accuracies(predicted), "penalty": penalty})
    return tags, neighbours


class Entities:
    """Entities whose words name several types, and the sentences that they stand in. Raises CorpusError if none do."""

    def __init__(self, train: Path, test: Path, *, least: int) -> None:
        (train_sentences, train_entities), (test_sentences, test_entities) = read_entities(train), read_entities(test)
        words = Ambiguous.of("entity type", train_entities, test_entities, least)
        self.train, in_train = needed(train_sentences, words.train)
        self.test, in_test = needed(test_sentences, words.test)
        self.words = Ambiguous(words.name, in_train, in_test)


def probe_entities(bilm: BiLM, entities: Entities, folder: Path) -> dict:
    """The types of entities."""
    progress(f"encoding {n_words(entities.train):,} and {n_words(entities.test):,} words around entities")
    train, test = Vectors(bilm, entities.train, folder / "train"), Vectors(bilm, entities.test, folder / "test")
    words, found = entities.words, facts(entities.words)
    for number in range(bilm.config.n_layers + 2):
        pair = train.of(words.train, train.layer(number)), test.of(words.test, test.layer(number))
        found["layers"].append(summary(words, by_neighbour(words, *pair)))
    return found


def probe_senses(bilm: BiLM) -> dict:
    """What ``benchmarks.senses`` finds. All words have as many contexts: both means are the same."""
    words = senses.read_contexts()
    shares = np.mean([senses.accuracies(bilm, contexts) for contexts in words.values()], axis=0).tolist()
    half = [max(Counter(one.sense for one in contexts).values()) / len(contexts) for contexts in words.values()]
    return {
        "set": "sense",
        "forms": len(words),
        "occurrences": sum(map(len, words.values())),
        "majority": {"occurrences": float(np.mean(half)), "forms": float(np.mean(half))},
        "layers": [{"occurrences": share, "forms": share} for share in shares],
    }


def layer_names(bilm: BiLM) -> list[str]:
    """The last is no layer."""
    return [*(f"layer {number}" for number in range(bilm.config.n_layers + 1)), "mean"]


def percent(share: float | None) -> str:
    """With one decimal, a dash for None."""
    return "-" if share is None else f"{share:.1%}"


def print_tags(tags: list[dict], names: list[str]) -> None:
    """A row for each control and layer."""
    parts = ("all", "ambiguous", "unknown")
    headers = [f"{found['tags']}, {found['words'][part]:,} {part}" for found in tags for part in parts]
    rows = [
        [control, *(percent(found[control][part]) for found in tags for part in parts)]
        for control in ("most frequent", "most frequent of the word")
    ]
    for number, name in enumerate(names):
        rows.append([name, *(percent(found["layers"][number][part]) for found in tags for part in parts)])
    table(["tag by", *headers], rows)


def print_neighbours(neighbours: list[dict], names: list[str]) -> None:
    """A row for each set and way to take the mean."""
    rows = []
    for found in neighbours:
        for over in ("occurrences", "forms"):
            label = found["set"] if over == "occurrences" else f"{found['set']}, mean over words"
            shares = [found["majority"], *found["layers"]]
            rows.append([label, f"{found[over]:,}", *(percent(share[over]) for share in shares)])
    table(["category by the nearest", "cases", "majority", *names], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Load, probe, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="what `spacy_elmo.load_bilm` takes")
    for name, required, files in (("--ud", True, "CoNLL-U"), ("--ner", False, "CoNLL columns with IOB tags")):
        parser.add_argument(
            name, type=existing, nargs=2, metavar=("TRAIN", "TEST"), required=required, help=f"files of {files}"
        )
    parser.add_argument("--words", type=positive, help="of the treebank's training sentences (default: all)")
    parser.add_argument("--least", type=positive, default=5, help="times a category occurs (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, default=2, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"--json: there is no folder {args.json.parent}")
    set_threads(args.threads)
    print(f"{machine(args.threads)}; {args.model}\n")
    try:
        bilm = load_bilm(args.model)
        treebank = Treebank(*args.ud, words=args.words, least=args.least, seed=args.seed)
        entities = Entities(*args.ner, least=args.least) if args.ner else None
        with TemporaryDirectory() as folder:
            tags, neighbours = probe_treebank(bilm, treebank, Path(folder))
        if entities is not None:
            with TemporaryDirectory() as folder:
                neighbours.append(probe_entities(bilm, entities, Path(folder)))
        neighbours.append(probe_senses(bilm))
        names = layer_names(bilm)
        print_tags(tags, names)
        print()
        print_neighbours(neighbours, names)
        if args.json is not None:
            settings = {name: getattr(args, name) for name in ("model", "ud", "ner", "words", "least", "seed")}
            figures = {**settings, "names": names, "tags": tags, "neighbours": neighbours}
            with replacing(args.json) as temporary:
                temporary.write_text(json.dumps(figures, indent=2, default=str), encoding="utf8")
    except ElmoError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
