"""Draw the README's picture: its curve, with the names of its parts.

python examples/plot_readme.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from plateau_jax import PlateauCurve, plot

matplotlib.use("Agg")  # A file, no window.

PEAK = 3e-4
CURVE = PlateauCurve(total_steps=10_000, warmup_steps=500, plateaus=[(50, 30), (85, 10)], min_lr_ratio=0.1)
COLOUR = "#0072B2"  # of Okabe and Ito's colours, which colour-blind eyes tell apart

figure, axes = plt.subplots(figsize=(8.5, 4), layout="constrained")
plot(CURVE, peak_value=PEAK, ax=axes)
axes.lines[0].set(color=COLOUR, linewidth=2.4)


def name(text, step, beside, align="left"):
    """Write beside the curve, in points from its value at a step."""
    axes.annotate(text, (step, PEAK * CURVE(step)), beside, textcoords="offset points", ha=align, va="center")


first, second = (row.begin + row.length // 2 for row in CURVE.rows if row.kind == "plateau")
axes.get_legend().remove()  # The names stand beside the curve.
name("warmup: 500 steps", 250, (22, -10))
name("half cosine", 2_600, (10, 6))
name("plateau (50, 30):\nat 50 %, for 30 %", first, (0, 22), "center")
name("plateau (85, 10):\nat 85 %, for 10 %", second, (0, 31), "center")
name("end: min_lr_ratio = 0.1", 10_000, (0, -14), "right")
axes.set(xlim=(0, 10_100), ylim=(0, 3.15e-4))
axes.set_yticks([0, 1e-4, 2e-4, 3e-4], ["0", "1e-4", "2e-4", "3e-4"])
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_name("curves.png"), dpi=110)
