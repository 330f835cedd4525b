"""What a newcomer met: `--paths.rw` was read by nobody, and a run on another text was refused with eleven keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import load_config
from spacy_elmo.pretraining.loop import pretrain

SMALL = {
    "model.lstm_dim": 8,
    "model.projection_dim": 4,
    "model.filters": [[1, 4]],
    "training.rows": 2,
    "training.unroll_steps": 4,
    "training.max_steps": 1,
    "training.holdout": 3,
}


def test_misspelt_paths_are_refused(root: Path) -> None:
    with pytest.raises(PretrainingError, match=r"no such setting: paths\.rw\. \[paths\] has cache, dev, raw"):
        load_config(root / "configs" / "pretrain.cfg", {"paths.rw": "x.txt"})


def test_paths_of_the_files_own_can_be_set(root: Path, tmp_path: Path) -> None:
    text = (root / "configs" / "pretrain.cfg").read_text(encoding="utf8").replace("[paths]\n", "[paths]\nmine = null\n")
    (tmp_path / "own.cfg").write_text(text, encoding="utf8")
    assert load_config(tmp_path / "own.cfg", {"paths.mine": "x"})["paths"]["mine"] == "x"


def test_another_text_is_said_in_words(root: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\n\n".join(f"Ann sees {i} of {name} ." for i in range(40)), encoding="utf8")
    paths = {"paths.cache": str(tmp_path / "cache")}
    config = root / "configs" / "pretrain.cfg"
    pretrain(load_config(config, {**SMALL, **paths, "paths.raw": str(tmp_path / "a.txt")}), tmp_path / "run")
    other = load_config(config, {**SMALL, **paths, "paths.raw": str(tmp_path / "b.txt")})
    with pytest.raises(PretrainingError, match=r"begun on .*a\.txt.* cannot go on with .*b\.txt.*--paths\.raw"):
        pretrain(other, tmp_path / "run", resume=True)
