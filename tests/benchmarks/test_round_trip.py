"""What we write, read by the programs that it is written for.

    SPACY_ELMO_ALLENNLP=VENV/bin/python SPACY_ELMO_BILM=VENV/bin/python python -m pytest --slow tests/benchmarks

How the environments are made is said in benchmarks/peers.
"""

from __future__ import annotations

import os

import pytest

from benchmarks import round_trip

pytest.importorskip("h5py")

# float32 in another order of summation; of the largest value of a layer. A weight in a wrong place is off by 0.1.
TOLERANCE = 2e-6
READERS = {
    "allennlp": ("SPACY_ELMO_ALLENNLP", ["AllenNLP"]),
    "bilm": ("SPACY_ELMO_BILM", ["bilm-tf", "bilm-tf, token embeddings"]),
}


def rows(capsys: pytest.CaptureFixture[str], *options: str) -> list[list[str]]:
    round_trip.main([*options, "--size", "tiny", "--sentences", "12", "--threads", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines[2:]]


def test_without_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {"AllenNLP": "allennlp", "bilm-tf": "bilm", "bilm-tf, token embeddings": "bilm"}
    found = rows(capsys)
    assert [row[1] for row in found[:3]] == ["ours, in float64"] * 3
    assert 0 < max(float(row[5]) for row in found[:3]) <= TOLERANCE
    assert [row[:3] for row in found[3:]] == [
        ["tiny", reader, f"missing: not given: --{peer}"] for reader, peer in missing.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("peer", READERS)
def test_another_program_gives_our_vectors(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    variable, readers = READERS[peer]
    if variable not in os.environ:
        pytest.skip(f"set {variable} to the Python of an environment with {peer}")
    found = [row for row in rows(capsys, f"--{peer}", os.environ[variable]) if row[1] in readers]
    assert [row[1:3] for row in found] == [[reader, str(layer)] for reader in readers for layer in range(3)]
    for row in found:
        assert float(row[4]) > 0.5  # vectors that are not all near zero
        assert float(row[5]) <= TOLERANCE, row
