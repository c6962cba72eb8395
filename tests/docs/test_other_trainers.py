"""docs/other_schedulers/: the learning rates of a trainer's configuration are those of our curve.

The formulas of `support.docs.published_trainers` compute in float64. Rounding to float32 costs the curve up
to 2⁻²⁴ of the peak and 2⁻²⁴ of the multiplier, and JAX rounds their product too.
"""

import ast
import inspect
import math

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.docs.other_schedulers import FOLDER, page_settings, read_pairs, run_configured
from support.docs.pages import sections
from support.docs.plans import is_allowed
from support.docs.published_trainers import FORMULAS, nanochat_momentum
from support.examples import corners, examples

pytestmark = [
    pytest.mark.slow,
    # Short runs warn; these warnings have their own tests.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
    pytest.mark.filterwarnings("ignore:stages have levels:plateau_jax.CurveWarning"),
    pytest.mark.filterwarnings("ignore:(min|init)_lr_ratio:plateau_jax.CurveWarning"),
]

STEPS = 200
"""At least as many as any run below."""

PAIRS = [pair for pair in read_pairs() if pair.is_configuration]
PEAKS = st.floats(1e-5, 10)
RATIOS = st.sampled_from((0.0, 0.1)) | st.floats(1e-3, 0.9)
POWERS = st.sampled_from((0.5, 1.0, 2.0)) | st.floats(0.25, 4)


def nanochat(draw):
    total = draw(corners(1, 80))
    ratio = draw(st.sampled_from((0.0, 1.0)) | st.floats(0, 1))
    return {
        "num_iterations": total,
        "warmup_steps": draw(corners(0, total - round(ratio * total))),
        "warmdown_ratio": ratio,
        "final_lr_frac": draw(RATIOS),
        **{name: draw(PEAKS) for name in ("matrix_lr", "embedding_lr", "unembedding_lr")},
        "weight_decay": draw(st.floats(0.01, 1)),
    }


def nanogpt(draw):
    decay = draw(corners(1, 80))
    lr = draw(PEAKS)
    return {
        "learning_rate": lr,
        "min_lr": lr * draw(RATIOS),
        "warmup_iters": draw(corners(0, decay - 1)),
        "lr_decay_iters": decay,
        "max_iters": draw(corners(0, decay - 1)),
    }


def modded_nanogpt(draw):
    return {
        **page_settings(FOLDER / "modded_nanogpt.md"),
        "base_lr": draw(PEAKS),
        "num_scheduled_iterations": draw(corners(1, 80)),
        "num_extension_iterations": draw(st.integers(0, 9)),
        "lr_muls": draw(st.lists(st.floats(0.2, 3), min_size=3, max_size=3)),
        "final_lr_mul": draw(st.floats(0, 0.2)),
        "cooldown_frac": draw(st.just(1.0) | st.floats(0.05, 1)),
    }


