"""What cuts text into words: a language's tokenizer, a block of [nlp.tokenizer], a saved pipeline's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.symbols import ORTH  # type: ignore[import-not-found]

from spacy_elmo.errors import CorpusError, PretrainingError
from spacy_elmo.pretraining.config import NlpSettings, changed_keys, load_config, nlp_settings, resolve
from spacy_elmo.pretraining.corpus import corpus_key
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.sentences import sentences_of
from spacy_elmo.pretraining.texts import made_doc, pipeline

from .conftest import MakeConfig

ZH = {"@tokenizers": "spacy.zh.ChineseTokenizer"}


def words(nlp: Language, text: str) -> list[str]:
    return [token.text for token in nlp.make_doc(text)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline whose tokenizer has a rule of its own, with a component that must not be loaded."""
    nlp = spacy.blank("en")
    nlp.tokenizer.add_special_case("gimme", [{ORTH: "gim"}, {ORTH: "me"}])  # type: ignore[union-attr]
    nlp.add_pipe("sentencizer")
    path = tmp_path_factory.mktemp("pipeline") / "own"
    nlp.to_disk(path)
    (path / "sentencizer.json").unlink()
    return path


def test_chinese_characters_and_their_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("我爱北京。你呢？\n好", encoding="utf8")
    nlp = pipeline(NlpSettings(lang="zh"))
    assert [sentences_of(doc) for doc in raw_text(tmp_path)(nlp)] == [[[*"我爱北京。"], [*"你呢？"], ["好"]]]


def test_chinese_text_is_pretrained_on(toy_config: MakeConfig, tmp_path: Path) -> None:
    numbers = "一二三四五六七八九"
    text = "\n\n".join(f"我{one}爱{two}北京。\n你呢？" for one in numbers for two in numbers)
    (tmp_path / "a.txt").write_text(text, encoding="utf8")
    block = {"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path)}
    config = toy_config(corpora__train=block, paths__cache=str(tmp_path / "cache"), training__holdout=2)
    config["nlp"] = {"lang": "zh", "tokenizer": {**ZH, "segmenter": "char"}}
    config["training"]["max_steps"] = 2
    pretrain(config, tmp_path / "out")
    saved = load_config(tmp_path / "out" / "model-last" / "pretrain.cfg")
    assert saved["nlp"] == {**config["nlp"], "pipeline": None}
    (tmp_path / "t.txt").write_text("我爱你。", encoding="utf8")
    assert measure(tmp_path / "out" / "model-last", text=tmp_path / "t.txt").total.n_targets == 4 + 1


@pytest.mark.parametrize(
    ("lang", "tokenizer", "package", "text", "expected", "line"),
    [
        ("zh", {**ZH, "segmenter": "jieba"}, "jieba", "我爱北京", ["我", "爱", "北京"], "pip +install jieba"),
        ("ja", None, "sudachipy", "東京に行く", ["東京", "に", "行く"], r'pip install "spacy\[ja\]"'),
        ("th", None, "pythainlp", "ฉันรักแมว", ["ฉัน", "รัก", "แมว"], r'pip install "spacy\[th\]"'),
    ],
)
def test_segmenters_or_the_line_that_installs_them(
    lang: str, tokenizer: dict[str, Any] | None, package: str, text: str, expected: list[str], line: str
) -> None:
    if importlib.util.find_spec(package):
        assert words(pipeline(NlpSettings(lang=lang, tokenizer=tokenizer)), text) == expected
    else:
        with pytest.raises(PretrainingError, match=f"language '{lang}'.*{line}"):
            pipeline(NlpSettings(lang=lang, tokenizer=tokenizer))


def test_long_japanese_texts_are_cut(tmp_path: Path) -> None:
    pytest.importorskip("sudachipy")
    (tmp_path / "a.txt").write_text("東京に行く。" * 5000, encoding="utf8")
    docs = list(raw_text(tmp_path)(pipeline(NlpSettings(lang="ja"))))
    assert sum(len(doc) for doc in docs) == 20_000


def test_a_segmenter_that_needs_a_model_comes_with_a_pipeline() -> None:
    with pytest.raises(PretrainingError, match=r"language 'zh'.*pkuseg"):
        pipeline(NlpSettings(lang="zh", tokenizer={**ZH, "segmenter": "pkuseg"}))


def test_a_saved_pipelines_own_rules(saved: Path, tmp_path: Path) -> None:
    nlp = pipeline(NlpSettings(pipeline=str(saved)))
    assert words(nlp, "gimme it") == ["gim", "me", "it"]
    assert nlp.pipe_names == []
    (tmp_path / "a.txt").write_text("gimme it", encoding="utf8")
    key = corpus_key(raw_text(tmp_path), nlp)
    other = pipeline(NlpSettings(pipeline=str(saved)))
    assert corpus_key(raw_text(tmp_path), other) == key
    other.tokenizer.add_special_case("lemme", [{ORTH: "lem"}, {ORTH: "me"}])  # type: ignore[union-attr]
    assert corpus_key(raw_text(tmp_path), other) != key


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"pipeline": "no_such_package"}, "nlp.pipeline: 'no_such_package' cannot be loaded"),
        ({"pipeline": "SAVED", "lang": "de"}, "nlp.lang is 'de', but the pipeline .* is of 'en'"),
        ({"pipeline": "SAVED", "tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}, "both a pipeline and a tokenizer"),
        ({"tokenizer": {"@tokenizers": "no.such.v1"}}, "no.such.v1"),
        ({"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1", "x": 1}}, "language 'en' and"),
        ({"tokenizer": "char"}, r"\[nlp\] does not fit.*tokenizer"),
        ({"length": 1}, r"\[nlp\] does not fit.*length"),
    ],
)
def test_what_does_not_work_is_one_error(saved: Path, section: dict[str, Any], says: str) -> None:
    if section.get("pipeline") == "SAVED":
        section = {**section, "pipeline": str(saved)}
    with pytest.raises(PretrainingError, match=says):
        pipeline(nlp_settings(section))


def test_a_section_of_a_config(root: Path, tmp_path: Path) -> None:
    text = (root / "configs" / "pretrain.cfg").read_text(encoding="utf8")
    assert "\ntokenizer = null\n" in text
    block = '[nlp.tokenizer]\n@tokenizers = "spacy.zh.ChineseTokenizer"\nsegmenter = "char"\n'
    text = text.replace("\ntokenizer = null\n", "\n").replace("[corpora]\n", f"{block}\n[corpora]\n")
    (tmp_path / "c.cfg").write_text(text.replace('lang = "en"', 'lang = "zh"'), encoding="utf8")
    settings, filled = resolve(load_config(tmp_path / "c.cfg"))
    assert filled["nlp"]["tokenizer"] == {**ZH, "segmenter": "char"}
    assert words(pipeline(settings.nlp), "我爱") == ["我", "爱"]
    # Other processes build it from the settings alone.
    assert NlpSettings(**settings.nlp.model_dump(mode="json")) == settings.nlp
    _, other = resolve(load_config(tmp_path / "c.cfg", {"nlp.tokenizer.segmenter": "jieba"}))
    assert changed_keys(filled, other) == ["nlp.tokenizer.segmenter"]


def test_a_tokenizer_that_fails_quotes_the_text() -> None:
    nlp = spacy.blank("en")
    nlp.max_length = 3
    with pytest.raises(CorpusError, match="the tokenizer failed on the text that begins 'Four"):
        made_doc("Four", nlp)
