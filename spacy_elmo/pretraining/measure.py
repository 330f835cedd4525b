"""Measure weights that have their softmax: perplexity of a text, or of the dev corpus of a config."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from spacy import Language

from ..bilm.matmul import Precision, checked_precision
from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..blank_pipeline import blank_pipeline
from ..errors import ElmoError, WeightsError
from ..weights import Found, recognised
from ..weights.files import clear_errors, exists, is_folder, made_folder, read_json, write_files
from .config import NlpSettings, load_config, nlp_settings, resolve
from .corpus import encode_corpus
from .perplexity import Perplexity, check_has_perplexity, perplexities, perplexity_by_position
from .prepare import prepare_corpora
from .raw_text import raw_text
from .texts import pipeline

CONFIG, META = "pretrain.cfg", "meta.json"


@dataclass(frozen=True, kw_only=True)
class Report:
    """Perplexity of a text.

    total (Perplexity): of all sentences.
    unknown (int): words that the softmax's vocabulary lacks; each counts as ``<UNK>``.
    sentences (list): perplexity and words of each sentence, in the text's order; empty if not asked for.
    positions (dict): perplexity by position in the sentence, see `perplexity_by_position`; empty if not asked for.
    """

    total: Perplexity
    unknown: int
    sentences: Sequence[tuple[Perplexity, list[str]]]
    positions: Mapping[str, Perplexity]

    def figures(self) -> dict[str, float | int]:
        """The figures by name."""
        figures: dict[str, float | int] = {
            "joint_perplexity": self.total.joint,
            "forward_perplexity": self.total.forward,
            "backward_perplexity": self.total.backward,
            "bits_per_word": self.total.bits_per_word,
            "bits_per_character": self.total.bits_per_character or 0.0,
            "targets": self.total.n_targets,
            "unknown_words": self.unknown,
        }
        for name, part in self.positions.items():
            figures[f"joint_perplexity_at_{name}"] = part.joint
        return figures


def measure(
    model: Path | str,
    *,
    text: Path | str | None = None,
    config: Path | str | None = None,
    lang: str | None = None,
    per_sentence: bool = False,
    by_position: bool = False,
    precision: Precision = "float32",
    pretokenized: bool = False,
) -> Report:
    """Perplexity of a text under a biLM that has the softmax of its pretraining.

    model: what ``pretrain`` saved, or a TensorFlow checkpoint of bilm-tf with its vocabulary, in an archive too: any
        path of these that ``load_bilm`` takes, or a name of built-in weights.
    text: raw text (file, folder, glob); None: the dev corpus of ``config``.
    config: None: the one that lies in the model's folder.
    lang: whose tokenizer cuts ``text``; None: that of the config, or else of the model's ``meta.json``.
    per_sentence, by_position: whether these parts of the report are wanted.
    precision: of the matrix products, the softmax's included: "float32" or "bfloat16".
    pretokenized: ``text`` is a sentence a line, its words between white space, as bilm-tf reads it: no tokenizer runs.
    Raises WeightsError, for weights without a softmax too; CorpusError or PretrainingError, ElmoError for another
    precision, or a language whose tokenizer does not work.
    """
    checked_precision(precision)
    with recognised(model) as found:
        bilm = found.load()
        softmax, vocabulary = output_layer(model, found, bilm)
        if text is None:
            if config is None and not (found.folder / CONFIG).is_file():
                raise WeightsError(f"{model}: has no {CONFIG} that names a dev text: give the text to measure")
            settings, filled = resolve(load_config(config or found.folder / CONFIG))
        elif pretokenized:
            nlp, reader = blank_pipeline("en"), raw_text(text, line="sentence", pretokenized=True)
        else:
            nlp = blank_pipeline(lang) if lang is not None else _pipeline(found.folder, config)
            reader = raw_text(text)
    if text is None:
        sentences = list(prepare_corpora(settings, filled).dev.sentences())
    else:
        # Encoded as pretraining encodes it, so that a sentence is the same thing in both.
        with TemporaryDirectory() as folder:
            corpus = encode_corpus(reader(nlp), Path(folder) / "text", key="")
            sentences = list(corpus.sentences())
            del corpus  # closes its maps: Windows removes no open file
        for line in reader.notes.lines():
            print(line, file=sys.stderr)
    known = set(vocabulary)
    with torch.autocast(bilm.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        total, each = perplexities(bilm, softmax, vocabulary, sentences)
        positions = perplexity_by_position(bilm, softmax, vocabulary, sentences) if by_position else {}
    return Report(
        total=total,
        unknown=sum(word not in known for words in sentences for word in words),
        sentences=list(zip(each, sentences, strict=True)) if per_sentence else [],
        positions=positions,
    )


def check_figures_file(path: Path) -> None:
    """Make the folder of a file of figures. ElmoError if the file cannot be written, or holds something else.

    Something else is all but the figures of an earlier measurement: the text that is measured, a config, weights.
    """
    if is_folder(path):
        raise ElmoError(f"{path}: is a folder: give the name of a file for the figures")
    made_folder(path.parent)
    if not exists(path) or not path.is_file() or not path.stat().st_size:
        return
    try:
        figures = read_json(path)
    except WeightsError:
        figures = None
    if not isinstance(figures, dict) or "joint_perplexity" not in figures:
        raise ElmoError(f"{path}: is there already, and holds no figures: give another name")


def write_figures(figures: Mapping[str, float | int], path: Path) -> None:
    """Write figures as JSON. WeightsError if that fails; then an older file stays."""
    if exists(path) and not path.is_file():  # a device, such as /dev/stdout
        with clear_errors(path, "cannot be written"):
            path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf8")
    else:
        write_files({path: json.dumps(figures, indent=1).encode() + b"\n"})


def output_layer(model: Path | str, found: Found, bilm: BiLM) -> tuple[OutputLayer, list[str]]:
    """The softmax and its words, compared with each other and the biLM. Raises WeightsError where they do not fit, and
    PretrainingError for an output layer without probabilities.
    """
    if found.load_softmax is None or found.softmax_words is None:
        raise WeightsError(
            f"{model}: these weights ({found.family}) come without a softmax, and a perplexity needs one. The folders "
            "of `elmo pretrain` have it (softmax.safetensors with vocabulary.txt), and bilm-tf's TensorFlow "
            "checkpoints with their vocabulary; HDF5 files, token embeddings and models of ELMoForManyLangs do not"
        )
    softmax = found.load_softmax()
    check_has_perplexity(softmax)
    rows, width = softmax.n_words, softmax.width
    assert rows is not None
    words = found.softmax_words(rows)
    if rows != len(words):
        raise WeightsError(
            f"{model}: its softmax predicts {rows} words, but its vocabulary has {len(words)}: they are not of the "
            "same model"
        )
    if width != bilm.config.projection_dim:
        raise WeightsError(
            f"{model}: its softmax reads vectors of {width} numbers, but its biLM gives {bilm.config.projection_dim} "
            "in each direction: they are not of the same model"
        )
    return softmax, words


def _pipeline(folder: Path, config: Path | str | None) -> Language:
    """What tokenizes by a config; the language of the model's meta.json where there is none that names it; else a
    config's default.
    """
    path = Path(config) if config else folder / CONFIG
    if config or path.is_file():
        section = load_config(path).get("nlp", {})
        if section.get("lang") is not None:
            return pipeline(nlp_settings(section))
    meta = read_json(folder / META) if (folder / META).is_file() else {}
    lang = meta.get("lang") if isinstance(meta, dict) else None
    return blank_pipeline(lang if isinstance(lang, str) else NlpSettings().lang)
