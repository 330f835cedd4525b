"""One step of pretraining: from a window of text to the next weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..bilm.buffers import Buffers
from ..bilm.model import BiLM, BiLMState
from ..bilm.output_layer import OutputLayer
from ..errors import PretrainingError
from .averaging import Averages
from .checkpoint import Checkpoint
from .distributed import ALONE, Ranks
from .precision import chosen_precision
from .schedules import LearnRate, Progress
from .streams import Window
from .undo import Undo
from .vocabulary import N_SPECIAL
from .word_types import Types

if TYPE_CHECKING:
    from .config import TrainingSettings

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
Fault = Literal["loss", "gradient"]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step gives.

    forward, backward (float): the directions' mean losses in nats, before the update.
    state (BiLMState): where the LSTMs stand after the window; where they stood before it, if it was passed over.
    skipped (str | None): why there was no update: "loss" or "gradient", which was not finite, or "scale": a gradient
        too large for float16, whose loss scale was lowered.
    halved (int): how often the learning rate was halved, and the window read again, before the update.
    learn_rate (float | None): of the update (the optimizer's first group), None if there was none.
    """

    forward: float
    backward: float
    state: BiLMState
    skipped: Literal["loss", "gradient", "scale"] | None = None
    halved: int = 0
    learn_rate: float | None = None

    @property
    def loss(self) -> float:
        """The mean of both directions."""
        return 0.5 * (self.forward + self.backward)

    def entry(self) -> dict[str, Any]:
        """A line of the file of losses. What is not finite is None there: JSON has no word for it."""
        losses = {"loss": self.loss, "forward": self.forward, "backward": self.backward}
        entry: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in losses.items()}
        if self.learn_rate is not None:
            entry["learn_rate"] = self.learn_rate
        if self.skipped:
            entry["skipped"] = self.skipped
        if self.halved:
            entry["halved"] = self.halved
        return entry

    @property
    def note(self) -> str | None:
        """What the user should hear about the step, if anything."""
        if self.skipped == "scale":
            return "a gradient too large for float16: no update, and a lower loss scale"
        if self.skipped:
            return f"the {self.skipped} was not finite: no update"
        if self.halved:
            return f"not finite: the update before was taken back, the learning rate halved {self.halved} times"
        return None


