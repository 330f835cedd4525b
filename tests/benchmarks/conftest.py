from __future__ import annotations

import sys
from pathlib import Path

# The benchmarks are run from the repository (``python -m benchmarks.encode``) and not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
