"""Draw the pictures of docs/curves.md.

python docs/pictures/draw_curves.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from plateau_jax import PlateauCurve, StagedCurve

matplotlib.use("Agg")  # Files, no window.

PICTURES = Path(__file__).parent
# Okabe and Ito, safe for colour-blind readers.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def make_axes(size, total):
    _, axes = plt.subplots(figsize=size, layout="constrained")
    axes.set(xlim=(0, total), ylim=(0, 1.08), xlabel="step", ylabel="multiplier")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def draw_curve(axes, curve, **style):
    steps = np.arange(curve.total_steps + 1)
    axes.plot(steps, curve(steps), **{"color": BLUE, "linewidth": 2, **style})


def save_picture(name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    plt.savefig(PICTURES / f"{name}.png", dpi=180)  # sharp on screens with many pixels
    plt.close()


def draw_shapes():
    """Draw each shape from 1 to 0.05; those with a power have their own panel."""
    _, (without_power, with_power) = plt.subplots(
        1, 2, figsize=(7.2, 3.5), sharey=True, layout="constrained"
    )
    steps = 1_000
    for axes, name, color, place in (
        (without_power, "linear", BLUE, (0.63, 0.44)),
        (without_power, "cosine", ORANGE, (0.32, 0.83)),
        (without_power, "1-sqrt", GREEN, (0.25, 0.54)),
        (without_power, "exponential", "black", (0.03, 0.26)),
        (with_power, "1-x^3", ORANGE, (0.62, 0.85)),
        (with_power, "(1-x)^3", GREEN, (0.32, 0.40)),
        (with_power, "t^-0.5", "black", (0.07, 0.21)),
    ):
        curve = StagedCurve([(steps, 0.05, name)], start=1.0)
        x = np.arange(steps + 1) / steps
        axes.plot(x, curve(range(steps + 1)), color=color, linewidth=2)
        axes.annotate(f'"{name}"', place, color=color, family="monospace", fontsize=9)
    for axes in (without_power, with_power):
        axes.set(xlim=(0, 1), ylim=(0, 1.08), xlabel="x")
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.spines[["top", "right"]].set_visible(False)
    without_power.set_ylabel("multiplier")
    save_picture("shapes")


def draw_plateau_curve():
    """Draw the parts of a curve, and the cosine that gives its plateau's level."""
    curve = PlateauCurve(10_000, warmup_steps=500, plateaus=[(30, 30)], min_lr_ratio=0.1)
    _, warmup_end, begin, after, _ = (segment.first_step for segment in curve.segments)
    axes = make_axes((7.2, 3.2), 10_000)
    total_without = curve.total_steps - (after - begin)
    without = PlateauCurve(total_without, warmup_steps=warmup_end, min_lr_ratio=0.1)
    draw_curve(axes, without, color=ORANGE, linestyle=":", linewidth=1.6)
    draw_curve(axes, curve)
    level = curve(begin)
    axes.plot(begin, level, "o", color=ORANGE, markersize=6)
    axes.annotate("warmup", (250, 0.5), (700, 0.25))
    axes.annotate("half cosine", (warmup_end + 500, 0.64))
    axes.annotate("plateau (30, 30): at 30 %, for 30 %", (begin + 150, level + 0.05))
    axes.annotate("half cosine", (8_250, 0.5))
    axes.annotate("min_lr_ratio", (10_000, 0.035), ha="right")
    axes.annotate("one cosine,\nthe plateau left out", (4_500, 0.27), color=ORANGE, ha="right")
    save_picture("plateau-curve")


def draw_early_and_late():
    """Draw the three curves of examples/choosing_a_curve.ipynb."""
    axes = make_axes((7.2, 2.8), 600)
    for label, plateaus, color, place in (
        ("no plateau", [], "0.4", (320, 0.57)),
        ("early plateau", [(0, 40)], GREEN, (335, 0.95)),
        ("late plateau", [(55, 40)], ORANGE, (350, 0.05)),
    ):
        draw_curve(axes, PlateauCurve(600, warmup_steps=30, plateaus=plateaus), color=color)
        axes.annotate(label, place, color=color)
    save_picture("early-and-late")


def draw_staged_curve():
    stages = [
        (500, 1.0),
        (3_000,),
        (0, 0.5),
        (2_000,),
        (2_000, 0.1, "cosine"),
        (2_500, 0.0, "1-sqrt"),
    ]
    axes = make_axes((7.2, 2.8), 10_000)
    draw_curve(axes, StagedCurve(stages))
    for text, place in (
        ("(500, 1.0)", (400, 0.35)),
        ("(3000,)", (1_600, 0.9)),
        ("(0, 0.5)", (3_600, 0.75)),
        ("(2000,)", (4_100, 0.4)),
        ('(2000, 0.1, "cosine")', (6_350, 0.4)),
        ('(2500, 0.0, "1-sqrt")', (7_350, 0.14)),
    ):
        axes.annotate(text, place, family="monospace", fontsize=9)
    save_picture("staged-curve")


draw_shapes()
draw_plateau_curve()
draw_early_and_late()
draw_staged_curve()
