"""Several processes train as one does."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import spacy
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining import distributed, precision
from spacy_elmo.pretraining.checkpoint import load_checkpoint
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.distributed import ALONE, Ranks, joined_ranks, launcher
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.pretraining.prepare import prepare_corpora
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.weights import load_bilm, load_softmax

from .breaking import Breaking
from .conftest import MakeConfig
from .processes import on_ranks
from .test_step import ROWS, parts, training_step, window

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
]

FULL = {"@misc": "spacy-elmo.full_softmax.v1"}
SAMPLED = {"@misc": "spacy-elmo.sampled_softmax.v1", "n_samples": 6}
ADAGRAD = {"@misc": "spacy-elmo.adagrad.v1"}
ADAMW = {"@misc": "spacy-elmo.adamw.v1", "learn_rate": 0.01}


def train(config: Any, output: Path, resume: bool = False) -> PretrainingResult:
    return pretrain(config, output, resume=resume, stdout=io.StringIO(), stderr=io.StringIO())


def train_on(n: int, config: Any, output: Path, resume: bool = False) -> None:
    for result in on_ranks(n, train, config, output, resume):
        assert isinstance(result, PretrainingResult), result


def losses_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "losses.jsonl").read_text(encoding="utf8").splitlines()]


def curve(output: Path) -> list[list[float]]:
    return [[entry["step"], entry["forward"], entry["backward"]] for entry in losses_of(output)]


def check_same_run(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(curve(one), curve(other), rtol=0, atol=tolerance)
    for load in (load_bilm, load_softmax):
        weights, others = (load(output / "model-last").state_dict() for output in (one, other))
        for name, tensor in weights.items():
            np.testing.assert_allclose(tensor.numpy(), others[name].numpy(), rtol=0, atol=1e-4, err_msg=name)


# ------------------------------------------------------------------------------------------------------ the same curve


@pytest.mark.parametrize("optimizer", [ADAGRAD, ADAMW], ids=["adagrad", "adamw"])
@pytest.mark.parametrize("objective", [FULL, SAMPLED], ids=["full", "sampled"])
def test_two_processes_give_the_loss_curve_of_one(
    toy_config: MakeConfig, tmp_path: Path, objective: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    config = toy_config(
        objective=objective, optimizer=optimizer, training__dropout=0.0, training__clip_norm=1.0, training__reset=None
    )
    train(config, tmp_path / "one")
    train_on(2, config, tmp_path / "two")
    assert len(curve(tmp_path / "one")) == 40
    check_same_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize(
    "overrides",
    [
        # Clusters whose words one rank may not meet.
        {"objective": {"@misc": "spacy-elmo.adaptive_softmax.v1", "cutoffs": [4, 12], "div_value": 2.0}},
        # One table, with dense gradients as input and sparse ones as output.
        {
            "objective": {**SAMPLED, "tie_weights": True},
            "model__filters": None,
        },
    ],
    ids=["adaptive", "tied"],
)
def test_so_they_do_with_other_objectives(toy_config: MakeConfig, tmp_path: Path, overrides: dict[str, Any]) -> None:
    config = toy_config(optimizer=ADAGRAD, training__dropout=0.0, training__rows=2, training__max_steps=12, **overrides)
    train(config, tmp_path / "one")
    train_on(2, config, tmp_path / "two")
    check_same_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_so_do_four_with_all_that_they_must_decide_alike(toy_config: MakeConfig, tmp_path: Path) -> None:
    config = toy_config(
        optimizer={**ADAGRAD, "learn_rate": 1.0},  # too much: the plateau schedule has something to do
        training__dropout=0.0,
        training__accumulate=2,
        training__ema=0.9,
        training__non_finite="halve",
        training__schedule="plateau",
        training__plateau_patience=1,
        training__eval_frequency=2,
        training__eval_tokens=40,
        training__max_steps=24,
    )
    train(config, tmp_path / "one")
    train_on(4, config, tmp_path / "four")
    check_same_run(tmp_path / "four", tmp_path / "one")
    one, four = (load_checkpoint(tmp_path / name / "checkpoints" / "step-000024") for name in ("one", "four"))
    assert four.record["progress"]["plateau"] == one.record["progress"]["plateau"] < 1.0
    assert four.record["best"]["step"] == one.record["best"]["step"]
    for name, tensor in one.group("state").items():  # of all rows, in their order
        np.testing.assert_allclose(four.group("state")[name].numpy(), tensor.numpy(), rtol=0, atol=1e-5)


def test_each_drops_other_units(toy_config: MakeConfig, tmp_path: Path) -> None:
    config = toy_config(training__max_steps=3, training__dropout=0.3)
    train_on(2, config, tmp_path)
    states = load_checkpoint(tmp_path / "checkpoints" / "step-000003").group("random")
    assert states.keys() == {"cpu", "cpu.1"}
    assert not torch.equal(states["cpu"], states["cpu.1"])


# ------------------------------------------------------------------------------------------------------------- resumed


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4)])
def test_it_goes_on_with_another_number_of_processes(
    toy_config: MakeConfig, tmp_path: Path, before: int, after: int
) -> None:
    def config(steps: int) -> Any:
        options = {"training__schedule": "constant", "training__dropout": 0.0, "training__reset": None}
        return toy_config(optimizer=ADAGRAD, training__max_steps=steps, training__warmup_steps=0, **options)

    train(config(12), tmp_path / "whole")
    train_on(before, config(6), tmp_path / "out")
    train_on(after, config(12), tmp_path / "out", True)
    check_same_run(tmp_path / "out", tmp_path / "whole")


def test_a_killed_run_of_two_goes_on_to_the_bit(toy_config: MakeConfig, tmp_path: Path) -> None:
    def config(how: str) -> Any:
        return toy_config(objective=broken(how, 13), training__recurrent_dropout=0.2, training__max_steps=20)

    train_on(2, config("whole"), tmp_path / "whole")
    first, second = on_ranks(2, train, config("killed"), tmp_path / "out")
    assert first is None
    assert str(second).startswith("one of the processes ended, or cannot be reached")
    assert second.told is False  # the first rank, which was killed, could not say anything
    assert len(losses_of(tmp_path / "out")) == 13
    train_on(2, config("whole"), tmp_path / "out", True)
    assert losses_of(tmp_path / "out") == losses_of(tmp_path / "whole")
    for name in ("model.safetensors", "softmax.safetensors"):
        one, other = ((tmp_path / run / "model-last" / name).read_bytes() for run in ("out", "whole"))
        assert one == other


# --------------------------------------------------------------------------------------------------- broken on one rank


@pytest.fixture
def first_rank_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank has a minute to tell an error, also on a machine that has much else to do."""
    monkeypatch.setattr(distributed, "_FIRST_TELLS", timedelta(minutes=1))


