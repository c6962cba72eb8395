"""Forecast the carbon dioxide over Mauna Loa with an LSTM, by truncated backpropagation.

The data are the monthly means of 1958-2001 that ship with statsmodels. From the change since the
previous month and from its state, the LSTM forecasts the next twelve months; it learns the seasons
by itself. The series is cut into windows of two years; the state is carried from each window to the
next, gradients are not (Williams and Peng, 1990, "An Efficient Gradient-Based Algorithm for On-Line
Training of Recurrent Network Trajectories"). The last fifth of the months is held out. Two
forecasts that need no model serve for comparison: the last value, and a repetition of last year's
changes.

    python examples/train_lstm.py
    python examples/train_lstm.py --epochs 80 --hidden 64 --output co2.png
    python examples/train_lstm.py --resume    (after Ctrl-C, with the checkpoint's settings)
"""

from helpers import program

# isort: split
import argparse
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from statsmodels.datasets import co2
from torch import nn

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, evaluate

matplotlib.use("Agg")  # writes files, opens no window

AHEAD = 12  # months


class Forecaster(nn.Module):
    """The change since the previous month → the changes over the next 1 … 12 months."""

    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden)
        self.forecast = nn.Linear(hidden, AHEAD)

    def forward(self, changes, carry):
        hidden, carry = self.lstm(changes, carry)
        return self.forecast(hidden), carry


def loss_fn(model, window, carry):
    """Return the summed squared error in ppm², and its weight: the months that count."""
    changes, targets, counts = window
    forecasts, carry = model(changes, carry)
    errors = (forecasts - targets).square().mean(-1)
    return ((errors * counts).sum(), counts.sum()), carry


def windows(changes, targets, counts, length):
    """Cut the series into consecutive windows, with a batch dimension of one series."""
    parts = (series.unsqueeze(1).split(length) for series in (changes, targets, counts))
    return list(zip(*parts, strict=True))


def draw_picture(path, dates, level, origins, forecasts, errors):
    """Draw forecasts from every held-out December above, and the errors by months ahead below."""
    colors = {"LSTM": "#0072B2", "last year's changes": "#E69F00", "last value": "0.6"}
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 7), height_ratios=(3, 2), layout="constrained"
    )
    decembers = [index for index, month in enumerate(origins) if dates[month].month == 12]
    shown = slice(origins[decembers[0]], None)
    above.plot(dates[shown], level[shown], "o", color="0.25", ms=3.5, label="measured")
    for name, style in (("last year's changes", "--"), ("LSTM", "-")):
        for index in decembers:
            month = origins[index]
            values = level[month] + np.concatenate([[0], forecasts[name][index]])
            label = f"forecast each December: {name}" if index == decembers[0] else None
            year = dates[month : month + AHEAD + 1]
            above.plot(year, values, style, color=colors[name], lw=1.8, label=label)
    above.set_title("Carbon dioxide over Mauna Loa, monthly means (ppm)", loc="left")
    above.yaxis.set_major_locator(matplotlib.ticker.MultipleLocator(5))
    above.legend(frameon=False, loc="upper left")

    for name, color in colors.items():
        below.plot(range(1, AHEAD + 1), errors[name], "o-", color=color, ms=4)
        below.text(AHEAD + 0.2, errors[name][-1], name, color=color, va="center")
    below.set_title("Root mean square error over all held-out months (ppm)", loc="left")
    below.set(xlabel="months ahead", xlim=(0.7, AHEAD + 2.5), xticks=range(1, AHEAD + 1))
    below.set(yscale="log", yticks=(0.25, 0.5, 1, 2, 4), ylim=(0.25, 5))
    below.yaxis.set_major_formatter("{x:g}")
    below.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
    program.save_picture(figure, path)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--window", type=int, default=24, help="months of backpropagation (24)")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--peak", type=float, default=1e-2, help="peak learning rate (0.01)")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--every", type=int, default=85, help="updates between two lines of output (85)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("train_lstm.png"), metavar="FILE")
    args, saved = program.parse_with_checkpoint(parser)
    program.check_positive(parser, args, "epochs", "window", "hidden", "every")
    if args.precision == "fp16" and args.device == "cpu":
        parser.error("--precision fp16 needs a GPU: torch has no fp16 LSTM for CPUs")
    program.check_picture(parser, args.output)
    program.check_writable(parser, "--checkpoint", args.checkpoint)
    program.check_device(parser, args.device)
    return args, saved


