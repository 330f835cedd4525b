"""The tasks: how their files are read, what share of them trains, what is scored, and how long."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import biluo_tags_to_spans, iob_to_biluo
from spacy.training.converters import conllu_to_docs
from spacy.vocab import Vocab

from spacy_elmo.weights.files import replacing

SPLITS = ("train", "dev", "test")
LABEL = "__label__"
SELECTION = 1000  # sentences of dev by which the best model of a run is chosen


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task.

    files: pattern of its files in the folder of data, with {split} in it. read: their sentences, a Doc each.
    config: name of its pair in configs/. tok2vec: where the config has the tok2vec. metrics: names of what is reported,
    by the keys of spaCy's scores, all shares of 1; the first one is drawn.
    steps: of training with 1%, 10% and all of the data. evaluations: on dev in a run. settings: what all arms change of
    the config, dotted keys.
    """

    name: str
    title: str
    files: str
    read: Callable[[Path, Vocab], Iterator[Doc]]
    config: str
    tok2vec: str
    metrics: Mapping[str, str]
    steps: tuple[int, int, int]
    evaluations: int = 10
    settings: Mapping[str, Any] = field(default_factory=dict)

    def path(self, data: Path, split: str) -> Path:
        """The file of a split."""
        return data / self.files.format(split=split)

    def steps_for(self, share: float) -> int:
        """Steps of training with a share of the data."""
        few, tenth, whole = self.steps
        return few if share < 0.03 else tenth if share < 0.3 else whole


def tagged_sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """(word, IOB tag) pairs of the sentences of CoNLL columns: the word first, its tag last, an empty line between."""
    rows: list[tuple[str, str]] = []
    for line in [*path.read_text(encoding="utf8").split("\n"), ""]:
        # Between tabs a word may be a space of another kind.
        columns = line.split("\t") if "\t" in line else line.split()
        if columns and columns[0] != "-DOCSTART-":
            rows.append((columns[0], columns[-1]))
        elif rows:
            yield rows
            rows = []


def read_entities(path: Path, vocab: Vocab) -> Iterator[Doc]:
    """Sentences with entities, of IOB tags of either scheme."""
    for rows in tagged_sentences(path):
        doc = Doc(vocab, words=[word for word, _ in rows])
        doc.ents = biluo_tags_to_spans(doc, iob_to_biluo([tag for _, tag in rows]))
        yield doc


def read_treebank(path: Path, vocab: Vocab) -> Iterator[Doc]:
    """Sentences of a CoNLL-U file by spaCy's converter: the language's own tags (XPOS) are the tags."""
    yield from conllu_to_docs(path.read_text(encoding="utf8"), n_sents=1, no_print=True)


def read_classes(path: Path, vocab: Vocab) -> Iterator[Doc]:
    """Texts in words, each after its class as fastText has it: __label__4 The Rock is ..."""
    rows = [line.split() for line in path.read_text(encoding="utf8").split("\n") if line.strip()]
    classes = sorted({row[0].removeprefix(LABEL) for row in rows})
    for label, *words in rows:
        if not label.startswith(LABEL):
            raise ValueError(f"a text begins with {LABEL} and its class, not with {label!r}")
        doc = Doc(vocab, words=words)
        doc.cats = {one: float(LABEL + one == label) for one in classes}
        yield doc


def _entities(name: str, title: str, files: str, steps: tuple[int, int, int]) -> Task:
    return Task(
        name=name,
        title=f"{title}, entities",
        files=files,
        read=read_entities,
        config="ner",
        tok2vec="components.ner.model.tok2vec",
        metrics={"ents_f": "F"},
        steps=steps,
    )


# Steps: some 80 passes over 10% of CoNLL-2003 and 18 over all of it; of the smaller tasks less, SST-5 the fewest, whose
# texts are soonest known by heart.
TASKS = {
    task.name: task
    for task in (
        _entities("conll", "CoNLL-2003", "ner/conll2003/{split}.conll", (1500, 3000, 5000)),
        _entities("wnut", "WNUT-17", "ner/wnut17/{split}.conll", (750, 1500, 3000)),
        Task(
            name="ewt",
            title="UD English EWT, tags and trees",
            files="ud/english-ewt/{split}.conllu",
            read=read_treebank,
            config="tagger_parser",
            tok2vec="components.tok2vec.model",
            metrics={"dep_las": "LAS", "dep_uas": "UAS", "tag_acc": "tag accuracy"},
            steps=(1500, 3000, 5000),
            # spaCy's 30 is for a whole treebank: of a share of one, it makes many labels "dep", and that is wrong.
            settings={"components.parser.min_action_freq": 1},
        ),
        Task(
            name="sst5",
            title="SST-5, five classes of sentiment",
            files="sst5/{split}.txt",
            read=read_classes,
            config="textcat",
            tok2vec="components.textcat.model.tok2vec",
            # One class a text: each that is wrong is one too many and one too few, so micro F is the accuracy.
            metrics={"cats_micro_f": "accuracy"},
            steps=(500, 1000, 2000),
            evaluations=20,
        ),
    )
}


def seeds_for(share: float) -> int:
    """Seeds: what is trained on few sentences varies more."""
    return 3 if share > 0.5 else 5


def sampled(docs: list[Doc], share: float, seed: int) -> list[Doc]:
    """A random share of the Docs, one at least, in their order. A smaller share is part of a larger one of the seed."""
    order = random.Random(seed).sample(range(len(docs)), len(docs))
    kept = sorted(order[: max(1, round(share * len(docs)))])
    return [docs[i] for i in kept]


def prepared(task: Task, data: Path, folder: Path, share: float, seed: int) -> dict[str, Path]:
    """The task's splits as files of spaCy's, made if they are not there.

    share, seed: of the training sentences, see ``sampled``. Those of dev are in a random order, always the same: the
    first ones are a sample of all. RETURNS: the path of each split. Raises SystemExit for data that are not there, or
    not as the task has them.
    """
    paths: dict[str, Path] = {}
    for split in SPLITS:
        source = task.path(data, split)
        if not source.is_file():
            raise SystemExit(f"--data: {task.title}: there is no {source} (--tasks runs some of them)")
        # The name tells the text: other data make another file.
        known = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
        sample = f"-{share:g}-{seed}" if split == "train" and share < 1 else "-shuffled" if split == "dev" else ""
        paths[split] = folder / f"{task.name}-{split}{sample}-{known}.spacy"
        if paths[split].exists():
            continue
        try:
            docs = list(task.read(source, spacy.blank("en").vocab))
        except ValueError as error:  # of bytes, columns or tags
            raise SystemExit(f"--data: {source} is not as {task.title} has it: {error}") from error
        if not docs:
            raise SystemExit(f"{source} holds no sentences")
        if split == "train":
            docs = sampled(docs, share, seed)
        elif split == "dev":
            random.Random(0).shuffle(docs)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(paths[split]) as new:
            DocBin(docs=docs, store_user_data=False).to_disk(new)
    return paths
