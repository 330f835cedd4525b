"""The file in which layers are kept: whole after kills, full disks and damage, shared by processes, bounded."""

from __future__ import annotations

import copy
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.layers.disk_cache import DiskCache, model_name, text_name
from tests.going_wrong import files_of_at_most, told_once

MODEL, OTHER = b"m" * 16, b"o" * 16
VOCAB = spacy.blank("en").vocab
FLOAT32 = np.dtype(np.float32)
SHAPE = (3, 5, 16)
needs_fork = pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="needs fork and kill -9")


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """What is told is told where a test expects it, and nowhere else."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def name_of(i: int) -> bytes:
    return i.to_bytes(16, "big")


def array_of(i: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(i).standard_normal(shape).astype(np.float32)


def arrays(numbers: Any, shape: tuple[int, ...] = SHAPE) -> dict[bytes, np.ndarray]:
    return {name_of(i): array_of(i, shape) for i in numbers}


def read(cache: DiskCache, numbers: Any, shape: tuple[int, ...] = SHAPE) -> set[int]:
    """The numbers whose arrays are there. Each is the one that was written."""
    names = {name_of(i): i for i in numbers}
    found = cache.read(dict.fromkeys(names, shape), FLOAT32)
    for name, array in found.items():
        np.testing.assert_array_equal(array, array_of(names[name], shape))
    return {names[name] for name in found}


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("elmo-layers-*.sqlite")
    return path


# What comes back


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_written_comes_back_to_the_bit_in_another_object(tmp_path: Path, dtype: str) -> None:
    wanted = {name_of(i): array_of(i, (3, i, 8)).astype(dtype) for i in range(20)}  # one of them without tokens
    first = DiskCache(tmp_path / "new" / "folder", 10, MODEL)
    first.write(wanted)
    for cache in (first, DiskCache(tmp_path / "new" / "folder", 10, MODEL)):
        shapes = {name: array.shape for name, array in wanted.items()}
        found = cache.read(shapes | {name_of(99): (3, 1, 8)}, np.dtype(dtype))
        assert set(found) == set(wanted)
        for name, array in found.items():
            assert array.dtype == dtype
            np.testing.assert_array_equal(array, wanted[name])
            assert array.flags.writeable
            assert array.flags.owndata


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    DiskCache(tmp_path, 10, MODEL).write(arrays(range(3)))
    assert read(DiskCache(tmp_path, 10, OTHER), range(3)) == set()


def test_arrays_in_any_memory_order(tmp_path: Path) -> None:
    array = np.asfortranarray(array_of(1))
    cache = DiskCache(tmp_path, 10, MODEL)
    cache.write({name_of(1): array, name_of(2): np.repeat(array_of(2), 2, axis=1)[:, ::2]})
    assert read(cache, [1, 2]) == {1, 2}


# Names


def test_the_name_of_a_model_follows_values_and_settings() -> None:
    bilm = random_bilm(lstm_dim=8, projection_dim=4)
    name = model_name(bilm, "zero", "float32")
    assert name == model_name(copy.deepcopy(bilm), "zero", "float32")
    assert name == model_name(random_bilm(lstm_dim=8, projection_dim=4), "zero", "float32")
    others = {model_name(bilm, "zero", "bfloat16"), model_name(bilm, "warm", "float32")}
    others.add(model_name(random_bilm(lstm_dim=8, projection_dim=4, cell_clip=2.0), "zero", "float32"))
    for parameter in bilm.parameters():
        with torch.no_grad():
            value = parameter.view(-1)[-1].clone()
            parameter.view(-1)[-1] = value.nextafter(torch.tensor(9.0))
            others.add(model_name(bilm, "zero", "float32"))
            parameter.view(-1)[-1] = value
    assert name == model_name(bilm, "zero", "float32")
    assert len({name, *others}) == 4 + len(list(bilm.parameters()))


def test_the_name_of_a_text_is_the_same_in_another_process(tmp_path: Path) -> None:
    code = """
