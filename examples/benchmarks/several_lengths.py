"""Compare one run with three cooldowns against three cosine runs of the same lengths.

The model is the byte-level GPT of train_gpt.py with 19 million parameters, trained with AdamW on
the source of Python's standard library, every tenth file of which is held out. A stable phase stays
at its peak. A cooldown, 1 - sqrt to 0 over the last third of each length, starts from its
checkpoints. Each length is also trained with a cosine to 0 from the start. All of this is repeated
at each peak and with each seed, which draws the first weights and the batches.

Each cosine is reported at the best of the peaks, and the three cooldowns at the one peak of their
common run that has the lowest mean loss. All losses are of the held-out files, in nats per byte.
The peaks are chosen by the same losses, so each is slightly too low.

    pip install -e '.[examples]'
    python examples/benchmarks/several_lengths.py           on an H200: ten minutes
    python examples/benchmarks/several_lengths.py --tiny    anywhere: does it run?
"""

import argparse
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from side_by_side import positive, show
from torch import Tensor

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import Checkpoints, TrainStep, evaluate

sys.path.append(str(Path(__file__).parents[1]))  # the example whose model is used here
from train_gpt import GPT, loss_fn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HELD_OUT_ROWS = 2048
COOLDOWNS = "cooldowns of one run"
COSINES = "cosine runs"


@dataclass(frozen=True)
class Setting:
    layers: int = 6
    width: int = 512
    context: int = 128
    rows: int = 32
    warmup: int = 100
    lengths: tuple[int, ...] = (600, 1200, 2400)
    peaks: tuple[float, ...] = (2.5e-4, 5e-4, 7e-4, 1e-3, 1.4e-3, 2e-3)


TINY = Setting(
    layers=1, width=32, context=32, rows=4, warmup=2, lengths=(6, 12, 24), peaks=(1e-3, 2e-3)
)


@dataclass(frozen=True)
class Result:
    way: str
    length: int
    peak: float
    seed: int
    loss: float


