"""Every objective a config can ask for: learns, is saved and loaded, goes on where it stopped."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.vectors import Vectors  # type: ignore[import-not-found]
from thinc.api import Config
from torch import Tensor

from spacy_elmo.bilm.adaptive import AdaptiveSoftmax
from spacy_elmo.bilm.continuous import ContinuousOutput
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax, SampledSoftmax
from spacy_elmo.bilm.token_encoder import WordEncoder
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.pretraining.objectives import adaptive_softmax, continuous_output, full_softmax, sampled_softmax
from spacy_elmo.pretraining.perplexity import MeanLoss, Perplexity, evaluate
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.pretraining.vectors import VectorTargets, WordVectors
from spacy_elmo.weights import load_bilm, load_softmax

from .conftest import VERBS, MakeConfig


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


@pytest.mark.parametrize(
    ("n_words", "clusters"),
    [(50_000, [2000, 10_000, 50_000]), (10_000, [2000, 10_000]), (1500, [1499, 1500]), (3, [2, 3])],
)
def test_adaptive_softmax_leaves_out_the_cutoffs_that_are_not_reached(n_words: int, clusters: list[int]) -> None:
    softmax = adaptive_softmax()(n_words, 16)
    assert isinstance(softmax, AdaptiveSoftmax)
    assert softmax.cutoffs == clusters


def test_what_makes_no_adaptive_softmax_is_an_error() -> None:
    for cutoffs in ([], [0, 2], [3, 2]):
        with pytest.raises(PretrainingError, match=r"objective\.cutoffs"):
            adaptive_softmax(cutoffs=cutoffs)
    with pytest.raises(PretrainingError, match=r"objective\.div_value is 0\.5"):
        adaptive_softmax(div_value=0.5)
    with pytest.raises(PretrainingError, match=r"objective: div_value is 4\.0.*8 / 4\.0\^2"):
        adaptive_softmax()(50_000, 8)


def test_what_makes_no_continuous_output_is_an_error() -> None:
    with pytest.raises(PretrainingError, match="objective: loss is 'cosine' or 'vmf', not 'l2'"):
        continuous_output("anything", loss="l2")  # type: ignore[arg-type]
    with pytest.raises(PretrainingError, match="objective: dot_weight"):
        continuous_output("anything", loss="vmf", dot_weight=-1.0)


# In runs

N_DIMS = 6
TOY_WORDS = ["The", "at", "the", "red", "blue", "house", *VERBS, *VERBS.values()]  # and no "."


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline with vectors of the toy text's words."""
    nlp = spacy.blank("en")
    draw = np.random.default_rng(0)
    for word in TOY_WORDS:
        nlp.vocab.set_vector(word, draw.normal(size=N_DIMS).astype(np.float32))  # type: ignore[arg-type]
    folder = tmp_path_factory.mktemp("vectors") / "toy_vectors"
    nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="session")
def floret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "floret"
    data = np.random.default_rng(1).normal(size=(200, N_DIMS)).astype(np.float32)
    Vectors(data=data, mode="floret", minn=2, maxn=3, hash_count=2).to_disk(folder)
    return folder


# Overrides of the toy config for each; "vectors" and "floret" stand for the folders.
WORD_TABLE = {"model__filters": None}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "full": {"objective": {"@misc": "spacy-elmo.full_softmax.v1"}},
    "full, tied": {"objective": {"@misc": "spacy-elmo.full_softmax.v1", "tie_weights": True}, **WORD_TABLE},
    "sampled, tied": {
        "objective": {"@misc": "spacy-elmo.sampled_softmax.v1", "n_samples": 5, "tie_weights": True},
        **WORD_TABLE,
    },
    "adaptive": {"objective": {"@misc": "spacy-elmo.adaptive_softmax.v1", "cutoffs": [6, 10], "div_value": 2.0}},
    "cosine": {"objective": {"@misc": "spacy-elmo.continuous_output.v1", "vectors": "vectors"}},
    "vmf": {"objective": {"@misc": "spacy-elmo.continuous_output.v1", "vectors": "vectors", "loss": "vmf"}},
    "floret": {"objective": {"@misc": "spacy-elmo.continuous_output.v1", "vectors": "floret"}, **WORD_TABLE},
}