class TrainingStep:
    """bilm-tf's step: both directions read the same window, the gradient of the mean of their losses, times
    ``unroll_steps``, is clipped by one norm over everything, and the optimizer moves all weights.

    With ``accumulate`` the window is read in so many parts, each of ``rows`` rows, and the gradient is the mean of
    theirs: that of the whole window, in the memory of a part.

    bilm, softmax, optimizer: on one device; the optimizer's learning rates are the peaks of the schedule.
    types: the corpus's word types, which a window's ``type_rows`` number.
    settings: [training] of the config.
    ranks: those who share the step. Windows and states are of this rank's rows, losses and gradients of all.

    progress (Progress): what the run has gone through.
    """

    def __init__(
        self,
        *,
        bilm: BiLM,
        softmax: OutputLayer,
        optimizer: torch.optim.Optimizer,
        types: Sequence[str],
        settings: TrainingSettings,
        ranks: Ranks = ALONE,
    ) -> None:
        self.bilm = bilm
        self.softmax = softmax
        self.optimizer = optimizer
        self.settings = settings
        self._ranks = ranks
        self.progress = Progress()
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._learn_rate = LearnRate(settings)
        self._parameters = [*bilm.parameters(), *softmax.parameters()]
        self._type_ids = _type_ids(bilm, types)
        self._buffers = Buffers()
        self._averages = Averages(bilm, softmax, settings.ema) if settings.ema else None
        averages = self._averages.weights if self._averages else []
        halves = settings.non_finite == "halve"
        self._undo = Undo([*self._parameters, *averages], optimizer) if halves else None
        self.precision = chosen_precision(settings.precision, bilm.device)
        self._scaler = torch.amp.GradScaler(bilm.device.type) if self.precision == "float16" else None

    def __call__(self, window: Window, state: BiLMState, step: int) -> StepResult:
        """Do the update number ``step``, counted from 0.

        If the loss or the gradient is not finite nothing is changed, and ``non_finite`` of the settings says what comes
        then: "stop"; "skip", which passes over the window; "halve", which takes back the update before, halves the
        learning rate for the rest of the run and reads the window again. Raises PretrainingError for "stop", and after
        ``non_finite_limit`` attempts in a row.
        """
        settings, progress = self.settings, self.progress
        halved = 0
        while True:
            (forward, backward), length, after = self._gradient(window, state, step)
            fault: Fault | None = None
            if not math.isfinite(forward + backward):
                fault = "loss"
            elif not math.isfinite(length):
                fault = "gradient"
            scale = 1.0
            if self._scaler is not None:
                scale = self._scaler.get_scale()
                self._scaler.update()
            if fault is None:
                self._update(length, step)
                progress.in_row = 0
                rate = self.optimizer.param_groups[0]["lr"]
                return StepResult(forward=forward, backward=backward, state=after, halved=halved, learn_rate=rate)
            if fault == "gradient" and scale > 1.0:
                return StepResult(forward=forward, backward=backward, state=after, skipped="scale")

            value = 0.5 * (forward + backward) if fault == "loss" else "not finite"
            message = f"the {fault} at step {step + 1} is {value}"
            if settings.non_finite == "stop":
                raise PretrainingError(message)
            progress.in_row += 1
            if progress.in_row > settings.non_finite_limit:
                raise PretrainingError(
                    f"{message}, after {settings.non_finite_limit} attempts in a row of which none was better "
                    f"(training.non_finite_limit): lower the optimizer's learning rate or training.clip_norm"
                )
            if self._undo is None:
                progress.skipped += 1
                return StepResult(forward=forward, backward=backward, state=state, skipped=fault)
            self._undo.take_back()
            progress.halved += 1
            halved += 1

    def _gradient(self, window: Window, state: BiLMState, step: int) -> tuple[list[float], float, BiLMState]:
        """Leave the gradient in the parameters, not clipped. RETURNS: both losses, the gradient's norm, the state."""
        settings = self.settings
        self.optimizer.zero_grad(set_to_none=True)
        losses, states = [], []
        starts = state.split(settings.accumulate) if settings.accumulate > 1 else [state]
        for part, start in zip(_parts(window, settings.accumulate), starts, strict=True):
            forward, backward, after = self._losses(part, start, step)
            # bilm-tf's scale: clip_norm and Adagrad's learning rate are meant for it.
            loss = 0.5 * settings.unroll_steps / settings.accumulate * (forward + backward)
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            losses.append(torch.stack([forward.detach(), backward.detach()]))
            states.append(after)
        # Here and before anything is decided: what is not finite on one rank is so on all.
        self._ranks.share_gradients(self._parameters)
        mean = self._ranks.mean(torch.stack(losses).mean(dim=0))
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        norms = [torch.linalg.vector_norm(gradient) for gradient in merged_gradients(self._parameters)]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        # A GPU is waited for here only, and just before, where rows were merged.
        *means, length = torch.cat([mean, norm[None]]).tolist()
        return means, length, BiLMState.joined(states)

    def _losses(self, window: Window, state: BiLMState, step: int) -> tuple[Tensor, Tensor, BiLMState]:
        settings, device = self.settings, self.bilm.device
        token_ids = self._on_device(self._type_ids[window.type_rows]).long()
        arrays = (window.forward, window.backward, window.forward_targets, window.backward_targets)
        forward, backward, *targets = self._on_device(np.stack(arrays))
        resets = {"sentence": window.starts, "document": window.document_starts}.get(settings.reset or "")
        starts = None if resets is None else self._on_device(resets)
        dtype = DTYPES.get(self.precision)
        with self._buffers.in_use(), torch.autocast(device.type, dtype, enabled=dtype is not None):
            *hidden, after = self.bilm.hidden(
                token_ids, forward, backward, state, settings.dropout, starts, settings.recurrent_dropout
            )
            losses = [
                self.softmax.loss(
                    hidden[direction].flatten(0, 1), targets[direction].flatten(), seed=2 * step + direction
                )
                for direction in (0, 1)
            ]
        return losses[0], losses[1], after

    def _update(self, length: float, step: int) -> None:
        """Clip the gradient, whose norm is known, and move the weights by it."""
        if length > self.settings.clip_norm:
            for gradient in merged_gradients(self._parameters):
                gradient.mul_(self.settings.clip_norm / length)
        factor = self._learn_rate(step, self.progress)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        if self._undo is not None:
            self._undo.remember()
        self.optimizer.step()
        if self._averages is not None:
            self._averages.update(step)

    @property
    def shown(self) -> tuple[BiLM, OutputLayer]:
        """The model to evaluate and to save: with averaged weights, where there are any."""
        if self._averages is None:
            return self.bilm, self.softmax
        return self._averages.bilm, self._averages.softmax

    def evaluated(self, score: float) -> None:
        """Hear the score of an evaluation, of which more is better."""
        if self.settings.schedule == "plateau":
            settings = self.settings
            self.progress.evaluated(score, factor=settings.plateau_factor, patience=settings.plateau_patience)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint has to hold beside model and optimizer, by group."""
        groups = self._undo.tensors() if self._undo is not None else {}
        if self._averages is not None:
            groups["averages"] = self._averages.tensors()
        return groups

    def record(self) -> dict[str, Any]:
        """``progress``, for a checkpoint's JSON."""
        if self._scaler is not None:
            self.progress.scaler = self._scaler.state_dict()
        return self.progress.model_dump()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put back what ``tensors`` and ``record`` gave. Of averages that it does not have the weights, which must be
        there already, are the first. Raises PretrainingError if it does not fit.
        """
        self.progress = Progress.model_validate(checkpoint.record.get("progress", {}))
        if self._scaler is not None and self.progress.scaler is not None:
            with checkpoint.fitting():
                self._scaler.load_state_dict(self.progress.scaler)
        averages = checkpoint.group("averages")
        with checkpoint.fitting():
            if self._averages is not None and averages:
                self._averages.load(averages)
            if self._undo is not None:
                self._undo.load(checkpoint.group("undo_weights"), checkpoint.group("undo_optimizer"))

    def _on_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        device = self.bilm.device
        # From pinned memory a copy runs by itself.
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def merged_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients' numbers, each once: of a sparse one its values, after those of the same row were added up.

    Writing to them changes the gradients.
    """
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        else:
            values.append(parameter.grad)
    return values


