"""Which short lengths fit together, in the names of the rows on the pages of schedulers.

A row also states what it requires. The conditions here are those of all rows: lengths fit into the
run, and drops follow one another. Each holds for the rows that have all its options.
"""

LENGTHS = frozenset(
    (
        "batches",
        "begin_step",
        "constant",
        "cooldown_steps",
        "cycle_len",
        "decay",
        "decay_begin_step",
        "decay_steps",
        "end_step",
        "epochs",
        "epochs_cooldown",
        "first",
        "freeze_last_layer_epochs",
        "hold",
        "lr_decay_iters",
        "lr_decay_starting_step",
        "lr_decay_steps",
        "lr_warmup_steps",
        "max_iters",
        "max_step",
        "max_steps",
        "num_iterations",
        "num_train_steps",
        "period",
        "rewarmup",
        "second",
        "step_offset",
        "steps",
        "stop",
        "t_0",
        "timescale",
        "total",
        "total_steps",
        "updates",
        "warmup",
        "warmup_batches",
        "warmup_epochs",
        "warmup_iters",
        "warmup_steps",
    )
)
"""Options that count updates, samples or epochs."""

FITS = (
    # A run, a cycle and an epoch have at least one update.
    "total >= 1",
    "total_steps >= 1",
    "max_step >= 1",
    "max_steps >= 1",
    "num_iterations >= 1",
    "num_train_steps >= 1",
    "lr_decay_iters >= 1",
    "decay_steps >= 1",
    "steps * cycle_length >= 1",
    "1 <= stop <= total",
    "1 <= max_iters <= lr_decay_iters",
    "period >= 1",
    "t_0 >= 1",
    "cycle_len >= 1",
    "epochs >= 1",
    "batches >= 1",
    "updates >= 1",
    "timescale is None or timescale >= 1",
    "warmup_batches >= 1",
    # A warmup is below the length of the run.
    "warmup < total",
    "warmup < steps",
    "warmup_steps < total",
    "warmup_steps < total_steps",
    "warmup_steps < decay_steps",
    "warmup_steps < max_step",
    "warmup < num_train_steps",
    "warmup_iters < lr_decay_iters",
    "warmup_epochs < epochs",
    "lr_warmup_steps < max_steps",
    (
        "lr_warmup_steps * (global_batch_size // devices // micro_batch_size)"
        " < max_tokens // devices // (micro_batch_size * max_seq_length)"
    ),
    "lr_warmup_steps <= lr_decay_starting_step",
    # All phases together are at most as long as the run.
    "warmup + decay <= total",
    "warmup + hold <= total",
    "warmup + constant <= total",
    "constant <= total",
    "warmup + decay <= num_train_steps",
    "max(warmup, rewarmup) + decay <= num_train_steps // cycles",
    "warmup + decay <= periods[0]",
    "warmup_steps + cooldown_steps <= total_steps",
    "warmup_steps + cooldown_steps <= decay_steps",
    "warmup_steps + round(warmdown_ratio * num_iterations) <= num_iterations",
    "warmup <= epochs * updates",
    "warmup + epochs_cooldown * updates <= epochs * updates",
    "begin_step < end_step",
    "decay_begin_step is None or decay_begin_step <= max_step",
    "freeze_last_layer_epochs == 0 or freeze_last_layer_epochs < warmup_epochs",
    "warmup + int(int(steps * cycle_length) * decay_fraction) <= int(steps * cycle_length)",
    "first < second",
)
"""Conditions, in Python."""
