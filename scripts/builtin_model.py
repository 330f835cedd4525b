"""Make a folder of built-in weights of what `elmo pretrain` saved.

python scripts/builtin_model.py training/bilm/model-best --version 1.0 --sources wikipedia.txt.xz books.txt.xz

Writes `__init__.py`, `config.json`, `model.safetensors` (float16, no softmax), `meta.json` and `pretrain.cfg` into
`spacy_elmo/models/<language>`. `README.md`, the model card, and `LICENSE` are written by hand and stay as they are.
setup.cfg has to name the folder too: see `spacy_elmo_weights` there.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from spacy_elmo.errors import ElmoError
from spacy_elmo.weights import recognised, save_native
from spacy_elmo.weights.card import META_NAME, read_card
from spacy_elmo.weights.files import json_bytes, made_folder, write_files
from spacy_elmo.weights.folders import refuse_beside_output_layer

MODELS = Path(__file__).resolve().parents[1] / "spacy_elmo" / "models"
CONFIG_NAME = "pretrain.cfg"
BY_HAND = ("README.md", "LICENSE")
# Where a path begins that is of one machine: not behind what can end the beginning of a relative one, or of an address.
ABSOLUTE = re.compile(r"(?:(?<![\w.*?\]})/:~\\-])(?:/|~\w*/|[A-Za-z]:[/\\]+|\\{2,})|\bfile:/)[\w.*~/][^\s\"',;|`]*")


def absolute_paths(text: str) -> list[str]:
    """The absolute paths that a text names."""
    return ABSOLUTE.findall(text)


def texts_of(block: Any) -> Iterator[str]:
    """What a reader's block of a config reads: the paths in it, or the name of a reader that has none."""
    if not isinstance(block, dict):
        return
    if "@readers" in block and isinstance(block.get("path"), str):
        yield block["path"]
        return
    inside = [text for value in block.values() for text in texts_of(value)]
    yield from inside or ([block["@readers"]] if "@readers" in block else [])


def make(source: Path, models: Path, *, name: str | None, version: str, license: str, sources: Sequence[str]) -> Path:
    """Write the folder.

    source: of `elmo pretrain`. models: the folder that gets it, under the code of the language. name: of the model,
        None: its language. sources: paths of texts, or their last parts, that it may be trained on.
    RETURNS: the folder.
    RAISES (ElmoError): if the source is no pretrained model of ours, was trained on other texts, or its files name an
        absolute path; then nothing is written.
    """
    with recognised(source) as found:
        card = read_card(found.folder)
        missing = [one for one in (META_NAME, CONFIG_NAME) if one not in card]
        if missing:
            raise ElmoError(f"{source}: has no {' and no '.join(missing)} of `elmo pretrain`")
        bilm = found.load()
    meta = json.loads(card[META_NAME])
    lang: str = meta["lang"]
    texts = list(texts_of(meta["corpora"]["readers"]["train"]))
    if meta.get("initialize"):  # it has learned from what those weights have learned from
        texts.append(meta["initialize"]["weights"]["path"])
    others = [text for text in texts if not {text, PurePath(text).name} & set(sources)]
    if others or not texts:
        raise ElmoError(f"{source}: was trained on {', '.join(others) or 'nothing that is named'}: not in --sources")
    for file, content in card.items():
        if file not in BY_HAND and (paths := absolute_paths(content.decode("utf8"))):
            raise ElmoError(
                f"{source}: {file} names paths of one machine ({', '.join(dict.fromkeys(paths))}): start the training "
                "where its text lies, so that its config has relative ones"
            )
    folder = made_folder(models / lang)
    refuse_beside_output_layer(folder)
    save_native(bilm, folder, dtype="float16")
    about = {"name": name or lang, "version": version, "license": license}
    init = f'"""Built-in weights of the language "{lang}": data alone, see README.md."""\n'
    contents = {META_NAME: json_bytes({**about, **meta}), CONFIG_NAME: card[CONFIG_NAME], "__init__.py": init.encode()}
    write_files({folder / one: content for one, content in contents.items()})
    print(f"trained on: {', '.join(texts)}")
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, write, and say what is still to be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder that `elmo pretrain` saved, such as model-best")
    parser.add_argument("--models", type=Path, default=MODELS, help="(default: the package's)")
    parser.add_argument("--name", help="of the model (default: its language)")
    parser.add_argument("--version", required=True, help="of the model, such as 1.0")
    parser.add_argument("--license", default="MIT", help="of the weights (default: %(default)s)")
    parser.add_argument("--sources", nargs="+", required=True, help="texts it may be trained on: paths or file names")
    args = parser.parse_args(argv)
    try:
        folder = make(
            args.source,
            args.models,
            name=args.name,
            version=args.version,
            license=args.license,
            sources=args.sources,
        )
    except ElmoError as error:
        parser.error(str(error))
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB")
    if missing := [name for name in BY_HAND if not (folder / name).exists()]:
        print(f"still to be written: {', '.join(missing)}")


if __name__ == "__main__":
    main()
