"""Train the model on the rows of rows.py, on the CPU, with checkpoints to resume from.

    python training/train_model.py BUILD --steps 2200

The rows come in the order of the stages, short ones first, and each batch has the same number of tokens. The learning
rate rises, stays, and falls to zero over the last quarter of the steps; until then a run that is resumed with another
number of steps is the run it would have been. Writes `BUILD/model/last.pt` and `log.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from model import Hints, Model, Shape, n_parameters
from rows import ANSWER, ANSWER_START, BRANCH, QUESTION, STAGES, TEXT, UNTRAINED
from torch import Tensor
from torch.nn import functional

SEED = 20240229
BATCH_TOKENS = 6272  # a multiple of every stage's length
PEAK_RATE_MUON = 5e-3
PEAK_RATE_ADAMW = 3e-3
WARM_UP_STEPS = 100
DECAY_SHARE = 0.27
SHORT_STEPS = 1350  # the stage "short", then "medium"
LONG_SHARE = 0.1  # of the steps, the last ones: the stage "long"
LOSS_WEIGHTS = {UNTRAINED: 0.0, TEXT: 0.1, ANSWER: 1.0, ANSWER_START: 8.0, BRANCH: 3.0, QUESTION: 0.0}
HINT_WEIGHT = 0.4
N_HINTS = 16  # places of a row
CHECKPOINT_STEPS = 100


def rate(step: int, n_steps: int) -> float:
    """Return the learning rate of a step as a share of its peak: linear up, level, linear down."""
    remaining = (n_steps - step) / (DECAY_SHARE * n_steps)
    return min(1.0, (step + 1) / WARM_UP_STEPS, remaining)


def optimizers(model: Model) -> tuple[torch.optim.Optimizer, ...]:
    """Return Muon for the matrices inside the blocks, AdamW for embedding and norms."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embd" not in name]
    outer = [p for name, p in model.named_parameters() if p.ndim != 2 or "embd" in name]
    return (
        torch.optim.Muon(inner, lr=PEAK_RATE_MUON, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=PEAK_RATE_ADAMW, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    )


class Batches:
    """Serves each stage's rows in order, from the step asked for; a stage that is used up starts again."""

    def __init__(self, build: Path, n_steps: int) -> None:
        self._bounds = (SHORT_STEPS, round((1 - LONG_SHARE) * n_steps), n_steps)
        self._rows = []
        for name in STAGES:
            with np.load(build / "examples" / f"{name}.npz") as arrays:
                self._rows.append((arrays["tokens"], arrays["kinds"], arrays["hints"]))

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Return inputs, targets, the kinds of the targets, and hints: for context and questions places and tokens."""
        stage = next(i for i, bound in enumerate(self._bounds) if step < bound)
        tokens, kinds, hints = self._rows[stage]
        n_rows = BATCH_TOKENS // tokens.shape[1]
        offset = step - (self._bounds[stage - 1] if stage else 0)
        chosen = np.arange(offset * n_rows, (offset + 1) * n_rows) % len(tokens)
        row = torch.from_numpy(tokens[chosen].astype(np.int64))
        kind = torch.from_numpy(kinds[chosen].astype(np.int64))
        hint = torch.from_numpy(hints[chosen].astype(np.int64))[:, :-1]
        has_hint = hint[..., 0] > 0
        is_question = has_hint & (kind[:, :-1] == QUESTION)
        return row[:, :-1], row[:, 1:], kind[:, 1:], [_places(hint, w) for w in (has_hint & ~is_question, is_question)]


def _places(hint: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Draw places with a hint from each row: return (rows, N_HINTS) of them and their hints, 0 where there is none."""
    places = torch.multinomial(wanted + 1e-6, N_HINTS, replacement=True)
    found = hint.gather(1, places[..., None].expand(-1, -1, 2))
    return places, found * wanted.gather(1, places)[..., None]


def losses(
    model: Model, hints: Hints, inputs: Tensor, targets: Tensor, places: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the loss of every target, in natural log, and of the hints; the matrices multiply in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        streams = model.streams(inputs)
        logits = functional.linear(model.output_norm(streams[-1]), model.token_embd.weight)
        blocks = (Hints.CONTEXT_BLOCK, Hints.QUESTION_BLOCK)
        hint = sum(hints.loss(model, streams[block], *place) for block, place in zip(blocks, places, strict=True))
    flat = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return flat.view(targets.shape), hint


def train(build: Path, n_steps: int, n_threads: int) -> None:
    """Train from the last checkpoint, or from the start."""
    torch.set_num_threads(n_threads)
    torch.manual_seed(SEED)
    target = build / "model"
    target.mkdir(exist_ok=True)
    model = Model(Shape())
    hints = Hints(model.shape.width)
    optims = (*optimizers(model), torch.optim.AdamW(hints.parameters(), lr=PEAK_RATE_ADAMW, weight_decay=0.0))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(optim, lambda step: rate(step, n_steps)) for optim in optims]
    first_step = 0
    if (target / "last.pt").exists():
        state = torch.load(target / "last.pt")
        model.load_state_dict(state["model"])
        hints.load_state_dict(state["hints"])
        first_step = state["step"]
        for optim, scheduler, saved in zip(optims, schedulers, state["optimizers"], strict=True):
            optim.load_state_dict(saved)
            scheduler.last_epoch = first_step
            for group, peak in zip(optim.param_groups, scheduler.base_lrs, strict=True):
                group["lr"] = peak * rate(first_step, n_steps)
    print(f"{n_parameters(model):,} parameters, from step {first_step} of {n_steps}", flush=True)
    batches = Batches(build, n_steps)
    weights = torch.tensor([LOSS_WEIGHTS[kind] for kind in sorted(LOSS_WEIGHTS)])
    compiled = torch.compile(losses, dynamic=False)
    sums, counts, started = torch.zeros(len(LOSS_WEIGHTS)), torch.zeros(len(LOSS_WEIGHTS)), time.monotonic()
    for step in range(first_step, n_steps):
        inputs, targets, kinds, places = batches[step]
        loss, hint = compiled(model, hints, inputs, targets, places)
        weight = weights[kinds]
        ((loss * weight).sum() / weight.sum() + HINT_WEIGHT * hint).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim, scheduler in zip(optims, schedulers, strict=True):
            optim.step()
            optim.zero_grad()
            scheduler.step()
        sums.index_add_(0, kinds.flatten(), loss.detach().flatten())
        counts += torch.bincount(kinds.flatten(), minlength=len(LOSS_WEIGHTS))
        if (step + 1) % 20 == 0:
            text, answer, start, branch = (sums / counts)[1:5].tolist()
            record = {
                "step": step + 1,
                "text": round(text, 3),
                "answer": round(answer, 3),
                "answer_start": round(start, 3),
                "branch": round(branch, 3),
                "hints": round(hint.item(), 3),
                "seconds": round(time.monotonic() - started, 1),
            }
            with (target / "log.jsonl").open("a") as log:
                log.write(json.dumps(record) + "\n")
            print(record, flush=True)
            sums.zero_()
            counts.zero_()
        if (step + 1) % CHECKPOINT_STEPS == 0 or step + 1 == n_steps:
            state = {
                "model": model.state_dict(),
                "hints": hints.state_dict(),
                "optimizers": [o.state_dict() for o in optims],
                "step": step + 1,
            }
            torch.save(state, target / "new.pt")
            (target / "new.pt").replace(target / "last.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    train(arguments.build, arguments.steps, arguments.threads)
