"""Values of the config on the command line."""

from __future__ import annotations

from typing import Any

from spacy.cli._util import parse_config_overrides

from ..errors import ElmoError


def config_overrides(arguments: list[str]) -> dict[str, Any]:
    """Read ``--section.key value`` and ``--section.key=value``, as spaCy's own commands do.

    Raises ElmoError for an option without a section: a misspelt one of the command, or a key by itself.
    """
    for argument in arguments:
        if argument.startswith("--") and "." not in argument.partition("=")[0]:
            raise ElmoError(
                f"no such option: {argument}. A value of the config is set as --section.key value, "
                "such as --training.rows 64"
            )
    return parse_config_overrides(arguments)
