"""The config of a pretraining run: read, checked, every default filled in.

The file is a spaCy ``.cfg``: sections, ``${section.key}`` references, blocks of registered functions (``@misc``,
``@readers``, ``@loggers``). ``configs/pretrain.cfg`` is the commented example.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from confection import ConfigValidationError
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from spacy import Language, registry
from spacy.tokens import Doc
from thinc.api import Config, Optimizer

from ..bilm.config import BiLMConfig
from ..errors import ElmoError, PretrainingError
from .objectives import TIE_NEEDS_WORDS
from .schedules import SCHEDULES

Reader = Callable[[Language], Iterator[Doc]]

# What must stay as it was when a run is resumed: a change here would not continue the run but start another one.
# Registered blocks are listed with the keys that shape stored tensors; their other arguments may change.
FIXED_KEYS = (
    "nlp",
    "corpora",
    "vocabulary",
    "model",
    "initialize.weights",
    "objective.@misc",
    "objective.cutoffs",
    "objective.div_value",
    "objective.head_bias",
    "objective.loss",
    "objective.tie_weights",
    "objective.unigram_bias",
    "optimizer.@misc",
    "optimizer.name",
    "optimizer.settings.amsgrad",
    "optimizer.settings.centered",
    "optimizer.settings.momentum",
    "system.seed",
    "training.rows",
    "training.unroll_steps",
    "training.reset",
    "training.holdout",
    "training.eval_tokens",
)

# Arguments of spacy-elmo.RawText.v1 that can stand in [corpora.train] and [corpora.dev] for a text of [paths].
RAW_TEXT_OPTIONS = ("limit_words", "format", "line", "pretokenized", "field", "errors", "long_lines")


# Of a biLM's sizes, what [model] may hold only where they are those of given weights.
_TABLE_FIELDS = ("n_characters", "word_dim")


class _Section(BaseModel):
    # Strict, so that "20" or 2.5 for a whole number is refused and not bent into one.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class PathsSettings(_Section):
    """[paths]. ``raw`` and ``dev``, once set, take the place of the readers in [corpora]."""

    # Free for the user's own ${paths.…} variables.
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    raw: str | None = None
    dev: str | None = None
    cache: str = "corpus"


class SystemSettings(_Section):
    """[system]. gpu_id: -1 is the CPU. n_process: processes that encode text; 0: one a core."""

    seed: int = Field(0, ge=0)
    gpu_id: int = Field(-1, ge=-1)
    n_process: int = Field(0, ge=0)


class InitializeSettings(_Section):
    """[initialize]. weights: of any format that ``load_bilm`` takes; null: drawn anew. softmax: "auto" takes the rows
    of the words that the weights' own output layer knows, if they have one; "new" leaves it aside.
    """

    weights: str | None = None
    softmax: Literal["auto", "new"] = "auto"


class NlpSettings(_Section):
    """[nlp]. What cuts the text into words: the tokenizer of ``spacy.blank(lang)``, the one of a block of
    ``@tokenizers``, or that of a pipeline (a path or a package). Plain data: `texts.pipeline` makes it.
    """

    lang: str = "en"
    tokenizer: dict[str, Any] | None = None
    pipeline: str | None = None


class CorporaSettings(_Section):
    """[corpora]. Readers of documents; without ``dev``, part of ``train`` is held out."""

    train: Callable[..., Any]
    dev: Callable[..., Any] | None = None


class VocabularySettings(_Section):
    """[vocabulary]. The words that the softmax predicts; the character CNN reads any word."""

    max_words: int = Field(50_000, ge=4)
    min_count: int = Field(1, ge=1)


def _schedule(value: Any) -> str | Iterator[float]:
    if value in SCHEDULES if isinstance(value, str) else isinstance(value, Iterator):
        return value
    raise ValueError(f"must be {', '.join(SCHEDULES)} or a registered schedule (@schedules)")


class TrainingSettings(_Section):
    """[training]. Tokens of one step and direction: rows × accumulate × unroll_steps."""

    rows: int = Field(32, ge=1)
    accumulate: int = Field(1, ge=1)
    unroll_steps: int = Field(20, ge=1)
    max_steps: int = Field(1000, ge=1)
    schedule: Annotated[Any, PlainValidator(_schedule)] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    learn_rate_end: float = Field(0.1, ge=0.0, le=1.0)
    plateau_factor: float = Field(0.5, gt=0.0, lt=1.0)
    plateau_patience: int = Field(2, ge=1)
    reset: Literal["sentence", "document"] | None = "sentence"
    start_state: Literal["zero", "warm"] = "zero"
    dropout: float = Field(0.1, ge=0.0, lt=1.0)
    recurrent_dropout: float = Field(0.0, ge=0.0, lt=1.0)
    clip_norm: float = Field(10.0, gt=0.0)
    ema: float = Field(0.0, ge=0.0, lt=1.0)
    non_finite: Literal["stop", "skip", "halve"] = "stop"
    non_finite_limit: int = Field(10, ge=1)
    holdout: int = Field(50, ge=2)
    eval_frequency: int = Field(500, ge=1)
    eval_tokens: int = Field(10_000, ge=1)
    patience: int = Field(0, ge=0)
    checkpoint_frequency: int = Field(100, ge=1)
    keep: int = Field(2, ge=1)
    threads: int = Field(0, ge=0, le=4096)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    onednn: bool = False

    @model_validator(mode="after")
    def _registered_schedule_alone(self) -> TrainingSettings:
        if self.warmup_steps and not isinstance(self.schedule, str):
            raise ValueError("warmup_steps is of no use to a registered schedule: set it to 0")
        return self

    @model_validator(mode="after")
    def _warm_only_where_text_came_before(self) -> TrainingSettings:
        if self.start_state == "warm" and self.reset == "sentence":
            raise ValueError(
                'start_state = "warm" is for models that have read sentences after others: set reset = "document" or '
                'null, or start_state = "zero"'
            )
        return self

    @property
    def step_rows(self) -> int:
        """Rows of text that a step reads."""
        return self.rows * self.accumulate


class Settings(_Section):
    """A whole config, its registered functions built."""

    paths: PathsSettings = PathsSettings()
    system: SystemSettings = SystemSettings()
    initialize: InitializeSettings = InitializeSettings()
    nlp: NlpSettings = NlpSettings()
    corpora: CorporaSettings
    vocabulary: VocabularySettings = VocabularySettings()
    model: dict[str, Any]
    objective: Callable[..., Any]
    optimizer: Callable[..., Any]
    training: TrainingSettings = TrainingSettings()
    logger: Callable[..., Any]

    def bilm_config(self, n_words: int) -> BiLMConfig:
        """The biLM's shape. ``n_words``, the size of the vocabulary, is used with word-table input only.

        Raises ElmoError for a value out of range.
        """
        sizes = dict(self.model)
        if "filters" in sizes and sizes["filters"] is None:
            sizes["n_words"] = n_words
        return BiLMConfig(**sizes)


def load_config(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a config file and apply overrides such as ``{"training.rows": 64}``.

    A path of own text in ``paths.raw`` (and ``paths.dev``) replaces the readers in [corpora] here, so that the rest of
    the program, the saved config included, sees readers only.

    RETURNS: the interpolated config. Raises PretrainingError if it cannot be read.
    """
    path = Path(path)
    if not os.path.isfile(path):  # Path.is_file raises for names that are too long
        raise PretrainingError(f"no config file at {path}")
    overrides = dict(overrides or {})
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows' editors put a BOM there
        # A section of defaults only need not stand in the file, and its values can be overridden all the same.
        written = Config().from_str(text, interpolate=False)
        for name in {key.split(".")[0] for key in overrides} - set(written):
            if name in Settings.model_fields and not Settings.model_fields[name].is_required():
                text += f"\n[{name}]\n"
        config = Config().from_str(text, overrides=overrides, interpolate=False).interpolate()
    except (ConfigValidationError, configparser.Error, ValueError, OSError) as error:
        raise PretrainingError(f"cannot read the config {path}: {_message(error)}") from error
    # [paths] is open to variables of the file's own, so nothing else would notice a misspelt one.
    for key in overrides:
        section, _, name = key.partition(".")
        if section == "paths" and name not in PathsSettings.model_fields and name not in written.get("paths", {}):
            known = sorted({*PathsSettings.model_fields, *written.get("paths", {})})
            raise PretrainingError(f"no such setting: {key}. [paths] has {', '.join(known)}")
    paths = config.setdefault("paths", {})
    # An empty string is what a project variable without a value leaves on the command line.
    for section, keys in ((paths, ("raw", "dev")), (config.get("initialize", {}), ("weights",))):
        for key in keys:
            if section.get(key) == "":
                section[key] = None
    corpora = config.setdefault("corpora", {})
    if paths.get("raw"):
        corpora["train"] = _own_text(paths["raw"], corpora.get("train"))
        if not paths.get("dev"):
            if _limit(corpora.get("dev")):
                raise PretrainingError(
                    "corpora.dev.limit_words has no effect: dev is held out of paths.raw. Set paths.dev, or leave it 0"
                )
            corpora["dev"] = None
    if paths.get("dev"):
        corpora["dev"] = _own_text(paths["dev"], corpora.get("dev"))
    return config


