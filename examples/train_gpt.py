"""Train a small GPT, byte by byte, on the source of Python's own standard library.

A decoder-only transformer with AdamW, or with Muon and AdamW, a warmup and one plateau. At
intervals the program prints how well the model predicts held-out files, in nats per byte, and saves
a checkpoint. The loss to beat is that of byte frequencies alone. Ctrl-C saves too, and a run
resumed with --resume has the losses of an uninterrupted run, to the last bit. The number of
processes may change in between: one process, DDP and FSDP2 load each other's checkpoints.

The model is that of GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask
Learners"), with the names of https://github.com/karpathy/nanoGPT.

    python examples/train_gpt.py
    python examples/train_gpt.py --steps 3000 --accumulation 2
    python examples/train_gpt.py --optimizer muon
    python examples/train_gpt.py --precision bf16 --compile --cuda-graph --width 512 --layers 8
    python examples/train_gpt.py --resume         (keeps settings that are not given again)
    torchrun --nproc-per-node 2 examples/train_gpt.py --distribute fsdp --checkpoint-activations
"""

from helpers import program

# isort: split
import argparse
import json
import os
import signal
import sys
import sysconfig
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.nn import functional
from tqdm import tqdm

from plateau_jax import PlateauCurve
from torch_bridge import (
    Checkpoints,
    MetricLog,
    TrainStep,
    distribute,
    evaluate,
    make_loader,
    prefetch,
)

BYTES = 256
RANK = int(os.environ.get("RANK", 0))  # which torchrun sets


class Block(nn.Module):
    """Causal self-attention, then an MLP, each after a LayerNorm and with a residual connection."""

    def __init__(self, n_embd):
        super().__init__()
        self.n_head = n_embd // 32
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        qkv = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in qkv)
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attention.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Bytes (batch, time) → logits of the next byte (batch, time, 256), with tied embeddings."""

    def __init__(self, n_layer, n_embd, block_size):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(BYTES, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*(Block(n_embd) for _ in range(n_layer)))
        self.ln_f = nn.LayerNorm(n_embd)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text):
        positions = torch.arange(text.shape[1], device=text.device)
        x = self.blocks(self.wte(text) + self.wpe(positions))
        return functional.linear(self.ln_f(x), self.wte.weight)


def loss_fn(model, batch):
    """Return the summed cross-entropy of the next bytes, in nats, and the number of bytes."""
    text = batch.long()
    inputs, targets = text[:, :-1], text[:, 1:].flatten()
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets, reduction="sum"), len(
        targets
    )


def read_text():
    """Read the modules in the standard library's top folder; every tenth file is held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held_out = files[9::10]
    training = [file for file in files if file not in held_out]
    return [
        torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in part)), dtype=torch.uint8)
        for part in (training, held_out)
    ]


def loss_of_frequencies(training, held_out):
    """Return the cross-entropy of held-out bytes in nats, under the training bytes' frequencies."""
    counts = torch.bincount(training, minlength=BYTES) + 1.0
    return -(counts / counts.sum()).log()[held_out.long()].mean().item()


@torch.no_grad()
def sample(model, prompt, length, context, device):
    """Continue the prompt byte by byte at temperature 0.8."""
    generator = torch.Generator().manual_seed(0)  # does not disturb the random numbers of training
    text = list(prompt.encode())
    for _ in range(length):
        window = torch.tensor([text[-context:]], device=device)
        probabilities = functional.softmax(model(window)[0, -1] / 0.8, dim=-1).cpu()
        text.append(torch.multinomial(probabilities, 1, generator=generator).item())
    return bytes(text).decode(errors="replace")


def optimizers(args, model):
    """Return AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest.

    AdamW: Loshchilov and Hutter, 2019, arXiv:1711.05101. Muon: Jordan et al., 2024,
    https://kellerjordan.github.io/posts/muon. Its updates are scaled to the size of AdamW's, so
    both use one learning rate (Liu et al., 2025, arXiv:2502.16982).
    """
    matrices = (
        [p for p in model.blocks.parameters() if p.dim() == 2] if args.optimizer == "muon" else []
    )
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    adamw = torch.optim.AdamW(
        others, lr=args.peak, betas=(0.9, 0.95), fused=True, capturable=args.cuda_graph
    )
    if not matrices:
        return [adamw]
    muon = torch.optim.Muon(
        matrices, lr=args.peak, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, adamw]


def with_saved_settings(parser):
    """Parse the arguments, whose defaults --resume reads from the settings file; return it too."""
    args = parser.parse_args()
    settings = Path(args.checkpoints, "settings.json")
    if args.resume:
        try:
            parser.set_defaults(**json.loads(settings.read_text()))
        except (OSError, ValueError) as error:
            parser.error(f"--resume: there is no checkpoint in {args.checkpoints} ({error})")
        args = parser.parse_args()
    return args, settings


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="updates (1500)")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=16,
        help="sequences in a micro-batch, over all processes (16)",
    )
    parser.add_argument(
        "--accumulation", type=int, default=1, help="micro-batches in an update (1)"
    )
    parser.add_argument("--context", type=int, default=64, help="bytes in a sequence (64)")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument(
        "--width", type=int, default=64, help="width of the model, a multiple of 32 (64)"
    )
    parser.add_argument("--peak", type=float, default=4e-3, help="peak learning rate (0.004)")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cuda-graph", action="store_true")
    parser.add_argument("--distribute", choices=("ddp", "fsdp"), help="wrap the model for torchrun")
    parser.add_argument(
        "--checkpoint-activations", action="store_true", help="less memory, more time"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads (1: the default model is small)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every", type=int, default=100, help="updates between two checkpoints (100)"
    )
    parser.add_argument("--checkpoints", default="train_gpt_checkpoints", metavar="FOLDER")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    args, settings = with_saved_settings(parser)
    sizes = (
        "steps",
        "batch_size",
        "accumulation",
        "context",
        "layers",
        "width",
        "threads",
        "every",
    )
    program.check_positive(parser, args, *sizes)
    if args.width % 32:
        parser.error(f"--width {args.width} must be a multiple of 32")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and args.distribute is None:
        parser.error("under torchrun give --distribute ddp or --distribute fsdp")
    if args.batch_size % processes:
        parser.error(
            f"--batch-size {args.batch_size} must be a multiple of the {processes} processes"
        )
    program.check_device(parser, args.device)
    program.check_writable(parser, "--checkpoints", settings.parent)
    return args, settings, processes


