"""Names and registries that other packages make too, and listeners of other kinds in one pipeline."""

from __future__ import annotations

import subprocess
import sys

from spacy_elmo import BiLM
from tests.pipeline.toys import blank, examples, getter, listener, ner_config, tagger_config

HASH_EMBED_CNN = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "width": 16,
    "depth": 1,
    "embed_size": 200,
    "window_size": 1,
    "maxout_pieces": 2,
    "subword_features": True,
    "pretrained_vectors": None,
}


def test_registries_that_others_create_are_left_to_them() -> None:
    # To create one twice is an error, so whoever comes second would break.
    script = (
        "import spacy, spacy_elmo, spacy_elmo.pipeline.elmo, spacy_elmo.pretraining.loop, spacy_elmo.cli\n"
        "for name in ('model_loaders', 'span_getters', 'annotation_setters', 'elmo', 'weights'):\n"
        "    spacy.registry.create(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_any_upstream_is_any_of_the_listeners_own_kind(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe("tok2vec", config={"model": HASH_EMBED_CNN})
    nlp.add_pipe("ner", config=ner_config(listener("*")))
    any_tok2vec = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "*"}
    nlp.add_pipe("tagger", config=tagger_config(any_tok2vec))
    optimizer = nlp.initialize(getter(nlp))
    assert nlp.get_pipe("elmo").listening_components == ["ner"]
    assert nlp.get_pipe("tok2vec").listening_components == ["tagger"]
    losses = nlp.update(examples(nlp), sgd=optimizer, losses={})
    assert losses["ner"] > 0
    assert losses["tagger"] > 0
    assert [token.tag_ != "" for token in nlp("Ann went")] == [True, True]