def main() -> None:
    args, saved = arguments()
    monthly = co2.load_pandas().data["co2"].resample("MS").mean().interpolate()
    level = torch.tensor(monthly.to_numpy(), dtype=torch.float32)
    split = len(level) * 4 // 5
    origins = torch.arange(1, len(level) - AHEAD)  # the months in which a forecast is made
    changes = (level[origins] - level[origins - 1]).unsqueeze(1)
    targets = torch.stack(
        [level[origins + ahead] - level[origins] for ahead in range(1, AHEAD + 1)], 1
    )
    trained = origins + AHEAD < split  # no training target is a held-out month
    held_out = origins >= split
    # Evaluation runs through the whole series, so that the LSTM has seen the months before the
    # held-out ones. Those earlier months do not count.
    series = [part.to(args.device) for part in (changes, targets)]
    training = windows(
        *(part[trained] for part in series), trained[trained].to(args.device), args.window
    )
    validation = windows(*series, held_out.to(args.device), args.window)

    torch.set_num_threads(1)  # a second thread does not pay for matrices this small
    torch.manual_seed(args.seed)
    model = Forecaster(args.hidden).to(args.device)
    carry = (torch.zeros(1, 1, args.hidden), torch.zeros(1, 1, args.hidden))  # an empty memory
    updates, done = args.epochs * len(training), 0
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.peak, fused=True)
        curve = PlateauCurve(updates, warmup_steps=updates // 10, plateaus=[(20, 40)])
        train_step = TrainStep(
            model, optimizer, loss_fn, curve, precision=args.precision, max_norm=1.0, carry=carry
        )
        if saved is not None:
            train_step.load_state_dict(saved["step"])
            done = saved["done"]
            print(f"resumed from {args.checkpoint} after update {done} of {updates}")
    except ValueError as error:
        sys.exit(f"train_lstm.py: {program.with_resume_hint(error, '--epochs and --window')}")

    stop = program.stop_between_updates()

    def rmse(batches):
        return evaluate(model, batches, loss_fn, precision=args.precision, carry=carry) ** 0.5

    print("update  learning rate  training error  held-out error (ppm)", flush=True)
    while done < updates and not stop.is_set():
        index = done % len(training)
        if index == 0:
            train_step.reset_carry()
        result = train_step(training[index])
        done += 1
        if done % args.every == 0 or done == updates:
            lr, errors = result.lr.item(), (rmse(training), rmse(validation))
            print(f"{done:6d}  {lr:13.3e}  {errors[0]:14.4f}  {errors[1]:14.4f}", flush=True)
    if done < updates:
        program.save_and_exit(args, done, step=train_step.state_dict())
    program.leave_on_ctrl_c()

    with torch.no_grad():
        forecast = model(series[0].unsqueeze(1), None)[0].squeeze(1).cpu()[held_out]
    origins, level = origins[held_out].numpy(), level.numpy()
    ahead = np.arange(1, AHEAD + 1)
    forecasts = {
        "LSTM": forecast.numpy(),
        "last year's changes": level[origins[:, None] + ahead - 12] - level[origins - 12, None],
        "last value": np.zeros((len(origins), AHEAD), np.float32),
    }
    measured = targets[held_out].numpy()
    squares = {name: np.square(values - measured) for name, values in forecasts.items()}
    print(f"\nroot mean square error, {len(origins)} held-out months, 1 to {AHEAD} months ahead:")
    for name, values in squares.items():
        print(f"  {name + ':':21}{np.sqrt(values.mean()):.3f} ppm")
    errors = {name: np.sqrt(values.mean(0)) for name, values in squares.items()}
    draw_picture(args.output, monthly.index, level, origins, forecasts, errors)
    print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
