from __future__ import annotations

import os
import sys
from pathlib import Path

# The benchmarks are run from the repository (``python -m benchmarks.encode``) and not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Before torch and numpy are imported, here and in the processes that tests start: two workers, one thread each.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", default=False, help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not config.getoption("--slow"):
        skips["slow"] = pytest.mark.skip(reason="takes long: run with --slow")
    if not torch.cuda.is_available():
        skips["gpu"] = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        for name, mark in skips.items():
            if item.get_closest_marker(name) is not None:
                item.add_marker(mark)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared(root: Path) -> Path:
    """The folder of data and public fixtures that may lie beside the repository."""
    folder = root.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the folder 'shared' beside the repository")
    return folder
