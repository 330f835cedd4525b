from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining import perplexity as module
from spacy_elmo.pretraining.perplexity import Perplexity, perplexities, perplexity, perplexity_by_position

VOCABULARY = ["<S>", "</S>", "<UNK>", "a", "b", "c"]
SENTENCES = [["a", "b"], [], ["c", "unseen", "a"] * 3, ["b"], ["a", "c", "c"]]


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    config = BiLMConfig(lstm_dim=16, projection_dim=8, filters=((1, 8), (2, 8)), max_characters_per_token=12)
    return BiLM(config).initialize(1)


@pytest.fixture(scope="module")
def softmax() -> FullSoftmax:
    head = FullSoftmax(len(VOCABULARY), 8)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # far from uniform, so that an error of targets or rows shows
        head.W.normal_(0.0, 20.0, generator=generator)
        head.b.normal_(0.0, 2.0, generator=generator)
    return head


def by_hand(bilm: BiLM, softmax: FullSoftmax, words: list[str]) -> tuple[float, float]:
    """Sums of -log p(target) of both directions, from the layers that `encode` gives for one sentence alone.

    The vector of a word predicts its neighbour; those of the boundaries are got by reading them as words would be.
    """
    ids = bilm.token_ids([bilm.config.marks.begin, *words, bilm.config.marks.end])
    sums = []
    for stack, order, targets in (
        (bilm.forward_lstm, list(range(len(ids) - 1)), [*words, "</S>"]),
        (bilm.backward_lstm, list(range(len(ids) - 1, 0, -1)), [*words[::-1], "<S>"]),
    ):
        with torch.no_grad():
            inputs = bilm.token_encoder(ids)[order][:, None]
            outputs, _, _ = stack(inputs, torch.zeros(2, 1, 8), torch.zeros(2, 1, 16))
            logits = (outputs[-1][:, 0] @ softmax.W.T + softmax.b).double().numpy()
        rows = [VOCABULARY.index(word) if word in VOCABULARY else 2 for word in targets]
        log_z = np.log(np.exp(logits).sum(axis=1))
        sums.append(float(sum(log_z - logits[np.arange(len(rows)), rows])))
    return sums[0], sums[1]


def test_equals_the_sum_computed_by_hand(bilm: BiLM, softmax: FullSoftmax) -> None:
    forward, backward = np.sum([by_hand(bilm, softmax, words) for words in SENTENCES], axis=0)
    targets = 3 + 1 + 10 + 2 + 4
    found = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    assert found.n_targets == targets
    assert found.forward == pytest.approx(math.exp(forward / targets), rel=1e-4)
    assert found.backward == pytest.approx(math.exp(backward / targets), rel=1e-4)
    assert found.joint == pytest.approx(math.exp((forward + backward) / 2 / targets), rel=1e-4)
    assert found.joint == pytest.approx(math.sqrt(found.forward * found.backward))
    assert found.bits_per_word == pytest.approx((forward + backward) / 2 / targets / math.log(2), rel=1e-4)
    assert abs(found.forward - found.backward) > 0.1  # the directions are not one taken twice


def test_boundaries_are_read_as_the_weights_know_them(softmax: FullSoftmax) -> None:
    config = BiLMConfig(lstm_dim=16, projection_dim=8, filters=None, word_dim=4, n_words=6)
    bilm = BiLM(config, vocabulary=["<oov>", "<bos>", "<eos>", "a", "b", "c"]).initialize(1)
    expected = np.sum([by_hand(bilm, softmax, words) for words in SENTENCES], axis=0)
    found = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    assert found.forward == pytest.approx(math.exp(expected[0] / found.n_targets), rel=1e-5)
    assert found.backward == pytest.approx(math.exp(expected[1] / found.n_targets), rel=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 8, 4096])
def test_neither_order_nor_batches_matter(bilm: BiLM, softmax: FullSoftmax, batch_tokens: int) -> None:
    expected = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    found = perplexity(bilm, softmax, VOCABULARY, SENTENCES[::-1], batch_tokens=batch_tokens)
    assert found.forward == pytest.approx(expected.forward, rel=1e-5)
    assert found.backward == pytest.approx(expected.backward, rel=1e-5)
    total, each = perplexities(bilm, softmax, VOCABULARY, SENTENCES, batch_tokens=batch_tokens)
    assert total == perplexity(bilm, softmax, VOCABULARY, SENTENCES, batch_tokens=batch_tokens)
    for one, words in zip(each, SENTENCES, strict=True):
        alone = perplexity(bilm, softmax, VOCABULARY, [words])
        assert one.joint == pytest.approx(alone.joint, rel=1e-5)
        assert one.n_targets == alone.n_targets == len(words) + 1