def main() -> None:
    args, settings, processes = arguments()
    torch.set_num_threads(args.threads)
    training, held_out = read_text()
    # A row has one more byte than the model reads: the last byte is only a target.
    rows, held_out_rows = (
        text.unfold(0, args.context + 1, args.context) for text in (training, held_out)
    )
    held_out_rows = held_out_rows[:: max(1, len(held_out_rows) // 256)]
    baseline = loss_of_frequencies(training, held_out_rows[:, 1:])

    curve = PlateauCurve(
        args.steps, warmup_steps=args.steps // 10, plateaus=[(20, 40)], min_lr_ratio=0.02
    )
    modes = {"precision": args.precision, "compile": args.compile, "cuda_graph": args.cuda_graph}

    log, done = MetricLog(every=10, keep=args.every), 0
    try:
        torch.manual_seed(args.seed)
        gpt = GPT(args.layers, args.width, args.context)
        if args.checkpoint_activations:
            apply_activation_checkpointing(gpt, check_fn=lambda module: isinstance(module, Block))
        model = distribute(gpt, args.distribute, blocks=Block, device=args.device)
        train_step = TrainStep(model, optimizers(args, gpt), loss_fn, curve, max_norm=1.0, **modes)
        device = next(model.parameters()).device
        # No workers: reading rows from memory costs less than sending them between processes.
        loader = make_loader(
            rows, args.batch_size // processes, device=device, num_workers=0, seed=args.seed
        )
        held_out_loader = make_loader(
            held_out_rows, 32 // processes, training=False, device=device, num_workers=0
        )
        feed, held_out_feed = prefetch(loader, device), prefetch(held_out_loader, device)
        checkpoints = Checkpoints(args.checkpoints)
        parts = {"step": train_step, "feed": feed, "log": log}
        if args.resume:
            done = checkpoints.load(**parts) or 0
            say(f"resumed from {args.checkpoints} after update {done}")
        if RANK == 0:
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text(json.dumps(vars(args)))
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"train_gpt.py: {program.with_resume_hint(error, '--steps')}")

    stop = program.stop_between_updates(signal.SIGTERM)  # torchrun sends SIGTERM

    def held_out_loss():
        return evaluate(model, held_out_feed, loss_fn, precision=args.precision)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    place = f"{processes} processes with {args.distribute}" if processes > 1 else f"{device}"
    say(f"{len(training):,} bytes to learn from, {parameters:,} parameters, on {place}")
    say(f"an update: {args.accumulation} micro-batches of {args.batch_size} sequences")
    batches = program.forever(feed)
    size = args.accumulation * args.batch_size * args.context  # bytes per update
    hidden = None if RANK == 0 else True
    bar = tqdm(
        total=args.steps * size, initial=done * size, unit="B", unit_scale=True, disable=hidden
    )
    while done < args.steps:
        result = train_step(*(next(batches) for _ in range(args.accumulation)))
        done += 1
        if row := log(result):
            bar.set_postfix(loss=f"{row['loss']:.3f}", lr=f"{result.lr[0]:.2e}", refresh=False)
            bar.update(done * size - bar.n)
        if done % args.every == 0:
            log.flush()
            losses = [row["loss"] for row in log.rows]
            mean, unseen = sum(losses) / len(losses), held_out_loss()
            if RANK == 0:
                bar.write(
                    f"update {done}: loss {mean:.4f}, on held-out files {unseen:.4f} nats per byte"
                )
            checkpoints.save(done, **parts)
        # With several processes this check is a collective, too slow for every update.
        if (processes == 1 or done % 10 == 0) and stopped(stop, device):
            break
    # Wait: destroy_process_group() would lose a save that is still pending.
    checkpoints.save(done, wait=True, **parts)
    bar.close()
    if done < args.steps:
        say(f"stopped after update {done}; {args.checkpoints} resumes with --resume")
        sys.exit(130)
    program.leave_on_ctrl_c()

    continuation, loss = sample(model, "def ", 200, args.context, device), held_out_loss()
    say(f"\nwritten by the model:\n{continuation}\n")
    say(f"loss of byte frequencies: {baseline:.4f} nats per byte, on held-out files")
    say(f"loss of the model:        {loss:.4f}")


def stopped(stop, device):
    """Return True if any rank received a signal, so that all ranks stop after the same update."""
    if not distributed.is_initialized():
        return stop.is_set()
    signals = torch.tensor(float(stop.is_set()), device=device)
    distributed.all_reduce(signals)
    return signals.item() > 0


def say(text):
    if RANK == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