def read_text() -> tuple[Tensor, Tensor]:
    """Return the bytes of the training files, and of the held-out tenth."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [
        file
        for file in sorted(library.rglob("*.py"))
        if not {"site-packages", "dist-packages"} & set(file.parts)
    ]
    held_out = files[9::10]
    training = [file for file in files if file not in held_out]
    first, second = (
        torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in part)), dtype=torch.uint8)
        for part in (training, held_out)
    )
    return first.to(DEVICE), second.to(DEVICE)


class Seed:
    """The runs of one seed: all of them begin with the same weights, and read the same batches."""

    def __init__(self, setting: Setting, number: int) -> None:
        self.setting = setting
        self.number = number
        self.text, held_out = read_text()
        generator = torch.Generator().manual_seed(number)
        last = len(self.text) - setting.context
        size = max(setting.lengths), setting.rows
        self.starts = torch.randint(last, size, generator=generator).to(DEVICE)
        self.offsets = torch.arange(setting.context + 1, device=DEVICE)
        rows = held_out.unfold(0, setting.context + 1, setting.context)
        rows = rows[:: max(1, len(rows) // HELD_OUT_ROWS)]
        self.held_out = rows.split(256)

    def begin(self, curve: Curve, peak: float) -> TrainStep:
        torch.manual_seed(self.number)
        model = GPT(self.setting.layers, self.setting.width, self.setting.context).to(DEVICE)
        on_gpu = DEVICE == "cuda"
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=peak, betas=(0.9, 0.95), fused=True, capturable=on_gpu
        )
        precision = "bf16" if on_gpu else "fp32"
        return TrainStep(
            model,
            optimizer,
            loss_fn,
            curve,
            max_norm=1.0,
            precision=precision,
            compile=on_gpu,
            cuda_graph=on_gpu,
        )

    def train(self, train_step: TrainStep, first: int, last: int) -> None:
        for starts in self.starts[first:last]:
            train_step(self.text[starts[:, None] + self.offsets])

    def loss(self, train_step: TrainStep) -> float:
        return evaluate(train_step.model, self.held_out, loss_fn)

    def result(self, way: str, length: int, peak: float, train_step: TrainStep) -> Result:
        found = Result(way, length, peak, self.number, self.loss(train_step))
        print(found, flush=True)
        return found

    def results(self, peak: float) -> Iterator[Result]:
        lengths, warmup = self.setting.lengths, self.setting.warmup
        for length in lengths:
            train_step = self.begin(PlateauCurve(length, warmup_steps=warmup), peak)
            self.train(train_step, 0, length)
            yield self.result(COSINES, length, peak, train_step)
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = Checkpoints(folder, keep=len(lengths))
            stable = StagedCurve([(warmup, 1.0), (max(lengths) - warmup,)])
            starts = [2 * length // 3 for length in lengths]
            train_step = self.begin(stable, peak)
            done = 0
            for start in starts:
                self.train(train_step, done, start)
                checkpoints.save(start, wait=True, step=train_step)
                done = start
            for start, length in zip(starts, lengths, strict=True):
                train_step = self.begin(stable.cooldown(start, length - start), peak)
                checkpoints.load(start, step=train_step)
                self.train(train_step, start, length)
                yield self.result(COOLDOWNS, length, peak, train_step)


def results_of_seed(setting: Setting, number: int) -> list[Result]:
    seed = Seed(setting, number)
    return [found for peak in setting.peaks for found in seed.results(peak)]


def losses(results: Sequence[Result], way: str, length: int, peak: float) -> list[float]:
    """Return the losses in the order of the seeds."""
    found = [
        result
        for result in results
        if (result.way, result.length, result.peak) == (way, length, peak)
    ]
    return [result.loss for result in sorted(found, key=lambda result: result.seed)]


def report(setting: Setting, results: Sequence[Result]) -> None:
    def mean(way: str, length: int, peak: float) -> float:
        return statistics.mean(losses(results, way, length, peak))

    lengths, peaks = setting.lengths, setting.peaks
    rows = [
        [way, f"{peak:g}", *(f"{mean(way, length, peak):.4f}" for length in lengths)]
        for way in (COSINES, COOLDOWNS)
        for peak in peaks
    ]
    header = ["", "peak", *(f"{length} updates" for length in lengths)]
    show("mean loss of the held-out files, nats per byte", header, rows)

    def mean_over_lengths(peak: float) -> float:
        return sum(mean(COOLDOWNS, length, peak) for length in lengths)

    common = min(peaks, key=mean_over_lengths)
    table = []
    for length in lengths:
        best = min(peaks, key=lambda peak: mean(COSINES, length, peak))
        cosine = losses(results, COSINES, length, best)
        cooled = losses(results, COOLDOWNS, length, common)
        apart = [after - other for after, other in zip(cooled, cosine, strict=True)]
        error = "-"
        if len(apart) > 1:
            error = f"{statistics.stdev(apart) / len(apart) ** 0.5:.4f}"
        table.append(
            [
                length,
                f"{best:g}",
                f"{statistics.mean(cosine):.4f}",
                f"{common:g}",
                f"{statistics.mean(cooled):.4f}",
                f"{statistics.mean(apart):+.4f}",
                error,
                f"{sum(difference < 0 for difference in apart)} of {len(apart)}",
            ]
        )
    header = [
        "updates",
        "peak",
        "cosine",
        "peak",
        "cooldown",
        "difference",
        "standard error",
        "lower in",
    ]
    show("each at its best peak", header, table)
    stable = 2 * max(lengths) // 3
    cooldowns = sum(length - 2 * length // 3 for length in lengths)
    print(f"updates: {sum(lengths)} for the cosines, {stable + cooldowns} for the cooldowns")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare cooldowns of one run with cosine runs.")
    parser.add_argument("--seeds", type=positive, default=4, help="number of seeds (4)")
    parser.add_argument(
        "--processes", type=positive, default=4, help="seeds that are trained at once (4)"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few updates")
    options = parser.parse_args(arguments)
    setting = TINY if options.tiny else Setting()
    results: list[Result] = []
    if options.processes == 1:
        for number in range(options.seeds):
            results += results_of_seed(setting, number)
    else:
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            seeds = [pool.submit(results_of_seed, setting, seed) for seed in range(options.seeds)]
            for seed in as_completed(seeds):
                results += seed.result()
    report(setting, results)


if __name__ == "__main__":
    main()
