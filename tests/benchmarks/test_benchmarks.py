"""Every script runs through at the smallest sizes, without peers, and prints the rows that it should."""

from __future__ import annotations

import importlib
import io
import random
from pathlib import Path

import pytest

from benchmarks.common import SIZES
from spacy_elmo import BiLM, save_bilm
from spacy_elmo.pretraining.config import load_config
from spacy_elmo.pretraining.loop import pretrain

TEXT = ["--sentences", "12"]
ROUNDS = ["--rounds", "2"]
TRAINING = ["--vocabulary", "40", "80", "--negatives", "8", "--batch", "2", "--steps", "1"]
TRAINING += ["--corpus-words", "6000", "--corpus-types", "200"]

Table = list[list[str]]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.common.PAUSE", 0.0)


def run(name: str, capsys: pytest.CaptureFixture[str], *options: str) -> list[Table]:
    """The cells of each table that a script prints, without its header."""
    importlib.import_module(f"benchmarks.{name}").main([*options, "--threads", "1"])
    printed = capsys.readouterr().out
    assert "; 1 threads" in printed.splitlines()[0]
    blocks = [block.splitlines() for block in printed.split("\n\n") if block.startswith("|")]
    return [[[cell.strip() for cell in line[1:-1].split(" | ")] for line in block[2:]] for block in blocks]


def numbers(rows: Table, column: int) -> list[float]:
    return [float(row[column].replace(",", "").rstrip("%")) for row in rows]


@pytest.mark.slow
def test_encode(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "tiny", "--alone", "2", "--rows", "tiny, ours, float32|AllenNLP", *TEXT, *ROUNDS]
    together, alone, agreement = run("encode", capsys, *options)
    assert [row[1] for row in together[:2]] == ["ours, float32, cold", "ours, float32, warm"]
    assert [row[1:3] for row in together[2:]] == [
        [f"AllenNLP, {how}", "missing: not given: --allennlp"] for how in ("as they come", "sorted first")
    ]
    assert min(numbers(together[:2], 2)) > 0
    assert [row[4:] for row in together] == [["-"] * 3] * 4
    assert [row[1] for row in alone] == ["ours, float32, cold", "AllenNLP"]
    assert min(numbers(alone[:1], 4)) > 0
    assert agreement[0][:3] == ["tiny", "allennlp", "missing: not given: --allennlp"]
    differences = {row[1]: float(row[2]) for row in agreement[1:]}
    assert differences["ours, not compiled, float32"] < 1e-6
    assert 1e-6 < differences["ours, bfloat16"] < 0.02


def test_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    together, alone = run("pipeline", capsys, "--size", "tiny", "--alone", "2", *TEXT, *ROUNDS)
    ours = ["tokenizer alone", "tok2vec", "elmo, tiny, float32", "elmo, tiny, bfloat16"]
    missing = [f"transformer, {size}-size, float32" for size in ("distilroberta", "MiniLM-L6")]
    assert [row[0] for row in together] == [row[0] for row in alone] == ours + missing
    assert min(numbers(together[:4], 1) + numbers(alone[:4], 3)) > 0
    assert all(0 < share < 100 for share in numbers(together[2:4], 4))
    assert {row[1] for row in together[4:]} == {"missing: not given: --transformers"}


def test_pretrain(capsys: pytest.CaptureFixture[str]) -> None:
    (rows,) = run("pretrain", capsys, "--size", "tiny", *TRAINING, *ROUNDS)
    modes = ["float32", "float32, oneDNN", "bfloat16"]
    assert [row[1:3] for row in rows[:4]] == [*(["40", mode] for mode in modes), ["80", modes[1]]]
    assert min(numbers(rows[:4], 3)) > 0
    assert all(0 < share < 100 for share in numbers(rows[:4], 7))
    assert float(rows[3][6]) > 0
    assert rows[4][2:4] == ["bilm, TensorFlow", "missing: not given: --bilm"]


def test_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "tiny", "--training-size", "tiny", "--seconds", "0", *TEXT, *TRAINING, *ROUNDS]
    (rows,) = run("roofline", capsys, *options)
    assert [row[0].split(":")[0] for row in rows[:2]] == ["peak, float32", "peak, bfloat16"]
    assert [row[0] for row in rows[2:4]] == ["encode, tiny, float32", "encode, tiny, bfloat16"]
    assert [row[0].split(", ")[0] for row in rows[4:]] == ["training step"] * 3
    assert rows[0][2] == rows[1][3] == "100%"
    assert min(numbers(rows, 1)) > 0
    assert max(numbers(rows[2:], 2)) < 100


def test_scaling(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "tiny", "--training-size", "tiny", "--fewer", "12", *TRAINING, *ROUNDS]
    (rows,) = run("scaling", capsys, *options, "--sentences", "40")
    assert [(row[1], row[2]) for row in rows if row[5] == "1.00"] >= [
        ("words a sentence", "5"),
        ("sentences a call", "1"),
    ]
    sections = list(dict.fromkeys(row[1] for row in rows))
    expected = ["words a sentence", "sentences a call", "threads", "sentences in all", "vocabulary"]
    assert sections == expected
    assert min(numbers(rows, 3) + numbers(rows, 5)) > 0


