"""The optional compiled part: everything else stands in setup.cfg.

``SPACY_ELMO_COMPILED=0`` in the environment leaves it out, for a pure-Python wheel.
"""

from __future__ import annotations

import os
import sys
import sysconfig

from setuptools import Extension, setup

# One binary serves Python 3.10 and all later ones, but for free-threaded builds, which have no stable ABI.
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")

CELL = Extension(
    "spacy_elmo.bilm._cell",
    sources=["spacy_elmo/bilm/_cell.c"],
    # Vector code without a run-time library. Not -ffast-math: NaN has to come through, for pretraining to see it.
    extra_compile_args=["-O3", "-g0", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")] if ABI3 else [],
    py_limited_api=ABI3,
    # No compiler, or one that fails: a warning, and the package works without.
    optional=True,
)

# Written for GCC and Clang: on Windows it is left out.
wanted = os.environ.get("SPACY_ELMO_COMPILED", "1") != "0" and sys.platform != "win32"
setup(
    ext_modules=[CELL] if wanted else [],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if ABI3 else {},
)
