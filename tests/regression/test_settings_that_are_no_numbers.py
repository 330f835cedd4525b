"""spaCy takes "0.1" for a number when it checks a config, and hands on the string: it was a TypeError of a comparison.

NaN and infinity, which Python code can give, went on to the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import spacy

from spacy_elmo import ElmoError
from spacy_elmo.layers.listener import ElmoListener_v1
from spacy_elmo.layers.scalar_mix import ScalarMix_v1
from spacy_elmo.layers.span_getters import strided_spans
from spacy_elmo.pipeline.unfreezing import unfreeze_at

CONFIG = """
[nlp]
lang = "en"
pipeline = ["elmo", "tagger"]

[components]

[components.elmo]
factory = "elmo"
lr_factor = {lr_factor}

[components.tagger]
factory = "tagger"

[components.tagger.model]
@architectures = "spacy.Tagger.v2"

[components.tagger.model.tok2vec]
@architectures = "spacy-elmo.ElmoListener.v1"
elmo_dropout = {elmo_dropout}
"""


@pytest.mark.parametrize("setting", ["lr_factor", "elmo_dropout"])
def test_a_string_in_a_config_is_named(setting: str) -> None:
    text = CONFIG.format(**{"lr_factor": 1.0, "elmo_dropout": 0.1, setting: '"0.5"'})
    with pytest.raises(ElmoError, match=f"{setting} is .*, not '0.5'"):
        spacy.util.load_model_from_config(spacy.util.load_config_from_str(text), auto_fill=True)


@pytest.mark.parametrize("value", ["0.1", math.nan, math.inf, -0.1, None])
@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (ElmoListener_v1, "elmo_dropout"),
        (ElmoListener_v1, "grad_factor"),
        (ScalarMix_v1, "l2"),
        (strided_spans, "window"),
        (unfreeze_at, "step"),
    ],
)
def test_what_is_no_number_of_the_range_is_named(make: Callable[..., Any], setting: str, value: Any) -> None:
    with pytest.raises(ElmoError, match=f"{setting} is "):
        partial(make, **{setting: value})()


@pytest.mark.parametrize("weight", [1e300, -1e300, math.nan, math.inf])
def test_fixed_weights_that_leave_no_vectors_are_named(weight: float) -> None:
    with pytest.raises(ElmoError, match="weights are numbers between"):
        ScalarMix_v1(weights=[0.0, 0.0, weight])