def _own_text(path: Any, replaced: Any) -> dict[str, Any]:
    """The reader of own text, with what is said of its files, and the limit, in the block that it replaces."""
    said = replaced if isinstance(replaced, Mapping) else {}
    options = {key: said[key] for key in RAW_TEXT_OPTIONS if key in said}
    if not options.get("limit_words"):
        options.pop("limit_words", None)
    return {"@readers": "spacy-elmo.RawText.v1", "path": path, **options}


def _limit(reader: Any) -> Any:
    return reader.get("limit_words") if isinstance(reader, Mapping) else None


def resolve(config: Config) -> tuple[Settings, Config]:
    """Check a config and build its registered functions.

    RETURNS: the settings, and the config with every default written out: what is saved beside the weights.
    Raises PretrainingError that lists every unknown key, missing key and wrong type.
    """
    for name, section in config.items():
        if not isinstance(section, dict):
            raise PretrainingError(f"the config has a key '{name}' outside any section")
    try:
        tokenizer = (config.get("nlp") or {}).get("tokenizer")  # stays a block: other processes build it too
        _check_blocks(config)
        filled = registry.fill(_with_tokenizer(config.copy(), None))
        settings = Settings.model_validate(_with_tokenizer(registry.resolve(filled), tokenizer))
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {e['msg'].lower()}{_given(e)}" for e in error.errors()]
        raise PretrainingError("\n".join(["the config does not fit:", *lines])) from error
    except ElmoError:
        raise
    except (ConfigValidationError, ValueError) as error:  # a catalogue's unknown name is a ValueError too
        raise PretrainingError(f"the config does not fit: {_message(error)}") from error
    except Exception as error:  # of a registered function, which may be anybody's
        raise PretrainingError(f"the config does not fit: {type(error).__name__}: {error}") from error
    if isinstance(settings.optimizer, Optimizer):
        raise PretrainingError(
            "the config does not fit:\n  optimizer: thinc's optimizers (@optimizers) move no weights of torch: take "
            '@misc = "spacy-elmo.adamw.v1", "spacy-elmo.adagrad.v1" or "spacy-elmo.torch_optimizer.v1"'
        )
    _check_model_keys(settings.model, of_weights=settings.initialize.weights is not None)
    if settings.initialize.weights is None:  # weights bring sizes of their own
        try:
            settings.bilm_config(1)
        except ElmoError as error:
            raise PretrainingError(f"the config does not fit:\n  model: {error}") from error
    if filled["objective"].get("tie_weights") and settings.model.get("filters", True) is not None:
        raise PretrainingError(TIE_NEEDS_WORDS)
    schedule = filled.get("training", {}).get("schedule", TrainingSettings().schedule)  # a block stays a block
    defaults = settings.model_dump(
        include={"paths", "system", "initialize", "nlp", "vocabulary", "training"}, exclude={"training": {"schedule"}}
    )
    defaults["training"]["schedule"] = schedule
    for name, section in defaults.items():
        filled[name] = section
    for name, default in _model_fields().items():
        if default is not MISSING:
            filled["model"].setdefault(name, default)
    filled["corpora"].setdefault("dev", None)
    # One spelling whatever the source of a value (a tuple of the defaults, a list of the file).
    return settings, Config().from_str(filled.to_str())


