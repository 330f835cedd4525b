"""Going on from given weights, on a text and with a vocabulary that they have not seen."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import PretrainingError, WeightsError
from spacy_elmo.pretraining.config import InitializeSettings, load_config, resolve
from spacy_elmo.pretraining.initialize import initial_weights
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.pretraining.prepare import Corpora, prepare_corpora
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights import load_bilm, load_softmax, load_vocabulary, save_bilm, save_softmax, save_vocabulary
from tests.reference import make_tf_checkpoint as real
from tests.weights.many_langs_folder import changed
from tests.weights.many_langs_folder import write_model as write_many_langs_model
from tests.weights.writers import files_of, write_zip

from .conftest import MakeConfig

FIXTURE = Path(real.FOLDER)
FULL = {"@misc": "spacy-elmo.full_softmax.v1"}


def run(config: Any, output: Path, **kwargs: Any) -> tuple[PretrainingResult, str]:
    stdout = io.StringIO()
    result = pretrain(config, output, stdout=stdout, stderr=io.StringIO(), **kwargs)
    return result, stdout.getvalue()


def evaluations(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "evaluations.jsonl").read_text(encoding="utf8").splitlines()]


@pytest.fixture(scope="module")
def trained(toy_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the toy text, whose softmax knows some of its words."""
    output = tmp_path_factory.mktemp("trained")
    run(toy_config(vocabulary__max_words=12, training__max_steps=80), output)
    return output / "model-best"


@pytest.fixture(scope="module")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's language with new words: frequent, rare and single ones."""
    draw = np.random.default_rng(0)
    animals, verbs = ["cat", "dog", "zebra", "newt"], {"cat": "purrs", "dog": "barks", "zebra": "brays", "newt": "naps"}
    lines = []
    for number in range(400):
        animal = draw.choice(animals, p=[0.4, 0.2, 0.3, 0.1])
        lines.append(f"The {animal} {verbs[animal]} at the red house{number if number % 10 == 0 else ''} .")
    path = tmp_path_factory.mktemp("other") / "other.txt"
    path.write_text("\n\n".join("\n".join(lines[i : i + 8]) for i in range(0, 400, 8)), encoding="utf8")
    return path


@pytest.fixture
def going_on(toy_config: MakeConfig, other_text: Path, tmp_path: Path) -> MakeConfig:
    """A config that goes on from weights, on the other text."""

    def make(**overrides: Any) -> Any:
        reader = {"@readers": "spacy-elmo.RawText.v1", "path": str(other_text)}
        paths = {"corpora__train": reader, "paths__raw": None, "paths__cache": str(tmp_path / "cache")}
        return toy_config(**{**paths, "training__max_steps": 20, "training__eval_tokens": 10_000, **overrides})

    return make


def corpora_of(config: Any) -> Corpora:
    return prepare_corpora(*resolve(config))


# ---------------------------------------------------------------------------------------------------------- one command


def test_a_run_goes_on_from_a_run_and_says_what_it_was_worth(
    going_on: MakeConfig, trained: Path, tmp_path: Path
) -> None:
    result, text = run(going_on(initialize__weights=str(trained), model__lstm_dim=999), tmp_path / "out")
    assert "not used of the config's [model]: lstm_dim" in text
    assert load_bilm(tmp_path / "out" / "model-best").config == load_bilm(trained).config
    at_0, after = evaluations(tmp_path / "out")
    assert result.dev is not None
    assert after["joint_perplexity"] == result.dev.joint < at_0["joint_perplexity"]
    anew, _ = run(going_on(), tmp_path / "anew")
    assert anew.dev is not None
    assert at_0["joint_perplexity"] < 0.5 * evaluations(tmp_path / "anew")[0]["joint_perplexity"]
    assert after["joint_perplexity"] < anew.dev.joint

    # Before, under its own softmax and words: as `elmo perplexity` has it.
    config = tmp_path / "out" / "model-best" / "pretrain.cfg"
    own = measure(trained, config=config).total
    table = {line[:32].strip(): line[32:].split() for line in text[text.index("Dev perplexity  ") :].splitlines()[:4]}
    assert float(table["before, with its own vocabulary"][2]) == pytest.approx(own.joint, abs=0.01)
    assert float(table["before, step 0"][2]) == pytest.approx(at_0["joint_perplexity"], abs=0.01)
    assert float(table["after, step 20"][2]) == pytest.approx(after["joint_perplexity"], abs=0.01)
    assert float(table["after, step 20"][3]) == pytest.approx(after["bits_per_character"], abs=1e-4)
    meta = json.loads((tmp_path / "out" / "model-best" / "meta.json").read_text(encoding="utf8"))
    assert meta["initialize"]["own"]["joint_perplexity"] == pytest.approx(own.joint, rel=1e-5)
    assert meta["initialize"]["weights"]["family"] == "spacy-elmo"
    assert load_config(config)["model"]["lstm_dim"] == 16


