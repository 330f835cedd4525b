"""What an earlier run left in the output folder, and whether a task goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import PretrainingError
from .checkpoint import Checkpoint, copied_to_all, newest_checkpoint
from .config import changed_keys
from .output import CHECKPOINTS, LOSSES, losses_until
from .prepare import Corpora
from .start import Task


@dataclass(frozen=True, eq=False, kw_only=True)
class Earlier:
    """What there is to go on from: nothing, for a run that begins.

    checkpoint: on every rank. losses: the file's lines up to it, on the first rank.
    """

    checkpoint: Checkpoint | None = None
    losses: bytes = b""

    def check_text(self, task: Task, corpora: Corpora) -> None:
        """Raises PretrainingError if the text is not the one that the earlier run read."""
        if self.checkpoint is not None and self.checkpoint.record["corpora"] != corpora.hashes:
            raise PretrainingError(
                f"the text is not the one that the run in {task.output} read: restore it, or choose another folder"
            )


def earlier_run(task: Task) -> Earlier:
    """Read what the first rank finds in the output folder.

    Raises PretrainingError for a checkpoint that the task would not continue, or files that are damaged.
    """
    checkpoint, losses = None, b""
    if task.ranks.first:
        checkpoint = newest_checkpoint(task.output / CHECKPOINTS, task.say)
        if checkpoint is not None:
            _check_config(checkpoint, task)
        losses = losses_until(task.output / LOSSES, checkpoint.step if checkpoint is not None else 0)
    return Earlier(checkpoint=copied_to_all(checkpoint, task.ranks), losses=losses)


def _check_config(checkpoint: Checkpoint, task: Task) -> None:
    before, config = checkpoint.record["config"], task.config
    changed = changed_keys(before, config)
    if changed and all(key.startswith("corpora.") for key in changed):
        raise PretrainingError(
            f"the run in {task.output} was begun on {_text_of(before)} and cannot go on with {_text_of(config)}: "
            "give it the text that it had (--paths.raw), or choose another folder for a new run"
        )
    if changed == ["training.eval_tokens"]:
        raise PretrainingError(
            f"the run in {task.output} cannot go on with another training.eval_tokens: its best figure is of other "
            f"sentences. Set it to {before['training']['eval_tokens']} as before (training.eval_frequency makes "
            "evaluations fewer), or choose another folder for a new run"
        )
    if changed:
        raise PretrainingError(
            f"the run in {task.output} cannot go on with another {', '.join(changed)}: "
            "give it the values of its checkpoint, or choose another folder for a new run"
        )


def _text_of(config: Mapping[str, Any]) -> str:
    """What a config's readers read, in words."""
    found = []
    for name, reader in config["corpora"].items():
        if reader:
            said = [f"{key} {value}" for key, value in reader.items() if key != "@readers" and value]
            found.append(f"{name} text {reader['@readers']} ({', '.join(said)})")
    return " and ".join(found)
