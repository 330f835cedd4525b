from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.embedding.partial_file import PartialFile

place = st.integers(0, 60)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), place, st.binary(max_size=30)),
        st.tuples(st.just("append"), st.just(0), st.binary(max_size=30)),
        st.tuples(st.just("truncate"), place, st.just(b"")),
        st.tuples(st.just("commit"), st.just(0), st.just(b"")),
        st.tuples(st.just("reopen"), st.just(0), st.just(b"")),
    ),
    max_size=25,
)


def opened(folder: Path) -> PartialFile:
    return PartialFile(folder / "out", {"a": [1]}, resume=True, overwrite=False)


@settings(deadline=None, max_examples=60)
@given(operations)
def test_it_is_a_file_whose_steps_are_done_or_not(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("partial")
    file = opened(folder)
    now = before = bytearray()
    steps = 0
    for name, at, data in operations:
        if name in ("write", "append"):
            at = file.seek(at) if name == "write" else file.seek(0, os.SEEK_END)
            assert file.write(data) == len(data)
            if data:
                now = now.ljust(at, b"\0")
                now[at : at + len(data)] = data
            assert file.tell() == at + len(data)
        elif name == "truncate":
            # As HDF5 does it: down to a size, never up.
            size = min(at, len(now))
            file.truncate(size)
            now = now[:size]
        elif name == "commit":
            steps += 1
            file.commit(records=1, words=2, note=steps)
            before = bytearray(now)
        else:
            file.release()  # all that a killed process leaves
            file = opened(folder)
            now = bytearray(before)
        assert (file.records, file.words, file.notes) == (
            (steps, 2 * steps, list(range(1, steps + 1))) if name == "reopen" else (steps, 2 * steps, file.notes)
        )
        file.seek(0)
        assert file.read() == bytes(now)
    file.commit(records=1, words=0)
    file.publish()
    assert (folder / "out").read_bytes() == bytes(now)
    assert [path.name for path in folder.iterdir()] == ["out"]
