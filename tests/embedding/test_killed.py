"""A run that ends at any instant, by kill -9 or a full disk, goes on from there and makes the same file to the bit."""

from __future__ import annotations

import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo import BiLM, ElmoError, load_bilm, save_bilm
from spacy_elmo.embedding import embed_file
from tests.going_wrong import files_of_at_most

from .killed import OPTIONS, counted, run_in_process
from .reading import writable

SUFFIXES = [".h5", ".npz", ".parquet"]
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9 and a fork server")


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    if not writable(request.param):
        pytest.skip("its library is not installed")
    return str(request.param)


@pytest.fixture
def weights(bilm: BiLM, tmp_path: Path) -> Path:
    save_bilm(bilm, tmp_path / "bilm")
    return tmp_path / "bilm"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    draw = random.Random(0)
    lines = [" ".join(draw.choices(["The", "bank", "(", "東京"], k=draw.randrange(6))) for _ in range(30)]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf8")
    return tmp_path / "text.txt"


def left_beside(output: Path) -> set[str]:
    return {path.name for path in output.parent.iterdir() if path.name.startswith(output.name)}


@needs_signals
def test_killed_at_a_line_it_goes_on(text: Path, weights: Path, tmp_path: Path, suffix: str) -> None:
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"v{suffix}"
    bilm = load_bilm(weights)
    lines = counted(lambda: embed_file(text, whole, bilm, **OPTIONS))
    draw = random.Random(suffix)
    # Anywhere, and often near the end, where files are given their names.
    instants = [*draw.sample(range(1, lines), 5), *draw.sample(range(lines - 60, lines), 3)]
    resumed = set()
    for instant in instants:
        assert run_in_process(text, output, weights, instant) == -signal.SIGKILL
        if left_beside(output) != {output.name}:  # killed when all was done
            done = embed_file(text, output, bilm, **OPTIONS)
            assert done.sentences == 30
            resumed.add(done.resumed)
        assert output.read_bytes() == whole.read_bytes(), instant
        assert left_beside(output) == {output.name}
        output.unlink()
    assert len(resumed) > 2


@needs_signals
def test_killed_again_and_again_it_ends(text: Path, weights: Path, tmp_path: Path, suffix: str) -> None:
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"v{suffix}"
    lines = counted(lambda: embed_file(text, whole, weights, **OPTIONS))
    draw = random.Random(suffix)
    kills = 0
    while run_in_process(text, output, weights, draw.randrange(lines // 6, lines)) == -signal.SIGKILL:
        kills += 1
        assert kills < 100
    assert kills
    assert output.read_bytes() == whole.read_bytes()
    assert left_beside(output) == {output.name}


@needs_signals
def test_killed_from_outside_it_goes_on(text: Path, weights: Path, tmp_path: Path, suffix: str) -> None:
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"v{suffix}"
    embed_file(text, whole, weights, **OPTIONS)
    draw = random.Random(suffix)
    for _ in range(3):
        run_in_process(text, output, weights, 0, seconds=draw.uniform(0.05, 0.6))
    embed_file(text, output, weights, overwrite=output.exists(), **OPTIONS)
    assert output.read_bytes() == whole.read_bytes()


def test_carried_state_goes_on(text: Path, bilm: BiLM, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.npz", tmp_path / "v.npz"
    embed_file(text, whole, bilm, state="carry", **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: embed_file(text, output, bilm, state="carry", **OPTIONS), text, whole)
    bilm.encode([["something", "between"]], "carry")
    assert embed_file(text, output, bilm, state="carry", **OPTIONS).resumed > 0
    assert output.read_bytes() == whole.read_bytes()


def interrupted(run: object, text: Path, whole: Path) -> None:
    """Ctrl-C half way."""
    half = counted(lambda: embed_file(text, whole.with_name("other.npz"), load(whole), **OPTIONS)) // 2

    def interrupt(count: int) -> None:
        if count == half:
            raise KeyboardInterrupt

    counted(run, interrupt)  # type: ignore[arg-type]


def load(whole: Path) -> BiLM:
    from spacy_elmo.layers.bilm_model import random_bilm

    return random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4], [2, 4]], char_dim=4)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.7, 0.99])
