"""Recover the two-grams of surnames from their Bloom filters, with a network and a linear model.

The filters of helpers/bloom_filters.py keep names secret while registries compare them. How much of
a name can a model read out of its filter, after training on other names and their filters? The
names are the 88,799 surnames of the US census of 1990. A filter has 64 bits and 8 hash functions,
which set most of the bits: even with the key, six two-grams that are not in the name fit the filter
for one that is.

NumPy encodes all names at once, and joblib caches the result, which the next start maps into
memory. The time is compared with encoding row by row. A tenth of the names is held out, and another
tenth chooses each model's threshold. The network is compared with guessing the most frequent
two-grams, with a linear model trained the same way (which gains 0.01 if trained three times as
long), and with the key.

    python examples/train_bloom.py
    python examples/train_bloom.py --bits 1000 --hashes 30 --epochs 2
    python examples/train_bloom.py --resume    (after Ctrl-C, with the checkpoint's settings)
"""

from helpers import program

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
from helpers.bloom_filters import SURNAMES, TWO_GRAMS, compare, encode, positions, unpacked
from torch import nn
from torch.nn import functional

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, evaluate, make_loader, prefetch

matplotlib.use("Agg")  # writes files, opens no window

COLORS = {"network": "#0072B2", "linear model": "#E69F00", "most frequent": "0.5"}


def cached(folder, **sizes):
    """Return the encoded surnames, mapped into memory from files in the folder."""
    memory = joblib.Memory(folder, mmap_mode="r", verbose=0)
    digest = hashlib.sha256(
        Path(SURNAMES).read_bytes()
    ).hexdigest()  # a changed source is encoded again
    return memory.cache(encode, ignore=["source"])(SURNAMES, digest=digest, **sizes)


class Names:
    """A data set of some rows of the cached arrays, which reads a batch at once."""

    def __init__(self, data, bits, rows):
        self.data, self.widths, self.rows = data, {"filters": bits, "grams": len(TWO_GRAMS)}, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        rows = self.rows[index]
        return tuple(unpacked(self.data[name][rows], width) for name, width in self.widths.items())

    __getitems__ = __getitem__  # torch's loaders call this for a whole batch


def keep_batch(batch):
    return batch


def make_model(bits, hidden, log_odds):
    """Build a linear model or, with a hidden layer, a network.

    Layers are initialized after Xavier, before a ReLU after Kaiming. A name has one in a hundred of
    all two-grams. The biases of the last layer start at the two-grams' log-odds, so that training
    need not first learn how rare each one is (Lin et al., 2017, "Focal loss"). The threshold is
    chosen after training. A `pos_weight` on the two-grams of a name (the root of the odds against
    each) was tried, and cost 0.02 to 0.03 of F1: it moves the threshold, which is chosen anyway,
    and lets the rarest two-grams outweigh the others.
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
    """Return the summed cross-entropy of the names' two-grams in nats, and the number of names."""
    filters, grams = (part.float() for part in batch)
    loss = functional.binary_cross_entropy_with_logits(model(filters), grams, reduction="sum")
    return loss, len(filters)


def precision_recall(scores, truth):
    """Return thresholds from -12 to 12 below the largest score, with precision, recall, F1."""
    above = [
        torch.histc(values.clamp(-12, 12), 2400, -12, 12).double().flip(0).cumsum(0).flip(0)
        for values in (scores, scores[truth])
    ]
    predicted, hits = (counts[above[0] > 0] for counts in above)
    actual = above[1][0]
    thresholds = torch.linspace(-12, 12, 2401)[: len(predicted)]
    return thresholds, hits / predicted, hits / actual, 2 * hits / (predicted + actual)


def score(predicted, truth):
    """Return precision, recall and F1 over all two-grams of all names."""
    hits, positives, actual = (mask.sum().item() for mask in (predicted & truth, predicted, truth))
    return hits / max(positives, 1), hits / max(actual, 1), 2 * hits / max(positives + actual, 1)


