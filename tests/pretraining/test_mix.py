"""Several sources in given shares of the words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.corpus import corpus_key
from spacy_elmo.pretraining.mix import mix
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.raw_text import raw_text

from .conftest import MakeConfig


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


class Source:
    """Documents of so many words each, the n-th word of all of a source spelled by its name and n."""

    def __init__(self, name: str, lengths: list[int]) -> None:
        self.name, self.lengths = name, lengths
        self.n_readings = 0

    def __call__(self, nlp: Language) -> Iterator[Doc]:
        self.n_readings += 1
        for number, length in enumerate(self.lengths):
            yield Doc(nlp.vocab, words=[self.name, *[f"{number}"] * (length - 1), "\n"])


def counted(docs: Iterator[Doc]) -> Iterator[tuple[str, int]]:
    return ((doc[0].text, len(doc) - 1) for doc in docs)


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=40)
WEIGHTS = st.floats(0.1, 10, allow_nan=False)


@given(lengths=st.lists(LENGTHS, min_size=1, max_size=4), data=st.data())
@settings(deadline=None, max_examples=100)
def test_shares_hold_at_every_moment(nlp: Language, lengths: list[list[int]], data: st.DataObject) -> None:
    names = [f"s{number}" for number in range(len(lengths))]
    weights = {name: data.draw(WEIGHTS) for name in names}
    sources: Any = {name: Source(name, lengths[number]) for number, name in enumerate(names)}
    n_words = dict.fromkeys(names, 0)
    order = list(counted(mix(sources, weights)(nlp)))
    bound = max(max(length) / weights[name] for name, length in zip(names, lengths, strict=True))
    for name, length in order:
        n_words[name] += length
        behind = [n_words[name] / weights[name] for name in names]
        assert max(behind) - min(behind) <= bound + 1e-9
    assert order == list(counted(mix(sources, weights)(nlp)))  # in every run
    for name in names:  # each in its own order, from its beginning
        assert [n for who, n in order if who == name] == sources[name].lengths[: sum(who == name for who, _ in order)]
    assert any(n_words[name] == sum(sources[name].lengths) for name in names)


def test_what_happens_when_a_source_ends(nlp: Language) -> None:
    sources: Any = {"a": Source("a", [10] * 3), "b": Source("b", [10] * 9)}
    weights = {"a": 2, "b": 1}

    def read(**options: Any) -> tuple[str, dict[str, tuple[int, str]]]:
        reader = mix(sources, weights, **options)
        return "".join(name for name, _ in counted(reader(nlp))), reader.notes.found

    order, notes = read()
    assert order == "abaab"  # 10 words of a weigh 5, so 10 and 10 is behind for a
    assert notes == {"sources not read to their end": (1, "b, when a ended")}
    order, notes = read(at_end="go_on")
    assert (order.count("a"), order.count("b"), notes) == (3, 9, {})
    order, notes = read(at_end="repeat")
    assert order.count("b") == 9
    assert 17 <= order.count("a") <= 20
    assert notes == {}


def test_a_limit_ends_it(nlp: Language) -> None:
    sources: Any = {"a": Source("a", [7]), "b": Source("b", [5] * 100)}
    docs = list(mix(sources, {"a": 1, "b": 1}, at_end="repeat", limit_words=53)(nlp))
    assert sum(not token.is_space for doc in docs for token in doc) == 53
    assert len(list(islice(mix(sources, {"a": 1, "b": 1}, at_end="repeat")(nlp), 500))) < 500


@pytest.mark.parametrize(
    ("weights", "options", "says"),
    [
        ({"a": 1}, {}, "sources are a, b, weights are a"),
        ({"a": 1, "b": 0}, {}, "b is 0"),
        ({"a": 1, "b": float("nan")}, {}, "b is nan"),
        ({"a": 1, "b": 1}, {"at_end": "begin"}, "at_end is 'begin'"),
        ({"a": 1, "b": 1}, {"limit_words": -1}, "limit_words is -1"),
    ],
)
def test_arguments_that_do_not_fit(weights: dict[str, float], options: Any, says: str) -> None:
    with pytest.raises(CorpusError, match=says):
        mix({"a": Source("a", [1]), "b": Source("b", [1])}, weights, **options)


@pytest.mark.parametrize("at_end", ["stop", "go_on", "repeat"])
def test_a_source_without_words(nlp: Language, at_end: Any) -> None:
    sources: Any = {"a": Source("a", [1] * 5), "b": lambda nlp: iter([nlp.make_doc("\n")])}
    with pytest.raises(CorpusError, match="'b' of the mix has no words"):
        list(mix(sources, {"a": 1, "b": 1}, at_end=at_end)(nlp))


def test_in_a_config(toy_config: MakeConfig, tmp_path: Path) -> None:
    for name, n in (("a", 30), ("b", 90)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {i} .\n\n" for i in range(n)), encoding="utf8")
    source = {"@readers": "spacy-elmo.RawText.v1", "errors": "skip"}
    block = {
        "@readers": "spacy-elmo.Mix.v1",
        "sources": {name: {**source, "path": str(tmp_path / f"{name}.txt")} for name in ("a", "b")},
        "weights": {"a": 1, "b": 2},
    }
    settings, filled = resolve(toy_config(corpora__train=block, paths__cache=str(tmp_path / "cache")))
    corpora = prepare_corpora(settings, filled)
    words = [corpora.train.types[number] for number in corpora.train.ids.tolist()]
    words += [corpora.dev.types[number] for number in corpora.dev.ids.tolist()]
    assert (words.count("a"), words.count("b")) == (30, 60)
    nlp = spacy.blank("en")
    key = corpus_key(settings.corpora.train, nlp)
    (tmp_path / "b.txt").write_text("b .\n", encoding="utf8")
    assert corpus_key(settings.corpora.train, nlp) != key


def test_it_has_a_fingerprint_only_if_all_sources_have(tmp_path: Path) -> None:
    sources: Any = {"a": raw_text(tmp_path), "b": Source("b", [1])}
    assert not hasattr(mix(sources, {"a": 1, "b": 1}), "fingerprint")
    assert hasattr(mix({"a": raw_text(tmp_path)}, {"a": 1}), "fingerprint")