def test_rss(capsys: pytest.CaptureFixture[str]) -> None:
    (rows,) = run("rss", capsys, "--size", "tiny", "--sentences", "20", "--types", "200")
    assert [row[1] for row in rows] == ["0", "2", "5", "10", "20"]
    resident, peak = numbers(rows, 2), numbers(rows, 3)
    # Linux adds up what each core has counted now and then only: the two may be some pages apart.
    assert all(50 < now <= highest + 2 for now, highest in zip(resident, peak, strict=True))
    assert min(numbers(rows[1:], 4)) > 0


@pytest.fixture
def weights(tmp_path: Path) -> str:
    save_bilm(BiLM(SIZES["tiny"]).initialize(0), tmp_path / "weights")
    return str(tmp_path / "weights")


@pytest.mark.slow
def test_rss_of_weights(capsys: pytest.CaptureFixture[str], weights: str) -> None:
    (rows,) = run("rss", capsys, "--model", weights, "--sentences", "20", "--types", "200")
    assert [row[:2] for row in rows] == [[weights, str(n)] for n in (0, 2, 5, 10, 20)]
    assert min(numbers(rows, 2)) > 50


@pytest.mark.slow
def test_load_to_a_first_vector(capsys: pytest.CaptureFixture[str], weights: str) -> None:
    (rows,) = run("load", capsys, "--model", weights, "--times", "1")
    steps = ["spaCy's own start", "start with spacy-elmo", "add_pipe", "first vector", "import spacy_elmo", "load_bilm"]
    assert [row[0] for row in rows[:6]] == steps
    seconds = numbers(rows[:7], 1)
    assert min(seconds[:6]) > 0
    assert seconds[6] == pytest.approx(sum(seconds[1:4]) - seconds[0], abs=0.003)
    assert [numbers(rows[:6], column) for column in (2, 3)] == [seconds[:6]] * 2  # of one run each
    resident = numbers(rows, 4)
    assert min(resident[:6]) > 50
    assert resident[6] == pytest.approx(resident[3] - resident[0], abs=1)
    assert resident[7] == pytest.approx(resident[5] - resident[4], abs=1)
    with pytest.raises(SystemExit):
        run("load", capsys, "--model", "./nothing")
    assert "no such file or folder" in capsys.readouterr().err


def test_load_of_formats(capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module("benchmarks.load").main
    main(["--size", "tiny", "--formats", "native", "--times", "1", "--threads", "1"])
    *_, row = capsys.readouterr().out.splitlines()
    assert row.split()[0] == "native"
    assert float(row.split()[2]) > 0


def test_memory(capsys: pytest.CaptureFixture[str]) -> None:
    ((row,),) = run("memory", capsys, "--size", "tiny", "--tokens", "500", "--white-space")
    assert row[:2] == ["tiny", "500"]
    assert float(row[4]) == pytest.approx(3 * 500 * 16 * 4 / 1e6)


@pytest.mark.slow
def test_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--training-size", "tiny", "--vocabulary", "40", "--negatives", "8", "--batch", "2", "--steps", "1"]
    built, fed = run("corpus", capsys, "--tokens", "20000", "--types", "300", "--processes", "1", *small)
    assert numbers(built, 0) == [pytest.approx(2e3, rel=0.3), pytest.approx(2e4, rel=0.3)]
    assert min(numbers(built, 3) + numbers(built, 4) + numbers(built, 7)) > 0
    assert all(0 < share < 100 for share in numbers(fed, 7))


@pytest.mark.slow
def test_start_state(capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    verbs = {"cat": "purrs", "dog": "barks", "bird": "sings", "frog": "leaps"}
    documents = [draw.choices(list(verbs), k=6) for _ in range(60)]
    text = "\n\n".join("\n".join(f"The {one} {verbs[one]} ." for one in document) for document in documents)
    (tmp_path / "text.txt").write_text(text, encoding="utf8")
    sizes = {"model.lstm_dim": 16, "model.projection_dim": 8, "model.filters": [[1, 8], [2, 8]]}
    training = {"rows": 4, "unroll_steps": 6, "max_steps": 150, "holdout": 6, "threads": 1, "reset": None}
    options = {**sizes, **{f"training.{name}": value for name, value in training.items()}, "optimizer.learn_rate": 0.01}
    paths = {"paths.raw": str(tmp_path / "text.txt"), "paths.cache": str(tmp_path / "cache")}
    config = load_config(root / "configs" / "pretrain.cfg", {**options, **paths})
    pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    arguments = ["--model", str(tmp_path / "out" / "model-last"), "--text", str(tmp_path / "text.txt"), "--first", "2"]
    (rows,) = run("start_state", capsys, *arguments)
    assert [row[0] for row in rows] == ["1", "2", "1-2", "rest", "all"]
    assert [int(row[1].replace(",", "")) for row in rows] == [180, 180, 360, 540, 900]
    # Never reset in training: zero is nothing that the model has seen.
    assert all("(-" in row[2] for row in (rows[0], rows[2], rows[4]))
