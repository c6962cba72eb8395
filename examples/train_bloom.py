"""Recover the two-grams of surnames from their Bloom filters, with a network and with a linear model.

The filters of bloom_filters.py keep names secret while registries compare them. How much of a name can a
model read out of its filter, after training on other names and their filters? The names are the 88,799
surnames of the US census of 1990. A filter has 64 bits and 8 hash functions, which set most of the bits:
even with the key, six two-grams that are not in the name fit the filter for one that is.

NumPy makes the filters of all names at once, and joblib keeps them: the next start maps them into memory. The
time is compared with making them row by row. A tenth of the names is held out, and another tenth chooses each
model's threshold. The model is compared with guessing the most frequent two-grams, with a linear model
trained the same way (trained three times as long it gains 0.01), and with the key.

    python examples/train_bloom.py
    python examples/train_bloom.py --bits 1000 --hashes 30 --epochs 2
    python examples/train_bloom.py --resume        (after a Ctrl-C: with the settings of the checkpoint)
"""

import program

# isort: split
import argparse
import hashlib
import sys
import time
from pathlib import Path

import joblib
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from bloom_filters import SURNAMES, TWO_GRAMS, compare, encode, positions, unpacked
from torch import nn
from torch.nn import functional

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, evaluate, make_loader, prefetch

matplotlib.use("Agg")  # A file, no window.

COLORS = {"network": "#0072B2", "linear model": "#E69F00", "most frequent": "0.5"}


def cached(folder, **sizes):
    """What `encode` makes of the surnames, mapped into memory from files in the folder."""
    memory = joblib.Memory(folder, mmap_mode="r", verbose=0)
    digest = hashlib.sha256(Path(SURNAMES).read_bytes()).hexdigest()  # new bytes give new arrays
    return memory.cache(encode, ignore=["source"])(SURNAMES, digest=digest, **sizes)


class Names:
    """Some rows of the cached arrays; a batch of them is read at once."""

    def __init__(self, data, bits, rows):
        self.data, self.widths, self.rows = data, {"filters": bits, "grams": len(TWO_GRAMS)}, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        rows = self.rows[index]
        return tuple(unpacked(self.data[name][rows], width) for name, width in self.widths.items())

    __getitems__ = __getitem__  # what torch's loaders ask for a whole batch


def as_it_is(batch):
    return batch


def model(bits, hidden, log_odds):
    """A linear model, or with a hidden layer a network: Xavier's start, and Kaiming's before a ReLU.

    A name has one in a hundred of all two-grams. The biases of the last layer start at the two-grams'
    log-odds, so that training need not first learn how rare each one is (Lin et al., 2017, "Focal loss").
    The threshold is chosen after training. A `pos_weight` on the two-grams of a name (the root of the odds
    against each) was tried, and cost 0.02 to 0.03 of F1: it moves the threshold, which is chosen anyway, and
    lets the rarest two-grams outweigh the others.
    """
    last = nn.Linear(hidden or bits, len(TWO_GRAMS))
    nn.init.xavier_uniform_(last.weight)
    with torch.no_grad():
        last.bias.copy_(log_odds)
    if not hidden:
        return last
    first = nn.Linear(bits, hidden)
    nn.init.kaiming_uniform_(first.weight, nonlinearity="relu")
    nn.init.zeros_(first.bias)
    return nn.Sequential(first, nn.ReLU(), last)


def loss_fn(model, batch):
    """The cross-entropy of all two-grams of a name, in nats: its sum and the number of names."""
    filters, grams = (part.float() for part in batch)
    loss = functional.binary_cross_entropy_with_logits(model(filters), grams, reduction="sum")
    return loss, len(filters)


def levels(scores, truth):
    """Thresholds from -12 to 12 that some score lies above, and precision, recall and F1 at each."""
    above = [
        torch.histc(some.clamp(-12, 12), 2400, -12, 12).double().flip(0).cumsum(0).flip(0)
        for some in (scores, scores[truth])
    ]
    said, hits = (counts[above[0] > 0] for counts in above)
    there = above[1][0]
    thresholds = torch.linspace(-12, 12, 2401)[: len(said)]
    return thresholds, hits / said, hits / there, 2 * hits / (said + there)


def score(predicted, truth):
    """Precision, recall and F1 over all two-grams of all names."""
    hits, said, there = (some.sum().item() for some in (predicted & truth, predicted, truth))
    return hits / max(said, 1), hits / max(there, 1), 2 * hits / max(said + there, 1)


