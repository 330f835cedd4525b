"""``elmo embed`` went on with another table of characters or another text, and did not with the same function."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy

from spacy_elmo import BiLM, ElmoError, load_bilm
from spacy_elmo.embedding import embed_file
from spacy_elmo.embedding.partial_file import PartialFile
from spacy_elmo.text_forms import doc_words, text_form_named
from tests.weights.many_langs_folder import write_model

OPTIONS: dict[str, Any] = {"pretokenized": True, "batch_words": 60}
Break = Callable[..., None]


@pytest.fixture
def broken_off(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Run ``embed_file`` and end it after its second step."""

    def run(*arguments: Any, **options: Any) -> None:
        commit = PartialFile.commit
        count = 0

        def commits(file: PartialFile, **step: Any) -> None:
            nonlocal count
            commit(file, **step)
            count += 1
            if count == 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PartialFile, "commit", commits)
            with pytest.raises(KeyboardInterrupt):
                embed_file(*arguments, **{**OPTIONS, **options})

    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("th cat\n" * 100, encoding="utf8")
    return path


def test_another_table_of_characters(broken_off: Break, text: Path, tmp_path: Path) -> None:
    output, model = tmp_path / "v.npz", tmp_path / "model"
    write_model(model)
    broken_off(text, output, model)
    table = model / "char.dic"
    rows = [line.split("\t") for line in table.read_text(encoding="utf8").split("\n") if line]
    (one, at), (other, other_at) = (row for row in rows if row[0] in ("t", "h"))
    rows = [[other, at] if row[0] == one else [one, other_at] if row[0] == other else row for row in rows]
    before = load_bilm(model)
    table.write_text("".join(f"{word}\t{row}\n" for word, row in rows), encoding="utf8", newline="\n")
    with pytest.raises(ElmoError, match=r"with other settings \(weights was"):
        embed_file(text, output, model, **OPTIONS)
    embed_file(text, output, model, resume=False, **OPTIONS)
    with np.load(output) as file:
        right = load_bilm(model).encode([["th", "cat"]])[0].numpy()
        assert np.abs(right - before.encode([["th", "cat"]])[0].numpy()).max() > 1e-3
        for number in (0, 99):
            np.testing.assert_allclose(file[str(number)], right, atol=1e-6)


def test_another_text_of_the_same_size_and_time(broken_off: Break, text: Path, bilm: BiLM, tmp_path: Path) -> None:
    output = tmp_path / "v.npz"
    broken_off(text, output, bilm)
    status, whole = text.stat(), text.read_bytes()
    # What has not been read yet may change: all of it is read as it is now.
    changed = whole[:-4] + b"dog\n"
    text.write_bytes(whole.replace(b"cat", b"dog", 1))
    os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ElmoError, match=r"begun with another text: its first 40 lines .*--no-resume"):
        embed_file(text, output, bilm, **OPTIONS)
    text.write_bytes(changed)
    os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert embed_file(text, output, bilm, **OPTIONS).resumed == 40
    embed_file(text, tmp_path / "whole.npz", bilm, **OPTIONS)
    assert output.read_bytes() == (tmp_path / "whole.npz").read_bytes()


REGISTERED = """
import sys
import spacy
from spacy_elmo import ElmoError
from spacy_elmo.embedding import embed_file
from spacy_elmo.embedding.partial_file import PartialFile
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.text_forms import text_form_named

folder, steps, runs = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
other_addresses = [object() for _ in range(steps * 10000)]

@spacy.registry.misc("upper.v1")
def make_upper():
    def upper(words):
        return [word.upper() for word in words]
    return upper

@spacy.registry.misc("title.v1")
def make_title():
    return lambda words: [word.title() for word in words]

def swapped(words):
    return [word.swapcase() for word in words]

def commit(file, *, before=PartialFile.commit, **step):
    before(file, **step)
    if file.records == steps * 20:
        raise KeyboardInterrupt

PartialFile.commit = commit
bilm = random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4], [2, 4]], char_dim=4)
forms = {"swapped": swapped, "closure": make_upper()}
for run in runs:
    name, output = run.split("=")
    text = forms.get(name) or text_form_named(name)
    try:
        done = embed_file(folder + "/text.txt", folder + output, bilm, pretokenized=True, batch_words=60, text=text)
        print(done.resumed)
    except (ElmoError, KeyboardInterrupt) as error:
        print(type(error).__name__, error)
"""


def in_a_process(folder: Path, steps: int, *runs: str) -> list[str]:
    command = [sys.executable, "-c", REGISTERED, str(folder), str(steps), *runs]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_same_function_in_another_process(text: Path, tmp_path: Path) -> None:
    broken_off = in_a_process(tmp_path, 2, "upper.v1=/a.npz", "swapped=/b.npz")
    assert [line.strip() for line in broken_off] == ["KeyboardInterrupt"] * 2
    title, upper, closure, swapped = in_a_process(
        tmp_path, 0, "title.v1=/a.npz", "upper.v1=/a.npz", "closure=/b.npz", "swapped=/b.npz"
    )
    assert "other settings (words.text.@misc was 'upper.v1', is 'title.v1')" in title
    assert "words.text was '__main__.swapped', is 'a function without `config`, to be known by (make_upper" in closure
    assert (upper, swapped) == ("40", "40")


def test_functions_that_nothing_tells_apart(broken_off: Break, text: Path, bilm: BiLM, tmp_path: Path) -> None:
    def made(what: str) -> Any:
        return lambda words: [what + word for word in words]

    output, function = tmp_path / "v.npz", made("a")
    broken_off(text, output, bilm, text=function)
    with pytest.raises(ElmoError, match=r"words\.text was 'a function without `config`.*, is 'a function without"):
        embed_file(text, output, bilm, text=made("b"), **OPTIONS)
    assert embed_file(text, output, bilm, text=function, **OPTIONS).resumed == 40
    function.config = {"@misc": {1, 2}}
    with pytest.raises(ElmoError, match="is no block of a config"):
        embed_file(text, output, bilm, text=function, **OPTIONS)


def test_a_function_that_changes_the_list_it_is_given(text: Path, bilm: BiLM, tmp_path: Path) -> None:
    def emptied(words: Any) -> list[str]:
        words.clear()
        return []

    def changed(words: Any) -> list[str]:
        words[0] = words[0].upper()
        return list(words)

    with pytest.raises(ElmoError, match="a list of 2 strings for as many, not 0 entries"):
        embed_file(text, tmp_path / "v.npz", bilm, text=emptied, **OPTIONS)
    with pytest.raises(ElmoError, match="a list of 2 strings"):
        doc_words(spacy.blank("en").make_doc("Ann swims"), emptied)
    embed_file(text, tmp_path / "v.npz", bilm, text=changed, **OPTIONS)
    with np.load(tmp_path / "v.npz") as file:
        assert file["0.tokens"].item() == b'["th", "cat"]'
        np.testing.assert_allclose(file["0"], bilm.encode([["TH", "cat"]])[0].numpy(), atol=1e-5)


def test_a_form_by_its_name_says_how_it_is_made() -> None:
    spacy.registry.misc("embed_test.reversed.v1")(lambda: lambda words: [word[::-1] for word in words])
    form = text_form_named("embed_test.reversed.v1")
    assert form.config == {"@misc": "embed_test.reversed.v1"}  # type: ignore[union-attr]
    assert form(["Ann"]) == ["nnA"]  # type: ignore[operator]