def _parts(window: Window, n: int) -> Iterator[Window]:
    """The window's rows in ``n`` equal parts, each with the types that it reads."""
    if n == 1:
        yield window
        return
    for rows in np.split(np.arange(len(window.forward)), n):
        used, inverse = np.unique(np.stack([window.forward[rows], window.backward[rows]]), return_inverse=True)
        forward, backward = inverse.reshape(2, *window.forward[rows].shape)
        yield Window(
            type_rows=window.type_rows[used],
            forward=forward,
            backward=backward,
            forward_targets=window.forward_targets[rows],
            backward_targets=window.backward_targets[rows],
            starts=window.starts[rows],
            document_starts=window.document_starts[rows],
        )


def _type_ids(bilm: BiLM, types: Sequence[str]) -> np.ndarray:
    """What the token encoder reads for each type of the corpus, computed once: (n_types, C), on disk, or (n_types,)."""
    config = bilm.config
    if isinstance(types, Types) and config.filters is not None and config.n_words is None and not config.is_many_langs:
        return types.character_rows(config.max_characters_per_token)
    dtype: type[np.integer] = np.int16 if config.filters is not None else np.int32  # of (n, C) int64 a quarter
    if config.is_many_langs:
        # Its own names of boundaries and of what is unknown; a row of words before the characters.
        types, dtype = [*config.marks, *types[N_SPECIAL:]], np.int32
    parts = [
        bilm.token_ids(types[start : start + 8192]).cpu().numpy().astype(dtype) for start in range(0, len(types), 8192)
    ]
    return np.concatenate(parts)
