"""Small pipelines and texts for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import spacy
import torch
from spacy.training import Example

from spacy_elmo.bilm import BiLM
from spacy_elmo.layers.bilm_model import random_bilm

SENTENCES = [
    ("Ann went to Rome .", [(0, 3, "PER"), (12, 16, "LOC")], ["NOUN", "VERB", "ADP", "NOUN", "PUNCT"]),
    ("I live in Paris .", [(10, 15, "LOC")], ["PRON", "VERB", "ADP", "NOUN", "PUNCT"]),
    ("Paris saw Bob !", [(0, 5, "LOC"), (10, 13, "PER")], ["NOUN", "VERB", "NOUN", "PUNCT"]),
]


def toy_bilm() -> BiLM:
    """Small, with vectors of 16 numbers in three layers, all at a scale a component can learn from."""
    bilm = random_bilm(lstm_dim=16, projection_dim=8, filters=[[1, 8], [2, 8], [3, 8]], char_dim=4)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(4.0)
    bilm.invalidate()
    return bilm


# No installed package has weights for a language of this name.
WITHOUT_BUILTIN = "xx"


def blank(lang: str = "en") -> Any:
    """An empty pipeline; untyped, since what `add_pipe` gives back is used as what it is."""
    return spacy.blank(lang)


def listener(upstream: str = "*", **config: Any) -> dict[str, Any]:
    return {"@architectures": "spacy-elmo.ElmoListener.v1", "upstream": upstream, **config}


def ner_config(tok2vec: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {
            "@architectures": "spacy.TransitionBasedParser.v2",
            "state_type": "ner",
            "extra_state_tokens": False,
            "hidden_width": 16,
            "maxout_pieces": 2,
            "use_upper": True,
            "nO": None,
            "tok2vec": tok2vec,
        }
    }


def tagger_config(tok2vec: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"@architectures": "spacy.Tagger.v2", "nO": None, "normalize": False, "tok2vec": tok2vec}}


def with_elmo(**config: Any) -> dict[str, Any]:
    """A Tok2VecWithElmo block."""
    return {
        "@architectures": "spacy-elmo.Tok2VecWithElmo.v1",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": 16,
            "attrs": ["NORM", "SHAPE"],
            "rows": [100, 100],
            "include_static_vectors": False,
        },
        "elmo": listener(**config),
        "encode": {
            "@architectures": "spacy.MaxoutWindowEncoder.v2",
            "width": 16,
            "depth": 1,
            "window_size": 1,
            "maxout_pieces": 2,
        },
    }


def examples(nlp: Any) -> list[Example]:
    return [
        Example.from_dict(nlp.make_doc(text), {"entities": entities, "tags": tags})
        for text, entities, tags in SENTENCES
    ]


def getter(nlp: Any) -> Callable[[], list[Example]]:
    return lambda: examples(nlp)