import spacy
from spacy.tokens import Doc
from spacy_elmo.layers.disk_cache import text_name
doc = Doc(spacy.blank("de").vocab, words=["東京", "is", " ", "(", "x"])
print(text_name(doc, [(0, 2), (2, 5)], "orth").hex())
"""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    doc = Doc(spacy.blank("en").vocab, words=["東京", "is", " ", "(", "x"])
    assert done.stdout.strip() == text_name(doc, [(0, 2), (2, 5)], "orth").hex()


words_strategy = st.lists(st.sampled_from(["a", "A", "b", "ab", " ", "\n", '"', ",", "é", "[1]"]), max_size=4)


@settings(max_examples=60, deadline=None)
@given(one=words_strategy, other=words_strategy, cut=st.integers(1, 4), lower=st.booleans())
def test_texts_have_one_name_only_if_the_bilm_reads_the_same(
    one: list[str], other: list[str], cut: int, lower: bool
) -> None:
    form = "lower" if lower else "orth"

    def named(words: list[str]) -> tuple[bytes, Any]:
        spans = [(i, min(i + cut, len(words))) for i in range(0, len(words), cut)]
        read = [None if word.isspace() else word.lower() if lower else word for word in words]
        return text_name(Doc(VOCAB, words=words), spans, form), (read, spans)

    (a, reads_a), (b, reads_b) = named(one), named(other)
    assert (a == b) == (reads_a == reads_b)


# Bounds


def test_the_limit_holds_and_ends_the_writing_with_one_warning(tmp_path: Path) -> None:
    shape = (3, 50, 64)  # 38 KB
    cache = DiskCache(tmp_path, 1, MODEL)
    with told_once("cache_disk_mb is reached"):
        for start in range(0, 60, 4):
            cache.write(arrays(range(start, start + 4), shape))
    kept = read(cache, range(60), shape)
    assert kept == set(range(len(kept)))  # the first ones stay: an epoch that comes round finds them
    assert 20 <= len(kept) <= 26
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10**6


def two_hours_later(folder: Path) -> None:
    db = sqlite3.connect(the_file(folder))
    with db:
        db.execute("UPDATE models SET used = used - 7200")
    db.close()


def test_other_models_make_room_the_longest_unused_first(tmp_path: Path) -> None:
    shape, names = (3, 50, 64), [bytes([i]) * 16 for i in range(3)]
    for name in names:
        DiskCache(tmp_path, 1, name).write(arrays(range(7), shape))
    DiskCache(tmp_path, 1, names[0]).read({name_of(0): shape}, FLOAT32)  # used again
    two_hours_later(tmp_path)
    DiskCache(tmp_path, 1, MODEL).write(arrays(range(8), shape))
    left = [len(read(DiskCache(tmp_path, 1, name), range(8), shape)) for name in [*names, MODEL]]
    assert left[0] == 7
    assert left[1] == 0
    assert left[3] == 8
    assert the_file(tmp_path).stat().st_size <= 10**6


def test_models_in_use_make_no_room_for_each_other(tmp_path: Path) -> None:
    shape = (3, 50, 64)
    first, second = DiskCache(tmp_path, 1, MODEL), DiskCache(tmp_path, 1, OTHER)
    with told_once("cache_disk_mb is reached"):
        first.write(arrays(range(40), shape))
    kept = read(first, range(40), shape)
    assert len(kept) > 15
    with told_once("cache_disk_mb is reached"):
        second.write(arrays(range(5), shape))
    assert read(second, range(5), shape) == set()
    assert read(first, range(40), shape) == kept
    two_hours_later(tmp_path)
    second = DiskCache(tmp_path, 1, OTHER)
    second.write(arrays(range(5), shape))
    assert read(second, range(5), shape) == set(range(5))
    assert read(first, range(40), shape) < kept


def test_to_be_read_is_to_be_in_use(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1, MODEL)
    cache.write(arrays(range(3)))
    two_hours_later(tmp_path)

    def unused_for() -> float:
        db = sqlite3.connect(the_file(tmp_path))
        (used,) = db.execute("SELECT used FROM models").fetchone()
        db.close()
        return time.time() - float(used)

    assert read(cache, range(3)) == set(range(3))
    assert unused_for() > 7000  # noted once a minute
    cache._noted -= 61.0
    assert read(cache, range(3)) == set(range(3))
    assert unused_for() < 60


def test_a_lower_limit_shrinks_the_file(tmp_path: Path) -> None:
    shape = (3, 50, 64)
    DiskCache(tmp_path, 10, OTHER).write(arrays(range(30), shape))
    DiskCache(tmp_path, 10, MODEL).write(arrays(range(60), shape))
    assert the_file(tmp_path).stat().st_size > 3_000_000
    two_hours_later(tmp_path)
    cache = DiskCache(tmp_path, 2, MODEL)
    kept = read(cache, range(60), shape)
    assert 30 < len(kept) < 60
    assert the_file(tmp_path).stat().st_size <= 2_000_000
    assert read(DiskCache(tmp_path, 2, OTHER), range(30), shape) == set()


def test_a_lower_limit_takes_nothing_from_runs_in_progress(tmp_path: Path) -> None:
    shape, unused = (3, 50, 64), b"u" * 16
    DiskCache(tmp_path, 10, unused).write(arrays(range(10), shape))
    two_hours_later(tmp_path)
    running, other = DiskCache(tmp_path, 10, MODEL), DiskCache(tmp_path, 10, OTHER)
    for cache in (running, other):
        cache.write(arrays(range(30), shape))
    lower = DiskCache(tmp_path, 1, MODEL)
    assert read(lower, range(30), shape) == set(range(30))
    with told_once("cache_disk_mb is reached"):
        lower.write(arrays(range(30, 32), shape))
    for cache in (running, other):
        assert read(cache, range(30), shape) == set(range(30))
    assert read(DiskCache(tmp_path, 10, unused), range(10), shape) == set()
    # What is used no more makes room at the next opening.
    two_hours_later(tmp_path)
    assert len(read(DiskCache(tmp_path, 1, MODEL), range(30), shape)) < 30
    assert the_file(tmp_path).stat().st_size <= 10**6


@pytest.mark.slow
def test_reading_and_writing_take_no_memory_of_the_files_size(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    code = """
import resource, sys
import numpy as np
from spacy_elmo.layers.disk_cache import DiskCache

