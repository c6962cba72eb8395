"""Draw the README's picture.

python examples/plot_readme.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from plateau_jax import PlateauCurve, plot

matplotlib.use("Agg")  # A file, no window.

STEPS = 10_000
CURVES = {
    "cosine": PlateauCurve(STEPS, warmup_steps=500),
    "two plateaus": PlateauCurve(STEPS, warmup_steps=500, plateaus=[(30, 20), (70, 15)]),
    "warmup-stable-decay: one plateau at 0 %": PlateauCurve(STEPS, warmup_steps=500, plateaus=[(0, 80)]),
    "cosine warmup, linear decay to 10 %": PlateauCurve(
        STEPS, warmup_steps=2_000, min_lr_ratio=0.1, warmup="cosine", decay="linear"
    ),
}
# Okabe and Ito's colours, told apart by colour-blind eyes; dashes for those who see none.
STYLES = [("#999999", "--"), ("#0072B2", "-"), ("#D55E00", "-"), ("#009E73", "-.")]

figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
plot(CURVES.values(), peak_value=3e-4, ax=axes)
for line, label, (colour, dashes) in zip(axes.lines, CURVES, STYLES, strict=True):
    line.set(label=label, color=colour, linestyle=dashes, linewidth=2.2)
axes.get_legend().remove()
figure.legend(handles=axes.lines, loc="outside lower center", ncols=2, frameon=False)
axes.set_title("One description, the same bits in JAX, PyTorch and NumPy", loc="left")
axes.set(xlim=(0, STEPS * 1.01), ylim=(0, 3.15e-4))  # the legend is outside
axes.set_yticks([0, 1e-4, 2e-4, 3e-4], ["0", "1e-4", "2e-4", "3e-4"])
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_name("curves.png"), dpi=110)
