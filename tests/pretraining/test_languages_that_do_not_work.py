from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.loop import pretrain

from .conftest import MakeConfig


@pytest.mark.parametrize("lang", ["zzz", "", "en_core_web_sm", "ja"])
def test_the_language_is_named(toy_config: MakeConfig, tmp_path: Path, lang: str) -> None:
    if lang == "ja" and importlib.util.find_spec("sudachipy"):
        pytest.skip("here Japanese works")
    with pytest.raises(PretrainingError, match=f"no tokenizer for the language '{lang}'"):
        pretrain(toy_config(nlp__lang=lang), tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