def peak():
    value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return value / 1e6 if sys.platform == "darwin" else value * 1024 / 1e6

array, cache = np.ones((3, 100, 256), np.float32), DiskCache(sys.argv[1], 1000, b"m" * 16)
cache.write({b"0" * 16: array})
before = peak()
names = [i.to_bytes(16, "big") for i in range(300)]
for name in names:
    cache.write({name: array})
for name in names:
    assert cache.read({name: array.shape}, array.dtype)[name].all()
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert the_file(tmp_path).stat().st_size > 92_000_000
    assert float(done.stdout) < 8


# What goes wrong


def test_a_full_disk_ends_the_writing_with_one_warning(tmp_path: Path) -> None:
    shape = (3, 50, 64)
    cache = DiskCache(tmp_path, 10, MODEL)
    with files_of_at_most(500_000), told_once("no more vectors are written"):
        for i in range(40):
            cache.write(arrays([i], shape))
    kept = read(cache, range(40), shape)
    assert kept == set(range(len(kept)))
    assert len(kept) >= 8
    # Later there is room again.
    again = DiskCache(tmp_path, 10, MODEL)
    again.write(arrays(range(40), shape))
    assert read(again, range(40), shape) == set(range(40))


def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10, MODEL)
    with files_of_at_most(4_000), told_once("vectors are not kept in cache_dir"):
        for i in range(3):
            cache.write(arrays([i]))
            assert read(cache, [i]) == set()


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file" / "folder", tmp_path / "file", Path("a\0b")):
        cache = DiskCache(folder, 10, MODEL)
        with told_once("vectors are not kept in cache_dir = "):
            for i in range(3):
                cache.write(arrays([i]))
                assert read(cache, [i]) == set()


