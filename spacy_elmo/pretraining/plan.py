"""What a run is going to do, in numbers, before it does it."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from ..bilm.adaptive import AdaptiveSoftmax
from ..bilm.continuous import ContinuousOutput
from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..bilm.softmax import FullSoftmax, SampledSoftmax
from .config import Settings
from .corpus import EncodedCorpus
from .precision import chosen_precision
from .prepare import Corpora
from .streams import Stream
from .vectors import Targets, VectorTargets
from .vocabulary import oov_share


def make_plan(
    settings: Settings,
    corpora: Corpora,
    stream: Stream,
    bilm: BiLM,
    softmax: OutputLayer,
    targets: Targets,
    products: str | None = None,
) -> str:
    """The plan as aligned lines of text. Everything in it is counted, nothing is a default.

    products: which library makes them, where the settings say something about it.
    """
    training = settings.training
    lines: list[tuple[str, str]] = []
    for name, corpus in (("train", corpora.train), ("dev", corpora.dev)):
        lines += [
            (
                name,
                f"{corpus.n_documents:,} documents, {corpus.meta['n_lines']:,} lines, "
                f"{corpus.n_sentences:,} sentences, {corpus.n_words:,} tokens, {corpus.n_types:,} types "
                f"(hash {corpus.meta['sha256'][:12]})",
            ),
            (
                "",
                f"{targets.share_without(corpus):.2%} of the tokens without a vector: not predicted"
                if isinstance(targets, VectorTargets)
                else f"{oov_share(corpus, corpora.vocabulary):.2%} of the tokens out of vocabulary",
            ),
        ]
        if bilm.config.filters is not None:
            kept = bilm.config.max_characters_per_token - 2
            unit = "characters" if bilm.config.is_many_langs else "bytes"
            lines.append(("", f"{corpus.truncated_words(bilm.config):,} tokens truncated at {kept} {unit}"))
    if corpora.versions:
        lines.append(("text of", ", ".join(f"{name} {version}" for name, version in corpora.versions.items())))
    tokens = training.step_rows * training.unroll_steps
    parts = f"{training.accumulate} x " if training.accumulate > 1 else ""
    precision = chosen_precision(training.precision, bilm.device)
    lines += [
        ("vocabulary", f"{len(corpora.vocabulary):,} words"),
        (
            "steps",
            f"{training.max_steps:,} of {parts}{training.rows} rows x {training.unroll_steps} = {tokens:,} tokens, "
            f"{stream.steps_per_epoch:,} an epoch: {training.max_steps / stream.steps_per_epoch:.2f} epochs",
        ),
        *_never_read(corpora.train, stream.steps_per_epoch * tokens),
        ("biLM", f"{_size(bilm):,} parameters, vectors of {bilm.config.width} in {bilm.config.n_layers + 1} layers"),
        (
            "softmax" if softmax.has_perplexity else "output",
            f"{sum(parameter.numel() for parameter in softmax.parameters()):,} parameters{_about(softmax)}",
        ),
        ("precision", precision if products is None else f"{precision}, {products}"),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in lines)


def _never_read(corpus: EncodedCorpus, read: int) -> list[tuple[str, str]]:
    """A line about the end of a text of one document: no order of its documents brings it into a window."""
    left = int(corpus.sentence_steps[-1]) - read
    if corpus.n_documents > 1 or not left:
        return []
    return [("", f"the last {left:,} tokens of train are never read, since it is one document: separate documents")]


def _about(layer: OutputLayer) -> str:
    about = ""
    if isinstance(layer, FullSoftmax) and layer.tied:
        about += " beside the word table, which it shares"
    if isinstance(layer, SampledSoftmax):
        about += f", {layer.n_samples:,} samples a step"
    if isinstance(layer, AdaptiveSoftmax):
        sizes = [f"{high - low:,}" for low, high in pairwise([0, *layer.cutoffs])]
        about += f", {sizes[0]} words and clusters of {', '.join(sizes[1:])}"
    if isinstance(layer, ContinuousOutput):
        about += f", {layer.loss_name} loss to vectors of {layer.n_dims} of {layer.vectors} (hash {layer.sha256[:12]})"
        if layer.table is not None:
            about += f", {len(layer.table) - 1:,} of them, {str(layer.table.dtype).removeprefix('torch.')}"
    return about


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