def test_at_step_0_it_is_the_old_model_and_the_frequencies_of_what_that_did_not_know(
    going_on: MakeConfig, trained: Path
) -> None:
    # Of <UNK>'s probability each new word has its share, and so has what is still unknown.
    config = going_on(initialize__weights=str(trained), vocabulary__max_words=40, vocabulary__min_count=2)
    corpora = corpora_of(config)
    start = initial_weights(resolve(config)[0].initialize)
    assert start is not None
    old = load_vocabulary(trained / "vocabulary.txt")
    # With all old words in the new vocabulary nothing else changes.
    words = [*old, *(word for word in corpora.vocabulary.words if word not in old)]
    assert {"zebra", "brays", "naps"} <= set(words) - set(old)
    vocabulary = Vocabulary(words)
    softmax = FullSoftmax(len(words), 8)
    softmax.initialize(0)
    assert start.fill(softmax, vocabulary, corpora.train) == len(old)

    hidden = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        its = load_softmax(trained).stored()
        before = torch.log_softmax(hidden @ its["W"].T + its["b"], dim=1)
        after = torch.log_softmax(hidden @ softmax.W.T + softmax.b, dim=1)
    counts = Counter(word for sentence in corpora.train.sentences() for word in sentence if word not in old)
    total = sum(counts.values())
    still = sum(n for word, n in counts.items() if word not in words)
    assert still > 0
    for row, word in enumerate(words):
        if row == 2:
            expected = before[:, 2] + math.log(still / total)
        elif word in old:
            expected = before[:, old.index(word)]
        else:
            expected = before[:, 2] + math.log(counts[word] / total)
        torch.testing.assert_close(after[:, row], expected, atol=1e-5, rtol=0)


def test_without_a_softmax_it_begins_with_the_frequencies_of_words(
    going_on: MakeConfig, trained: Path, tmp_path: Path
) -> None:
    save_bilm(load_bilm(trained), tmp_path / "alone")
    for number, overrides in enumerate(
        [
            {"initialize__weights": str(tmp_path / "alone")},
            {"initialize__weights": str(trained), "initialize__softmax": "new"},
        ]
    ):
        output = tmp_path / str(number)
        config = going_on(**overrides, training__max_steps=1)
        _, text = run(config, output)
        assert "the softmax is new" in text
        assert "with its own vocabulary" not in text
        corpora = corpora_of(config)
        ids = corpora.vocabulary.ids(corpora.train.types)
        frequencies = np.bincount(ids, weights=corpora.train.counts, minlength=len(corpora.vocabulary)) + 1
        frequencies[:2] += corpora.train.n_sentences
        log_p = np.log(frequencies / frequencies.sum())
        dev = [[*corpora.vocabulary.ids(words)] for words in corpora.dev.sentences()]
        nll = -np.mean([log_p[i] for words in dev for i in [*words, 1]])
        assert evaluations(output)[0]["forward_perplexity"] == pytest.approx(math.exp(nll), rel=1e-4)


# --------------------------------------------------------------------------------------------------------- every format