@pytest.mark.skipif(sys.platform == "win32", reason="there a home can be guessed for any name")
def test_a_home_of_nobody_is_told_once_and_not_before_it_is_needed() -> None:
    cache = DiskCache("~no-such-user/cache", 10, MODEL)
    with told_once("vectors are not kept in cache_dir = '~no-such-user/cache': "):
        for i in range(3):
            cache.write(arrays([i]))
            assert read(cache, [i]) == set()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_file_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    DiskCache(tmp_path, 10, MODEL).write(arrays(range(5)))
    the_file(tmp_path).chmod(0o400)
    cache = DiskCache(tmp_path, 10, MODEL)
    with told_once("no more vectors are written"):
        assert read(cache, range(9)) == set(range(5))
    cache.write(arrays(range(5, 9)))
    assert read(cache, range(9)) == set(range(5))


@pytest.mark.parametrize("what", ["noise", "header", "another program's", "cut", "one bit"])
def test_a_damaged_file_is_told_once_and_another_begun(tmp_path: Path, what: str) -> None:
    DiskCache(tmp_path, 10, MODEL).write(arrays(range(50), (3, 50, 64)))
    path = the_file(tmp_path)
    data = bytearray(path.read_bytes())
    if what == "noise":
        data = bytearray(random.Random(0).randbytes(50_000))
    elif what == "header":
        data[100:16384] = bytes(16284)
    elif what == "cut":
        del data[len(data) // 3 :]
    elif what == "one bit":
        data[data.index(array_of(7, (3, 50, 64)).tobytes()[4000:4100]) + 50] ^= 1
    path.write_bytes(data)
    if what == "another program's":
        path.unlink()
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE models (something TEXT)")
        db.close()
    cache = DiskCache(tmp_path, 10, MODEL)
    with told_once(r"elmo-layers-1\.sqlite"):
        for _ in range(3):
            found = read(cache, range(50), (3, 50, 64))
            cache.write(arrays(set(range(50)) - found, (3, 50, 64)))
    assert read(cache, range(50), (3, 50, 64)) == set(range(50))
    assert read(DiskCache(tmp_path, 10, MODEL), range(50), (3, 50, 64)) == set(range(50))
    assert the_file(tmp_path).name == "elmo-layers-2.sqlite"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_damage_anywhere_gives_no_wrong_vector_and_no_error(tmp_path_factory: Any, seed: int) -> None:
    folder, draw = tmp_path_factory.mktemp("damaged"), random.Random(seed)
    DiskCache(folder, 10, MODEL).write(arrays(range(30)))
    path = the_file(folder)
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 5, 200])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    if draw.random() < 0.2:
        del data[draw.randrange(len(data)) :]
    path.write_bytes(data)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cache = DiskCache(folder, 10, MODEL)
        for _ in range(4):
            missing = set(range(30)) - read(cache, range(30))
            cache.write(arrays(missing))
        assert read(cache, range(30)) == set(range(30))
    assert len(told) <= 1


# Kills, threads, processes


def _write_for_ever(folder: Path, ready: Any, start: int) -> None:
    cache = DiskCache(folder, 1000, MODEL)
    for batch in range(start, start + 100_000, 7):
        cache.write(arrays(range(batch, batch + 7)))
        if batch == start:
            ready.set()


