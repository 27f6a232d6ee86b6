"""Train the model on the rows of rows.py, on the CPU, with checkpoints to resume from.

    python tools/embedded_model/train_model.py BUILD --steps 4000

The rows come in the order of the stages, short ones first. Each of the workers, a process on one
core, takes its own rows of a step; all of them then take the same step with the mean of their
gradients. The learning rate rises, is level at a half, then level, and falls to zero over the last
part of the steps; until then a run that is resumed with another number of steps is the run it would
have been. Writes `BUILD/model/last.pt` and `log.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from circuit import construct
from model import Model, ModelShape, n_parameters
from rows import ANSWER, ANSWER_START, BRANCH, STAGES, TEXT, UNTRAINED
from tokenizers import Tokenizer
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional

SEED = 20240229
WORKER_TOKENS = 4032  # of a step
PEAK_RATE_MUON = 3e-3
PEAK_RATE_ADAMW = 1.4e-3
WARM_UP_STEPS = 80
CAREFUL_STEPS = 600  # first steps, at half of the peak rate, so that the circuit is preserved
DECAY_SHARE = 0.6
SHORT_STEPS = 700  # the stage "short", then "medium"
LONG_SHARE = 0.09  # fraction of the steps, at the end: the stage "long"
LOSS_WEIGHTS = {UNTRAINED: 0.0, TEXT: 0.1, ANSWER: 1.0, ANSWER_START: 8.0, BRANCH: 3.0}
LATER_TEXT_WEIGHT = 0.25  # after the stage "short"
TARGET_SHARE = 0.4  # tokens of a step: the answers, filled up with text
CHECKPOINT_STEPS = 100
LOG_STEPS = 20


def rate(step: int, n_steps: int) -> float:
    """Return the learning rate of a step as a share of its peak: linear up, level at a half, level, linear down."""
    remaining = (n_steps - step) / (DECAY_SHARE * n_steps)
    return min(0.5 if step < CAREFUL_STEPS else 1.0, (step + 1) / WARM_UP_STEPS, remaining)


def optimizers(model: Model) -> tuple[torch.optim.Optimizer, ...]:
    """Return Muon for the matrices inside the blocks, AdamW for embedding and norms."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embd" not in name]
    outer = [p for name, p in model.named_parameters() if p.ndim != 2 or "embd" in name]
    return (
        torch.optim.Muon(
            inner, lr=PEAK_RATE_MUON, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            outer, lr=PEAK_RATE_ADAMW, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    )


class Batches:
    """Serves one worker's rows of each stage in order, by the step; a stage that is used up starts again."""

    def __init__(self, build: Path, n_steps: int, worker: int, n_workers: int) -> None:
        self._bounds = (SHORT_STEPS, round((1 - LONG_SHARE) * n_steps), n_steps)
        self._worker, self._n_workers = worker, n_workers
        self._rows = []
        for name in STAGES:
            with np.load(build / "examples" / f"{name}.npz") as arrays:
                self._rows.append((arrays["tokens"], arrays["kinds"]))

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return inputs, positions of the trained tokens, the target tokens, and their kinds."""
        stage = next(i for i, bound in enumerate(self._bounds) if step < bound)
        tokens, kinds = self._rows[stage]
        n_rows = WORKER_TOKENS // tokens.shape[1]
        first = (step - (self._bounds[stage - 1] if stage else 0)) * self._n_workers + self._worker
        chosen = np.arange(first * n_rows, (first + 1) * n_rows) % len(tokens)
        row, kind = (torch.from_numpy(array[chosen].astype(np.int64)) for array in (tokens, kinds))
        inputs, wanted, kind = row[:, :-1].contiguous(), row[:, 1:].flatten(), kind[:, 1:].flatten()
        # the answers, then randomly drawn text, then tokens that are not trained
        generator = torch.Generator().manual_seed(SEED + step * self._n_workers + self._worker)
        order = (
            torch.rand(len(kind), generator=generator) + (kind == TEXT) + 2 * (kind == UNTRAINED)
        )
        places = order.argsort()[: int(TARGET_SHARE * WORKER_TOKENS)]
        return inputs, places, wanted[places], kind[places]


def losses(model: Model, inputs: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
    """Return the loss, in natural log, at each of the places; the matrices multiply in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        chosen = model.hidden(inputs).flatten(0, 1).index_select(0, places)
        logits = functional.linear(chosen, model.token_embd.weight)
    return functional.cross_entropy(logits.float(), wanted, reduction="none")


def average_gradients(parameters: list[Tensor]) -> None:
    """Replace every worker's gradients by their mean."""
    flat = torch.cat([p.grad.flatten() for p in parameters])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)


