"""Measure a pretrained model's folder: perplexity of a text, or of the dev corpus of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ..bilm.matmul import Precision, checked_precision
from ..bilm.model import BiLM
from ..bilm.softmax import FullSoftmax
from ..errors import WeightsError
from ..weights import load_bilm, load_softmax, load_vocabulary
from ..weights.files import read_json
from .config import NlpSettings, load_config, resolve
from .corpus import encode_corpus
from .perplexity import Perplexity, perplexities
from .prepare import prepare_corpora
from .raw_text import raw_text
from .texts import blank_pipeline

SOFTMAX, VOCABULARY, CONFIG, META = "softmax.safetensors", "vocabulary.txt", "pretrain.cfg", "meta.json"


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
    precision: Precision = "float32",
) -> Report:
    """Perplexity of a text under a model that ``pretrain`` saved.

    model: the folder, with its softmax and vocabulary.
    text: raw text (file, folder, glob); None: the dev corpus of ``config``.
    config: None: the one that lies in the model's folder.
    lang: whose tokenizer cuts ``text``; None: that of the config, or else of the model's ``meta.json``.
    precision: of the matrix products, the softmax's included: "float32" or "bfloat16".
    Raises WeightsError, CorpusError or PretrainingError, ElmoError for another precision.
    """
    checked_precision(precision)
    model = Path(model)
    bilm = load_bilm(model)
    for name in (SOFTMAX, VOCABULARY):
        if not (model / name).is_file():
            raise WeightsError(f"{model} has no {name}: a perplexity needs the output layer that `elmo pretrain` saves")
    softmax, vocabulary = load_softmax(model), load_vocabulary(model / VOCABULARY)
    _check_fit(model, bilm, softmax, vocabulary)
    if text is None:
        settings, filled = resolve(load_config(config or model / CONFIG))
        sentences = list(prepare_corpora(settings, filled).dev.sentences())
    else:
        nlp = blank_pipeline(lang if lang is not None else _lang(model, config))
        # Encoded as pretraining encodes it, so that a sentence is the same thing in both.
        with TemporaryDirectory() as folder:
            corpus = encode_corpus(raw_text(text)(nlp), Path(folder) / "text", key="")
            sentences = list(corpus.sentences())
            del corpus  # closes its maps: Windows removes no open file
    known = set(vocabulary)
    with torch.autocast(bilm.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        total, each = perplexities(bilm, softmax, vocabulary, sentences)
    return Report(
        total=total,
        unknown=sum(word not in known for words in sentences for word in words),
        sentences=list(zip(each, sentences, strict=True)) if per_sentence else [],
    )


def _check_fit(model: Path, bilm: BiLM, softmax: FullSoftmax, vocabulary: Sequence[str]) -> None:
    rows, width = softmax.W.shape
    if rows != len(vocabulary):
        raise WeightsError(
            f"{model / SOFTMAX} predicts {rows} words, but {model / VOCABULARY} has {len(vocabulary)}: "
            "they are not of the same model"
        )
    if width != bilm.config.projection_dim:
        raise WeightsError(
            f"{model / SOFTMAX} reads vectors of {width} numbers, but the biLM of {model} gives "
            f"{bilm.config.projection_dim} in each direction: they are not of the same model"
        )


def _lang(model: Path, config: Path | str | None) -> str:
    """The language of a config; of the model's meta.json where there is none that names it; else a config's default."""
    path = Path(config) if config else model / CONFIG
    if config or path.is_file():
        lang = load_config(path).get("nlp", {}).get("lang")
        if lang is not None:
            return lang
    meta = read_json(model / META) if (model / META).is_file() else {}
    lang = meta.get("lang") if isinstance(meta, dict) else None
    return lang if isinstance(lang, str) else NlpSettings().lang