def _check_blocks(section: Mapping[str, Any], path: tuple[str, ...] = ()) -> None:
    """Refuse what spaCy's registry stumbles over, and strings that registered functions would get for numbers:
    confection lets pass what Python's ``float`` and ``int`` can read (nan, inf, .5, "0.1", whole numbers of more than
    64 bits), and leaves it a string.
    """
    hints: dict[str, Any] = {}
    for key in section:
        name = section[key]
        if key.startswith("@") and not isinstance(name, str):
            raise PretrainingError(f"the config does not fit:\n  {_dotted(path, key)}: must be a name (found {name!r})")
        if key.startswith("@"):
            # Of unknown names spaCy says more; of classes and the like there may be no hints.
            with suppress(ValueError, TypeError, NameError, AttributeError):
                hints = get_type_hints(registry.get(key[1:], name))
    for key, value in section.items():
        kinds = {hints.get(key), *get_args(hints.get(key))}
        if isinstance(value, Mapping):
            _check_blocks(value, (*path, key))
        elif isinstance(value, str) and kinds & {int, float} and str not in kinds:
            raise PretrainingError(
                f"the config does not fit:\n  {_dotted(path, key)}: must be a number (found {value!r})"
            )


def _dotted(path: tuple[str, ...], key: str) -> str:
    return ".".join((*path, key))