def litgpt(draw):
    devices, accumulation, micro_batch, length = (draw(st.integers(1, 4)) for _ in range(4))
    micro_batches = draw(corners(accumulation, 80))
    tokens = devices * micro_batch * length
    lr = draw(PEAKS)
    warmup = draw(corners(0, (micro_batches - 1) // accumulation))
    return {
        "devices": devices,
        "max_tokens": tokens * micro_batches + draw(st.integers(0, tokens - 1)),
        "max_seq_length": length,
        "global_batch_size": devices * micro_batch * accumulation,
        "micro_batch_size": micro_batch,
        "lr_warmup_steps": warmup,
        "max_steps": draw(corners(warmup + 1, 90)),
        "lr": lr,
        "min_lr": lr * draw(RATIOS),
    }


def maxtext(draw):
    total = draw(corners(1, 80))
    rising = draw(st.just(0.0) | st.floats(0, 0.99))
    falling = draw(st.sampled_from((0.0, 1.0)) | st.floats(0, 1))
    warmup, decay = int(total * rising), int(total * falling)
    assume(warmup + decay <= total)
    style = draw(st.sampled_from(("linear", "cosine")))
    assume(decay != 1 or style == "cosine")  # as the page says
    return {
        "learning_rate": draw(PEAKS),
        "learning_rate_schedule_steps": total,
        "steps": draw(corners(max(1, total - 9), total + 20)),
        "warmup_steps_fraction": rising,
        "learning_rate_final_fraction": draw(RATIOS),
        "wsd_decay_steps_fraction": falling,
        "wsd_decay_style": style,
    }


def dinov2(draw):
    epochs = draw(corners(1, 20))
    warmup = draw(corners(0, epochs))
    base_lr, batch, world = draw(PEAKS), draw(st.integers(1, 4096)), draw(st.integers(1, 64))
    decay = draw(st.floats(0.01, 1))
    return {
        "OFFICIAL_EPOCH_LENGTH": draw(st.integers(1, 8)),
        "epochs": epochs,
        "warmup_epochs": warmup,
        "freeze_last_layer_epochs": draw(corners(0, max(0, warmup - 1))),
        "base_lr": base_lr,
        "batch_size_per_gpu": batch,
        "world_size": world,
        "min_lr": base_lr * math.sqrt(batch * world / 1024) * draw(RATIOS),
        "weight_decay": decay * draw(RATIOS),
        "weight_decay_end": decay,
        "layerwise_decay": draw(st.floats(0.5, 1)),
    }


def open_clip(draw):
    epochs, updates = draw(corners(1, 10)), draw(corners(1, 8))
    cooldown = draw(corners(0, epochs))
    lr = draw(PEAKS)
    return {
        "lr": lr,
        "warmup": draw(corners(0, (epochs - cooldown) * updates)),
        "epochs": epochs,
        "updates": updates,
        "epochs_cooldown": cooldown,
        "lr_cooldown_end": lr * draw(RATIOS),
        "lr_cooldown_power": draw(POWERS),
    }


def lingua(draw):
    cycles, cycle = draw(corners(1, 3)), draw(corners(1, 30))
    steps = cycles * cycle
    assume(steps % int(steps * (1 / cycles)) == 0)
    fraction = draw(st.just(0.0) | st.floats(0, 0.99)) / cycles
    return {
        "steps": steps,
        "lr": draw(PEAKS),
        "warmup": draw(corners(0, min(cycle - int(cycle * fraction), steps - 1))),
        "lr_min_ratio": draw(RATIOS),
        "exp_factor": draw(POWERS),
        "decay_fraction": fraction,
        "cycle_length": 1 / cycles,
    }


def levanter(draw):
    cycles, cycle = draw(corners(1, 3)), draw(corners(1, 30))
    decay = draw(corners(1, cycle))
    warmup = draw(corners(0, cycle - decay))
    total = cycles * cycle + draw(st.integers(0, 9))
    return {
        "num_train_steps": total,
        "learning_rate": draw(PEAKS),
        "min_lr_ratio": draw(RATIOS),
        "warmup": warmup,
        "decay": decay,
        "lr_schedule": draw(st.sampled_from(("linear", "cosine"))),
        "timescale": draw(corners(max(1, warmup), total + 9)),
        "cycles": cycles,
        "rewarmup": draw(corners(0, cycle - decay)),
        "adam_lr": draw(PEAKS),
    }


def nanotron(draw):
    warmup = draw(corners(0, 40))
    lr = draw(PEAKS)
    return {
        "learning_rate": lr,
        "lr_warmup_steps": warmup,
        "lr_decay_starting_step": draw(corners(max(1, warmup), 80)),
        "lr_decay_steps": draw(corners(1, 80)),
        "lr_decay_style": draw(st.sampled_from(("linear", "cosine", "1-sqrt"))),
        "min_decay_lr": lr / 2 * draw(RATIOS),
    }


DRAWS = {
    draw.__name__: draw
    for draw in (
        *(nanogpt, nanochat, modded_nanogpt, litgpt, maxtext),
        *(dinov2, open_clip, lingua, levanter, nanotron),
    )
}


def names_used(pair):
    """Return the names in "after" and in the code that prepares it."""
    blocks = *next(sections(pair.page)).python_blocks()[1:], pair.after
    return {node.id for node in ast.walk(ast.parse("\n".join(blocks))) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.heading)
def test_configuration_has_the_values_of_the_page(pair):
    values, options = page_settings(pair.page), pair.options()
    names = names_used(pair) & values.keys() & options.keys()
    assert {name: values[name] for name in names} == {name: options[name] for name in names}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.heading)
@examples(15)
@given(st.data())
def test_curve_gives_learning_rates_of_the_trainer(pair, data):
    """At every update of the run and, where the section says so, past its end."""
    drawn = DRAWS[pair.page.stem](data.draw)
    assume(is_allowed(pair, drawn))
    assert drawn.keys() == page_settings(pair.page).keys()
    namespace, after = run_configured(pair.page, pair.after, drawn, STEPS)
    options = pair.options()
    accepted = inspect.signature(FORMULAS[pair.heading]).parameters
    options |= {name: drawn[name] for name in names_used(pair) & drawn.keys() & accepted.keys()}
    formula = FORMULAS[pair.heading](**options)
    roundings = 3 if "schedule" in namespace else 2
    updates = STEPS
    if "past the end" not in pair.text:
        lengths = [drawn[name] for name in ("num_iterations", "steps", "num_train_steps") if name in drawn]
        (updates,) = lengths or [namespace["curve"].total_steps]
    before = np.array([formula(update) for update in range(updates)]).reshape(updates, -1)
    assert updates <= STEPS
    expected = np.broadcast_to(before, after[:updates].shape)
    np.testing.assert_allclose(after[:updates], expected, rtol=roundings * 2**-24, atol=2**-48)


def followed(page, heading, settings, option, steps):
    """Return the values that an option of the first follower's optimizer takes."""
    (section,) = (section for section in sections(page) if section.heading == heading)
    namespace = dict(settings)
    for block in (*next(sections(page)).python_blocks()[1:], section.python()):
        exec(block, namespace)
    followers = namespace["followers"] if "followers" in namespace else [namespace["follower"]]
    optimizer = followers[0].optimizer
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0][option])
        for follower in followers:
            follower.step()
    return np.array(values)


