"""A path of raw text that is too long for the file system said "[Errno 36]", one of an unknown user's a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import spacy
from typer.testing import CliRunner

from spacy_elmo.cli import elmo_cli
from spacy_elmo.errors import CorpusError, PretrainingError
from spacy_elmo.pretraining.config import load_config
from spacy_elmo.pretraining.hugging_face import hugging_face
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.vectors import WordVectors

LONG = "x" * 300
NOT_LOOKED_AT = "cannot be looked at: .* too long: check the path"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (LONG, NOT_LOOKED_AT),
        (f"folder/{LONG}.txt", NOT_LOOKED_AT),
        ("x/" * 3000, NOT_LOOKED_AT),
        (f"{LONG}*.txt", "matches no file"),
        (f"*/{LONG}", "matches no file"),
        ("~nobody-of-this-name/a.txt", "There is no file or folder '~nobody-of-this-name"),
        ("a\0b", "There is no file or folder"),
        ("a\0b/*.txt", "There is no file or folder"),
        ("itself", "There is no file or folder 'itself'"),
        ("folder", "folder 'folder' holds no raw text"),
    ],
    ids=[
        "name",
        "name in a folder",
        "path",
        "pattern",
        "name in a pattern",
        "user",
        "NUL",
        "NUL in a pattern",
        "link",
        "folder of links",
    ],
)
def test_a_reader_says_what_is_wrong(path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for link, target in (("itself", "itself"), ("folder/itself.txt", "itself.txt"), ("folder/nowhere.txt", "none")):
        try:
            (tmp_path / link).symlink_to(target)
        except OSError:
            pytest.skip("no links here")
    reader = raw_text(path)
    for look in (reader.files, reader.fingerprint, lambda: reader(spacy.blank("en"))):
        with pytest.raises(CorpusError, match=says) as error:
            look()
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 700


def test_a_text_in_the_place_of_its_path_is_not_said_back() -> None:
    for text, says in (("One line of a text.\n", "^'One line"), ("One question?\n", "^The pattern 'One question")):
        with pytest.raises(CorpusError, match=says) as error:
            raw_text(text * 10_000).files()
        assert len(str(error.value)) < 700


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may look everywhere")
def test_a_folder_that_may_not_be_entered(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("some text")
    try:
        # 0o400: names may be read, no more.
        for mode, path, name in ((0o000, folder / "a.txt", "a.txt"), (0o400, folder, "a.txt"), (0o000, folder, folder)):
            folder.chmod(mode)
            with pytest.raises(CorpusError, match=rf"{name}' cannot be looked at: Permission denied"):
                raw_text(path).files()
    finally:
        folder.chmod(0o700)


def test_others_that_take_paths() -> None:
    with pytest.raises(CorpusError, match=NOT_LOOKED_AT):
        hugging_face(LONG).fingerprint()
    with pytest.raises(PretrainingError, match=r"no config file at x+\.cfg"):
        load_config(f"{LONG}.cfg")
    with pytest.raises(
        PretrainingError, match=r"objective\.vectors: xxx.* is neither a folder nor an installed package"
    ):
        WordVectors(LONG)


def test_the_command_says_it_in_one_message(root: Path) -> None:
    config = str(root / "configs" / "pretrain-tiny.cfg")
    for arguments in ([config, "--paths.raw", LONG], [f"{LONG}.cfg"]):
        result = CliRunner().invoke(elmo_cli, ["corpus", *arguments])
        assert result.exit_code == 1
        assert "[Errno" not in result.output
        assert "Traceback" not in result.output
        assert "check the path" in " ".join(result.output.split()) or "no config file" in result.output