@needs_fork
def test_killed_at_any_instant_the_file_is_whole(tmp_path: Path) -> None:
    context, draw = multiprocessing.get_context("fork"), random.Random(0)
    begun = 0
    for _ in range(12):
        ready = context.Event()
        process = context.Process(target=_write_for_ever, args=(tmp_path, ready, begun))
        process.start()
        assert ready.wait(60)
        time.sleep(draw.uniform(0.0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        # Transactions are there whole or not at all, from the first to the last.
        cache = DiskCache(tmp_path, 1000, MODEL)
        kept = read(cache, range(begun + 7_000))
        assert kept == set(range(len(kept)))
        assert len(kept) % 7 == 0
        assert len(kept) >= begun + 7
        begun = len(kept)
        cache.close()
    with sqlite3.connect(the_file(tmp_path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


KILLED_AT_A_CALL = """
import os, signal, sys
import numpy as np
from spacy_elmo.layers.disk_cache import DiskCache

cache = DiskCache(sys.argv[1], 1000, b"m" * 16)
cache.write({i.to_bytes(16, "big"): np.full((3, 50, 64), i, np.float32) for i in range(3)})
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == "between" else None

def work(db):
    for i in range(3, 40):
        name, data = i.to_bytes(16, "big"), bytes(38400)
        db.execute("INSERT INTO layers VALUES (?, ?, 0, ?)", (cache._model, name, data))
    db.execute("PRAGMA cache_spill = 1")
    os.kill(os.getpid(), signal.SIGKILL)

cache._db.execute("PRAGMA cache_size = 2")  # pages go to the file before the transaction ends
cache._transaction("BEGIN IMMEDIATE", work)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9")
@pytest.mark.parametrize("where", ["between", "within"])
def test_a_transaction_that_was_half_in_the_file_is_rolled_back(tmp_path: Path, where: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_AT_A_CALL, tmp_path, where], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    journal = Path(f"{the_file(tmp_path)}-journal").stat().st_size
    assert (journal > 0) == (where == "within")
    shapes = {name_of(i): (3, 50, 64) for i in range(40)}
    found = DiskCache(tmp_path, 1000, MODEL).read(shapes, FLOAT32)
    assert {name: array[0, 0, 0] for name, array in found.items()} == {name_of(i): float(i) for i in range(3)}


def _write_and_read(folder: Path, numbers: list[int]) -> None:
    warnings.simplefilter("error")
    cache = DiskCache(folder, 1000, MODEL)
    for i in numbers:
        cache.write(arrays([i]))
        assert read(cache, range(0, 200, 10)) >= ({i} if i % 10 == 0 else set())
    assert read(cache, numbers) == set(numbers)


@needs_fork
def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_write_and_read, args=(tmp_path, list(numbers)))
        for numbers in (range(120), range(80, 200))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert read(DiskCache(tmp_path, 1000, MODEL), range(200)) == set(range(200))


def test_threads_share_an_object(tmp_path: Path) -> None:
    cache, errors = DiskCache(tmp_path, 1000, MODEL), []

    def work(start: int) -> None:
        try:
            for i in range(start, 100, 8):
                cache.write(arrays([i]))
                assert read(cache, [i]) == {i}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert read(cache, range(100)) == set(range(100))


@needs_fork
def test_a_forked_process_has_a_file_of_its_own_open(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000, MODEL)
    cache.write(arrays(range(5)))
    assert cache._db is not None
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if cache._db is None:
                cache.write(arrays(range(5, 10)))
                status = 0 if read(cache, range(10)) == set(range(10)) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert read(cache, range(10)) == set(range(10))


def test_a_process_that_holds_the_file_ends_the_writing_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spacy_elmo.layers.disk_cache._PATIENCE", 0.1)
    cache = DiskCache(tmp_path, 1000, MODEL)
    cache.write(arrays(range(5)))
    holder = sqlite3.connect(the_file(tmp_path), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with told_once("database is locked"):
        cache.write(arrays([5]))
        cache.write(arrays([6]))
    assert read(cache, range(7)) == set(range(5))
    holder.close()


def test_ctrl_c_while_writing_leaves_the_file_whole(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000, MODEL)
    cache.write(arrays(range(3)))

    def interrupted(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM layers")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache._transaction("BEGIN IMMEDIATE", interrupted)
    assert read(cache, range(3)) == {0, 1, 2}
    cache.write(arrays([3]))
    assert read(cache, range(4)) == {0, 1, 2, 3}
