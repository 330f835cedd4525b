from __future__ import annotations

import pytest

from spacy_elmo.bilm.softmax import FullSoftmax, SampledSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.objectives import full_softmax, sampled_softmax


def test_full_softmax_is_of_the_vocabularys_size() -> None:
    softmax = full_softmax()(20, 8)
    assert type(softmax) is FullSoftmax
    assert softmax.W.shape == (20, 8)


@pytest.mark.parametrize(("n_words", "drawn"), [(100, 10), (12, 6), (4, 2), (1, 1)])
def test_sampled_softmax_draws_at_most_half_of_the_vocabulary(n_words: int, drawn: int) -> None:
    softmax = sampled_softmax(n_samples=10)(n_words, 8)
    assert isinstance(softmax, SampledSoftmax)
    assert softmax.n_samples == drawn


def test_no_samples_is_an_error() -> None:
    with pytest.raises(PretrainingError, match="n_samples"):
        sampled_softmax(n_samples=0)
