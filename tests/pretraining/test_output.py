"""The output folder: in use by others, holding what is of others, on a disk that is full or cannot be written."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import spacy

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import load_checkpoint
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.pretraining.output import LossesFile, check_output, losses_until, own_output
from spacy_elmo.weights import load_bilm

from .conftest import MakeConfig

FOLDERS = ("checkpoints", "model-best", "model-last")
FILES = ("losses.jsonl", "evaluations.jsonl")
CURVE = ("training_curve.svg", "training_curve.png")  # where matplotlib is installed


def run(config: Any, output: Path, **kwargs: Any) -> PretrainingResult:
    return pretrain(config, output, stdout=io.StringIO(), stderr=io.StringIO(), **kwargs)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """No file may grow past a size: what writing to a full disk is like."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ------------------------------------------------------------------------------------------------- what is of others


@pytest.mark.parametrize("name", ["model-best", "model-last"])
@pytest.mark.parametrize("resume", [False, True])
def test_pipelines_of_spacy_train_are_not_replaced(
    toy_config: MakeConfig, tmp_path: Path, name: str, resume: bool
) -> None:
    spacy.blank("en").to_disk(tmp_path / name)
    before = contents(tmp_path)
    with pytest.raises(PretrainingError, match=rf"{name} is not a model that `elmo pretrain` wrote"):
        run(toy_config(), tmp_path, resume=resume)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", FOLDERS)
def test_files_in_the_places_of_folders(toy_config: MakeConfig, tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / name).write_text("mine", encoding="utf8")
    with pytest.raises(PretrainingError, match=f"{name} is a file"):
        run(toy_config(), tmp_path, resume=resume)
    assert contents(tmp_path) == {name: b"mine"}


def test_a_checkpoint_of_others(toy_config: MakeConfig, tmp_path: Path) -> None:
    others = tmp_path / "checkpoints" / "step-100"
    others.mkdir(parents=True)
    (others / "pytorch_model.bin").write_bytes(b"mine")
    for resume in (False, True):
        with pytest.raises(PretrainingError, match="checkpoint"):
            run(toy_config(), tmp_path, resume=resume)
    assert contents(tmp_path) == {"checkpoints/step-100/pytorch_model.bin": b"mine"}


