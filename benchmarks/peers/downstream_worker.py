"""The process of a run: `spacy train`, then the score on the test set. And the process that is timed.

``python -m benchmarks.peers.downstream_worker job.json``. Any environment with spaCy can run it. It ends when its
standard input closes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import spacy
import srsly
from spacy.cli.train import train
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from spacy.training.loggers import console_logger
from thinc.api import Model

from .protocol import Job, end_with_parent, serve

PACKAGES = ("spacy", "spacy-elmo", "spacy-transformers", "transformers", "thinc", "torch", "numpy")


class Clock:
    """Seconds of training and in all, with the processor's own: others on the machine do not count there."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, bool]] = []
        self.words = 0
        self.scores: list[tuple[float, int]] = []
        self.start = self.last = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def step(self, info: dict[str, Any] | None) -> None:
        """A step is done. info: of its evaluation, which then took part of the time."""
        now = self._now()
        self.steps.append((now[0] - self.last[0], now[1] - self.last[1], info is not None))
        if info is not None:
            self.words = info["words"]
            self.scores = info["checkpoints"]  # of all evaluations so far, each with its step
        self.last = now

    def figures(self, n_words: int) -> dict[str, Any]:
        """Seconds of a pass over n_words words of training data, evaluations not counted, and how many there were; the
        evaluations, and the step of the best one: of several, the last, whose model spaCy keeps.
        """
        plain = [step for step in self.steps if not step[2]] or self.steps
        epochs = self.words / n_words
        seconds, processor = (sum(step[i] for step in plain) / len(plain) * len(self.steps) / epochs for i in (0, 1))
        return {
            "epochs": epochs,
            "seconds_per_epoch": seconds,
            "processor_seconds_per_epoch": processor,
            "evaluations": [{"step": step, "score": score} for score, step in self.scores],
            "best_step": max(self.scores)[1],
        }


clock: Clock


@spacy.registry.loggers("benchmarks.timed_logger.v1")
def timed_logger() -> Callable[[Language, IO[str], IO[str]], Any]:
    """spaCy's console logger, and a clock."""

    def setup(nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr) -> Any:
        global clock
        clock = Clock()
        log, finish = console_logger(progress_bar=False)(nlp, stdout, stderr)

        def step(info: dict[str, Any] | None) -> None:
            clock.step(info)
            log(info)

        return step, finish

    return setup


@spacy.registry.callbacks("benchmarks.init_tok2vec.v1")
def init_tok2vec(path: str) -> Callable[[Language], None]:
    """Weights of `spacy pretrain` into the tok2vec. spaCy's own `init_tok2vec` wants an entity recognizer's with its
    last linear layer, and so one pretraining for each kind of component."""

    def load(nlp: Language) -> None:
        found = [node for _, pipe in nlp.pipeline for node in tok2vecs(getattr(pipe, "model", None))]
        if len(found) != 1:
            raise ValueError(f"there is one tok2vec to initialise, not {len(found)}")
        found[0].from_bytes(Path(path).read_bytes())

    return load


def tok2vecs(model: Any) -> Iterator[Model[Any, Any]]:
    """The models in a model that embed and encode."""
    if isinstance(model, Model):
        yield from (node for node in model.walk() if node.has_ref("embed") and node.has_ref("encode"))


def run(config: Path, output: Path, test: Path) -> dict[str, Any]:
    """Train, and score the best model on all of dev and test. RETURNS: all that is known of the run, for JSON."""
    start, processor = time.perf_counter(), time.process_time()
    train(config, output)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    nlp = spacy.load(output / "model-best")
    if "elmo" in nlp.pipe_names:
        # As in training: what another run has computed of these sentences is read from the disk.
        elmo: Any = nlp.get_pipe("elmo")
        elmo.doc_layers.begin_training()
    paths = nlp.config.interpolate()["paths"]
    lengths = [len(doc) for doc in DocBin().from_disk(paths["train"]).get_docs(nlp.vocab)]
    return {
        "dev_scores": scores(nlp, paths["dev"]),
        "test_scores": scores(nlp, test),
        "sentences": len(lengths),
        "words": sum(lengths),
        "seconds": seconds,
        "processor_seconds": processor,
        **clock.figures(sum(lengths)),
        "mixes": mixes(nlp),
        "versions": versions(),
    }


def scores(nlp: Language, path: Path | str) -> dict[str, float]:
    """A pipeline's scores on a file of Docs, their tokens and sentences given: those that are one number."""
    found = nlp.evaluate(list(Corpus(path, gold_preproc=True)(nlp)))
    return {key: float(value) for key, value in found.items() if isinstance(value, (int, float))}


def mixes(nlp: Language) -> list[dict[str, Any]]:
    """What the layers of ELMo weigh in the components that read them."""
    if "elmo" not in nlp.pipe_names:
        return []
    from spacy_elmo.pipeline.mixes import mixes_of

    return [mix.as_dict() for mix in mixes_of(nlp)]


def versions() -> dict[str, str]:
    """Of the packages that matter, those that are there, and of Python."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def load(*, threads: int, pipelines: dict[str, str], test: str) -> tuple[dict[str, Job], dict[str, Any]]:
    """Be timed. pipelines: paths by name. test: a file of Docs."""
    if "torch" in sys.modules or any((Path(path) / "transformer").exists() for path in pipelines.values()):
        import torch

        torch.set_num_threads(threads)
    docs = list(DocBin().from_disk(test).get_docs(spacy.blank("en").vocab))
    texts = [([token.text for token in doc], [bool(token.whitespace_) for token in doc]) for doc in docs]

    def annotate(pipeline: str) -> dict[str, Any]:
        # Loaded anew: `elmo` would find every text, and every word, in what it has kept of the round before. What
        # should be timed is text that it has not seen.
        nlp = spacy.load(pipelines[pipeline])
        bare = [Doc(nlp.vocab, words=words, spaces=spaces) for words, spaces in texts]
        # Not of the text's time: what is made of the weights at the first use.
        list(nlp.pipe([Doc(nlp.vocab, words=["."])]))
        start = time.perf_counter()
        words = sum(len(doc) for doc in nlp.pipe(bare))
        return {"seconds": time.perf_counter() - start, "amount": words}

    return {"annotate": annotate}, {"facts": ", ".join(f"{key} {value}" for key, value in versions().items())}


def main() -> None:
    """``JOB``, a file of JSON: a run. Without arguments: be timed."""
    if len(sys.argv) == 1:
        serve(load)
        return
    end_with_parent()
    job = srsly.read_json(sys.argv[1])
    result = run(Path(job["config"]), Path(job["output"]), Path(job["test"]))
    new = Path(job["result"] + ".tmp")
    srsly.write_json(new, result)
    os.replace(new, job["result"])


if __name__ == "__main__":
    main()
