"""Draw the picture of docs/tutorial.md: a curve, and a shorter run that branches off.

python docs/pictures/draw_branch.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from plateau_jax import StagedCurve

matplotlib.use("Agg")  # A file, no window.

PEAK = 3e-4
CURVE = StagedCurve.wsd(10_000, warmup_steps=500, decay_steps="30%")
BRANCH = CURVE.cooldown(3_500, 1_500)
BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito, safe for colour-blind readers

# Few inches and many dots per inch, so that the text is still readable where a phone shrinks the
# picture.
figure, axes = plt.subplots(figsize=(5.6, 2.9), layout="constrained")
CURVE.plot(peak_value=PEAK, ax=axes)
axes.lines[0].set(color=BLUE, linewidth=2.4)
branched = range(BRANCH.at, BRANCH.total_steps + 1)
axes.plot(branched, PEAK * BRANCH(branched), color=ORANGE, linewidth=2.4, linestyle="--")


def label_curve(text, curve, step, offset, align="left"):
    """Write a label at an offset, in points, from the curve's value at a step."""
    axes.annotate(
        text, (step, PEAK * curve(step)), offset, textcoords="offset points", ha=align, va="center"
    )


axes.get_legend().remove()  # The curves are labelled directly.
axes.annotate("warmup", (300, 0.4e-4), (900, 0.4e-4), va="center", arrowprops={"arrowstyle": "-"})
label_curve("plateau at the peak", CURVE, 3_800, (0, 10), "center")
label_curve("an earlier end:\na branch with\na cooldown", BRANCH, 4_000, (9, 6))
label_curve("decay", CURVE, 7_200, (8, 9))
axes.set(xlim=(0, 10_100), ylim=(0, 3.5e-4))
axes.set_xticks(range(0, 10_001, 2_500))
axes.set_yticks([0, 1e-4, 2e-4, 3e-4], ["0", "1e-4", "2e-4", "3e-4"])
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_name("branch.png"), dpi=165)