def test_a_full_disk(text: Path, bilm: BiLM, tmp_path: Path, suffix: str, part: float) -> None:
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"v{suffix}"
    embed_file(text, whole, bilm, **OPTIONS)
    with (
        files_of_at_most(int(part * whole.stat().st_size)),
        pytest.raises(ElmoError, match=rf"v\{suffix}.*: cannot be written: File too large"),
    ):
        embed_file(text, output, bilm, **OPTIONS)
    assert not output.exists()
    done = embed_file(text, output, bilm, **OPTIONS)
    assert (done.resumed > 0) == (part > 0.2)
    assert output.read_bytes() == whole.read_bytes()
    assert left_beside(output) == {output.name}


def broken_off(text: Path, bilm: BiLM, output: Path) -> None:
    """A run that ended on a full disk."""
    with files_of_at_most(2500), pytest.raises(ElmoError, match="File too large"):
        embed_file(text, output, bilm, **OPTIONS)
    assert left_beside(output) == {f"{output.name}.partial", f"{output.name}.journal"}


def test_other_settings_do_not_go_on(text: Path, bilm: BiLM, tmp_path: Path) -> None:
    output = tmp_path / "v.npz"
    broken_off(text, bilm, output)
    changes: list[dict[str, Any]] = [
        {"layers": "mean"},
        {"dtype": "float16"},
        {"batch_words": 13},
        {"text": "lower"},
        {"state": "zero"},
    ]
    for change in changes:
        before = {path: path.read_bytes() for path in tmp_path.glob("v.npz.*")}
        with pytest.raises(ElmoError, match=r"v\.npz\.partial was begun with other settings"):
            embed_file(text, output, bilm, **{**OPTIONS, **change})
        assert {path: path.read_bytes() for path in tmp_path.glob("v.npz.*")} == before
    other = load_bilm(save(bilm, tmp_path / "other", 1))
    with pytest.raises(ElmoError, match=r"settings .*weights was"):
        embed_file(text, output, other, **OPTIONS)
    with text.open("a", encoding="utf8") as file:
        file.write("more\n")
    with pytest.raises(ElmoError, match=r"settings \(texts\.0\.size was \d+, is \d+; texts\.0\.changed was"):
        embed_file(text, output, bilm, **OPTIONS)
    done = embed_file(text, output, bilm, resume=False, **OPTIONS)
    assert (done.sentences, done.resumed) == (30, 0)


def save(bilm: BiLM, folder: Path, seed: int) -> Path:
    save_bilm(BiLM(bilm.config).initialize(seed), folder)
    return folder


def test_damaged_and_lost_files_of_a_run(text: Path, bilm: BiLM, tmp_path: Path) -> None:
    output = tmp_path / "v.npz"
    partial, journal = tmp_path / "v.npz.partial", tmp_path / "v.npz.journal"
    broken_off(text, bilm, output)
    whole = journal.read_bytes()
    journal.write_bytes(whole.replace(b'"records"', b'"recordz"', 1))
    with pytest.raises(ElmoError, match=r"v\.npz\.journal, line 2: damaged"):
        embed_file(text, output, bilm, **OPTIONS)
    journal.write_bytes(whole)
    partial.write_bytes(partial.read_bytes()[:10])
    with pytest.raises(ElmoError, match=r"v\.npz\.partial is shorter than its journal says"):
        embed_file(text, output, bilm, **OPTIONS)
    journal.unlink()
    with pytest.raises(ElmoError, match=r"v\.npz\.partial lies there without its journal"):
        embed_file(text, output, bilm, **OPTIONS)
    assert embed_file(text, output, bilm, resume=False, **OPTIONS).sentences == 30


def test_two_at_once(text: Path, bilm: BiLM, tmp_path: Path) -> None:
    output, errors = tmp_path / "v.npz", []

    def second(count: int) -> None:
        if count == 400:
            thread = threading.Thread(target=try_it)
            thread.start()
            thread.join()

    def try_it() -> None:
        with pytest.raises(ElmoError) as info:
            embed_file(text, output, bilm, **OPTIONS)
        errors.append(str(info.value))

    counted(lambda: embed_file(text, output, bilm, **OPTIONS), second)
    assert errors == [f"{output} is being written by another process"]
    assert embed_file(text, output, bilm, overwrite=True, **OPTIONS).sentences == 30
