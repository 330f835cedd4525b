"""``python -m spacy elmo …``. spaCy loads this for each of its commands, so nothing heavy is imported here."""

from __future__ import annotations

import typer
from spacy.cli._util import app

from .convert import convert
from .curve import curve
from .debug_data import debug_data
from .embed import embed
from .info import info
from .init_config import init_config
from .mix import mix
from .neighbors import neighbors
from .perplexity import perplexity
from .pretrain import corpus, pretrain

elmo_cli = typer.Typer(
    name="elmo",
    help="Pretrain biLMs (ELMo), measure, inspect, convert and use them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
# Any further option is an override of the config, --section.key value.
_WITH_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
elmo_cli.command("pretrain", context_settings=_WITH_OVERRIDES)(pretrain)
elmo_cli.command("corpus", context_settings=_WITH_OVERRIDES)(corpus)
elmo_cli.command("debug-data", context_settings=_WITH_OVERRIDES)(debug_data)
elmo_cli.command("perplexity")(perplexity)
elmo_cli.command("info")(info)
elmo_cli.command("convert")(convert)
elmo_cli.command("curve")(curve)
elmo_cli.command("embed")(embed)
elmo_cli.command("neighbors")(neighbors)
elmo_cli.command("init-config")(init_config)
elmo_cli.command("mix")(mix)
app.add_typer(elmo_cli)

__all__ = ["elmo_cli"]
