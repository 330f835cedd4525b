"""The search for a recipe and the race against bilm-tf run through, go on where they stopped, and score rightly."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import race, recipe
from spacy_elmo import BiLM, BiLMConfig
from spacy_elmo.bilm.model import BiLMState
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.pretraining.config import load_config, resolve
from spacy_elmo.pretraining.prepare import prepare_corpora

TINY = {
    "model.lstm_dim": 16,
    "model.projection_dim": 8,
    "model.filters": [[1, 8], [2, 8]],
    "training.rows": 4,
    "training.unroll_steps": 6,
    "training.max_steps": 40,
    "training.warmup_steps": 10,
    "optimizer.learn_rate": 0.01,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    verbs = {"cat": "purrs", "dog": "barks", "bird": "sings", "frog": "leaps"}
    documents = [draw.choices(list(verbs), k=6) for _ in range(60)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(" ".join(f"The {one} {verbs[one]} ." for one in some) for some in documents))
    return path


@pytest.fixture
def config(root: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.cfg"
    load_config(root / "configs" / "pretrain-tiny.cfg", TINY).to_disk(path)
    return path


@pytest.mark.slow
def test_trials_run_for_their_minutes_and_are_listed_best_first(
    config: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {"@misc": "spacy-elmo.full_softmax.v1"}
    trials = [
        {"name": "still", "minutes": 0.02, "set": {"optimizer.learn_rate": 1e-9}},
        {"name": "full", "minutes": 0.02, "set": {"objective": full, "training.rows": 2}},
    ]
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    options = ["--trials", str(tmp_path / "trials.jsonl"), "--config", str(config), "--raw", str(text)]
    options += ["--dev", str(text), "--output", str(tmp_path / "out"), "--at-once", "2", "--threads", "1"]
    options += ["--rounds", "1", "--seconds", "0.2", "--evaluations", "2"]
    recipe.main(options)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in table[2:]] == ["| full", "| still"]
    found = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("full", "still")}
    for name, rows in (("full", 2), ("still", 4)):
        trial = found[name]
        assert trial["steps"] == max(1, round(0.02 * 60 * trial["tokens_per_second"] / (rows * 6)))
        assert trial["curve"][-1][0] == trial["steps"] * rows * 6
        fitted = load_config(tmp_path / "out" / name / "trial.cfg")
        assert fitted["training"]["warmup_steps"] == round(trial["steps"] / 4)
    assert found["full"]["curve"][-1][1] < 0.7 * found["still"]["curve"][-1][1]
    assert found["still"]["curve"][-1][1] == pytest.approx(found["still"]["curve"][0][1], rel=1e-3)
    recipe.main(options)  # nothing is left to do
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")] == table


@pytest.mark.slow
def test_a_race_of_ours_alone_stops_and_goes_on(
    config: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--config", str(config), "--raw", str(text), "--dev", str(text), "--output", str(tmp_path / "out")]
    options += [
        "--slice",
        "0.001",
        "--evaluations",
        "4",
        "--dev-words",
        "50",
        "--threads",
        "1",
        "--plot",
        str(tmp_path / "race.svg"),
    ]
    race.main(options)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ours")]
    assert [int(row[2].replace(",", "")) for row in rows] == [tokens * 24 for tokens in (10, 20, 30, 40)]
    perplexities = [float(row[3].rstrip(" |")) for row in rows]
    assert perplexities[-1] < 0.8 * perplexities[0]
    assert "<svg" in (tmp_path / "race.svg").read_text()


def test_when_a_perplexity_was_reached() -> None:
    entries = [{"seconds": 10.0, "perplexity": 400.0}, {"seconds": 20.0, "perplexity": 100.0}]
    assert race.reached(entries, 200.0) == pytest.approx(15.0)
    assert race.reached(entries, 100.0) == 20.0
    assert race.reached(entries, 500.0) == 10.0
    assert race.reached(entries, 99.0) is None


def test_running_text_is_scored_with_its_state_carried_on(config: Path, text: Path, tmp_path: Path) -> None:
    paths = {"paths.raw": str(text), "paths.dev": str(text), "paths.cache": str(tmp_path / "cache")}
    corpora = prepare_corpora(*resolve(load_config(config, paths)))
    bilm = BiLM(BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 4),), n_highway=1)).initialize(0)
    softmax = FullSoftmax(len(corpora.vocabulary), 4)
    # Without knowledge every word is as likely as any other.
    state = bilm.zero_state(20)
    found = race.carried_perplexity(bilm, softmax, corpora.vocabulary, corpora.dev, state)
    assert found == pytest.approx(len(corpora.vocabulary), rel=1e-5)
    few = race.carried_perplexity(bilm, softmax, corpora.vocabulary, corpora.dev, state, 100)
    assert few == pytest.approx(found, rel=1e-5)
    # Something that depends on what was read, and on the state before it.
    softmax.W.data.normal_(0.0, 30.0, generator=torch.Generator().manual_seed(0))
    reads = race.carried_perplexity(bilm, softmax, corpora.vocabulary, corpora.dev, state)
    assert reads != pytest.approx(found, rel=0.01)
    other = BiLMState.from_tensors({name: tensor + 1 for name, tensor in state.tensors().items()})
    goes_on = race.carried_perplexity(bilm, softmax, corpora.vocabulary, corpora.dev, other)
    assert goes_on != pytest.approx(reads, rel=1e-4)


def test_the_states_of_bilm_tf_are_read(tmp_path: Path) -> None:
    # Forward, then backward; of each layer the cells of two rows, then the outputs.
    arrays = [np.full((2, size), number, dtype=np.float32) for number, size in enumerate([8, 4] * 4)]
    np.savez(tmp_path / "states.npz", *arrays)
    found = race.read_states(tmp_path / "states.npz").tensors()
    assert {name: tensor[:, 1, 3].tolist() for name, tensor in found.items()} == {
        "forward_hidden": [1, 3],
        "forward_cell": [0, 2],
        "backward_hidden": [5, 7],
        "backward_cell": [4, 6],
    }
