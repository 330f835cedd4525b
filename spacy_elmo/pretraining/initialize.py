"""Going on from given weights, on another text with another vocabulary: [initialize] of a config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from thinc.api import Config

from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..bilm.softmax import FullSoftmax
from ..errors import PretrainingError, WeightsError
from ..weights import recognised
from .config import InitializeSettings, Settings, model_section
from .corpus import EncodedCorpus
from .measure import output_layer
from .perplexity import Perplexity, perplexity
from .vocabulary import N_SPECIAL, Vocabulary, log_frequencies


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Weights that a run goes on from.

    bilm: as it was loaded. softmax, words: its own output layer and the words of its rows; None where there is none, it
        predicts no words, or it is not wanted.
    source: where it all comes from: path, family, sha256 (of the biLM's values and tables).
    """

    bilm: BiLM
    softmax: OutputLayer | None
    words: list[str] | None
    source: dict[str, str]

    def resolved(self, settings: Settings, config: Config) -> tuple[Settings, Config]:
        """Settings and config with the sizes of these weights as [model], whatever stood there.

        Raises PretrainingError for an objective that shares the word table.
        """
        if config["objective"].get("tie_weights"):
            raise PretrainingError(
                "objective.tie_weights: a run that goes on from weights keeps the rows of all words of their table, "
                "and a softmax that shares it would need them to be those of the new vocabulary: set it to false"
            )
        section = model_section(self.bilm.config)
        changed = Config({**config, "model": section})
        # One spelling whatever the source of a value, as `resolve` has it.
        return settings.model_copy(update={"model": section}), Config().from_str(changed.to_str())

    def plan(self, asked: Mapping[str, Any], rows_kept: int, n_words: int) -> str:
        """What is taken from the weights, in words. asked: [model] of the config."""
        own = model_section(self.bilm.config)
        unused = [key for key, value in asked.items() if json.dumps(value) != json.dumps(own.get(key))]
        lines = [
            ("weights", f"{self.source['path']} ({self.source['family']}); their sizes are [model]"),
            ("", f"not used of the config's [model]: {', '.join(unused)}" if unused else ""),
            ("", f"{rows_kept:,} of {n_words:,} softmax rows are their own" if rows_kept else "the softmax is new"),
        ]
        return "\n".join(f"{name:<10}  {text}" for name, text in lines if text)

    def own_perplexity(self, sentences: Sequence[Sequence[str]], device: torch.device) -> Perplexity | None:
        """Of a text under the weights as they are, by their own output layer and its words. None if there is none."""
        if self.softmax is None or self.words is None:
            return None
        return perplexity(self.bilm.to(device), self.softmax.to(device), self.words, sentences)

    def check(self, initial: Mapping[str, Any] | None) -> None:
        """Raises PretrainingError if these are not the weights that a run began with, by what its checkpoint says."""
        if initial is None or initial["weights"]["sha256"] != self.source["sha256"]:
            raise PretrainingError(
                f"the weights at initialize.weights ({self.source['path']}) are not those that the run began with: put "
                "them back, or choose another folder for a new run"
            )

    def start(self, vocabulary: Vocabulary) -> BiLM:
        """The biLM to go on with. It starts from zero, whatever its policy was: a start state is made when training
        ends. A word table keeps its rows and gets one for each word of the vocabulary that it lacks: at first that of
        the unknown word, as which it was read before, or the mean of all rows where there is none.
        """
        bilm, config = self.bilm, replace(self.bilm.config, state="zero")
        values = {name: value for name, value in bilm.state_dict().items() if not name.startswith("start_")}
        words = bilm.vocabulary
        if words is not None:
            more = _words_without_row(bilm, vocabulary)
            config, name = replace(config, n_words=len(words) + len(more)), _table_name(bilm)
            known = {word: row for row, word in enumerate(words)}.get(config.marks.unknown)
            table = values[name]
            row = table.mean(dim=0) if known is None else table[known]
            values[name] = torch.cat([table, row.expand(len(more), -1)])
            words = [*words, *more]
        new = BiLM(config, vocabulary=words, characters=bilm.characters)
        new.load_state_dict(values)
        return new

    @torch.no_grad()
    def fill(self, softmax: OutputLayer, vocabulary: Vocabulary, corpus: EncodedCorpus) -> int:
        """Give a new output layer values to begin with.

        Rows of words that the old one knows are its own. To a new word it gave the probability of ``<UNK>``, and that
        is what all new words share now, by their frequency f in the text: a new word w has the row of ``<UNK>`` and the
        bias b + ln(f_w / Σf), where Σf counts all that the old one did not know; so has ``<UNK>`` itself, for what is
        still unknown. The perplexity at step 0 is then the old model's, times what telling its unknown words apart by
        frequency costs. Random rows would take probability from all words, and so would ``<UNK>``'s without the bias.

        Without an old one, or with one of another kind, W is 0 and b_w = ln p_w, the words' frequencies: the run begins
        with the perplexity of these instead of about V, and the biLM gets no gradient from random directions.

        softmax: as the objective made it, on the CPU; one without a table of words of its own is left as it is.
        corpus: the new text, of which the vocabulary was made.
        RETURNS: how many rows are the old one's.
        """
        if not isinstance(softmax, FullSoftmax) or "W" not in dict(softmax.named_parameters()):
            return 0
        old = self.softmax
        if not isinstance(old, FullSoftmax) or self.words is None:
            softmax.W.zero_()
            softmax.begin_with(torch.from_numpy(log_frequencies(corpus, vocabulary)))
            return 0
        types, counts = corpus.types, np.asarray(corpus.counts)
        targets = vocabulary.ids(types)
        row_of = {word: row for row, word in enumerate(self.words)}
        unknown = row_of[vocabulary.words[N_SPECIAL - 1]]
        rows = np.array([row_of.get(word, unknown) for word in vocabulary.words])
        new = np.array([word not in row_of for word in vocabulary.words])
        new[N_SPECIAL - 1] = True
        # Of the new <UNK> what neither knows counts; a word that only the old one knows was no <UNK> to it.
        unseen = np.fromiter((type_ not in row_of for type_ in types), dtype=bool, count=len(types))
        shares = np.bincount(targets[unseen], weights=counts[unseen], minlength=len(vocabulary))
        shares[N_SPECIAL - 1] = max(shares[N_SPECIAL - 1], 1.0)
        offsets = np.zeros(len(vocabulary))
        offsets[new] = np.log(shares[new] / shares[new].sum())
        softmax.W.copy_(old.W[rows])
        softmax.b.copy_(old.b[rows] + torch.from_numpy(offsets))
        return int(len(new) - new.sum()) + 1