def work(worker: int, build: Path, n_steps: int, n_workers: int, port: int) -> None:
    """Train as a worker, from the last checkpoint or the beginning."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=worker, world_size=n_workers
    )
    target = build / "model"
    target.mkdir(exist_ok=True)
    model = Model(ModelShape())
    construct(model, Tokenizer.from_file(str(build / "vocabulary.json")).get_vocab())
    optims, first_step = optimizers(model), 0
    if (target / "last.pt").exists():
        state = torch.load(target / "last.pt")
        model.load_state_dict(state["model"])
        first_step = state["step"]
        for optim, saved in zip(optims, state["optimizers"], strict=True):
            optim.load_state_dict(saved)
    if worker == 0:
        print(
            f"{n_parameters(model):,} parameters, from step {first_step} of {n_steps}", flush=True
        )
    batches, parameters = Batches(build, n_steps, worker, n_workers), list(model.parameters())
    weights = torch.tensor([LOSS_WEIGHTS[kind] for kind in sorted(LOSS_WEIGHTS)])
    compiled = torch.compile(losses, dynamic=False)
    sums, counts, started = (
        torch.zeros(len(LOSS_WEIGHTS)),
        torch.zeros(len(LOSS_WEIGHTS)),
        time.monotonic(),
    )
    for step in range(first_step, n_steps):
        inputs, places, wanted, kinds = batches[step]
        if step >= SHORT_STEPS:
            weights[TEXT] = LATER_TEXT_WEIGHT
        loss, weight = compiled(model, inputs, places, wanted), weights[kinds]
        ((loss * weight).sum() / weight.sum()).backward()
        average_gradients(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optim, peak in zip(optims, (PEAK_RATE_MUON, PEAK_RATE_ADAMW), strict=True):
            for group in optim.param_groups:
                group["lr"] = peak * rate(step, n_steps)
            optim.step()
            optim.zero_grad()
        sums.index_add_(0, kinds, loss.detach())
        counts += torch.bincount(kinds, minlength=len(LOSS_WEIGHTS))
        if (step + 1) % LOG_STEPS == 0 and worker == 0:
            means = (round(mean, 3) for mean in (sums / counts).tolist()[TEXT:])
            record = {
                "step": step + 1,
                **dict(zip(("text", "answer", "answer_start", "branch"), means, strict=True)),
            }
            record["seconds"] = round(time.monotonic() - started, 1)
            with (target / "log.jsonl").open("a") as log:
                log.write(json.dumps(record) + "\n")
            print(record, flush=True)
            sums.zero_()
            counts.zero_()
        if ((step + 1) % CHECKPOINT_STEPS == 0 or step + 1 == n_steps) and worker == 0:
            optim_states = [optim.state_dict() for optim in optims]
            torch.save(
                {"model": model.state_dict(), "optimizers": optim_states, "step": step + 1},
                target / "new.pt",
            )
            (target / "new.pt").replace(target / "last.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--workers", type=int, default=2, help="processes, each on a core")
    parser.add_argument("--port", type=int, default=29517)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.spawn(
        work,
        (arguments.build, arguments.steps, arguments.workers, arguments.port),
        nprocs=arguments.workers,
    )
