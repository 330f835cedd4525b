"""The start state that is made when training ends."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import DIRECTIONS, BiLM
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.pretraining.vocabulary import build_vocabulary
from spacy_elmo.pretraining.warm import with_warm_state
from spacy_elmo.weights import load_bilm

from .conftest import MakeConfig
from .processes import on_ranks

VOCAB = spacy.blank("en").vocab
DOCUMENTS = [[["a", "b"], ["c"], ["d", "a", "b"]], [["b"], ["d", "d"]], [["c", "a"]], [["a"], ["c", "b", "d", "a"]]]


@pytest.fixture
def corpus(tmp_path: Path) -> EncodedCorpus:
    docs = [Doc(VOCAB, words=[word for sentence in doc for word in [*sentence, "\n"]]) for doc in DOCUMENTS]
    return encode_corpus(docs, tmp_path / "corpus", key="k")


@pytest.fixture
def bilm() -> BiLM:
    return BiLM(BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 4), (2, 4)))).initialize(1)


def run(config: Any, output: Path, **kwargs: Any) -> str:
    stdout = io.StringIO()
    pretrain(config, output, stdout=stdout, stderr=io.StringIO(), **kwargs)
    return stdout.getvalue()


@pytest.mark.parametrize("reset", ["document", None])
def test_it_is_the_mean_of_what_sentences_leave_behind(corpus: EncodedCorpus, bilm: BiLM, reset: Any) -> None:
    # One row, so that all text is read once, in the order of the documents' first epoch.
    stream = Stream(corpus, build_vocabulary(corpus, 0), rows=1, unroll_steps=1, seed=4)
    warm = with_warm_state(bilm, stream, corpus.types, reset=reset)
    order = np.random.default_rng([4, 0]).permutation(len(DOCUMENTS))
    for direction, stack in zip(DIRECTIONS, (bilm.forward_lstm, bilm.backward_lstm), strict=True):
        hidden, cell = torch.zeros(2, 1, 4), torch.zeros(2, 1, 6)
        states = []
        for number in order:
            if reset == "document":
                hidden, cell = torch.zeros(2, 1, 4), torch.zeros(2, 1, 6)
            for place, sentence in enumerate(DOCUMENTS[number]):
                if place:
                    states.append((hidden, cell))
                read = ["<S>", *sentence] if direction == "forward" else ["</S>", *sentence[::-1]]
                with torch.no_grad():
                    inputs = bilm.token_encoder(bilm.token_ids(read))[:, None]
                    _, hidden, cell = stack(inputs, hidden, cell)
        assert len(states) == 4
        for name, values in zip(("hidden", "cell"), zip(*states, strict=True), strict=True):
            expected = torch.stack(values).mean(dim=0)[:, 0]
            torch.testing.assert_close(getattr(warm, f"start_{direction}_{name}"), expected, atol=1e-6, rtol=0)
    assert warm.config.state == "warm"
    assert all(torch.equal(value, warm.state_dict()[name]) for name, value in bilm.state_dict().items())


@pytest.mark.parametrize(("rows", "unroll"), [(2, 3), (3, 2)])
def test_windows_do_not_matter(corpus: EncodedCorpus, bilm: BiLM, rows: int, unroll: int) -> None:
    vocabulary = build_vocabulary(corpus, 0)
    one, other = (
        with_warm_state(bilm, Stream(corpus, vocabulary, rows=rows, unroll_steps=n, seed=1), corpus.types, reset=None)
        for n in (1, unroll)
    )
    # The rows are cut elsewhere where a window more or less fits; the states are of one kind.
    difference = (one.start_forward_cell - other.start_forward_cell).abs().max()  # type: ignore[operator]
    assert difference < 0.5 * one.start_forward_cell.abs().max()  # type: ignore[union-attr]


@pytest.mark.slow
def test_training_ends_with_it(toy_config: MakeConfig, tmp_path: Path) -> None:
    options = {"training__reset": None, "training__max_steps": 150, "training__eval_frequency": 75}
    config = toy_config(training__start_state="warm", training__eval_tokens=10_000, **options)
    text = run(config, tmp_path / "warm")
    run(toy_config(training__eval_tokens=10_000, **options), tmp_path / "zero")
    for name in ("model-best", "model-last"):
        warm, zero = (load_bilm(tmp_path / which / name) for which in ("warm", "zero"))
        assert (warm.config.state, zero.config.state) == ("warm", "zero")
        assert all(torch.equal(value, warm.state_dict()[key]) for key, value in zero.state_dict().items())
        meta = json.loads((tmp_path / "warm" / name / "meta.json").read_text(encoding="utf8"))
        report = measure(tmp_path / "warm" / name, by_position=True)
        assert report.total.joint == pytest.approx(meta["metrics"]["joint_perplexity"], rel=1e-6)
        assert report.positions["1-5"].joint == pytest.approx(meta["start_state"]["warm"]["1-5"], rel=1e-6)
        before = measure(tmp_path / "zero" / name, by_position=True)
        assert before.positions["1-5"].joint == pytest.approx(meta["start_state"]["zero"]["1-5"], rel=1e-6)
        # Never reset in training: the zero state is nothing that it knows.
        assert report.positions["1"].joint < 0.9 * before.positions["1"].joint
        assert f"{name}: with the start state" in text
        assert "A start state lies with the weights" in (tmp_path / "warm" / name / "README.md").read_text("utf8")
    # A run that is over keeps what it has.
    before_bytes = (tmp_path / "warm" / "model-best" / "model.safetensors").read_bytes()
    assert "Nothing to do" in run(config, tmp_path / "warm", resume=True)
    assert (tmp_path / "warm" / "model-best" / "model.safetensors").read_bytes() == before_bytes


def test_a_run_killed_before_it_was_made_makes_it_when_resumed(toy_config: MakeConfig, tmp_path: Path) -> None:
    def config(state: str) -> Any:
        return toy_config(training__reset="document", training__start_state=state, training__max_steps=4)

    run(config("zero"), tmp_path / "out")  # all but the last act
    text = run(config("warm"), tmp_path / "out", resume=True)
    assert "Nothing to do" in text
    run(config("warm"), tmp_path / "whole")
    for name in ("model-best", "model-last"):
        found, expected = (load_bilm(tmp_path / which / name).state_dict() for which in ("out", "whole"))
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, found[key]) for key, value in expected.items())


def test_resets_at_sentences_have_no_use_for_it(toy_config: MakeConfig) -> None:
    with pytest.raises(PretrainingError, match=r'start_state = "warm" is for models that have read sentences after'):
        resolve(toy_config(training__start_state="warm"))


def test_documents_of_one_sentence_are_refused_at_once(toy_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(f"Sentence {n} stands alone ." for n in range(100)), encoding="utf8")
    config = toy_config(
        corpora__train={"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path / "t.txt")},
        paths__cache=str(tmp_path / "cache"),
        training__reset="document",
        training__start_state="warm",
    )
    with pytest.raises(PretrainingError, match="has one sentence only"):
        run(config, tmp_path / "out")
    assert not (tmp_path / "out" / "losses.jsonl").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="forks, which torch does not like there")
def test_two_processes_end_as_one_does(toy_config: MakeConfig, tmp_path: Path) -> None:
    run(toy_config(training__max_steps=4), tmp_path / "first")

    def config() -> Any:
        return toy_config(
            initialize__weights=str(tmp_path / "first" / "model-last"),
            objective={"@misc": "spacy-elmo.full_softmax.v1"},
            training__reset="document",
            training__start_state="warm",
            training__dropout=0.0,
            training__max_steps=6,
            training__eval_frequency=3,
        )

    text = run(config(), tmp_path / "one")
    assert "before, with its own vocabulary" in text
    found = on_ranks(2, pretrain, config(), tmp_path / "two")
    assert [result.step for result in found] == [6, 6], found
    for name in ("model-best", "model-last"):
        one, two = (load_bilm(tmp_path / which / name).state_dict() for which in ("one", "two"))
        assert "start_forward_cell" in one
        for key, value in one.items():
            torch.testing.assert_close(two[key], value, atol=1e-4, rtol=1e-3)
    first, second = (
        json.loads((tmp_path / which / "model-best" / "meta.json").read_text(encoding="utf8"))
        for which in ("one", "two")
    )
    assert second["start_state"]["warm"] == pytest.approx(first["start_state"]["warm"], rel=1e-3)
    assert second["initialize"]["own"] == pytest.approx(first["initialize"]["own"])
