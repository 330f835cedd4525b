"""Measure a pretrained model's folder: perplexity of a text, or of the dev corpus of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy

from ..errors import WeightsError
from ..weights import load_bilm, load_softmax, load_vocabulary
from .config import load_config, resolve
from .corpus import encode_corpus, raw_text
from .perplexity import Perplexity, perplexity, sentence_perplexities
from .prepare import prepare_corpora


@dataclass(frozen=True, kw_only=True)
class Report:
    """Perplexity of a text.

    total (Perplexity): of all sentences.
    unknown (int): words that the softmax's vocabulary lacks; each counts as ``<UNK>``.
    sentences (list): perplexity and words of each sentence, in the text's order; empty if not asked for.
    """

    total: Perplexity
    unknown: int
    sentences: Sequence[tuple[Perplexity, list[str]]]

    def figures(self) -> dict[str, float | int]:
        """The figures by name."""
        return {
            "joint_perplexity": self.total.joint,
            "forward_perplexity": self.total.forward,
            "backward_perplexity": self.total.backward,
            "bits_per_word": self.total.bits_per_word,
            "targets": self.total.n_targets,
            "unknown_words": self.unknown,
        }


def measure(
    model: Path | str,
    *,
    text: Path | str | None = None,
    config: Path | str | None = None,
    lang: str | None = None,
    per_sentence: bool = False,
) -> Report:
    """Perplexity of a text under a model that ``pretrain`` saved.

    model: the folder, with its softmax and vocabulary.
    text: raw text (file, folder, glob); None: the dev corpus of ``config``.
    config: None: the one that lies in the model's folder.
    lang: whose tokenizer cuts ``text``; None: that of the config.
    Raises WeightsError, CorpusError or PretrainingError.
    """
    model = Path(model)
    bilm = load_bilm(model)
    for name in ("softmax.safetensors", "vocabulary.txt"):
        if not (model / name).is_file():
            raise WeightsError(f"{model} has no {name}: a perplexity needs the output layer that `elmo pretrain` saves")
    softmax, vocabulary = load_softmax(model), load_vocabulary(model / "vocabulary.txt")
    path = Path(config) if config else model / "pretrain.cfg"
    if text is None:
        settings, filled = resolve(load_config(path))
        sentences = list(prepare_corpora(settings, filled).dev.sentences())
    else:
        if lang is None:
            lang = load_config(path)["nlp"]["lang"] if path.is_file() else "en"
        nlp = spacy.blank(lang)
        # Encoded as pretraining encodes it, so that a sentence is the same thing in both.
        with TemporaryDirectory() as folder:
            corpus = encode_corpus(raw_text(text)(nlp), Path(folder) / "text", key="")
            sentences = list(corpus.sentences())
            del corpus  # closes its maps: Windows removes no open file
    known = set(vocabulary)
    each: Any = sentence_perplexities(bilm, softmax, vocabulary, sentences) if per_sentence else []
    return Report(
        total=perplexity(bilm, softmax, vocabulary, sentences),
        unknown=sum(word not in known for words in sentences for word in words),
        sentences=list(zip(each, sentences, strict=True)) if per_sentence else [],
    )