def test_a_long_sentence_goes_in_windows(bilm: BiLM, softmax: FullSoftmax, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    monkeypatch.setattr(module, "MAX_STEPS", 4)
    windows = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    assert windows.joint == pytest.approx(whole.joint, rel=1e-5)


def test_starts_from_the_weights_own_state(softmax: FullSoftmax) -> None:
    config = BiLMConfig(
        lstm_dim=16, projection_dim=8, filters=((1, 8), (2, 8)), max_characters_per_token=12, state="warm"
    )
    bilm = BiLM(config).initialize(1)
    zero = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    assert bilm.start_forward_cell is not None
    bilm.start_forward_cell.fill_(2.0)
    warm = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    assert warm.forward != pytest.approx(zero.forward, rel=1e-3)
    assert warm.backward == pytest.approx(zero.backward, rel=1e-6)


def test_bits_per_character_by_hand(bilm: BiLM, softmax: FullSoftmax) -> None:
    total, each = perplexities(bilm, softmax, VOCABULARY, SENTENCES)
    characters = [3, 1, 25, 2, 4]  # of the words, and one for each boundary
    assert total.n_characters == sum(characters)
    assert [one.n_characters for one in each] == characters
    nats = np.sum([by_hand(bilm, softmax, words) for words in SENTENCES]) / 2
    assert total.bits_per_character == pytest.approx(nats / math.log(2) / sum(characters), rel=1e-4)
    assert Perplexity.from_nll(1.0, 1.0, 1).bits_per_character is None


@pytest.mark.parametrize("batch_tokens", [8, 4096])
def test_by_position_it_is_counted_from_where_a_direction_starts(
    bilm: BiLM, softmax: FullSoftmax, batch_tokens: int
) -> None:
    found = perplexity_by_position(bilm, softmax, VOCABULARY, SENTENCES, first=2, batch_tokens=batch_tokens)
    assert list(found) == ["1", "2", "1-2", "rest", "all"]
    assert [part.n_targets for part in found.values()] == [5, 4, 9, 11, 20]
    # Of the first targets alone: each sentence's first word forward, its last word backward.
    nlls = []
    for words in SENTENCES:
        ids = bilm.token_ids(["<S>", "</S>"])
        for stack, mark, target in (
            (bilm.forward_lstm, 0, (words or ["</S>"])[0]),
            (bilm.backward_lstm, 1, (words or ["<S>"])[-1]),
        ):
            with torch.no_grad():
                inputs = bilm.token_encoder(ids)[[mark]][:, None]
                outputs, _, _ = stack(inputs, torch.zeros(2, 1, 8), torch.zeros(2, 1, 16))
            row = VOCABULARY.index(target) if target in VOCABULARY else 2
            nlls.append(float(softmax.nll(outputs[-1][0], torch.tensor([row]))))
    assert found["1"].forward == pytest.approx(math.exp(np.mean(nlls[::2])), rel=1e-4)
    assert found["1"].backward == pytest.approx(math.exp(np.mean(nlls[1::2])), rel=1e-4)
    whole = perplexity(bilm, softmax, VOCABULARY, SENTENCES)
    assert found["all"].joint == pytest.approx(whole.joint, rel=1e-6)
    parts = [found[name] for name in ("1", "2", "rest")]
    mean = sum(part.n_targets * math.log(part.joint) for part in parts) / 20
    assert mean == pytest.approx(math.log(whole.joint), rel=1e-6)
    assert list(perplexity_by_position(bilm, softmax, VOCABULARY, [[]])) == ["1", "1-5", "all"]


def test_nothing_to_measure_is_an_error(bilm: BiLM, softmax: FullSoftmax) -> None:
    with pytest.raises(PretrainingError, match="no sentence"):
        perplexity(bilm, softmax, VOCABULARY, [])
    with pytest.raises(PretrainingError, match="<UNK>"):
        perplexity(bilm, softmax, ["<S>", "</S>", "a", "b", "c", "d"], SENTENCES)


def test_a_hopeless_model_gives_infinity_and_no_overflow() -> None:
    assert Perplexity.from_nll(1e6, 1.0, 1).forward == math.inf


def test_words_of_a_long_sentence_are_encoded_once_each(softmax: FullSoftmax, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a sentence encoded the words of all of it: 32,016 for a sentence of 4,000 words."""
    config = BiLMConfig(lstm_dim=16, projection_dim=8, filters=((1, 8),), max_characters_per_token=12)
    bilm = BiLM(config).initialize(1)
    words = [f"w{number}" for number in range(40)]
    whole = perplexity(bilm, softmax, VOCABULARY, [words])
    encoded: list[int] = []
    bilm.token_encoder.register_forward_pre_hook(lambda module, arguments: encoded.append(len(arguments[0])))
    monkeypatch.setattr(module, "MAX_STEPS", 4)
    parts = perplexity(bilm, softmax, VOCABULARY, [words])
    assert len(encoded) == 11
    assert max(encoded) == 8  # of both directions
    assert parts.forward == pytest.approx(whole.forward, rel=1e-5)
    assert parts.backward == pytest.approx(whole.backward, rel=1e-5)