class BrokenRank(FullSoftmax):
    """A softmax whose first loss at one step does something on one rank."""

    def __init__(self, n_words: int, width: int, how: str, at: int, rank: int) -> None:
        super().__init__(n_words, width)
        self.how, self.seed = how, 2 * at if rank == int(os.environ.get("RANK", 0)) else -1

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        loss = super().loss(hidden, targets, seed=seed)
        if seed != self.seed:
            return loss
        self.seed = -1
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "memory":
            torch.empty(1 << 60)
        if self.how == "signal":
            signal.raise_signal(signal.SIGTERM)
        return loss * math.nan if self.how == "nan" else loss


@spacy.registry.misc("test.broken_rank.v1")
def broken_rank(how: str, at: int, rank: int) -> Callable[[int, int], FullSoftmax]:
    return lambda n_words, width: BrokenRank(n_words, width, how, at, rank)


def broken(how: str, at: int, rank: int = 0) -> dict[str, Any]:
    return {"@misc": "test.broken_rank.v1", "how": how, "at": at, "rank": rank}


@pytest.mark.parametrize("how", ["skip", "halve"])
def test_a_loss_that_is_not_finite_on_one_rank_is_so_for_all(toy_config: MakeConfig, tmp_path: Path, how: str) -> None:
    config = toy_config(objective=broken("nan", 3, 1), training__non_finite=how, training__max_steps=6)
    train_on(2, config, tmp_path)
    entry = losses_of(tmp_path)[3]
    assert (entry["loss"] is None) == (how == "skip")
    assert (entry.get("skipped"), entry.get("halved")) == {"skip": ("loss", None), "halve": (None, 1)}[how]