@pytest.fixture(scope="session")
def objective_config(toy_config: MakeConfig, vectors: Path, floret: Path) -> Callable[..., Any]:
    def make(name: str, **more: Any) -> Any:
        overrides = {key: dict(value) if isinstance(value, dict) else value for key, value in OBJECTIVES[name].items()}
        block = overrides["objective"]
        if "vectors" in block:
            block["vectors"] = str({"vectors": vectors, "floret": floret}[block["vectors"]])
        fixed = {"training__schedule": "constant", "training__warmup_steps": 0}
        return toy_config(**overrides, **fixed, **more)

    return make


def run(config: Any, output: Path, **kwargs: Any) -> tuple[PretrainingResult, str]:
    stdout = io.StringIO()
    result = pretrain(config, output, stdout=stdout, stderr=io.StringIO(), **kwargs)
    return result, stdout.getvalue()


def losses_of(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "losses.jsonl").read_text(encoding="utf8").splitlines()]


@dataclass
class Run:
    """A run of an objective."""

    config: Any
    output: Path
    result: PretrainingResult
    text: str


@pytest.fixture(scope="module", params=OBJECTIVES)
def whole(
    request: pytest.FixtureRequest, objective_config: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    config = objective_config(request.param, training__max_steps=30, training__eval_tokens=1_000_000)
    output = tmp_path_factory.mktemp("objective") / request.param
    return Run(config, output, *run(config, output))


def test_it_learns(whole: Run) -> None:
    losses = [entry["loss"] for entry in losses_of(whole.output)]
    table = [line.split() for line in whole.text[whole.text.index("ETA") :].splitlines()[2:]]
    assert [row[1] for row in table] == ["0", "20", "30"]
    first, last = float(table[0][4]), float(table[-1][5])
    dev = whole.result.dev
    assert dev is not None
    assert isinstance(dev, MeanLoss if whole.output.name in ("cosine", "vmf", "floret") else Perplexity)
    assert last == pytest.approx(dev.joint, abs=0.006)
    assert whole.result.best_step == 30
    assert last < (first - 0.2 if isinstance(dev, MeanLoss) else first * 0.75)
    assert np.mean(losses[-5:]) < np.mean(losses[:2]) - (0.05 if "sampled" in whole.output.name else 0.2)


def test_it_goes_on_to_the_bit(whole: Run, objective_config: Callable[..., Any], tmp_path: Path) -> None:
    name, steps = whole.output.name, {"training__eval_tokens": 1_000_000}
    run(objective_config(name, training__max_steps=20, **steps), tmp_path / "out")
    resumed, _ = run(objective_config(name, training__max_steps=30, **steps), tmp_path / "out", resume=True)
    assert resumed == whole.result
    assert losses_of(tmp_path / "out") == losses_of(whole.output)
    for file in ("model.safetensors", "softmax.safetensors"):
        found, expected = (folder / "model-best" / file for folder in (tmp_path / "out", whole.output))
        assert found.read_bytes() == expected.read_bytes()


def test_what_was_saved_measures_the_same(whole: Run) -> None:
    folder, dev = whole.output / "model-best", whole.result.dev
    assert dev is not None
    layer, bilm = load_softmax(folder), load_bilm(folder)
    settings, filled = resolve(whole.config)
    corpora = prepare_corpora(settings, filled)
    targets: Any = corpora.vocabulary
    if isinstance(dev, MeanLoss):
        assert isinstance(layer, ContinuousOutput)
        assert layer.vectors == {"floret": "floret"}.get(whole.output.name, "toy_vectors")
        vectors = WordVectors(whole.config["objective"]["vectors"])
        assert layer.sha256 == vectors.sha256()
        targets = VectorTargets(vectors, corpora.dev.types)
        layer.use_table(targets.table)
        with pytest.raises(PretrainingError, match=r"has no perplexity.*\(continuous_output\)"):
            measure(folder)
    else:
        assert type(layer) is (AdaptiveSoftmax if whole.output.name == "adaptive" else FullSoftmax)
        assert measure(folder).total.joint == pytest.approx(dev.joint, rel=1e-6)
    found = evaluate(bilm, layer, targets, list(corpora.dev.sentences()))
    assert found.n_targets == dev.n_targets
    assert found.joint == pytest.approx(dev.joint, rel=1e-6)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf8"))
    assert meta["metrics"] == {**dev.scores(), "tokens_per_second": meta["metrics"]["tokens_per_second"]}
    if "tied" in whole.output.name:
        assert isinstance(bilm.token_encoder, WordEncoder)
        assert torch.equal(layer.stored()["W"], bilm.token_encoder.embedding)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_vocabulary_of_five_words_in_bfloat16(
    objective_config: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    config = objective_config(name, vocabulary__max_words=5, training__max_steps=4, training__precision="bfloat16")
    result, text = run(config, tmp_path / "out")
    assert "vocabulary  5 words" in text
    assert result.dev is not None
    assert math.isfinite(result.dev.joint)
    first, *_, last = [entry["loss"] for entry in losses_of(tmp_path / "out")]
    assert last < first
    # What is predicted has no limit where it is a vector.
    if name == "cosine":
        settings, filled = resolve(config)
        dev = prepare_corpora(settings, filled).dev
        assert result.dev.n_targets > 0.9 * 2 * 400 * 7 / 8  # all words but "." and the boundaries
        assert len(dev.types) > 5


def test_the_step_of_continuous_outputs_is_the_formula(objective_config: Callable[..., Any], tmp_path: Path) -> None:
    """Forward and backward losses of the first step, from the hidden vectors and the vectors' file alone."""
    config = objective_config("cosine", training__max_steps=1, training__dropout=0.0)
    run(config, tmp_path / "out")
    settings, filled = resolve(config)
    corpora = prepare_corpora(settings, filled)
    window = Stream(corpora.train, corpora.vocabulary, rows=4, unroll_steps=6, seed=0).window(0)
    words = corpora.vocabulary.words
    bilm = BiLM(settings.bilm_config(len(words))).initialize(0)
    layer = ContinuousOutput(N_DIMS, 8).initialize(0)
    ids = bilm.token_ids([corpora.train.types[i] for i in window.type_rows])
    starts = torch.from_numpy(window.starts)
    with torch.no_grad():
        forward, backward = torch.from_numpy(window.forward), torch.from_numpy(window.backward)
        *hidden, _ = bilm.hidden(ids, forward, backward, bilm.zero_state(4), 0.0, starts)
    vocab = spacy.load(config["objective"]["vectors"]).vocab
    for name, vectors, targets in zip(
        ("forward", "backward"), hidden, (window.forward_targets, window.backward_targets), strict=True
    ):
        distances = []
        for y, target in zip(vectors.flatten(0, 1).numpy(), targets.ravel(), strict=True):
            if vocab.has_vector(words[target]):
                predicted, wanted = layer.W.detach().numpy() @ y, np.asarray(vocab[words[target]].vector)
                distances.append(1 - predicted @ wanted / np.linalg.norm(predicted) / np.linalg.norm(wanted))
        assert 0 < len(distances) <= 24
        assert losses_of(tmp_path / "out")[0][name] == pytest.approx(np.mean(distances), rel=1e-4)


@pytest.mark.parametrize("name", ["sampled, tied", "cosine"])
def test_averages_and_parts_of_a_step(objective_config: Callable[..., Any], tmp_path: Path, name: str) -> None:
    more = {"training__ema": 0.9, "training__accumulate": 2, "training__rows": 2}
    config = objective_config(name, training__max_steps=12, **more)
    result, _ = run(config, tmp_path / "whole")
    run(objective_config(name, training__max_steps=10, **more), tmp_path / "parts")
    assert run(config, tmp_path / "parts", resume=True)[0] == result
    for file in ("model.safetensors", "softmax.safetensors"):
        found, expected = (tmp_path / folder / "model-last" / file for folder in ("parts", "whole"))
        assert found.read_bytes() == expected.read_bytes()


def test_the_plan_and_the_table_say_what_is_predicted(objective_config: Callable[..., Any], tmp_path: Path) -> None:
    for name, expected in {
        "adaptive": "softmax     144 parameters, 6 words and clusters of 4, 8\n",
        "full, tied": "softmax     18 parameters beside the word table, which it shares\n",
        "vmf": "output      54 parameters, vmf loss to vectors of 6 of toy_vectors (hash ",
    }.items():
        _, text = run(objective_config(name), tmp_path / "out", dry_run=True)
        assert expected in text
    assert "12.50% of the tokens without a vector: not predicted" in text  # the dots
    assert "out of vocabulary" not in text
    assert "14 of them, float32" in text
    _, text = run(objective_config("vmf", training__max_steps=1), tmp_path / "out")
    header = next(line for line in text.splitlines() if "DEV" in line)
    assert " ".join(header.split()) == "E # LOSS DEV FWD LOSS DEV BWD LOSS DEV LOSS TOKENS/S ETA"


def test_other_loggers_get_the_loss(objective_config: Callable[..., Any], tmp_path: Path) -> None:
    config = objective_config(
        "cosine",
        training__max_steps=2,
        logger={"@loggers": "spacy.ConsoleLogger.v3", "output_file": str(tmp_path / "log.jsonl")},
    )
    result, _ = run(config, tmp_path / "out")
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert isinstance(result.dev, MeanLoss)
    assert last["score"] == pytest.approx(-result.dev.joint)
    assert 0 < result.dev.joint == 0.5 * (result.dev.forward + result.dev.backward) < 2


def test_other_vectors_are_not_gone_on_with(
    objective_config: Callable[..., Any], vectors: Path, tmp_path: Path
) -> None:
    config = objective_config("cosine", training__max_steps=2)
    run(config, tmp_path / "out")
    nlp = spacy.load(vectors)
    nlp.to_disk(tmp_path / "moved")  # the same ones may lie elsewhere
    for path, more in ((tmp_path / "moved", 3), (tmp_path / "changed", 4)):
        config = objective_config("cosine", training__max_steps=more)
        config["objective"]["vectors"] = str(path)
        if path.name == "changed":
            nlp.vocab.set_vector("cat", np.ones(N_DIMS, dtype=np.float32))  # type: ignore[arg-type]
            nlp.to_disk(path)
            with pytest.raises(PretrainingError, match=r"the vectors 'changed' .* are not those that were predicted"):
                run(config, tmp_path / "out", resume=True)
        else:
            run(config, tmp_path / "out", resume=True)
    config = objective_config("vmf", training__max_steps=4)
    with pytest.raises(PretrainingError, match=r"another objective\.loss"):
        run(config, tmp_path / "out", resume=True)


def test_missing_vectors_are_named_before_the_text_is_read(
    objective_config: Callable[..., Any], tmp_path: Path
) -> None:
    config = objective_config("cosine", paths__cache=str(tmp_path / "cache"))
    config["objective"]["vectors"] = str(tmp_path / "nowhere")
    with pytest.raises(PretrainingError, match=r"objective\.vectors: .*nowhere is neither"):
        run(config, tmp_path / "out")
    assert not (tmp_path / "cache").exists()
    # Other commands read the text of such a config without them.
    resolve(config)


def test_a_text_without_known_words_is_named(objective_config: Callable[..., Any], tmp_path: Path) -> None:
    config = objective_config("cosine")
    Vectors(data=np.ones((1, N_DIMS), dtype=np.float32), keys=["zebra"]).to_disk(tmp_path / "zebras")
    config["objective"]["vectors"] = str(tmp_path / "zebras")
    with pytest.raises(PretrainingError, match="zebras has a vector for none of the text's words"):
        run(config, tmp_path / "out")


def test_a_biLM_of_characters_has_no_table_to_share(toy_config: MakeConfig, tmp_path: Path) -> None:
    objective = {"@misc": "spacy-elmo.full_softmax.v1", "tie_weights": True}
    with pytest.raises(PretrainingError, match=r"tie_weights.*spells words by their characters.*model\.filters = null"):
        run(toy_config(objective=objective, paths__cache=str(tmp_path / "cache")), tmp_path / "out")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kind", [AdaptiveSoftmax, ContinuousOutput])
def test_out_of_memory_without_samples(
    objective_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    loss = kind.loss

    def too_large(self: Any, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        return loss(self, hidden, targets, seed=seed) + torch.empty(1 << 60).sum()  # the allocator refuses

    monkeypatch.setattr(kind, "loss", too_large)
    name = "adaptive" if kind is AdaptiveSoftmax else "cosine"
    with pytest.raises(PretrainingError, match=r"out of memory: lower .*training\.unroll_steps \(6\), or the sizes"):
        run(objective_config(name), tmp_path / "out")


def test_the_documents_fragments_are_objectives(root: Path, toy_config: MakeConfig) -> None:
    text = (root / "docs" / "pretraining-settings.md").read_text(encoding="utf8")
    codes = re.findall(r"^```ini\n(\[objective\]\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    objectives = [Config().from_str(code)["objective"] for code in codes]
    assert objectives
    for objective in objectives:
        assert resolve(toy_config(objective=objective))[1]["objective"] == objective  # every argument is there
