"""The messages of `step_watch`: each names the cause, and what to write instead."""

BEFORE_OPTIMIZER = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in the opposite order: "
    "`optimizer.step()` before `lr_scheduler.step()`. Otherwise the first value of the learning rate "
    "schedule is skipped. See https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"
)

TURNS = (
    "two schedulers with curves take turns on one optimizer, and each writes the learning rates of all "
    "groups, so the last one wins. Build one scheduler with a curve for each group: "
    "lambda_lr(optimizer, curve=[...])"
)

COMPILED = (
    "the optimizer's step is compiled and its learning rate was 0. There Adam turns weights into NaN if "
    "their gradients have all been 0, as those of embeddings that no batch has used. Start the curve above "
    "0 with init_lr_ratio=1 / warmup_steps, or start= of a StagedCurve; end it above 0 if training goes on"
)


def forgotten(name: str, updates: int, option: str, unit: int | None) -> str:
    """Say that a scheduler or follower, by its name, was never stepped; `option` is what it writes."""
    return (
        f"{name}.step() was not called in {updates} optimizer steps, so {option} keeps its first value: "
        f"{_advice(name, unit)}"
    )


def forgotten_at_0(updates: int, unit: int | None) -> str:
    """Say that a scheduler was not stepped at learning rate 0."""
    return (
        f"scheduler.step() was not called in {updates} optimizer steps, and every learning rate is 0, so no "
        f"weight changes: {_advice('scheduler', unit)}"
    )


def once_per_epoch(name: str, updates: int, times: str, unit: int | None) -> str:
    """Say that a scheduler or follower is stepped too rarely."""
    return (
        f"{name}.step() came after {updates} or more optimizer steps, {times} in a row: it seems to be "
        f"called once per epoch, but {_advice(name, unit)}"
    )


def once_per_epoch_at_0(updates: int, unit: int | None) -> str:
    """Say that a scheduler is stepped too rarely at learning rate 0."""
    return (
        f"scheduler.step() came after {updates} optimizer steps, all at learning rate 0, so no weight "
        f"changed: it seems to be called once per epoch, but {_advice('scheduler', unit)}"
    )


def too_often(name: str, unit: int | None) -> str:
    """Say that a scheduler or follower is stepped several times for each update."""
    counts = "the curve counts updates" if unit is None else "each call adds a count"
    accelerate = (
        "Most often the reason is accelerate: it steps a prepared scheduler once for each process. Don't "
        "prepare it; write if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped: "
        "scheduler.step(). Without accelerate, call it once after every optimizer.step()"
    )
    return (
        f"{name}.step() was called twice or more after one optimizer step, three times in a row, but "
        f"{counts}. {accelerate if name == 'scheduler' else 'Call it once after every optimizer.step()'}"
    )


def unfilled(clock: int, updates: int, consumed: int, unit: int | None) -> str:
    """Say that updates at learning rate 0 do not fill a unit."""
    return (
        f"the curve stayed at step {clock} for {updates} updates, and every learning rate is 0, so no weight "
        f"changes: all updates consumed {consumed} in units of {unit}. Choose a unit of at most what an "
        "update consumes, and check the counts"
    )


def _advice(name: str, unit: int | None) -> str:
    lightning = ' (in Lightning "interval": "step")' if name == "scheduler" else ""
    off = f'turn this warning off: warnings.filterwarnings("ignore", "{name}.step")'
    if unit is None:
        return (
            f"the curve counts updates. Call it after every optimizer.step(){lightning}, with total_steps = "
            f"count_updates(loader, epochs). If the curve is meant to count epochs, or something else, {off}"
        )
    return (
        f"the curve counts what each update consumes. Call {name}.step(count=n) after every optimizer.step()"
        f"{lightning}, where n is the number of samples or tokens of that update; if a trainer calls it, "
        f"build it with count=. If you mean to call it less often, {off}"
    )