@pytest.mark.usefixtures("first_rank_tells")
def test_where_it_stops_the_run_the_first_rank_says_so(toy_config: MakeConfig, tmp_path: Path) -> None:
    first, second = on_ranks(2, train, toy_config(objective=broken("nan", 3, 1)), tmp_path)
    assert str(first) == str(second) == "the loss at step 4 is nan. There was no checkpoint yet"
    assert (first.told, second.told) == (False, True)


def test_an_error_of_another_rank_is_told_by_that_one(toy_config: MakeConfig, tmp_path: Path) -> None:
    first, second = on_ranks(2, train, toy_config(objective=broken("memory", 3, 1)), tmp_path)
    assert str(second).startswith("out of memory")
    assert str(first).startswith("one of the processes ended, or cannot be reached")
    assert (first.told, second.told) == (True, False)


def test_a_signal_to_one_stops_all(toy_config: MakeConfig, tmp_path: Path) -> None:
    results = on_ranks(2, train, toy_config(objective=broken("signal", 3, 1)), tmp_path)
    assert [(result.step, result.stopped_by) for result in results] == [(4, signal.SIGTERM)] * 2
    assert load_checkpoint(tmp_path / "checkpoints" / "step-000004").step == 4


@pytest.mark.usefixtures("first_rank_tells")
def test_a_full_disk_is_told_once(toy_config: MakeConfig, tmp_path: Path) -> None:
    first, second = on_ranks(2, train_on_a_small_disk, toy_config(training__max_steps=3), tmp_path)
    assert re.match(r"cannot write .*model-last", str(first))
    assert (first.told, second.told) == (False, True)


def train_on_a_small_disk(config: Any, output: Path) -> PretrainingResult:
    resource = pytest.importorskip("resource")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    return train(config, output)


