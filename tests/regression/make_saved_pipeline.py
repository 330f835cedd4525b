"""Writes `pipeline-<version>.zip`: a pipeline as this version saves it, and what it predicts.

python -m tests.regression.make_saved_pipeline

Run it once for each minor version, when it is released. The files stay for ever: test_pipelines_of_old_versions.py
loads every one of them.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy
import torch

from spacy_elmo import __version__
from spacy_elmo.layers.bilm_model import random_bilm
from tests.pipeline.toys import examples, getter, listener, ner_config, tagger_config, with_elmo

FOLDER = Path(__file__).parent
TEXT = "Ann saw Paris . Bob went to Rome !"


def make_pipeline() -> Any:
    """Every architecture once: a bare listener, one beside a component's own embedding, one cut loose from `elmo`."""
    nlp: Any = spacy.blank("xx")  # its tokenizer is the smallest
    bilm = random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4], [2, 4]], char_dim=4)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(4.0)
    nlp.add_pipe("elmo", config={"dtype": "float16", "max_length": 100}).load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(with_elmo(elmo_dropout=0.0)))
    nlp.add_pipe("tagger", config=tagger_config(listener("elmo", elmo_dropout=0.0, grad_factor=0.5)))
    mix = {"@architectures": "spacy-elmo.ScalarMix.v1", "l2": 0.001, "layer_norm": True}
    nlp.add_pipe("tagger", name="own", config=tagger_config(listener(elmo_dropout=0.0, mix=mix)))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))
    optimizer.learn_rate = 0.01
    for _ in range(200):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    nlp.replace_listeners("elmo", "own", ["model.tok2vec"])
    return nlp


def predictions(nlp: Any) -> dict[str, Any]:
    """What the pipeline gives for ``TEXT``."""
    doc = nlp(TEXT)
    with nlp.select_pipes(disable=["own"]):
        tags = [token.tag_ for token in nlp(TEXT)]
    return {
        "layers": doc._.elmo.layers.tolist(),
        "entities": [[ent.text, ent.label_] for ent in doc.ents],
        "tags": tags,
        "own": [token.tag_ for token in doc],
    }


def main() -> None:
    """Write the file of this version."""
    nlp = make_pipeline()
    minor = ".".join(__version__.split(".")[:2])
    with TemporaryDirectory() as name:
        folder = Path(name)
        nlp.to_disk(folder / "pipeline")
        (folder / "predictions.json").write_text(json.dumps(predictions(nlp)), encoding="utf8")
        with zipfile.ZipFile(FOLDER / f"pipeline-{minor}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))


if __name__ == "__main__":
    main()