def draw_picture(path, curves, scores, groups, by_group):
    """Draw the thresholds with the chosen one, next to rare and frequent two-grams."""
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
    parser.add_argument(
        "--count", type=int, default=88_799, help="use only the most common surnames (all)"
    )
    parser.add_argument("--bits", type=int, default=64, help="bits of a filter (64)")
    parser.add_argument("--hashes", type=int, default=8, help="bits that a two-gram sets (8)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument(
        "--peak", type=float, default=1e-2, help="the network's peak learning rate (0.01)"
    )
    parser.add_argument(
        "--linear-peak", type=float, default=0.5, help="the linear model's peak (0.5)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--every", type=int, default=138, help="updates between two lines of output (138)"
    )
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
    # As an argument, the positions are part of the cache's key; functions called by encode would
    # not be.
    data = cached(args.data, count=args.count, **sizes)
    seconds = time.perf_counter() - start
    # The same split for every seed.
    shuffled = np.random.default_rng(0).permutation(len(data["filters"]))
    training, validation, held_out = np.split(
        shuffled, [len(shuffled) * 8 // 10, len(shuffled) * 9 // 10]
    )
    _, grams = Names(data, args.bits, training)[:]
    frequency = grams.sum(0, dtype=torch.float32)  # the number of names with each two-gram
    log_odds = torch.log((frequency + 0.5) / (len(training) - frequency + 0.5))

    torch.manual_seed(args.seed)
    models = {
        name: make_model(args.bits, hidden, log_odds).to(args.device)
        for name, hidden in (("network", args.hidden), ("linear model", 0))
    }
    try:
        # No workers: reading rows from memory costs less than sending them between processes.
        settings = {"device": args.device, "num_workers": 0, "collate_fn": keep_batch}
        rows = [Names(data, args.bits, part) for part in (training, validation, held_out)]
        feed = prefetch(
            make_loader(rows[0], args.batch_size, seed=args.seed, **settings), args.device
        )
        checks = prefetch(make_loader(rows[1], 2048, training=False, **settings), args.device)
        updates, done = args.epochs * len(feed), 0
        curve = PlateauCurve(
            updates, warmup_steps=updates // 20, plateaus=[(10, 40)], min_lr_ratio=0.01
        )
        train_steps = {}
        for (name, model), peak in zip(models.items(), (args.peak, args.linear_peak), strict=True):
            optimizer = torch.optim.AdamW(
                model.parameters(), lr=peak, weight_decay=1e-4, fused=True
            )
            train_steps[name] = TrainStep(model, optimizer, loss_fn, curve)
        if saved is not None:
            for name, train_step in train_steps.items():
                train_step.load_state_dict(saved["steps"][name])
            feed.load_state_dict(saved["feed"])
            done = saved["done"]
            print(f"resumed from {args.checkpoint} after update {done} of {updates}")
    except ValueError as error:
        sys.exit(
            "train_bloom.py: "
            f"{program.with_resume_hint(error, '--epochs, --batch-size and --count')}"
        )

    stop = program.stop_between_updates()

    print(
        f"{len(shuffled):,} names ready after {seconds:.2f} s, {grams.float().mean():.1%} of "
        "two-grams there"
    )
    print(
        "update  learning rate    network  linear model  (nats a name, not trained on)", flush=True
    )
    batches = program.forever(feed)
    while done < updates and not stop.is_set():
        batch = next(batches)
        for train_step in train_steps.values():
            result = train_step(batch)
        done += 1
        if done % args.every == 0 or done == updates:
            losses = [evaluate(model, checks, loss_fn) for model in models.values()]
            lr_ratio = result.lr.item() / args.linear_peak
            print(f"{done:6d}  {lr_ratio:13.4f}  {losses[0]:9.3f}  {losses[1]:12.3f}", flush=True)
    if done < updates:
        states = {name: train_step.state_dict() for name, train_step in train_steps.items()}
        program.save_and_exit(args, done, steps=states, feed=feed.state_dict())
    program.leave_on_ctrl_c()

    (tuning, tuned), (filters, truth) = (part[:] for part in rows[1:])
    tuned, truth = tuned.bool(), truth.bool()
    with torch.no_grad():
        outputs = {
            name: [model(part.float().to(args.device)).cpu() for part in (tuning, filters)]
            for name, model in models.items()
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
        thresholds, _, _, f1 = precision_recall(of_tuning, tuned)
        predicted = of_held_out >= thresholds[f1.argmax()]
        curves[name] = precision_recall(of_held_out, truth)[1:3]
        scores[name] = score(predicted, truth)
        masks = [(low <= frequency) & (frequency < high) for low, high in groups.values()]
        by_group[name] = [score(predicted[:, mask], truth[:, mask])[2] for mask in masks]
    set_bits = filters.bool()
    # With the key: predict each two-gram whose bits are all set.
    all_set = [set_bits[:, bits].all(1) for bits in sizes["positions"]]
    scores["all bits, by the key"] = score(torch.stack(all_set, 1), truth)
    print(f"\ntwo-grams of {len(truth):,} held-out names  precision  recall     F1")
    for name, figures in scores.items():
        print(f"  {name + ':':32}" + "  ".join(f"{figure:7.3f}" for figure in figures))
    draw_picture(args.output, curves, scores, list(groups), by_group)
    print(f"picture: {args.output}")

    count = min(4000, args.count)
    slow, fast = (1e3 * seconds for seconds in compare(SURNAMES, count, *sizes.values()))
    print(
        f"{count:,} names row by row {slow:.0f} ms, at once {fast:.1f} ms: {slow / fast:.0f} times "
        "as fast"
    )


if __name__ == "__main__":
    main()