def test_hdf5_weights(going_on: MakeConfig, trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from spacy_elmo.weights import save_bilm_hdf5

    save_bilm_hdf5(load_bilm(trained), tmp_path / "hdf5")
    result, text = run(going_on(initialize__weights=str(tmp_path / "hdf5"), training__max_steps=2), tmp_path / "out")
    assert "bilm-tf HDF5" in text
    assert result.step == 2


def test_a_zip_of_ours(going_on: MakeConfig, trained: Path, tmp_path: Path) -> None:
    write_zip(tmp_path / "m.zip", files_of(trained))
    config = going_on(initialize__weights=str(tmp_path / "m.zip"), training__max_steps=2)
    run(config, tmp_path / "out")
    run(going_on(initialize__weights=str(trained), training__max_steps=2), tmp_path / "folder")
    assert evaluations(tmp_path / "out") == evaluations(tmp_path / "folder")


def test_a_checkpoint_of_tensorflow_with_its_softmax(going_on: MakeConfig, tmp_path: Path) -> None:
    config = going_on(initialize__weights=str(FIXTURE), training__max_steps=1)
    _, text = run(config, tmp_path / "out")
    assert "before, with its own vocabulary" in text
    own = measure(FIXTURE, config=tmp_path / "out" / "model-last" / "pretrain.cfg").total
    meta = json.loads((tmp_path / "out" / "model-last" / "meta.json").read_text(encoding="utf8"))
    assert meta["initialize"]["own"]["joint_perplexity"] == pytest.approx(own.joint, rel=1e-5)
    assert meta["initialize"]["weights"]["family"] == "bilm-tf checkpoint"
    # The rows of "." and of the marks are copied.
    start = initial_weights(InitializeSettings(weights=str(FIXTURE)))
    assert start is not None
    softmax = FullSoftmax(4, 5)
    assert start.fill(softmax, Vocabulary(["<S>", "</S>", "<UNK>", "."]), corpora_of(config).train) == 4
    _, values = real.draw()
    np.testing.assert_array_equal(softmax.W.detach().numpy(), values["W"][[0, 1, 2, real.VOCABULARY.index(".")]])


def test_words_of_a_table_keep_their_rows_and_new_ones_begin_as_unknown(going_on: MakeConfig, tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "The", "cat", "elephant"]
    table = BiLM(BiLMConfig(lstm_dim=16, projection_dim=8, filters=None, n_words=6), vocabulary=words).initialize(3)
    save_bilm(table, tmp_path / "table")
    config = going_on(initialize__weights=str(tmp_path / "table"), training__max_steps=3)
    result, _ = run(config, tmp_path / "out")
    assert result.step == 3
    found = load_bilm(tmp_path / "out" / "model-last")
    assert found.vocabulary is not None
    assert found.vocabulary[:6] == words
    assert "zebra" in found.vocabulary

    start = initial_weights(resolve(config)[0].initialize)
    assert start is not None
    before = start.start(Vocabulary(["<S>", "</S>", "<UNK>", "cat", "zebra"]))
    assert before.vocabulary == [*words, "zebra"]
    for word in (*words, "zebra"):
        old, new = (bilm.token_encoder(bilm.token_ids([word])) for bilm in (table, before))
        assert torch.equal(old, new), word


def test_a_table_without_the_unknown_word_gets_one(going_on: MakeConfig, tmp_path: Path) -> None:
    words = ["</S>", "<S>", "The", "cat"]
    table = BiLM(BiLMConfig(lstm_dim=16, projection_dim=8, filters=None, n_words=4), vocabulary=words).initialize(3)
    save_bilm(table, tmp_path / "table")
    config = going_on(initialize__weights=str(tmp_path / "table"), training__max_steps=1)
    run(config, tmp_path / "out")
    start = initial_weights(resolve(config)[0].initialize)
    assert start is not None
    found = start.start(Vocabulary(["<S>", "</S>", "<UNK>", "zebra"]))
    mean = table.state_dict()["token_encoder.embedding"].mean(dim=0)
    for word in ("zebra", "no such"):
        torch.testing.assert_close(found.token_encoder(found.token_ids([word]))[0], mean)


@pytest.mark.parametrize("tables", [{}, {"word_dim": 0}, {"char_dim": 0}], ids=["both", "characters", "words"])
def test_elmo_for_many_langs_trains_on(going_on: MakeConfig, tmp_path: Path, tables: dict[str, Any]) -> None:
    write_many_langs_model(tmp_path / "many", changed(token_embedder=tables))
    config = going_on(
        initialize__weights=str(tmp_path / "many"), training__max_steps=20, training__checkpoint_frequency=9
    )
    _, text = run(config, tmp_path / "out")
    assert ("tokens truncated at 10 characters" in text) is (tables != {"char_dim": 0})  # no bytes
    before, after = load_bilm(tmp_path / "many"), load_bilm(tmp_path / "out" / "model-last")
    at_0, at_20 = evaluations(tmp_path / "out")
    assert at_20["joint_perplexity"] < 0.99 * at_0["joint_perplexity"]  # that of the words' frequencies
    for name, value in before.state_dict().items():
        new = after.state_dict()[name][: len(value)]
        assert not torch.equal(new, value), name  # the token encoder learns too
    assert measure(tmp_path / "out" / "model-last").total.joint == pytest.approx(at_20["joint_perplexity"], rel=1e-4)
    # And it goes on from its checkpoint.
    config["training"]["max_steps"] = 22
    assert run(config, tmp_path / "out", resume=True)[0].step == 22


# ------------------------------------------------------------------------------------------------------------- resuming


def test_resuming_needs_the_same_weights_and_goes_on_to_the_bit(
    going_on: MakeConfig, trained: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    for name, data in files_of(trained).items():
        (weights / name).write_bytes(data)

    def config(steps: int, **more: Any) -> Any:
        options = {"training__schedule": "constant", "training__eval_frequency": 2, **more}
        return going_on(initialize__weights=str(weights), training__max_steps=steps, **options)

    _, whole_text = run(config(6), tmp_path / "whole")
    run(config(4), tmp_path / "out")
    _, text = run(config(6), tmp_path / "out", resume=True)
    assert evaluations(tmp_path / "out") == evaluations(tmp_path / "whole")
    table = whole_text[whole_text.index("Dev perplexity  ") :]
    assert table in text
    _, text = run(config(6), tmp_path / "out", resume=True)
    assert "Nothing to do" in text
    assert table in text
    with pytest.raises(PretrainingError, match=r"initialize\.weights"):
        run(going_on(training__max_steps=8), tmp_path / "out", resume=True)
    save_bilm(load_bilm(trained).initialize(5), weights)
    with pytest.raises(PretrainingError, match="are not those that the run began with"):
        run(config(8), tmp_path / "out", resume=True)


# --------------------------------------------------------------------------------------------------------------- errors


def test_weights_that_are_not_there_are_refused_before_the_text_is_read(going_on: MakeConfig, tmp_path: Path) -> None:
    config = going_on(initialize__weights=str(tmp_path / "nowhere"))
    with pytest.raises(WeightsError, match="nowhere: no such file or folder"):
        run(config, tmp_path / "out")
    assert not (tmp_path / "cache").exists()


def test_a_softmax_of_another_model_is_named_and_can_be_left_aside(
    going_on: MakeConfig, trained: Path, tmp_path: Path
) -> None:
    save_bilm(load_bilm(trained), tmp_path / "mixed")
    save_softmax(FullSoftmax(4, 7), tmp_path / "mixed")
    save_vocabulary(["<S>", "</S>", "<UNK>", "a"], tmp_path / "mixed" / "vocabulary.txt")
    with pytest.raises(WeightsError, match=r'not of the same model.*initialize\.softmax = "new"'):
        run(going_on(initialize__weights=str(tmp_path / "mixed")), tmp_path / "out")
    config = going_on(
        initialize__weights=str(tmp_path / "mixed"), initialize__softmax="new", training__max_steps=1, objective=FULL
    )
    assert run(config, tmp_path / "out")[0].step == 1


def test_a_softmax_that_shares_the_word_table_is_refused(going_on: MakeConfig, trained: Path, tmp_path: Path) -> None:
    config = going_on(
        initialize__weights=str(trained),
        objective={"@misc": "spacy-elmo.full_softmax.v1", "tie_weights": True},
        model__filters=None,
    )
    with pytest.raises(PretrainingError, match=r"tie_weights: a run that goes on from weights"):
        run(config, tmp_path / "out")


def test_another_kind_of_softmax_begins_anew_and_can_be_gone_on_from(
    going_on: MakeConfig, trained: Path, tmp_path: Path
) -> None:
    adaptive = {"@misc": "spacy-elmo.adaptive_softmax.v1", "cutoffs": [4], "div_value": 2.0}
    config = going_on(initialize__weights=str(trained), objective=adaptive, training__max_steps=1)
    _, text = run(config, tmp_path / "adaptive")
    assert "before, with its own vocabulary" in text
    assert "the softmax is new" in text
    config = going_on(initialize__weights=str(tmp_path / "adaptive" / "model-last"), training__max_steps=1)
    _, text = run(config, tmp_path / "full")
    assert "before, with its own vocabulary" in text
    assert "the softmax is new" in text


@pytest.mark.parametrize(("key", "value"), [("softmax", "old"), ("weights", 3), ("optimizer", "x")])
def test_wrong_settings_are_named(toy_config: MakeConfig, key: str, value: Any) -> None:
    config = toy_config()
    config["initialize"][key] = value
    with pytest.raises(PretrainingError, match=f"initialize.{key}"):
        resolve(config)


def test_sizes_of_tables_are_not_the_users_to_say(toy_config: MakeConfig) -> None:
    with pytest.raises(PretrainingError, match="unknown word_dim"):
        resolve(toy_config(model__word_dim=4))


def test_an_empty_path_is_none(root: Path) -> None:
    config = load_config(root / "configs" / "pretrain.cfg", {"initialize.weights": ""})
    assert config["initialize"]["weights"] is None
