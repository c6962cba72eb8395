"""Predict the next word of Python's standard library in flax, sharded over several devices.

Eight words → the ninth, of a vocabulary of 2048. The mesh of devices has two axes: over "data" each
device takes a share of the batch, over "model" a share of the vocabulary's table and of the hidden
layer, and of Adam's moments for them. The same run on one device has the same learning rates, bit
for bit, and the same losses up to rounding in float32. The baseline is how often a word follows the
previous one.

The curve is a warmup, a stable phase and a cooldown. A checkpoint holds the curve and the state: a
run can be resumed on another mesh, and under any curve with the same history. Ctrl-C saves too.

The network is that of Bengio et al., 2003, "A Neural Probabilistic Language Model", sharded as in
Shoeybi et al., 2019, "Megatron-LM", arXiv:1909.08053.

    python examples/train_flax.py
    python examples/train_flax.py --mesh 4 2 --width 512
    python examples/train_flax.py --resume    (after Ctrl-C, with the checkpoint's settings)
    python examples/train_flax.py --resume --mesh 1 1 --stable 1500 --cooldown 500
"""

from helpers import program

# isort: split
import argparse
import math
import re
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from orbax import checkpoint

from plateau_jax import StagedCurve, check_resume, optax_schedule, resume_record

VOCABULARY, CONTEXT, FEATURES, HELD_OUT = 2048, 8, 32, 4096
FIXED = "batch_size", "width", "peak", "seed"  # a resumed run must not change these
NOT_SAVED = "mesh", "checkpoint", "resume"  # a resumed run may change these


class Network(nnx.Module):
    """Words (batch, 8) → logits of the next word (batch, 2048), with tied embeddings.

    The first kernel is sharded by columns and the second by rows, so devices exchange results only
    once.
    """

    def __init__(self, width, rngs):
        shard, uniform = nnx.with_partitioning, nnx.initializers.lecun_uniform()
        rows, columns = shard(uniform, ("model", None)), shard(uniform, (None, "model"))
        table = shard(nnx.initializers.normal(0.1), ("model", None))
        inputs = CONTEXT * FEATURES
        self.table = nnx.Embed(VOCABULARY, FEATURES, embedding_init=table, rngs=rngs)
        self.wide = nnx.Linear(inputs, width, use_bias=False, kernel_init=columns, rngs=rngs)
        self.narrow = nnx.Linear(width, FEATURES, kernel_init=rows, rngs=rngs)

    def __call__(self, words):
        inputs = self.table(words).reshape(len(words), -1)
        return self.table.attend(self.narrow(nnx.gelu(self.wide(inputs))))


@nnx.jit
def loss_fn(network, rows):
    """Return the mean cross-entropy of the last word of each row, in nats."""
    logits = network(rows[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, -1]).mean()


@nnx.jit(donate_argnums=(0, 1))  # the new state reuses the memory of the old one
def update(network, optimizer, rows):
    """Make one update; return the loss before it and the learning rate it used."""
    loss, gradients = nnx.value_and_grad(loss_fn)(network, rows)
    optimizer.update(network, gradients)
    return loss, optimizer.opt_state.hyperparams["learning_rate"][...]


