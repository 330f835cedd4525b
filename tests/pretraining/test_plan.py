from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import spacy

from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.vocabulary import N_SPECIAL

from .conftest import MakeConfig


def numbers(line: str) -> list[int]:
    """All whole numbers of a line."""
    return [int(found.replace(",", "")) for found in re.findall(r"(?<![\w.])\d[\d,]*(?![\w.%])", line)]


@pytest.fixture
def lines(toy_config: MakeConfig, tmp_path: Path) -> list[str]:
    stdout = io.StringIO()
    pretrain(toy_config(training__max_steps=2), tmp_path / "out", stdout=stdout, stderr=io.StringIO())
    return stdout.getvalue().splitlines()


def test_it_is_the_first_thing_printed(lines: list[str]) -> None:
    assert lines[0].startswith("train ")
    header = next(i for i, line in enumerate(lines) if "DEV FWD PPL" in line)
    names = [line.split()[0] for line in lines[:header] if not line.startswith(" ")]
    assert names == ["train", "dev", "vocabulary", "steps", "biLM", "softmax", "precision"]


def test_everything_is_counted_from_the_corpus(lines: list[str], toy_text: Path) -> None:
    """bilm-tf planned "1501265 batches" for 1,200 lines: its number of tokens was a default."""
    text = toy_text.read_text(encoding="utf8")
    nlp = spacy.blank("en")
    tokens = [token.text for token in nlp(text) if not token.is_space]
    train, dev = (numbers(next(line for line in lines if line.startswith(name))) for name in ("train", "dev"))
    documents, n_lines, sentences, n_tokens = (train[i] + dev[i] for i in range(4))
    assert documents == 60
    assert sentences == 480
    assert n_lines == 480
    assert n_tokens == len(tokens) == 480 * 8

    steps = next(line for line in lines if line.startswith("steps"))
    max_steps, rows, unroll_steps, tokens_per_step, per_epoch = numbers(steps)[:5]
    assert (max_steps, rows, unroll_steps, tokens_per_step) == (2, 4, 6, 24)
    # a sentence of n words is n + 1 steps
    assert abs(per_epoch - (train[3] + train[2]) / 24) <= 1
    assert f"{2 / per_epoch:.2f} epochs" in steps

    (words,) = numbers(next(line for line in lines if line.startswith("vocabulary")))
    assert words == N_SPECIAL + len(set(tokens))
    assert "0.00% of the tokens out of vocabulary" in lines[1]
    parameters, samples = numbers(next(line for line in lines if line.startswith("softmax")))[:2]
    assert parameters == words * (8 + 1)
    assert 0 < samples < words


def test_the_end_of_a_single_document_is_named(toy_config: MakeConfig, toy_text: Path, tmp_path: Path) -> None:
    """No order of the documents brought it into a window, and nothing said so."""
    (tmp_path / "one.txt").write_text("A b c .\n" * 10, encoding="utf8")  # 50 steps: two windows of 24
    config = toy_config(training__max_steps=2)
    reader = {"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path / "one.txt")}
    dev = {"@readers": "spacy-elmo.RawText.v1", "path": str(toy_text)}
    for train, others, said in ((reader, dev, True), (dev, reader, False)):
        config["corpora"] = {"train": train, "dev": others}
        stdout = io.StringIO()
        pretrain(config, tmp_path / "out", dry_run=True, stdout=stdout, stderr=io.StringIO())
        assert ("the last 2 tokens of train are never read" in stdout.getvalue()) is said