def _with_tokenizer(config: Any, tokenizer: Any) -> Any:
    if "tokenizer" in config.get("nlp", {}):
        config["nlp"]["tokenizer"] = tokenizer
    return config


def nlp_settings(section: Mapping[str, Any]) -> NlpSettings:
    """Settings of a section [nlp] by itself. Raises PretrainingError if it does not fit."""
    try:
        return NlpSettings(**section)
    except ValidationError as error:
        raise PretrainingError(f"[nlp] does not fit: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fixed keys (``section.key``) whose values differ between the config of a checkpoint and a new one.

    Of rows and accumulate the product counts: the rows of a step can be read in other parts than before.
    """
    old_values, new_values = dict(_flatten(old)), dict(_flatten(new))
    for values in (old_values, new_values):
        if isinstance(values.get("training.rows"), int):
            values["training.rows"] *= values.get("training.accumulate", 1)
    return [
        key
        for key in sorted(old_values.keys() | new_values.keys())
        if any(key == fixed or key.startswith(fixed + ".") for fixed in FIXED_KEYS)
        # A switch that is off is as one that there was not yet when the run began.
        and (old_values.get(key) or None) != (new_values.get(key) or None)
    ]


def _flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _model_fields() -> dict[str, Any]:
    """Keys of [model] and their defaults. The size of a word table is the vocabulary's, and training learns no start
    state: neither is the user's to say. The token encoder of ELMoForManyLangs comes with weights only.
    """
    left_out = ("n_words", "state", *_TABLE_FIELDS)
    return {field.name: field.default for field in fields(BiLMConfig) if field.name not in left_out}


def model_section(config: BiLMConfig) -> dict[str, Any]:
    """[model] of a config, as the sizes of a biLM: those of weights that a run goes on from."""
    names = [*_model_fields(), *(name for name in _TABLE_FIELDS if getattr(config, name) is not None)]
    return {name: getattr(config, name) for name in names}


def _check_model_keys(model: Mapping[str, Any], *, of_weights: bool) -> None:
    known = _model_fields()
    unknown = sorted(set(model) - set(known) - set(_TABLE_FIELDS if of_weights else ()))
    if unknown:
        raise PretrainingError(f"the config does not fit:\n  model: unknown {', '.join(unknown)}")
    missing = [name for name, default in known.items() if default is MISSING and name not in model]
    if missing:
        raise PretrainingError(f"the config does not fit:\n  model: {', '.join(missing)} missing")


def _given(error: Any) -> str:
    value = error.get("input")
    return "" if error["type"] == "missing" or isinstance(value, (dict, BaseModel)) else f" (found {value!r})"


def _message(error: Exception) -> str:
    """A confection error's own text without the config that it prints after it."""
    if isinstance(error, ConfigValidationError):
        lines = [f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg', '')}" for e in error.errors or ()]
        return "\n  ".join([f"{error.title or ''} {error.desc or ''}".strip(), *lines])
    return str(error)
