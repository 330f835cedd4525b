from __future__ import annotations

import copy
import pickle
from random import Random

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.errors import ElmoError
from spacy_elmo.layers.span_getters import doc_spans, readable_words, rule_spans, sent_spans, strided_spans

NLP = spacy.blank("en")
SENTENCIZED = spacy.blank("en")
SENTENCIZED.add_pipe("sentencizer")

# Texts in which sentence ends, white space and odd characters are frequent enough to meet.
TEXTS = st.text(alphabet="ab. !?\n\t\u3000。()\"'é😀", max_size=60) | st.text(max_size=30)


def partitions(spans: list[tuple[int, int]], n_tokens: int) -> bool:
    return [i for start, end in spans for i in range(start, end)] == list(range(n_tokens)) and all(
        s < e for s, e in spans
    )


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=4), st.integers(1, 5))
def test_spans_cover_every_token_once_and_in_order(texts: list[str], window: int) -> None:
    docs = [SENTENCIZED(text) for text in texts]
    for getter in (rule_spans(), sent_spans(), doc_spans(), strided_spans(window=window)):
        spans = getter(docs)
        assert len(spans) == len(docs)
        assert all(partitions(of_doc, len(doc)) for of_doc, doc in zip(spans, docs, strict=True))


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=4))
def test_rule_spans_equal_the_sentencizer(texts: list[str]) -> None:
    bare = [NLP.make_doc(text) for text in texts]
    expected = [[(sent.start, sent.end) for sent in doc.sents] if len(doc) else [] for doc in map(SENTENCIZED, texts)]
    assert rule_spans()(bare) == expected


@settings(deadline=None)
@given(TEXTS, st.randoms(use_true_random=False))
def test_rule_spans_neither_read_nor_set_boundaries(text: str, random: Random) -> None:
    bare, parsed = NLP.make_doc(text), NLP.make_doc(text)
    for token in list(parsed)[1:]:
        token.is_sent_start = random.random() < 0.5
    before = parsed.to_array("SENT_START").copy(), bare.to_array("SENT_START").copy()
    assert rule_spans()([bare]) == rule_spans()([parsed])
    assert np.array_equal(parsed.to_array("SENT_START"), before[0])
    assert np.array_equal(bare.to_array("SENT_START"), before[1])


def test_rule_spans_with_own_punctuation() -> None:
    doc = NLP.make_doc("one ; two . three")
    assert rule_spans(punct_chars=[";"])([doc]) == [[(0, 2), (2, 5)]]


def test_sent_spans_follow_the_boundaries_of_the_doc() -> None:
    doc = Doc(NLP.vocab, words=["a", "b", ".", "c"], sent_starts=[True, True, False, False])
    assert sent_spans()([doc]) == [[(0, 1), (1, 4)]]


def test_sent_spans_without_boundaries_name_the_remedy() -> None:
    with pytest.raises(ElmoError, match=r"(?s)The cat sat.*annotating_components.*rule_spans"):
        sent_spans()([SENTENCIZED("Fine."), NLP.make_doc("The cat sat. It left.")])


def test_doc_and_strided_spans() -> None:
    docs = [NLP.make_doc("a b c d e"), NLP.make_doc(""), NLP.make_doc("a b c d")]
    assert doc_spans()(docs) == [[(0, 5)], [], [(0, 4)]]
    assert strided_spans(window=2)(docs) == [[(0, 2), (2, 4), (4, 5)], [], [(0, 2), (2, 4)]]


def test_strided_spans_refuse_an_empty_window() -> None:
    with pytest.raises(ElmoError, match="window is 0"):
        strided_spans(window=0)


@pytest.mark.parametrize("name", ["rule_spans", "sent_spans", "doc_spans", "strided_spans"])
def test_getters_are_registered_and_can_be_pickled_and_copied(name: str) -> None:
    getter = spacy.registry.resolve({"getter": {"@misc": f"spacy-elmo.{name}.v1"}})["getter"]
    doc = SENTENCIZED("One is here. Two are there! Three.")
    assert pickle.loads(pickle.dumps(getter))([doc]) == copy.deepcopy(getter)([doc]) == getter([doc])


@settings(deadline=None)
@given(TEXTS)
def test_readable_words_leave_out_white_space_and_name_their_rows(text: str) -> None:
    doc = NLP.make_doc(text)
    (spans,) = rule_spans()([doc])
    words = readable_words(doc, spans)
    assert len(words) == len(spans)
    for (texts, rows), (start, end) in zip(words, spans, strict=True):
        expected = [token for token in doc[start:end] if not token.is_space]
        assert texts == [token.text for token in expected]
        assert np.arange(len(doc))[rows].tolist() == [token.i for token in expected]
        assert isinstance(rows, slice) == (len(expected) == end - start)


@pytest.mark.parametrize(
    "spans", [[(0, 2)], [(0, 2), (1, 3)], [(1, 3)], [(0, 0), (0, 3)], [(2, 3), (0, 2)], [(0, 4)], []]
)
def test_spans_that_do_not_partition_the_doc_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ElmoError, match="cover every token once"):
        readable_words(NLP.make_doc("a b c"), spans)
