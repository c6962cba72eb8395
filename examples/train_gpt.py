"""Train a small GPT, byte by byte, on the source of Python's own standard library.

A decoder-only transformer with AdamW, or with Muon and AdamW, a warmup and one plateau. Every so many
updates it says how well it predicts files that it has not seen, in nats a byte, and writes a checkpoint;
the yardstick is the loss of byte frequencies alone. Ctrl-C saves too, and --resume goes on with the
losses of a run that was never stopped, to the last bit.

The model is that of GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"),
with the names of https://github.com/karpathy/nanoGPT.

    python examples/train_gpt.py
    python examples/train_gpt.py --steps 3000 --accumulation 2
    python examples/train_gpt.py --optimizer muon
    python examples/train_gpt.py --precision bf16 --compile --cuda-graph --width 512 --layers 8
    python examples/train_gpt.py --resume         (with the settings of the checkpoint, unless given again)
"""

import argparse
import os
import signal
import sys
import sysconfig
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

from plateau_jax import PlateauCurve
from torch_bridge import MetricLog, TrainStep, evaluate, make_loader, prefetch

BYTES = 256


class Block(nn.Module):
    """Causal self-attention, then an MLP, each after a LayerNorm and with a residual connection."""

    def __init__(self, n_embd):
        super().__init__()
        self.n_head = n_embd // 32
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

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
        self.block_size = block_size
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
    """The mean cross-entropy of the next byte, in nats."""
    text = batch.long()
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def read_text():
    """The modules of the standard library's top folder; every tenth is held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held_out = files[9::10]
    training = [file for file in files if file not in held_out]
    return [
        torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in part)), dtype=torch.uint8)
        for part in (training, held_out)
    ]


def loss_of_frequencies(training, held_out):
    """Cross-entropy on the held-out bytes of how often each byte occurs in training, in nats."""
    counts = torch.bincount(training, minlength=BYTES) + 1.0
    return -(counts / counts.sum()).log()[held_out.long()].mean().item()


@torch.no_grad()
def sample(model, prompt, length, device):
    """The prompt, continued byte by byte at temperature 0.8."""
    generator = torch.Generator().manual_seed(0)  # its own: training's random numbers are left alone
    text = list(prompt.encode())
    for _ in range(length):
        seen = torch.tensor([text[-model.block_size :]], device=device)
        probabilities = functional.softmax(model(seen)[0, -1] / 0.8, dim=-1).cpu()
        text.append(torch.multinomial(probabilities, 1, generator=generator).item())
    return bytes(text).decode(errors="replace")


def forever(loader):
    while True:
        yield from loader


def optimizers(args, model):
    """AdamW for everything, or Muon for the matrices inside of the blocks and AdamW for the rest.

    Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon. With updates of the size of
    AdamW's it takes AdamW's rates (Liu et al., 2025, arXiv:2502.16982).
    """
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2] if args.optimizer == "muon" else []
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    adamw = torch.optim.AdamW(others, lr=args.peak, betas=(0.9, 0.95), fused=True, capturable=args.cuda_graph)
    if not matrices:
        return [adamw]
    muon = torch.optim.Muon(matrices, lr=args.peak, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="updates (1500)")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences in a micro-batch (16)")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches an update (1)")
    parser.add_argument("--context", type=int, default=64, help="bytes in a sequence (64)")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=64, help="a multiple of 32 (64)")
    parser.add_argument("--peak", type=float, default=4e-3, help="peak learning rate (0.004)")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cuda-graph", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU (1: the default model is small)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="updates between two checkpoints (100)")
    parser.add_argument("--checkpoint", default="train_gpt.pt", metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    args, saved = parser.parse_args(), None
    if args.resume:
        if not os.path.exists(args.checkpoint):
            parser.error(f"--resume: there is no checkpoint {args.checkpoint}")
        saved = torch.load(args.checkpoint, map_location="cpu")
        parser.set_defaults(**saved["settings"])
        args = parser.parse_args()
    sizes = ("steps", "batch_size", "accumulation", "context", "layers", "width", "threads", "every")
    if min(getattr(args, name) for name in sizes) < 1 or args.width % 32:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in sizes)
        parser.error(f"{options} must be at least 1, --width a multiple of 32")
    folder = Path(args.checkpoint).parent
    if not folder.is_dir():
        parser.error(f"--checkpoint {args.checkpoint}: there is no folder {folder}")
    try:
        torch.empty(0, device=args.device)
    except (AssertionError, RuntimeError) as error:
        parser.error(f"--device {args.device}: {str(error).splitlines()[0]}")
    return args, saved


def main() -> None:
    args, saved = arguments()
    torch.set_num_threads(args.threads)
    training, held_out = read_text()
    # Rows of one byte more than the model sees: the last byte is a target alone.
    rows, unseen_rows = (text.unfold(0, args.context + 1, args.context) for text in (training, held_out))
    unseen_rows = unseen_rows[:: max(1, len(unseen_rows) // 256)]
    by_frequencies = loss_of_frequencies(training, unseen_rows[:, 1:])

    torch.manual_seed(args.seed)
    model = GPT(args.layers, args.width, args.context).to(args.device)
    modes = {"precision": args.precision, "compile": args.compile, "cuda_graph": args.cuda_graph}
    log, done = MetricLog(every=10, keep=args.every), 0
    try:
        # No worker processes: cutting rows out of memory takes less time than sending them.
        loader = make_loader(rows, args.batch_size, device=args.device, workers=0, seed=args.seed)
        unseen = make_loader(unseen_rows, 32, training=False, device=args.device, workers=0)
        feed, unseen = prefetch(loader, args.device), prefetch(unseen, args.device)
        curve = PlateauCurve(
            args.steps, warmup_steps=args.steps // 10, plateaus=[(20, 40)], min_lr_ratio=0.02
        )
        step = TrainStep(model, optimizers(args, model), loss_fn, curve, max_norm=1.0, **modes)
        if saved is not None:
            step.load_state_dict(saved["step"])
            feed.load_state_dict(saved["feed"])
            log.rows, done = saved["rows"], saved["done"]
            print(f"resumed from {args.checkpoint} after update {done}")
    except ValueError as error:
        sys.exit(f"train_gpt.py: {error}")

    def save():
        state = {"settings": vars(args), "step": step.state_dict(), "feed": feed.state_dict()}
        torch.save(state | {"rows": log.rows, "done": done}, args.checkpoint + ".partial")
        os.replace(args.checkpoint + ".partial", args.checkpoint)

    stop = threading.Event()

    def stop_soon(*_):  # not in the middle of an update; a second Ctrl-C does not wait
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop_soon)

    def loss_on_unseen():
        return evaluate(model, unseen, loss_fn, precision=args.precision)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(training):,} bytes to learn from, {parameters:,} parameters, on {args.device}", flush=True)
    batches = forever(feed)
    size = args.accumulation * args.batch_size * args.context  # of an update, in bytes
    bar = tqdm(total=args.steps * size, initial=done * size, unit="B", unit_scale=True, disable=None)
    while done < args.steps and not stop.is_set():
        result = step(*(next(batches) for _ in range(args.accumulation)))
        done += 1
        if row := log(result):
            bar.set_postfix(loss=f"{row['loss']:.3f}", rate=f"{result.lr[0]:.2e}", refresh=False)
            bar.update(done * size - bar.n)
        if done % args.every == 0:
            log.look()
            losses = [row["loss"] for row in log.rows]
            mean, unseen_loss = sum(losses) / len(losses), loss_on_unseen()
            bar.write(f"update {done}: loss {mean:.4f}, on files not seen {unseen_loss:.4f} nats a byte")
            save()
    log.look()
    save()
    bar.close()
    if done < args.steps:
        print(f"stopped after update {done}; {args.checkpoint} goes on with --resume")
        sys.exit(130)

    print(f"\nwritten by the model:\n{sample(model, 'def ', 200, args.device)}\n")
    print(f"loss of byte frequencies: {by_frequencies:.4f} nats a byte, on files not seen")
    print(f"loss of the model:        {loss_on_unseen():.4f}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)