def picture(path, curves, scores, groups, by_group):
    """Left: all thresholds, and the chosen one. Right: rare and frequent two-grams."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for name, color in COLORS.items():
        precision, recall = curves[name]
        left.plot(recall, precision, color=color, lw=1.8, label=name)
        left.plot(*scores[name][1::-1], "o", color=color, ms=7)
        right.plot(range(len(groups)), by_group[name], "o-", color=color, ms=5)
    left.set_title("Two-grams of held-out names", loc="left")
    left.set(xlabel="recall", ylabel="precision", xlim=(0, 1.01), ylim=(0, 1.01))
    left.legend(frameon=False, loc="center left")
    right.set_title("F1 by how many training names have the two-gram", loc="left")
    right.set(xticks=range(len(groups)), xticklabels=groups, ylim=(0, 1.01))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.92")
    program.save_picture(figure, path)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=88_799, help="use only the most common surnames (all)")
    parser.add_argument("--bits", type=int, default=64, help="bits of a filter (64)")
    parser.add_argument("--hashes", type=int, default=8, help="bits that a two-gram sets (8)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--peak", type=float, default=1e-2, help="the network's peak learning rate (0.01)")
    parser.add_argument("--linear-peak", type=float, default=0.5, help="the linear model's peak (0.5)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--every", type=int, default=138, help="print once in so many updates (138)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path("train_bloom_data"), metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=Path("train_bloom.png"), metavar="FILE")
    args, saved = program.parse_with_checkpoint(parser)
    sizes = ("count", "bits", "hashes", "epochs", "batch_size", "hidden", "every")
    program.check_positive(parser, args, *sizes)
    program.check_picture(parser, args.output)
    program.check_writable(parser, "--checkpoint", args.checkpoint)
    program.check_writable(parser, "--data", args.data)
    program.check_device(parser, args.device)
    return args, saved


def main() -> None:
    args, saved = arguments()
    torch.set_num_threads(1)  # The models are small.
    sizes = {"bits": args.bits, "positions": positions(args.bits, args.hashes)}
    start = time.perf_counter()
    # As an argument, the positions are part of the key; functions that encode calls would not be.
    data = cached(args.data, count=args.count, **sizes)
    seconds = time.perf_counter() - start
    shuffled = np.random.default_rng(0).permutation(len(data["filters"]))  # held out for every seed
    training, validation, held_out = np.split(shuffled, [len(shuffled) * 8 // 10, len(shuffled) * 9 // 10])
    _, grams = Names(data, args.bits, training)[:]
    seen = grams.sum(0, dtype=torch.float32)  # how many names have it
    log_odds = torch.log((seen + 0.5) / (len(training) - seen + 0.5))

    torch.manual_seed(args.seed)
    models = {
        name: model(args.bits, hidden, log_odds).to(args.device)
        for name, hidden in (("network", args.hidden), ("linear model", 0))
    }
    try:
        # No workers: reading rows from memory costs less than sending them between processes.
        settings = {"device": args.device, "num_workers": 0, "collate_fn": as_it_is}
        rows = [Names(data, args.bits, part) for part in (training, validation, held_out)]
        feed = prefetch(make_loader(rows[0], args.batch_size, seed=args.seed, **settings), args.device)
        checks = prefetch(make_loader(rows[1], 2048, training=False, **settings), args.device)
        updates, done = args.epochs * len(feed), 0
        curve = PlateauCurve(updates, warmup_steps=updates // 20, plateaus=[(10, 40)], min_lr_ratio=0.01)
        steps = {}
        for (name, each), peak in zip(models.items(), (args.peak, args.linear_peak), strict=True):
            optimizer = torch.optim.AdamW(each.parameters(), lr=peak, weight_decay=1e-4, fused=True)
            steps[name] = TrainStep(each, optimizer, loss_fn, curve)
        if saved is not None:
            for name, step in steps.items():
                step.load_state_dict(saved["steps"][name])
            feed.load_state_dict(saved["feed"])
            done = saved["done"]
            print(f"resumed from {args.checkpoint} after update {done} of {updates}")
    except ValueError as error:
        sys.exit(f"train_bloom.py: {program.with_way_out(error, '--epochs, --batch-size and --count')}")

    stop = program.stop_between_updates()

    print(
        f"{len(shuffled):,} names ready after {seconds:.2f} s, {grams.float().mean():.1%} of two-grams there"
    )
    print("update  learning rate    network  linear model  (nats a name, not trained on)", flush=True)
    batches = program.forever(feed)
    while done < updates and not stop.is_set():
        batch = next(batches)
        for step in steps.values():
            result = step(batch)
        done += 1
        if done % args.every == 0 or done == updates:
            losses = [evaluate(each, checks, loss_fn) for each in models.values()]
            rate = result.lr.item() / args.linear_peak
            print(f"{done:6d}  {rate:13.4f}  {losses[0]:9.3f}  {losses[1]:12.3f}", flush=True)
    if done < updates:
        states = {name: step.state_dict() for name, step in steps.items()}
        program.save_and_exit(args, done, steps=states, feed=feed.state_dict())
    program.leave_on_ctrl_c()

    (tuning, tuned), (filters, truth) = (part[:] for part in rows[1:])
    tuned, truth = tuned.bool(), truth.bool()
    with torch.no_grad():
        outputs = {
            name: [each(part.float().to(args.device)).cpu() for part in (tuning, filters)]
            for name, each in models.items()
        }
    outputs["most frequent"] = [log_odds.expand(len(part), -1) for part in (tuning, filters)]
    groups = {
        "under 10": (0, 10),
        "10 to 99": (10, 100),
        "100 to 999": (100, 1000),
        "1,000 and more": (1000, 1e9),
    }
    curves, scores, by_group = {}, {}, {}
    for name, (of_tuning, of_held_out) in outputs.items():
        thresholds, _, _, f1 = levels(of_tuning, tuned)
        predicted = of_held_out >= thresholds[f1.argmax()]
        curves[name] = levels(of_held_out, truth)[1:3]
        scores[name] = score(predicted, truth)
        masks = [(low <= seen) & (seen < high) for low, high in groups.values()]
        by_group[name] = [score(predicted[:, mask], truth[:, mask])[2] for mask in masks]
    set_bits = filters.bool()
    every_bit = [set_bits[:, own].all(1) for own in sizes["positions"]]
    scores["all bits, by the key"] = score(torch.stack(every_bit, 1), truth)
    print(f"\ntwo-grams of {len(truth):,} held-out names  precision  recall     F1")
    for name, figures in scores.items():
        print(f"  {name + ':':32}" + "  ".join(f"{figure:7.3f}" for figure in figures))
    picture(args.output, curves, scores, list(groups), by_group)
    print(f"picture: {args.output}")

    count = min(4000, args.count)
    slow, fast = (1e3 * seconds for seconds in compare(SURNAMES, count, *sizes.values()))
    print(f"{count:,} names row by row {slow:.0f} ms, at once {fast:.1f} ms: {slow / fast:.0f} times as fast")


if __name__ == "__main__":
    main()