@examples(4)
@given(corners(400, 900), st.just(0.0) | st.floats(0.1, 0.9), st.floats(0.01, 1))
def test_options_of_muon_follow_nanochat(constant, ratio, decay):
    total = math.ceil((constant + bool(ratio)) / (1 - ratio))
    page = FOLDER / "nanochat.md"
    settings = page_settings(page) | {
        "num_iterations": total,
        "warmdown_ratio": ratio,
        "weight_decay": decay,
    }
    heading = "Muon's momentum and weight decay"
    expected = [nanochat_momentum(total, ratio)(update) for update in range(total)]
    np.testing.assert_allclose(followed(page, heading, settings, "momentum", total), expected, rtol=2**-22)
    expected = [decay * (1 + math.cos(math.pi * update / total)) / 2 for update in range(total)]
    after = followed(page, heading, settings, "weight_decay", total)
    np.testing.assert_allclose(after, expected, rtol=2**-22, atol=2**-48)  # peak, multiplier and product


@examples(4)
@given(st.integers(350, 600))
def test_momentum_follows_modded_nanogpt(updates):
    page = FOLDER / "modded_nanogpt.md"
    settings = page_settings(page) | {
        "num_scheduled_iterations": updates - 5,
        "num_extension_iterations": 5,
    }
    after = followed(page, "train_gpt.py: Muon, Adam and the momentum", settings, "momentum", updates)
    expected = [
        0.85 + 0.1 * min(1, update / 300) - 0.1 * max(0, update - (updates - 50)) / 50
        for update in range(updates)
    ]
    np.testing.assert_allclose(after, expected, rtol=2**-22)


@examples(10)
@given(st.data())
def test_weight_decay_follows_dinov2(data):
    page = FOLDER / "dinov2.md"
    settings = dinov2(data.draw)
    total = settings["OFFICIAL_EPOCH_LENGTH"] * settings["epochs"]
    first, last = settings["weight_decay"], settings["weight_decay_end"]
    after = followed(page, "DINOv2's weight decay", settings, "weight_decay", STEPS)
    expected = [
        last + (first - last) * (1 + math.cos(math.pi * min(1, update / total))) / 2
        for update in range(STEPS)
    ]
    np.testing.assert_allclose(after, expected, rtol=2**-22, atol=2**-48)
