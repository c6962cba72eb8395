"""Draw the pictures of docs/curves.md, into docs/pictures.

python examples/plot_docs.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from plateau_jax import PlateauCurve, StagedCurve

matplotlib.use("Agg")  # Files, no window.

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # of Okabe and Ito, which colour-blind eyes tell apart


def axes_of(size, total):
    _, axes = plt.subplots(figsize=size, layout="constrained")
    axes.set(xlim=(0, total), ylim=(0, 1.08), xlabel="step", ylabel="multiplier")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def draw(axes, curve, **look):
    steps = np.arange(curve.total_steps + 1)
    axes.plot(steps, curve(steps), **{"color": BLUE, "linewidth": 2, **look})


def save(name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    plt.savefig(PICTURES / f"{name}.png", dpi=90)
    plt.close()


def shape(name, file):
    """A stage that falls, and one that rises."""
    axes = axes_of((2.4, 1.6), 200)
    draw(axes, StagedCurve([(100, 0.05, name), (100, 1.0, name)], start=1.0))
    axes.set_xticks([0, 100, 200])
    axes.set_yticks([0, 0.5, 1])
    save(f"shape-{file}")


def plateau_curve():
    """The parts of a curve, and the cosine from which its plateau has its level."""
    curve = PlateauCurve(10_000, warmup_steps=500, plateaus=[(30, 30)], min_lr_ratio=0.1)
    warmup, decay, plateau, _, _ = curve.rows
    axes = axes_of((7.2, 3.2), 10_000)
    decaying = curve.total_steps - warmup.length - plateau.length
    without = PlateauCurve(warmup.length + decaying, warmup_steps=warmup.length, min_lr_ratio=0.1)
    draw(axes, without, color=ORANGE, linestyle=":", linewidth=1.6)
    draw(axes, curve)
    level = curve(plateau.begin)
    axes.plot(plateau.begin, level, "o", color=ORANGE, markersize=6)
    axes.annotate("warmup", (250, 0.5), (700, 0.25))
    axes.annotate("half cosine", (decay.begin + 500, 0.64))
    axes.annotate("plateau (30, 30): at 30 %, for 30 %", (plateau.begin + 150, level + 0.05))
    axes.annotate("half cosine", (8_250, 0.5))
    axes.annotate("min_lr_ratio", (10_000, 0.035), ha="right")
    axes.annotate("one cosine,\nthe plateau left out", (4_500, 0.27), color=ORANGE, ha="right")
    save("plateau-curve")


def early_and_late():
    """The three curves of examples/choosing_a_curve.ipynb."""
    axes = axes_of((7.2, 2.8), 600)
    for label, plateaus, look in (
        ("no plateau", [], {"color": "0.5"}),
        ("early plateau", [(0, 40)], {"color": GREEN}),
        ("late plateau", [(55, 40)], {"color": ORANGE, "linestyle": "--"}),
    ):
        draw(axes, PlateauCurve(600, warmup_steps=30, plateaus=plateaus), label=label, **look)
    axes.legend(frameon=False, loc="upper right")
    save("early-and-late")


def staged_curve():
    stages = [(500, 1.0), (3_000,), (0, 0.5), (2_000,), (2_000, 0.1, "cosine"), (2_500, 0.0, "1-sqrt")]
    axes = axes_of((7.2, 2.8), 10_000)
    draw(axes, StagedCurve(stages))
    for text, place in (
        ("(500, 1.0)", (400, 0.35)),
        ("(3000,)", (1_600, 0.9)),
        ("(0, 0.5)", (3_600, 0.75)),
        ("(2000,)", (4_100, 0.4)),
        ('(2000, 0.1, "cosine")', (6_350, 0.4)),
        ('(2500, 0.0, "1-sqrt")', (7_350, 0.14)),
    ):
        axes.annotate(text, place, family="monospace", fontsize=9)
    save("staged-curve")


for name in ("linear", "cosine", "1-sqrt", "exponential"):
    shape(name, name)
shape("1-x^3", "power-from-start")
shape("(1-x)^3", "power-from-end")
shape("t^-0.5", "inverse-power")
plateau_curve()
early_and_late()
staged_curve()