def initial_weights(settings: InitializeSettings) -> InitialWeights | None:
    """Read the weights that a config goes on from. RETURNS: None if it does not.

    Raises WeightsError for what `load_bilm` refuses, and for an output layer that does not fit the weights.
    """
    weights = settings.weights
    if weights is None:
        return None
    with recognised(weights) as found:
        bilm = found.load()
        softmax, words = None, None
        shape = found.softmax_shape() if found.softmax_shape is not None else None
        if settings.softmax == "auto" and shape is not None and shape.n_words is not None:
            try:
                softmax, words = output_layer(weights, found, bilm)
            except WeightsError as error:
                raise WeightsError(f'{error}. initialize.softmax = "new" goes on without it') from error
        source = {"path": weights, "family": found.family, "sha256": _sha256(bilm)}
    return InitialWeights(bilm=bilm, softmax=softmax, words=words, source=source)


def _words_without_row(bilm: BiLM, vocabulary: Vocabulary) -> list[str]:
    """Words of a vocabulary, as the biLM looks them up, and its mark of unknown words, that its word table lacks."""
    config, known = bilm.config, set(bilm.vocabulary or ())
    words: Sequence[str] = vocabulary.words[N_SPECIAL:]
    if config.is_many_langs:
        words = [word[: config.max_characters_per_token - 2] for word in words]
    return [word for word in dict.fromkeys([config.marks.unknown, *words]) if word not in known]


def _table_name(bilm: BiLM) -> str:
    return "token_encoder.embedding" if bilm.config.filters is None else "token_encoder.word_embed"


def _sha256(bilm: BiLM) -> str:
    digest = hashlib.sha256(repr((bilm.config, bilm.vocabulary, bilm.characters)).encode("utf8", "surrogatepass"))
    for name, value in sorted(bilm.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.contiguous().numpy().data)
    return digest.hexdigest()


def comparison(initial: Mapping[str, Any], after: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """The dev text's perplexity (or loss) before and after, as a table.

    initial: what the run began with: "own", the scores under the weights' own output layer and vocabulary, or None;
        "step_0". after, best: scores with their "step"; best is left out where it is the last one.
    """
    rows = [("before, with its own vocabulary", initial.get("own")), ("before, step 0", initial.get("step_0"))]
    if best is not None and best["step"] != after["step"]:
        rows.append((f"best, step {best['step']}", best))
    rows.append((f"after, step {after['step']}", after))
    measure = "perplexity" if "joint_perplexity" in after else "loss"
    lines = [
        f"{f'Dev {measure}':<32}" + "".join(f"{name:>12}" for name in ("forward", "backward", "joint", "bits/char"))
    ]
    for name, scores in rows:
        figures = [(scores or {}).get(f"{which}_{measure}") for which in ("forward", "backward", "joint")]
        if scores and None not in figures:
            bits = scores.get("bits_per_character")
            cells = [*(f"{figure:.{2 if measure == 'perplexity' else 4}f}" for figure in figures)]
            cells += [] if bits is None else [f"{bits:.4f}"]
            lines.append(f"{name:<32}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)
