"""What may import what: the arrows between the package's rooms, and nothing optional at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Plain data goes one way: from the biLM, which knows nothing of the rest, to the command line, which may know all.
MAY_IMPORT = {
    "bilm": set(),
    "weights": {"bilm"},
    "models": set(),
    "layers": {"weights", "bilm"},
    "pretraining": {"weights", "bilm"},
    "pipeline": {"layers", "weights", "bilm"},
    "embedding": {"weights", "bilm"},
    "cli": {"embedding", "pipeline", "pretraining", "layers", "weights", "bilm"},
}
# The biLM and its files are of use without spaCy.
WITHOUT_SPACY = ("bilm", "weights")
OPTIONAL = ("datasets", "h5py", "matplotlib", "pyarrow", "zstandard")
PACKAGE = Path(__file__).resolve().parents[1] / "spacy_elmo"
ROOM_FILES = sorted(path for room in MAY_IMPORT for path in (PACKAGE / room).rglob("*.py"))


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import in a file, those inside functions too."""
    package = [PACKAGE.name, *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            # `from spacy_elmo import pipeline` imports a module too
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def test_every_room_is_listed() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("path", ROOM_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    wrong = []
    for line, module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == PACKAGE.name and len(parts) > 1:
            other = parts[1]
            if other in MAY_IMPORT and other != room and other not in MAY_IMPORT[room]:
                wrong.append(f"line {line}: {module}")
            # Files beside the rooms are open to all; these know spaCy.
            if other in ("blank_pipeline", "text_forms") and room in WITHOUT_SPACY:
                wrong.append(f"line {line}: {module}")
        elif room in WITHOUT_SPACY and parts[0] in ("spacy", "thinc"):
            wrong.append(f"line {line}: {module}")
    assert not wrong


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("errors", set()), ("blank_pipeline", {"errors"}), ("figures", {"errors"}), ("text_forms", {"errors"})],
)
def test_files_beside_the_rooms_import_no_room(name: str, allowed: set[str]) -> None:
    modules = [module.split(".") for _, module in imported_modules(PACKAGE / f"{name}.py")]
    assert {parts[1] for parts in modules if parts[0] == PACKAGE.name} == allowed


def loaded_after(statement: str) -> set[str]:
    """Names in `sys.modules` of a fresh process after a statement."""
    program = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bilm_and_weights_load_without_spacy() -> None:
    loaded = loaded_after("import spacy_elmo.bilm.model, spacy_elmo.weights.native")
    assert "torch" in loaded
    assert not loaded & {"spacy", "thinc"}


def test_the_component_loads_nothing_optional() -> None:
    # What `spacy.blank` imports through our factory's entry point, for users who never pretrain.
    loaded = loaded_after("import spacy_elmo.pipeline.elmo")
    assert not loaded & {"spacy_elmo.pretraining", "spacy_elmo.cli"}


@pytest.mark.parametrize(
    "module", ["spacy_elmo.pipeline.elmo", "spacy_elmo.pretraining.loop", "spacy_elmo.embedding", "spacy_elmo.cli"]
)
def test_everything_imports_where_optional_packages_are_missing(module: str) -> None:
    # None in sys.modules is an ImportError (thinc imports h5py where it can, so looking for it there proves nothing).
    loaded_after(f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r})); import {module}")