def test_other_files_beside_the_checkpoints_stay(toy_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-100-of-mine").mkdir(parents=True)
    (tmp_path / "checkpoints" / "epoch=1.ckpt").write_bytes(b"mine")
    run(toy_config(training__max_steps=2), tmp_path)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-000002", "step-100-of-mine", "epoch=1.ckpt"}


def test_losses_that_are_a_folder_or_of_others(toy_config: MakeConfig, tmp_path: Path) -> None:
    losses = tmp_path / "losses.jsonl"
    losses.mkdir()
    with pytest.raises(PretrainingError, match=r"losses\.jsonl is not a file"):
        run(toy_config(), tmp_path, resume=True)
    losses.rmdir()
    losses.write_text('{"epoch": 1, "loss": 2.5}\n', encoding="utf8")
    with pytest.raises(PretrainingError, match=r"losses\.jsonl, line 1: not the losses of a step"):
        run(toy_config(), tmp_path, resume=True)
    assert contents(tmp_path) == {"losses.jsonl": b'{"epoch": 1, "loss": 2.5}\n'}


@pytest.mark.parametrize("name", [*FOLDERS, *FILES])
def test_whatever_an_earlier_run_left_is_replaced_only_when_asked(
    toy_config: MakeConfig, tmp_path: Path, name: str
) -> None:
    config = toy_config(training__max_steps=2)
    run(config, tmp_path / "earlier")
    output = tmp_path / "out"
    output.mkdir()
    (tmp_path / "earlier" / name).rename(output / name)
    before = contents(output)
    with pytest.raises(PretrainingError, match=rf"holds a run already \({name}\): continue it with --resume"):
        run(config, output)
    assert contents(output) == before
    assert run(config, output, resume=True).step == 2


def test_only_the_previous_model_is_left_by_a_kill_between_two_renames(toy_config: MakeConfig, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run(toy_config(training__max_steps=2), output)
    for name in ("checkpoints/step-000002", *FOLDERS[1:]):
        (output / name).rename(output / f"{name}.old")
    with pytest.raises(PretrainingError, match=r"checkpoints, model-best, model-last.*--resume"):
        run(toy_config(), output)
    assert {path.name for path in output.iterdir()} - {*CURVE} == {*FOLDERS, *FILES}
    load_bilm(output / "model-best")
    assert run(toy_config(training__max_steps=3), output, resume=True).step == 3


# -------------------------------------------------------------------------------------------------------------- links


def test_links_to_folders_elsewhere_stay_and_are_written_through(toy_config: MakeConfig, tmp_path: Path) -> None:
    output, disk = tmp_path / "out", tmp_path / "disk"
    output.mkdir()
    disk.mkdir()
    for name in (*FOLDERS, *FILES):
        (output / name).symlink_to(disk / name)  # leads nowhere yet
    run(toy_config(training__max_steps=2), output)
    run(toy_config(training__max_steps=4), output, resume=True)
    assert all((output / name).is_symlink() for name in (*FOLDERS, *FILES))
    assert {path.name for path in disk.iterdir()} == {*FOLDERS, *FILES}
    assert len((disk / "losses.jsonl").read_bytes().splitlines()) == 4
    assert json.loads((disk / "model-last" / "meta.json").read_text(encoding="utf8"))["step"] == 4


def test_two_links_to_one_folder(tmp_path: Path) -> None:
    (tmp_path / "model-best").symlink_to(tmp_path / "model-last")
    with pytest.raises(PretrainingError, match="links to one folder"):
        check_output(tmp_path, resume=True)


# ------------------------------------------------------------------------------------------------- in use by another


def test_a_run_is_kept_out_of_a_folder_in_use(toy_config: MakeConfig, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run(toy_config(training__max_steps=2), output)
    before = contents(output)
    with own_output(output):
        for resume in (False, True):
            with pytest.raises(PretrainingError, match="in use by another process"):
                run(toy_config(), output, resume=resume)
        run(toy_config(), output, dry_run=True)  # writes nothing there
    assert contents(output) == before
    assert run(toy_config(training__max_steps=3), output, resume=True).step == 3


# --------------------------------------------------------------------------------------------------- wrong kind of path


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/out"])
def test_an_output_that_cannot_be_a_folder_is_said_before_the_text_is_read(
    toy_config: MakeConfig, tmp_path: Path, place: str
) -> None:
    if place.startswith("/proc") and not sys.platform.startswith("linux"):
        pytest.skip("a folder that nobody may write to")
    (tmp_path / "file").write_text("mine", encoding="utf8")
    with pytest.raises(PretrainingError, match=f"cannot write to the folder .*{place}"):
        run(toy_config(paths__cache=str(tmp_path / "cache")), tmp_path / place)
    assert contents(tmp_path) == {"file": b"mine"}
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/cache"])
def test_a_cache_that_cannot_be_a_folder(toy_config: MakeConfig, tmp_path: Path, place: str) -> None:
    if place.startswith("/proc") and not sys.platform.startswith("linux"):
        pytest.skip("a folder that nobody may write to")
    (tmp_path / "file").write_text("mine", encoding="utf8")
    with pytest.raises(PretrainingError, match=f"paths.cache: .*{place}"):
        run(toy_config(paths__cache=str(tmp_path / place)), tmp_path / "out")


# -------------------------------------------------------------------------------------------------- damaged checkpoints


def test_a_run_goes_back_to_the_checkpoint_before_a_damaged_one(toy_config: MakeConfig, tmp_path: Path) -> None:
    def config(steps: int, keep: int) -> Any:
        return toy_config(
            training__max_steps=steps,
            training__checkpoint_frequency=4,
            training__keep=keep,
            training__schedule="constant",
        )

    run(config(16, 2), tmp_path / "whole")
    output = tmp_path / "out"
    run(config(12, 3), output)
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == [f"step-{n:06d}" for n in (4, 8, 12)]
    tensors = output / "checkpoints" / "step-000012" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes().replace(b"\x3f", b"\x3e"))
    stdout = io.StringIO()
    pretrain(config(16, 2), output, resume=True, stdout=stdout, stderr=io.StringIO())
    assert f"{tensors} is damaged (another checksum than in SHA256SUMS): going back" in stdout.getvalue()
    assert "Resuming at step 8" in stdout.getvalue()
    for name in ("losses.jsonl", "model-last/model.safetensors", "checkpoints/step-000012/tensors.safetensors"):
        assert (output / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == ["step-000012", "step-000016"]


# ---------------------------------------------------------------------------------------------------------- full disks


@pytest.mark.parametrize(("n_bytes", "named"), [(250, "losses.jsonl"), (20_000, "(model-last|checkpoints)")])
def test_a_full_disk_names_the_path_and_leaves_the_last_checkpoint(
    toy_config: MakeConfig, tmp_path: Path, n_bytes: int, named: str
) -> None:
    output = tmp_path / "out"
    run(toy_config(training__max_steps=2, training__schedule="constant"), output)
    longer = toy_config(training__max_steps=6, training__checkpoint_frequency=3, training__schedule="constant")
    with largest_file(n_bytes), pytest.raises(PretrainingError, match=f"cannot write .*{named}"):
        run(longer, output, resume=True)
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-000002"]
    assert load_checkpoint(output / "checkpoints" / "step-000002").step == 2
    assert {path.name for path in output.iterdir()} - {*CURVE} == {*FOLDERS, *FILES}
    assert run(longer, output, resume=True).step == 6
    assert len((output / "losses.jsonl").read_bytes().splitlines()) == 6


def test_a_disk_that_is_full_for_a_checkpoint_alone(toy_config: MakeConfig, tmp_path: Path) -> None:
    def config(steps: int) -> Any:
        return toy_config(
            training__max_steps=steps,
            training__eval_frequency=100,
            training__checkpoint_frequency=2,
            training__schedule="constant",
        )

    run(config(8), tmp_path / "whole")
    output = tmp_path / "out"
    run(config(4), output)
    with largest_file(20_000), pytest.raises(PretrainingError, match=r"cannot write .*step-000006.* before is kept"):
        run(config(8), output, resume=True)
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    assert run(config(8), output, resume=True).step == 8
    assert (output / "losses.jsonl").read_bytes() == (tmp_path / "whole" / "losses.jsonl").read_bytes()


def test_a_full_disk_while_the_text_is_encoded(toy_config: MakeConfig, tmp_path: Path) -> None:
    config = toy_config(paths__cache=str(tmp_path / "cache"))
    with largest_file(500), pytest.raises(PretrainingError, match=f"cannot encode text into .*{tmp_path.name}.cache"):
        run(config, tmp_path / "out")
    # What was encoded stays, and the next run goes on with it.
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} <= {".partial"}
    assert run(config, tmp_path / "out").step > 0
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {""}


# -------------------------------------------------------------------------------------------------------------- losses


def lines(*steps: object) -> bytes:
    return b"".join(json.dumps({"step": step, "loss": 1.0}).encode() + b"\n" for step in steps)


def test_losses_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    assert losses_until(path, 3) == b""
    for after in (b"", lines(4, 5), lines(4) + b'{"step": 5, "lo'):
        path.write_bytes(lines(1, 2, 3) + after)
        assert losses_until(path, 3) == lines(1, 2, 3)
    assert losses_until(path, 0) == b""
    path.write_bytes(lines(3, 4, 5))  # the earlier ones were moved away
    assert losses_until(path, 4) == lines(3, 4)
    path.write_bytes(b"")
    assert losses_until(path, 0) == b""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lines(1) + b"junk\n" + lines(2, 3), "line 2: not the losses of step 2"),
        (lines(1) + b"\xff\n", "line 2"),
        (lines(1) + b"\n" + lines(2, 3), "line 2"),
        (lines(1, 3), "line 2: not the losses of step 2"),
        (lines(1, 2, 2, 3), "line 3"),
        (lines("1"), "line 1"),
        (lines(5, 6), "line 1"),
        (b"[1]\n", "line 1"),
        (lines(1, 2), "ends with step 2, but the checkpoint is at step 3"),
        (b"", "ends with step 0"),
    ],
)
def test_junk_and_gaps_in_the_losses_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "losses.jsonl"
    path.write_bytes(content)
    with pytest.raises(PretrainingError, match=rf"losses\.jsonl.*{says}"):
        losses_until(path, 3)


def test_losses_are_on_disk_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    path.write_bytes(b"old")
    losses = LossesFile(path, lines(1))
    losses.write({"step": 2, "loss": 1.0})
    assert path.read_bytes() == lines(1, 2)
    losses.close()


def test_a_run_whose_losses_were_moved_away_says_so(toy_config: MakeConfig, tmp_path: Path) -> None:
    run(toy_config(training__max_steps=2), tmp_path)
    (tmp_path / "losses.jsonl").unlink()
    stdout = io.StringIO()
    pretrain(toy_config(training__max_steps=4), tmp_path, resume=True, stdout=stdout, stderr=io.StringIO())
    assert "no losses.jsonl of the steps before" in stdout.getvalue()
    assert run(toy_config(training__max_steps=5), tmp_path, resume=True).step == 5
    steps = [json.loads(line)["step"] for line in (tmp_path / "losses.jsonl").read_text(encoding="utf8").splitlines()]
    assert steps == [3, 4, 5]
