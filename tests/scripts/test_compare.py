from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import srsly

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare.py"


def run(folder: Path, baseline: dict[str, object], other: dict[str, object]) -> subprocess.CompletedProcess[str]:
    srsly.write_json(folder / "plain.json", baseline)
    srsly.write_json(folder / "elmo.json", other)
    command = [sys.executable, str(SCRIPT), str(folder / "plain.json"), str(folder / "elmo.json")]
    return subprocess.run(command, capture_output=True, text=True)


def test_scores_stand_side_by_side(tmp_path: Path) -> None:
    done = run(
        tmp_path, {"ents_f": 0.8, "tag_acc": None, "speed": 5000}, {"ents_f": 0.85, "tag_acc": 0.9, "speed": 500}
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert rows[0][:3] == ["score", "plain", "elmo"]
    assert rows[2:] == [["ents_f", "80.00", "85.00", "+5.00", "+25.0%"]]


def test_a_perfect_baseline_leaves_no_error_to_reduce(tmp_path: Path) -> None:
    done = run(tmp_path, {"tag_acc": 1.0}, {"tag_acc": 0.5})
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert rows[-1] == ["tag_acc", "100.00", "50.00", "-50.00", "-"]


def test_files_without_a_common_score_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, {"ents_f": 0.8}, {"tag_acc": 0.8})
    assert done.returncode != 0
    assert "no score in common" in done.stderr
