"""Compare Seesaw with its cosine on equal data: the part of batch_plan.py behind --seesaw.

Seesaw (Meterez et al. 2025, arXiv:2510.14717) doubles the batch each time the cosine has halved,
and multiplies the cosine by √(batch/first batch). The text and the transformer's layers are those
of train_gpt.py. So is the peak: it is scaled by the square root of the first batch, and not tuned.
"""

import io
import math

import jax
import numpy as np
import torch
from train_gpt import GPT, loss_fn, read_text

from plateau_jax import BatchPlan, DataClock, PlateauCurve, scale_by_curve
from torch_bridge import lambda_lr

UNIT = CONTEXT = 64  # tokens in a step of the curve, which is one sequence
BATCHES = 64, 512, 4096  # tokens in the first update
GROWTH = 8  # the last batch of Seesaw, as a multiple of the first; here the next of BATCHES
PEAK, TUNED = 4e-3, 1024  # learning rate, and the batch for which train_gpt.py has it


class TrainingRun:
    """A model, AdamW, a scheduler that counts tokens, and the counts and learning rates so far."""

    def __init__(self, seed, curve, plan, peak):
        torch.manual_seed(seed)
        self.plan, self.counts, self.learning_rates = plan, [], []
        self.model = GPT(n_layer=2, n_embd=32, block_size=CONTEXT)
        self.adamw = torch.optim.AdamW(
            self.model.parameters(), lr=peak, betas=(0.9, 0.95), fused=True
        )
        self.scheduler = lambda_lr(self.adamw, curve, clock=DataClock(UNIT))

    def train(self, rows, until):
        """Train until at least `until` tokens are consumed; the rows' end cuts the last update."""
        while (consumed := self.scheduler.consumed) < until:
            count = min(self.plan(consumed), len(rows) * CONTEXT - consumed)
            first = consumed // CONTEXT
            loss, tokens = loss_fn(self.model, rows[first : first + count // CONTEXT])
            (loss / tokens).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.learning_rates.append(self.adamw.param_groups[0]["lr"])
            self.counts.append(count)
            self.adamw.step()
            self.scheduler.step(count=count)
            self.adamw.zero_grad()

    def resume(self, run):
        """Continue the other run, from what it saves."""
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (run.model, run.adamw, run.scheduler)], file)
        file.seek(0)
        for part, state in zip(
            (self.model, self.adamw, self.scheduler), torch.load(file), strict=True
        ):
            part.load_state_dict(state)
        self.counts, self.learning_rates = [*run.counts], [*run.learning_rates]

    @torch.no_grad()
    def read_loss(self, rows):
        loss, tokens = loss_fn(self.model, rows)
        return loss.item() / tokens

    def check_against_jax(self, curve, peak):
        assert self.learning_rates == lrs_in_jax(curve, peak, UNIT, self.counts).tolist()


def lrs_in_jax(curve, peak, unit, counts):
    """Return the learning rates of an optax transformation that gets these counts."""
    transformation = scale_by_curve(curve, peak, DataClock(unit))

    def update(state, count):
        _, state = transformation.update({}, state, count=count)
        return state, state.learning_rate

    return np.array(jax.lax.scan(update, transformation.init({}), np.int32(counts))[1])


def compare_with_cosine(seeds, total):
    """Train cosines with a constant batch, and Seesaw from it; print updates and losses."""
    torch.set_num_threads(1)  # the model is small
    text, held_out = (text.unfold(0, CONTEXT + 1, CONTEXT) for text in read_text())
    held_out = held_out[:: max(1, len(held_out) // 512)]
    steps = total // UNIT
    generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    orders = [torch.randperm(len(text), generator=generator) for generator in generators]
    # The rows of an update depend only on the seed and on the number of tokens before it.
    rows_of_seed = [text[order[torch.arange(steps) % len(order)]] for order in orders]
    cosine = PlateauCurve(steps, warmup_steps=steps // 10)

    print(
        f"{steps * UNIT} tokens in each run, {seeds} seeds; losses on held-out files, in nats per "
        "token"
    )
    print(
        " batch        updates      peak    cosine ± its error      Seesaw    difference ± its "
        "error"
    )
    for batch in BATCHES:
        peak = PEAK * math.sqrt(batch / TUNED)
        plan = BatchPlan.seesaw(cosine, batch, unit=UNIT, largest=GROWTH * batch)
        scaled = plan.scale(cosine, UNIT, reference=batch)
        updates, losses = [], []
        for each_curve, each_plan in ((cosine, BatchPlan([(0, batch)])), (scaled, plan)):
            runs = [TrainingRun(seed, each_curve, each_plan, peak) for seed in range(seeds)]
            for run, rows in zip(runs, rows_of_seed, strict=True):
                run.train(rows, steps * UNIT)
                assert (run.counts, run.learning_rates) == (runs[0].counts, runs[0].learning_rates)
            runs[0].check_against_jax(each_curve, peak)
            updates.append(len(runs[0].counts))
            losses.append(np.array([run.read_loss(held_out) for run in runs]))
        of_cosine, of_seesaw = losses
        difference = of_seesaw - of_cosine
        print(
            f"{batch:6d}  {updates[0]:5d} → {updates[1]:5d}  {peak:8.6f}",
            f"{of_cosine.mean():12.4f} ± {error_of(of_cosine):.4f}  {of_seesaw.mean():10.4f}",
            f"{difference.mean():+13.4f} ± {error_of(difference):.4f}",
            flush=True,
        )
    resume_without_warmup(rows_of_seed[0])
    print("PyTorch and JAX have the same learning rates at every update")


def resume_without_warmup(rows):
    """Train Seesaw without a warmup, and again with an interruption while the batch grows."""
    cosine = PlateauCurve(len(rows))
    plan = BatchPlan.seesaw(cosine, TUNED, unit=UNIT, largest=GROWTH * TUNED)
    scaled = plan.scale(cosine, UNIT, reference=TUNED)
    uninterrupted, stopped, resumed = (TrainingRun(seed, scaled, plan, PEAK) for seed in (0, 0, 1))
    uninterrupted.train(rows, len(rows) * UNIT)
    stopped.train(rows, plan.pairs[len(plan.pairs) // 2][0])
    resumed.resume(stopped)
    resumed.train(rows, len(rows) * UNIT)
    resumed.check_against_jax(scaled, PEAK)
    assert resumed.learning_rates == uninterrupted.learning_rates
    weights = zip(resumed.model.parameters(), uninterrupted.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    updates = -(-len(rows) * UNIT // TUNED)
    print(
        f"without a warmup, in batches of {TUNED}: {updates} updates, and {len(resumed.counts)} of "
        "Seesaw;"
    )
    print(f"stopped after {len(stopped.counts)} and resumed, it ends with the same weights")


def error_of(values):
    """Return the standard error of the mean."""
    return values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
