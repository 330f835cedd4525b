"""What a precision costs: downstream F of pipelines trained on exact vectors, and how near the vectors come to those.

python benchmarks/precision.py --pipeline downstream/runs/conll-0.1-elmo-0/model-best [...] --test test.spacy

Each pipeline has an `elmo` with trained weights and an entity recognizer that was trained on its float32 vectors (what
benchmarks/downstream.py leaves). It is scored on the test Docs with the vectors of every precision. Prints a table in
Markdown.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from spacy_elmo.bilm.matmul import PRECISIONS, Precision
from spacy_elmo.pipeline.elmo import Elmo

from .common import existing, positive


def load(pipeline: Path, precision: Precision) -> spacy.Language:
    """The pipeline, its biLM's products in that precision."""
    return spacy.load(pipeline, config={"components": {"elmo": {"precision": precision}}})


def f_score(nlp: spacy.Language, test: DocBin) -> float:
    """Entity F on the Docs, in percent."""
    golds = list(test.get_docs(nlp.vocab))
    bare = [Doc(nlp.vocab, words=[token.text for token in gold]) for gold in golds]
    scores = nlp.evaluate([Example(*pair) for pair in zip(bare, golds, strict=True)], batch_size=256)
    return 100 * float(scores["ents_f"])


def cosines(pipeline: Path, test: DocBin, precision: Precision, n_docs: int) -> np.ndarray:
    """Cosine to the float32 vector of each token, by layer: (L + 1, n)."""
    layers = []
    for one in (PRECISIONS[0], precision):
        nlp = load(pipeline, one)
        words = [[token.text for token in doc] for doc in test.get_docs(nlp.vocab)][:n_docs]
        elmo = nlp.get_pipe("elmo")
        assert isinstance(elmo, Elmo)
        bilm = elmo.loaded_bilm
        layers.append(np.concatenate([tensor.numpy() for tensor in bilm.encode(words, precision=one)], axis=1))
    exact, found = layers
    norms = np.linalg.norm(exact, axis=2) * np.linalg.norm(found, axis=2)
    return np.einsum("lnw,lnw->ln", exact, found) / norms


def main() -> None:
    """Score, compare, print."""
    parser = argparse.ArgumentParser(description="Downstream F and cosine to float32 of each precision.")
    parser.add_argument("--pipeline", type=existing, action="append", required=True)
    parser.add_argument("--test", type=existing, required=True, help="a DocBin with entities")
    parser.add_argument("--docs", type=positive, default=1000, help="Docs whose vectors are compared")
    args = parser.parse_args()
    test = DocBin().from_disk(args.test)
    print("| precision | test F | difference | cosine to float32 by layer: mean (1% / worst) |")
    print("| --- | --- | --- | --- |")
    exact: list[float] = []
    for precision in PRECISIONS:
        scores = [f_score(load(pipeline, precision), test) for pipeline in args.pipeline]
        exact = exact or scores
        change = statistics.mean(scores) - statistics.mean(exact)
        near = cosines(args.pipeline[0], test, precision, args.docs)
        by_layer = [f"{one.mean():.6f} ({np.quantile(one, 0.01):.5f} / {one.min():.5f})" for one in near]
        listed = ", ".join(f"{score:.2f}" for score in scores)
        print(f"| {precision} | {statistics.mean(scores):.2f} ({listed}) | {change:+.2f} | {', '.join(by_layer)} |")


if __name__ == "__main__":
    main()
