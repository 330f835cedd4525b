"""setup.cfg's entry points are the public list of everything registered: each works, and the docs say the same."""

from __future__ import annotations

import configparser
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def read_entry_points() -> list[tuple[str, str, str]]:
    """(group, name, module:attribute) of setup.cfg."""
    config = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    config.optionxform = str  # type: ignore[assignment,method-assign]
    config.read(ROOT / "setup.cfg", encoding="utf8")
    return [
        (group, *(part.strip() for part in line.split("=")))  # type: ignore[misc]
        for group, lines in config["options.entry_points"].items()
        for line in lines.strip().splitlines()
    ]


# Built-in weights are data, not registered functions: tests/weights/test_builtin.py looks at them.
ENTRY_POINTS = [entry for entry in read_entry_points() if entry[0] != "spacy_elmo_weights"]
# What lies in a catalogue of `spacy.registry`; the factory and the command line are looked up in their own ways below.
REGISTERED = [entry for entry in ENTRY_POINTS if entry[0] not in ("spacy_factories", "spacy_cli")]


def run_python(program: str, *arguments: str) -> str:
    """What a fresh process prints, which sees the package through its entry points alone."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def resolved() -> dict[str, str]:
    program = """
import json, sys
import spacy
assert not any(name.split(".")[0] == "spacy_elmo" for name in sys.modules)
found = {}
for group, name, _ in json.loads(sys.argv[1]):
    try:
        function = getattr(spacy.registry, group.removeprefix("spacy_")).get(name)
        found[name] = f"{function.__module__}:{function.__qualname__}"
    except Exception as error:
        found[name] = repr(error)
print(json.dumps(found))
"""
    return json.loads(run_python(program, json.dumps(REGISTERED)))


@pytest.mark.parametrize(("name", "target"), [entry[1:] for entry in REGISTERED])
def test_name_resolves_in_a_fresh_process(resolved: dict[str, str], name: str, target: str) -> None:
    assert resolved[name] == target


def test_factory_resolves_in_a_fresh_process() -> None:
    program = """
import sys
import spacy
assert "spacy_elmo" not in sys.modules
nlp = spacy.blank("en")
pipe = nlp.add_pipe("elmo")
print(nlp.pipe_names, type(pipe).__module__)
"""
    assert run_python(program).strip() == "['elmo'] spacy_elmo.pipeline.elmo"


def test_command_resolves_in_a_fresh_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spacy", "elmo", "--help"], capture_output=True, text=True, cwd=ROOT.parent
    )
    assert done.returncode == 0, done.stderr
    for command in ("corpus", "pretrain", "perplexity", "info", "embed"):
        assert re.search(rf"^\W*{command}\b", done.stdout, re.MULTILINE), command


def test_everything_registered_in_the_source_is_an_entry_point() -> None:
    registered = set()
    for path in (ROOT / "spacy_elmo").rglob("*.py"):
        registered |= set(
            re.findall(r"""registry\.\w+(?:\.register)?\(\s*["'](spacy-elmo\.[\w.]+)""", path.read_text("utf8"))
        )
    assert registered
    assert registered <= {name for _, name, _ in REGISTERED}


def documented() -> dict[tuple[str, str], list[str]]:
    """{(registry, name): arguments, each with its default} of the table in docs/registry.md."""
    rows = {}
    for line in (ROOT / "docs" / "registry.md").read_text(encoding="utf8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if len(cells) == 4 and re.fullmatch(r"`[\w.-]+`", cells[0]) and cells[1] != "---":
            rows[(cells[1].strip("`"), cells[0].strip("`"))] = re.findall(r"`(\w+(?:=[^`]*)?)`", cells[2])
    return rows


def test_docs_table_lists_every_name() -> None:
    assert set(documented()) == {(group.removeprefix("spacy_"), name) for group, name, _ in ENTRY_POINTS}


@pytest.mark.parametrize(("group", "name", "target"), REGISTERED, ids=[entry[1] for entry in REGISTERED])
def test_docs_table_lists_the_arguments(group: str, name: str, target: str) -> None:
    module, attribute = target.split(":")
    function = getattr(importlib.import_module(module), attribute)
    arguments = [
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in inspect.signature(function).parameters.values()
    ]
    assert documented()[(group.removeprefix("spacy_"), name)] == arguments