class Text:
    """Rows of eight words and the word that follows; every tenth file is held out."""

    def __init__(self, seed):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        held_out = files[9::10]
        parts = [file for file in files if file not in held_out], held_out
        texts = ["".join(file.read_text("utf-8", "replace") for file in part) for part in parts]
        # A line break, with the indentation after it, is a word too.
        training, unseen = (re.findall(r"\n *|\w+|[^\w\s]", text) for text in texts)
        frequent = Counter(training).most_common(VOCABULARY - 1)
        number = {word: rank for rank, (word, _) in enumerate(frequent, 1)}  # 0: any other word

        def rows(words):
            numbers = np.array([number.get(word, 0) for word in words], np.int32)
            return np.lib.stride_tricks.sliding_window_view(numbers, CONTEXT + 1)

        self.training, unseen = rows(training), rows(unseen)
        self.held_out = unseen[:: len(unseen) // HELD_OUT][:HELD_OUT]
        self.seed = seed

    def batch(self, update, size):
        """Draw the batch of an update: the same in every run, so checkpoints need not store it."""
        random = np.random.default_rng([self.seed, update])
        return self.training[random.integers(len(self.training), size=size)]

    def loss_of_pairs(self):
        """Return the held-out loss, in nats, of the frequencies of word pairs in training.

        They are smoothed by the frequencies of single words, with the weight of 100 occurrences
        (MacKay and Peto, 1995, "A Hierarchical Dirichlet Language Model").
        """
        numbers = self.training[:, -2:] @ np.array([VOCABULARY, 1])
        pairs = np.bincount(numbers, minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY)
        singles = (pairs.sum(0) + 1) / (pairs.sum() + VOCABULARY)
        pairs = (pairs + 100 * singles) / (pairs.sum(1, keepdims=True) + 100)
        return -np.log(pairs[tuple(self.held_out[:, -2:].T)]).mean()


class Run:
    """A network and its optimizer on a mesh of devices, with all learning rates and losses."""

    def __init__(self, args, adamw, devices, *shape):
        automatic = AxisType.Auto, AxisType.Auto
        devices = devices[: math.prod(shape)]
        self.mesh = jax.make_mesh(shape, ("data", "model"), axis_types=automatic, devices=devices)
        self.learning_rates, self.losses = [], []

        @nnx.jit  # initializes each shard on its device: no device has to hold the whole network
        def initialize():
            network = Network(args.width, nnx.Rngs(args.seed))
            return network, nnx.Optimizer(network, adamw, wrt=nnx.Param)

        with jax.set_mesh(self.mesh):
            self.parts = initialize()

    def _shard(self, rows):
        return jax.device_put(rows, NamedSharding(self.mesh, PartitionSpec("data")))

    def update(self, rows):
        loss, lr = update(*self.parts, self._shard(rows))
        # CPU devices share few threads: two programs running at once could deadlock.
        self.losses.append(jax.block_until_ready(loss))
        self.learning_rates.append(lr)

    def loss(self, rows):
        return float(loss_fn(self.parts[0], self._shard(rows)))

    def save(self, checkpoints, settings, curve):
        """Start a save: it returns once the state is copied, and writes in the background."""
        past = {
            "rates": np.array(self.learning_rates).tolist(),
            "losses": np.array(self.losses).tolist(),
        }
        record = resume_record(curve, settings["peak"])
        about = checkpoint.args.JsonSave({"settings": settings, "record": record, **past})
        state = checkpoint.args.StandardSave(nnx.state(self.parts))
        checkpoints.save(
            len(self.learning_rates), args=checkpoint.args.Composite(state=state, about=about)
        )

    def load(self, checkpoints, about):
        """Load a state saved on any mesh; each device reads its shard on this mesh."""
        state = checkpoint.args.StandardRestore(nnx.state(self.parts))
        saved = checkpoints.restore(
            len(about["rates"]), args=checkpoint.args.Composite(state=state)
        )
        nnx.update(self.parts, saved.state)
        self.learning_rates, self.losses = (
            [*map(np.float32, about[name])] for name in ("rates", "losses")
        )


def manager(folder):
    """Return Orbax's manager, which keeps the last checkpoint and removes partly written ones."""
    kept = checkpoint.checkpoint_managers.LatestN(1)
    options = checkpoint.CheckpointManagerOptions(
        preservation_policy=kept, cleanup_tmp_directories=True
    )
    return checkpoint.CheckpointManager(folder.absolute(), options=options)


def last_saved(folder):
    """Return settings, record and figures of the last checkpoint, or None if there is none."""
    if not folder.is_dir():
        return None
    with manager(folder) as checkpoints:
        if checkpoints.latest_step() is None:
            return None
        items = checkpoint.args.Composite(about=checkpoint.args.JsonRestore())
        return checkpoints.restore(checkpoints.latest_step(), args=items).about


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mesh = {"type": int, "choices": (1, 2, 4, 8, 16), "metavar": ("DATA", "MODEL")}
    parser.add_argument(
        "--mesh", nargs=2, default=(2, 2), help="devices along both axes (2 2)", **mesh
    )
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--stable", type=int, default=700, help="updates at the peak (700)")
    parser.add_argument("--cooldown", type=int, default=250)
    parser.add_argument(
        "--batch-size", type=int, default=256, help="rows in a batch, over all devices (256)"
    )
    parser.add_argument("--width", type=int, default=256, help="width of the hidden layer (256)")
    parser.add_argument("--peak", type=float, default=5e-3, help="peak learning rate (0.005)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every", type=int, default=100, help="updates between two checkpoints (100)"
    )
    parser.add_argument("--checkpoint", type=Path, default=Path("train_flax"), metavar="FOLDER")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    args, saved = parser.parse_args(), None
    # Before JAX starts: the number of CPU devices, which are used if there are too few others.
    jax.config.update("jax_num_cpu_devices", math.prod(args.mesh))
    if args.resume:
        saved = last_saved(args.checkpoint)
        if saved is None:
            parser.error(f"--resume: there is no checkpoint in {args.checkpoint}")
        parser.set_defaults(**saved["settings"])
        args = parser.parse_args()
        if any(getattr(args, name) != saved["settings"][name] for name in FIXED):
            parser.error("--resume: --batch-size, --width, --peak and --seed must not change")
    data, model = args.mesh
    if (
        args.batch_size % data
        or args.width % model
        or min(args.batch_size, args.width, args.every) < 1
    ):
        parser.error(
            f"--batch-size must be a multiple of {data} and --width of {model}, for --mesh {data} "
            f"{model}; they and --every must be at least 1"
        )
    try:
        curve = StagedCurve([(args.warmup, 1.0), (args.stable,), (args.cooldown, 0.0, "1-sqrt")])
        optax_schedule(curve, args.peak)
        if saved is not None:
            check_resume(saved["record"], resume_record(curve, args.peak), len(saved["rates"]))
    except ValueError as error:
        parser.error(program.with_resume_hint(error, "--warmup, --stable and --cooldown"))
    if args.seed < 0:
        parser.error(f"--seed {args.seed} must be at least 0")
    program.check_writable(parser, "--checkpoint", args.checkpoint)
    return args, curve, saved


def main() -> None:
    args, curve, saved = arguments()
    settings = {name: value for name, value in vars(args).items() if name not in NOT_SAVED}
    text, updates = Text(args.seed), curve.total_steps
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32 on a GPU
    devices = jax.devices()
    if len(devices) < math.prod(args.mesh):
        devices = jax.devices("cpu")

    stop = program.stop_between_updates()

    # inject_hyperparams keeps the learning rate in the state, where it can be read.
    adamw = optax.inject_hyperparams(optax.adamw)(optax_schedule(curve, args.peak))
    run = Run(args, adamw, devices, *args.mesh)
    with manager(args.checkpoint) as checkpoints:
        if saved is not None:
            run.load(checkpoints, saved)
            print(f"resumed from {args.checkpoint} after update {len(run.learning_rates)}")
        else:
            for step in checkpoints.all_steps():
                checkpoints.delete(step)
        state = jax.tree.leaves(nnx.state(run.parts))
        whole = sum(part.nbytes for part in state) / 1e6
        share = sum(part.addressable_data(0).nbytes for part in state) / 1e6
        print(
            f"{len(text.training):,} words to learn from, {run.mesh.size} devices, "
            f"{devices[0].platform}"
        )
        print(f"weights and moments: {whole:.2f} MB, of which a device holds {share:.2f} MB\n")
        print("update  learning rate  training loss  held-out loss", flush=True)
        while (done := len(run.learning_rates)) < updates and not stop.is_set():
            run.update(text.batch(done, args.batch_size))
            done += 1
            if done % args.every == 0 or done == updates:
                figures = run.learning_rates[-1], run.losses[-1], run.loss(text.held_out)
                print("{:6d}  {:13.7e}  {:13.6f}  {:13.6f}".format(done, *figures), flush=True)
                run.save(checkpoints, settings, curve)
        if checkpoints.latest_step() != done:
            run.save(checkpoints, settings, curve)
    if done < updates:
        print(f"stopped after update {done}; {args.checkpoint} resumes with --resume")
        sys.exit(130)
    program.leave_on_ctrl_c()

    alone = Run(args, adamw, devices, 1, 1)
    for done in range(updates):
        alone.update(text.batch(done, args.batch_size))
    bits = np.array([run.learning_rates, alone.learning_rates], np.float32).view(np.int32)
    losses = np.array([run.losses, alone.losses])
    held_out = run.loss(text.held_out)
    print("\nagainst the same run on one device:")
    print(
        f"  learning rates that differ:             {np.count_nonzero(bits[0] != bits[1])} of "
        f"{updates}"
    )
    print(f"  largest difference of a training loss:  {np.abs(losses[0] - losses[1]).max():.1e}")
    print(f"  difference of the last training loss:   {abs(losses[0, -1] - losses[1, -1]):.1e}")
    print(
        f"  difference of the last held-out loss:   {abs(held_out - alone.loss(text.held_out)):.1e}"
    )
    print(f"\nheld-out loss of frequencies of pairs:  {text.loss_of_pairs():.4f} nats per word")
    print(f"held-out loss of the network:           {held_out:.4f}")


if __name__ == "__main__":
    main()
