"""Curves for the learning rate, and for other options of an optimizer, as torch schedulers.

For `lambda_lr(optimizer, curve)` with a peak of 0.1 and a linear warmup of 10 steps, each line
shows what holds after the call:

                                last_epoch    group["lr"]     base_lrs
    lambda_lr(...)                       0    0.00            [0.1]
    optimizer.step()                     0    0.00            the update used step 0
    scheduler.step()                     1    0.01
    scheduler.set_peak(0.2)              1    0.02            [0.2]
    load_state_dict(saved)              60    0.10            [0.1], as saved

`group_scheduler` (the groups, steps, clock and states of a schedule for one option),
`scheduler_state` (states, also those of torch), `lambda_lr` and `follow`.
"""
