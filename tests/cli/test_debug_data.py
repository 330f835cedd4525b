from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

Call = Callable[..., Result]
Arguments = Callable[..., list[str]]


def test_figures_for_people_and_programs(call: Call, arguments: Arguments) -> None:
    result = call(*arguments("debug-data"))
    assert result.exit_code == 0, result.output
    assert "words out of vocabulary" in result.output
    assert "words are little" in result.output
    figures = json.loads(call(*arguments("debug-data"), "--json").stdout)
    assert figures["train"]["documents"] + figures["dev"]["documents"] == 20
    assert figures["train"]["scripts"] == {"LATIN": 1.0}


def test_errors_are_messages(call: Call, arguments: Arguments) -> None:
    result = call(*arguments("debug-data", paths__raw="/nowhere/x.txt"))
    assert result.exit_code == 1
    assert "/nowhere/x.txt" in result.output
    assert "Traceback" not in result.output


def test_the_standard_input(arguments: Arguments, tmp_path: Path) -> None:
    text = "".join(f"Document {number} is short .\n\n" for number in range(40))
    command = arguments("debug-data", paths__raw="-", paths__cache=tmp_path / "cache")
    environment = {key: value for key, value in os.environ.items() if key != "SPACY_CONFIG_OVERRIDES"}
    done = subprocess.run(
        [sys.executable, "-m", "spacy", "elmo", *command, "--json"],
        input=text,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["train"]["documents"] + figures["dev"]["documents"] == 40