def test_other_texts_on_another_machine(toy_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("Ann sleeps .\n\nBob sleeps .\n" * 40, encoding="utf8")
    other = toy_config(
        corpora__train={"@readers": "spacy-elmo.RawText.v1", "path": str(tmp_path / "other.txt")},
        training__holdout=2,
    )
    first, second = on_ranks(2, train_one_of, [toy_config(training__max_steps=2), other], tmp_path / "out")
    assert str(second).startswith("the processes read different texts")
    assert (first.told, second.told) == (True, False)


def train_one_of(configs: list[Any], output: Path) -> PretrainingResult:
    return train(configs[int(os.environ["RANK"])], output)


def test_too_large_a_gradient_for_float16_on_one_rank() -> None:
    one, other = on_ranks(2, float16_steps)
    assert one == other
    assert [skipped for skipped, _ in one] == [None, "scale", None]
    assert [scale for _, scale in one] == [1024.0, 512.0, 512.0]


def float16_steps() -> list[Any]:
    with joined_ranks() as ranks:
        bilm, _ = parts()
        softmax = Breaking(40, 4, {1: 1 if ranks.rank else 0}, "gradient")
        step, _ = training_step(bilm, softmax, precision="float16", ranks=ranks)
        step._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        state, found = bilm.zero_state(ROWS), []
        for number in range(3):
            result = step(window(2 * number + ranks.rank), state, number)
            found.append((result.skipped, step._scaler.get_scale()))
    return found


# --------------------------------------------------------------------------------------------------------------- ranks


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 8))
def test_each_row_is_of_one_rank(rows: int, accumulate: int, size: int) -> None:
    ranks = [Ranks(rank=rank, size=size) for rank in range(size)]
    if rows % size:
        with pytest.raises(PretrainingError, match=f"training.rows is {rows}, which {size} processes cannot share"):
            ranks[0].rows(rows, accumulate)
        return
    found = [np.arange(rows * accumulate)[rank.rows(rows, accumulate)] for rank in ranks]
    assert {len(some) for some in found} == {rows * accumulate // size}
    assert np.concatenate(found).tolist() == list(range(rows * accumulate))


def test_windows_of_the_ranks_are_the_rows_of_the_whole_one(toy_config: MakeConfig) -> None:
    settings, config = resolve(toy_config())
    corpora = prepare_corpora(settings, config)

    def words(own: slice) -> tuple[np.ndarray, ...]:
        stream = Stream(corpora.train, corpora.vocabulary, rows=4, unroll_steps=6, seed=0, own=own)
        found = stream.window(7)
        read = found.type_rows[found.forward], found.type_rows[found.backward]
        return *read, found.forward_targets, found.backward_targets, found.starts

    whole = words(slice(None))
    for rank in (0, 1):
        for mine, all_rows in zip(words(slice(2 * rank, 2 * rank + 2)), whole, strict=True):
            np.testing.assert_array_equal(mine, all_rows[2 * rank : 2 * rank + 2])


def gradients(rank: int) -> list[Tensor | None]:
    """On each rank: dense, sparse with one row twice, sparse or none, dense or none, none, sparse or dense."""
    draw = torch.Generator().manual_seed(rank)
    rows = torch.tensor([[5, 1, 5]]) if rank == 0 else torch.tensor([[0, 1]])
    sparse = torch.sparse_coo_tensor(
        rows, torch.randn(rows.shape[1], 3, generator=draw), (6, 3), check_invariants=False
    )
    dense = torch.randn(6, 3, generator=draw)
    return [dense, sparse, sparse if rank else None, None if rank else dense, None, sparse if rank else dense]


def shared_gradients() -> list[Any]:
    with joined_ranks() as ranks:
        parameters = [nn.Parameter(torch.zeros(6, 3)) for _ in range(6)]
        for parameter, gradient in zip(parameters, gradients(ranks.rank), strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        ranks.share_gradients(parameters)
        return [None if p.grad is None else (p.grad.is_sparse, p.grad.to_dense().numpy()) for p in parameters]


def test_gradients_become_their_mean() -> None:
    one, other = on_ranks(2, shared_gradients)
    kinds = [None if found is None else found[0] for found in one]
    assert kinds == [False, True, True, False, None, False]
    for mine, others, *theirs in zip(one, other, gradients(0), gradients(1), strict=True):
        if mine is None:
            assert others is None
            continue
        np.testing.assert_array_equal(mine[1], others[1])  # to the bit
        mean = sum(part.to_dense() for part in theirs if part is not None) / 2
        np.testing.assert_allclose(mine[1], mean, rtol=0, atol=1e-7)


def exchanged() -> Any:
    with joined_ranks() as ranks, joined_ranks() as again:
        assert ranks == again
        tensors = {
            "bytes": torch.arange(5, dtype=torch.uint8),
            "number": torch.tensor(2.5, dtype=torch.float64),
            "nothing": torch.zeros(0, 3),
            "narrow": torch.ones(2, 2, dtype=torch.bfloat16),
            "yes": torch.tensor([True, False]),
        }
        copies = ranks.copied(tensors if ranks.first else {})
        assert copies.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert copies[name].dtype == tensor.dtype
            assert torch.equal(copies[name], tensor)
        return (
            ranks.agreed({"rank": ranks.rank}),
            ranks.largest([ranks.rank, -ranks.rank]),
            [part.tolist() for part in ranks.each(torch.tensor([[ranks.rank]]).t())],
            ranks.seed(7, 3),
        )


def test_what_ranks_tell_each_other() -> None:
    one, other = on_ranks(2, exchanged)
    assert one[:3] == other[:3] == ({"rank": 0}, [1, 0], [[[0]], [[1]]])
    assert one[3] == 7
    assert other[3] != 7


def test_alone_nothing_is_exchanged() -> None:
    with joined_ranks() as ranks:
        assert ranks is ALONE
        tensor = torch.ones(2)
        assert ranks.mean(tensor) is tensor
        assert ranks.largest([3, 4]) == [3, 4]
        assert ranks.each(tensor) == [tensor]
        assert ranks.agreed(tensor) is tensor
        assert ranks.copied({"a": tensor})["a"] is tensor


def joined_as_with_gpus(broken_rank: int | None) -> dict[str, Any]:
    """Join as where there are GPUs. Gloo takes NCCL's place."""
    groups: list[tuple[str, timedelta]] = []
    ended: list[bool] = []
    new_group, destroy = dist.new_group, dist.destroy_process_group

    def make(backend: str, timeout: timedelta) -> Any:
        groups.append((backend, timeout))
        return new_group(backend="gloo", timeout=timeout)

    def end() -> None:
        ended.append(True)
        destroy()

    patch = pytest.MonkeyPatch()  # this process is forked, and ends soon
    patch.setattr(distributed, "_has_gpus", lambda: True)
    patch.setattr(dist, "new_group", make)
    patch.setattr(dist, "destroy_process_group", end)
    mean, own, error = math.nan, False, ""
    try:
        with joined_ranks() as ranks:
            mean = ranks.mean(torch.tensor([float(ranks.rank)])).item()
            on_gpu: Any = SimpleNamespace(is_cuda=True)
            own = distributed._group_for(on_gpu) is not None and distributed._group_for(torch.ones(1)) is None
            if ranks.rank == broken_rank:
                raise PretrainingError("broken")
    except PretrainingError as raised:
        error = str(raised)
    return {"groups": groups, "mean": mean, "own group": own, "ended": len(ended), "error": error}


def test_gpus_have_a_group_of_their_own_that_waits_minutes_not_days() -> None:
    wanted = {"groups": [("nccl", timedelta(minutes=15))], "mean": 0.5, "own group": True, "ended": 1, "error": ""}
    assert on_ranks(2, joined_as_with_gpus, None) == [wanted] * 2


def test_an_error_leaves_the_groups_of_gpus_as_they_are_and_ends_all() -> None:
    """To end NCCL's group waits for the others, and these wait for the one with the error."""
    first, second = on_ranks(2, joined_as_with_gpus, 1)
    assert second["error"] == "broken"
    assert first["error"].startswith("one of the processes ended, or cannot be reached")
    assert first["ended"] == second["ended"] == 0


def leave(file: Path) -> bool:
    with joined_ranks() as ranks:
        if ranks.first:
            time.sleep(0.5)
            file.write_text("done", encoding="utf8")
    return file.exists()


def test_nobody_leaves_before_the_first_has_done_all(tmp_path: Path) -> None:
    assert on_ranks(2, leave, tmp_path / "file") == [True, True]


def take_turns(file: Path) -> None:
    os.environ["LOCAL_RANK"] = str(int(os.environ["RANK"]) % 2)  # two machines
    with joined_ranks() as ranks, ranks.one_a_machine_first():
        for what in ("begins", "ends"):
            with file.open("a", encoding="utf8") as lines:
                lines.write(f"{ranks.rank} {what}\n")
            time.sleep(0.2)


def test_the_first_encodes_then_one_on_each_other_machine_then_the_others(tmp_path: Path) -> None:
    """Two that encode at once into a cache which they share, on a file system without locks, would spoil it."""
    assert on_ranks(4, take_turns, tmp_path / "lines") == [None] * 4
    lines = (tmp_path / "lines").read_text(encoding="utf8").splitlines()
    assert lines[:4] == ["0 begins", "0 ends", "2 begins", "2 ends"]
    assert sorted(lines[4:]) == ["1 begins", "1 ends", "3 begins", "3 ends"]


STDIN = {"@readers": "spacy-elmo.RawText.v1", "path": "-"}


@pytest.mark.usefixtures("first_rank_tells")
@pytest.mark.parametrize(
    "overrides",
    [
        {"corpora__train": STDIN},
        {"corpora__dev": {"@readers": "spacy-elmo.Mix.v1", "sources": {"piped": STDIN}, "weights": {"piped": 1.0}}},
    ],
    ids=["train", "in a mix"],
)
def test_the_standard_input_is_refused(toy_config: MakeConfig, tmp_path: Path, overrides: dict[str, Any]) -> None:
    first, second = on_ranks(2, train, toy_config(**overrides), tmp_path / "out")
    assert str(first).startswith("2 processes cannot share the standard input: put the text into a file")
    assert (first.told, second.told) == (False, True)
    assert not (tmp_path / "out").exists()


def train_with_units_on_the_first(config: Any, output: Path) -> PretrainingResult:
    units = os.environ["RANK"] == "0"
    patch = pytest.MonkeyPatch()  # this process is forked, and ends soon
    patch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": units}, raising=False)
    patch.setattr(precision, "bfloat16_gain", lambda: 2.0)
    return train(config, output)


def test_all_multiply_in_the_precision_of_the_first(toy_config: MakeConfig, tmp_path: Path) -> None:
    for asked in ("auto", "bfloat16"):
        config = toy_config(training__precision=asked, training__max_steps=4)
        for result in on_ranks(2, train_with_units_on_the_first, config, tmp_path / asked):
            assert isinstance(result, PretrainingResult), result
    assert losses_of(tmp_path / "auto") == losses_of(tmp_path / "bfloat16")


def test_the_card_has_the_number_of_processes(toy_config: MakeConfig, tmp_path: Path) -> None:
    train_on(2, toy_config(training__max_steps=2), tmp_path)
    folder = tmp_path / "model-last"
    assert json.loads((folder / "meta.json").read_text(encoding="utf8"))["processes"] == 2
    assert "\n| processes | 2 |\n" in (folder / "README.md").read_text(encoding="utf8")


def test_the_command_line_is_that_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launcher(ALONE) == ["python"]
    assert launcher(Ranks(size=3)) == ["torchrun", "--standalone", "--nproc_per_node", "3"]
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert launcher(Ranks(size=8)) == ["torchrun", "--nnodes", "2", "--nproc_per_node", "4"]


# ------------------------------------------------------------------------------------------------------------ torchrun


def torchrun(config: Any, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    resolve(config)[1].to_disk(folder / "run.cfg")
    environment = {key: value for key, value in os.environ.items() if key != "SPACY_CONFIG_OVERRIDES"}
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "spacy", "elmo", "pretrain"]
    return subprocess.Popen(
        [sys.executable, "-m", *command, str(folder / "run.cfg"), str(folder / "out"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_ends_all(toy_config: MakeConfig, tmp_path: Path) -> None:
    config = toy_config(training__max_steps=100_000, training__eval_frequency=100_000)
    with torchrun(config, tmp_path) as process:
        losses = tmp_path / "out" / "losses.jsonl"
        while process.poll() is None and not (losses.exists() and losses.read_bytes().count(b"\n") >= 5):
            time.sleep(0.01)
        process.terminate()
        printed, _ = process.communicate()  # until nobody holds the pipe any more
    done = losses.read_bytes().count(b"\n")
    assert printed.count(f"Stopped by signal 15 at step {done}: go on with --resume") == 1, printed
    assert load_checkpoint(tmp_path / "out" / "checkpoints" / f"step-{done:06d}").step == done


@pytest.mark.slow
def test_rows_that_do_not_divide_are_one_message(toy_config: MakeConfig, tmp_path: Path) -> None:
    with torchrun(toy_config(), tmp_path, "--training.rows", "5") as process:
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert printed.count("training.rows is 5, which 2 processes cannot share evenly") == 1, printed
    assert not (tmp_path / "out").exists()
