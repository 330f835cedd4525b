"""Print the scores of two `spacy evaluate --output` files side by side.

python scripts/compare.py metrics/ner.json metrics/ner_elmo.json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import srsly
from wasabi import table

# spaCy's scores of 0..1; the rest of the file (speed, per-type tables) is not compared.
SHARES = (
    "ents_p",
    "ents_r",
    "ents_f",
    "tag_acc",
    "pos_acc",
    "morph_acc",
    "dep_uas",
    "dep_las",
    "sents_f",
    "cats_score",
)


def compare(
    baseline: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, float, float, float, float | None]]:
    """The scores that both have, in percent.

    baseline, other (Mapping): what `spacy evaluate` writes.
    RETURNS (list): (name, baseline, other, difference in points, relative error reduction in percent), the last None
        where the baseline makes no error.
    RAISES (ValueError): if the two have no score in common.
    """
    rows = []
    for name in SHARES:
        # null where the pipeline has the component but the data no gold
        a, b = baseline.get(name), other.get(name)
        if a is None or b is None:
            continue
        reduction = None if a == 1 else 100 * (b - a) / (1 - a)
        rows.append((name, 100 * a, 100 * b, 100 * (b - a), reduction))
    if not rows:
        raise ValueError("the two files have no score in common: are they outputs of `spacy evaluate` on one task?")
    return rows


def format_table(rows: list[tuple[str, float, float, float, float | None]], names: tuple[str, str]) -> str:
    """A table to print: one row a score, percent with two digits."""
    cells = [
        (name, f"{a:.2f}", f"{b:.2f}", f"{difference:+.2f}", "-" if reduction is None else f"{reduction:+.1f}%")
        for name, a, b, difference, reduction in rows
    ]
    header = ("score", *names, "difference", "error reduction")
    return table(cells, header=header, divider=True, aligns=("l", "r", "r", "r", "r"))


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description="Compare the scores of two `spacy evaluate --output` files.")
    parser.add_argument("baseline", type=Path, help="metrics of the pipeline to compare with")
    parser.add_argument("other", type=Path, help="metrics of the pipeline to judge")
    arguments = parser.parse_args()
    rows = compare(srsly.read_json(arguments.baseline), srsly.read_json(arguments.other))
    print(format_table(rows, (arguments.baseline.stem, arguments.other.stem)))


if __name__ == "__main__":
    main()
