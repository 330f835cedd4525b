"""A training perplexity of 4 beside one of 250 on the test text puzzled many: one was of the sampled softmax."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy import registry
from spacy.tokens import Doc

from spacy_elmo.bilm.softmax import FullSoftmax, SampledSoftmax
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.corpus import encode_corpus
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.perplexity import perplexity
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.vocabulary import Vocabulary, word_counts
from spacy_elmo.weights import load_bilm, load_softmax, load_vocabulary

from .conftest import MakeConfig


def test_the_sampled_one_is_called_a_loss_and_dev_is_by_the_full_softmax(
    toy_config: MakeConfig, tmp_path: Path
) -> None:
    infos: list[dict[str, Any]] = []

    @registry.loggers("test.collecting.v1")
    def collecting() -> Any:
        return lambda nlp, stdout, stderr: (lambda info: infos.append(info) if info else None, lambda: None)

    config = toy_config(
        logger={"@loggers": "test.collecting.v1"},
        objective={"@misc": "spacy-elmo.sampled_softmax.v1", "n_samples": 2},
        training__max_steps=6,
        training__eval_frequency=6,
        training__eval_tokens=1_000_000,
    )
    pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    last = infos[-1]
    # Nothing of training is named a perplexity; what is named so is of dev.
    assert list(last["losses"]) == ["bilm"]
    named = {name for name in last["other_scores"] if "perplexity" in name}
    assert named == {"forward_perplexity", "backward_perplexity", "joint_perplexity"}
    assert set(json.loads((tmp_path / "out" / "losses.jsonl").read_text().splitlines()[0])) == {
        "step",
        "loss",
        "forward",
        "backward",
    }
    # With two samples the loss is that of a choice among few: far below what dev has over all words.
    assert math.exp(last["losses"]["bilm"]) < 0.6 * last["other_scores"]["joint_perplexity"]

    settings, filled = resolve(config)
    assert isinstance(settings.objective(50, 8), SampledSoftmax)
    saved = tmp_path / "out" / "model-last"
    softmax = load_softmax(saved)
    full = FullSoftmax(*softmax.stored()["W"].shape)
    full.load_state_dict(softmax.state_dict())
    sentences = list(prepare_corpora(settings, filled).dev.sentences())
    expected = perplexity(load_bilm(saved), full, load_vocabulary(saved / "vocabulary.txt"), sentences)
    assert last["other_scores"]["joint_perplexity"] == pytest.approx(expected.joint, rel=1e-6)


def test_the_console_says_which_is_which(toy_config: MakeConfig, tmp_path: Path) -> None:
    stdout = io.StringIO()
    pretrain(toy_config(training__max_steps=2), tmp_path / "out", stdout=stdout, stderr=io.StringIO())
    header = next(line for line in stdout.getvalue().splitlines() if "PPL" in line)
    assert header.count("PPL") == header.count("DEV") == 3
    assert "LOSS" in header.split()


def test_a_vocabulary_file_with_words_appended_warns(tmp_path: Path) -> None:
    """It made the sampled perplexity fall to 4: log-uniform negatives need the order of frequency."""
    vocab = spacy.blank("en").vocab
    corpus = encode_corpus([Doc(vocab, words=["b"] * 5 + ["a"] * 3 + ["new"] * 4)], tmp_path / "corpus", key="")
    path = tmp_path / "vocabulary.txt"
    path.write_text("<S>\n</S>\n<UNK>\nb\na\nnew\n", encoding="utf8")
    vocabulary = Vocabulary.from_disk(path)
    counts = word_counts(corpus, vocabulary)
    np.testing.assert_array_equal(counts, [0, 0, 0, 5, 3, 4])
    with pytest.warns(UserWarning, match=r"not in descending frequency.*'new' in line 6 \(4 after 3\)"):
        assert not vocabulary.check_frequency_order(counts)
