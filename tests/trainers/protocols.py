"""How trainers ask for a schedule, save and resume: a few lines for each, without its model.

A protocol stands in for the modules that our file for the trainer imports, and trains with the
functions and classes that the file has put there. `docs/pretraining.md` names the version of each
trainer whose real classes had the same results. No two protocols make the same calls.

    lrs        of the groups in the last update, or for the next one if the trainer writes it early
    save       what the trainer writes: plain values, and states of optimizers and schedulers
    load       what it restores, in its order, in a new process
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import chdir
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class Options:
    """What a user configures in a trainer."""

    folder: Path
    peaks: Sequence[float] = (0.5,)
    length: int = 100


def optimizer_of(peaks: Sequence[float]) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": peak} for peak in peaks]
    return torch.optim.SGD(groups)


def constant(*_: Any) -> float:
    """The schedule of a trainer without our file."""
    return 1.0


class Protocol(ABC):
    """A trainer. `modules` are what our file imports; `start` follows when it has run."""

    has_groups = True
    """Groups may have different peaks."""
    can_change_peak = True
    """`strict=False` applies a new peak."""
    updates_in_load = 0
    """The first update belongs to `load`, because the schedule is asked in it."""

    runs_script = False
    """Our file runs a script of the trainer, so it runs in each `train`, as `code`."""
    code = ""

    groups: list[dict[str, Any]]
    """Parameter groups, unless `lrs` finds the learning rates elsewhere."""

    def __init__(self) -> None:
        self.modules: dict[str, Any] = {}

    def module(self, name: str, **contents: Any) -> Any:
        """Add a module, and the packages that it is in."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            package = ".".join(parts[:count])
            self.modules.setdefault(package, ModuleType(package))
            if count > 1:
                parent = self.modules[".".join(parts[: count - 1])]
                setattr(parent, parts[count - 1], self.modules[package])
        vars(self.modules[name]).update(contents)
        return self.modules[name]

    @abstractmethod
    def start(self, options: Options, hook: dict[str, Any]) -> None:
        """Build everything, as a new process does; `hook` has the names in our file."""

    @abstractmethod
    def train(self, updates: int) -> None: ...

    @abstractmethod
    def save(self) -> Any: ...

    @abstractmethod
    def load(self, state: Any) -> None: ...

    def lrs(self) -> list[float]:
        return [group["lr"] for group in self.groups]


class MegatronLM(Protocol):
    """The scheduler is asked when built, after updates, and in a load. gpt-neox does the same.

    A group of a checkpoint is found by its peak, whatever the flags.
    """

    can_change_peak = False

    def __init__(self) -> None:
        super().__init__()

        class OptimizerParamScheduler:
            def __init__(self, groups: list[dict[str, Any]], length: int) -> None:
                self.groups = groups
                self.lr_decay_steps = length
                self.max_lr = groups[0]["max_lr"]
                self.move_to(0)

            def get_lr(self, group: dict[str, Any]) -> float:
                return group["max_lr"]

            def move_to(self, step: int) -> None:
                self.num_steps = step
                for group in self.groups:
                    group["lr"] = self.get_lr(group)

            def state_dict(self) -> dict[str, Any]:
                return {"num_steps": self.num_steps}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.move_to(state["num_steps"])

        self.scheduler_class = OptimizerParamScheduler
        self.module(
            "megatron.core.optimizer_param_scheduler",
            OptimizerParamScheduler=OptimizerParamScheduler,
        )

    def start(self, options: Options, hook: dict[str, Any]) -> None:
        self.groups = [{"max_lr": peak} for peak in options.peaks]
        self.scheduler = self.scheduler_class(self.groups, options.length)

    def train(self, updates: int) -> None:
        self.scheduler.move_to(self.scheduler.num_steps + updates)

    def save(self) -> Any:
        return deepcopy(([group["max_lr"] for group in self.groups], self.scheduler.state_dict()))

    def load(self, state: Any) -> None:
        peaks, scheduler = state
        if [group["max_lr"] for group in self.groups] != peaks:
            raise ValueError("could not find a parameter group with these options")
        self.scheduler.load_state_dict(scheduler)


class Torchtitan(Protocol):
    """Of the schedulers' states only the first is saved. The optimizer's state is loaded later."""

    def __init__(self) -> None:
        super().__init__()

        class LRSchedulersContainer:
            @dataclass(kw_only=True, slots=True)
            class Config:
                total_steps: int | None = None

            def __init__(self, optimizers: Any, factor: Any) -> None:
                self.schedulers = [LambdaLR(optimizer, factor) for optimizer in optimizers]

            def state_dict(self) -> dict[str, Any]:
                return {"last_epoch": self.schedulers[0].last_epoch}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                for scheduler in self.schedulers:
                    scheduler.last_epoch = state["last_epoch"] + 0  # a number

        self.container_class = LRSchedulersContainer
        self.module("torchtitan.components.optimizer", LRSchedulersContainer=LRSchedulersContainer)

    def start(self, options: Options, hook: dict[str, Any]) -> None:
        self.optimizer = optimizer_of(options.peaks)
        if not hook:
            self.schedulers = self.container_class([self.optimizer], constant)
            return
        config = hook["TitanSchedulers"].Config()
        self.schedulers = config.build(optimizers=[self.optimizer], training_steps=options.length)

    def train(self, updates: int) -> None:
        for _ in range(updates):
            self.optimizer.step()
            self.schedulers.schedulers[0].step()

    def save(self) -> Any:
        return deepcopy((self.schedulers.state_dict(), self.optimizer.state_dict()))

    def load(self, state: Any) -> None:
        schedulers, optimizer = deepcopy(state)
        self.schedulers.load_state_dict(schedulers)
        self.optimizer.load_state_dict(optimizer)

    def lrs(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]


class OLMoCore(Protocol):
    """An update is counted before its learning rate is set. Callbacks have states."""

    def __init__(self) -> None:
        super().__init__()

        class Callback:
            trainer: Any

            @property
            def step(self) -> int:
                return self.trainer.global_step

        self.module("olmo_core.optim.scheduler", Scheduler=type("Scheduler", (), {}))
        self.module("olmo_core.train.callbacks", Callback=Callback)

    def start(self, options: Options, hook: dict[str, Any]) -> None:
        self.groups = [{"initial_lr": peak, "lr": peak} for peak in options.peaks]
        self.train_module = SimpleNamespace(optim=SimpleNamespace(param_groups=self.groups))
        self.max_steps = options.length
        self.global_step = 0
        self.scheduler = SimpleNamespace(get_lr=constant)
        self.callback: Any = None
        if hook:
            self.scheduler = hook["OlmoScheduler"]()
            self.callback = hook["OlmoRecord"]()
            self.callback.trainer = self

    def train(self, updates: int) -> None:
        self.global_step += updates
        for group in self.groups:
            peak = group["initial_lr"]
            group["lr"] = self.scheduler.get_lr(peak, self.global_step, self.max_steps)

    def save(self) -> Any:
        state = None
        if self.callback is not None:
            state = self.callback.state_dict()
        return deepcopy((self.global_step, state))

    def load(self, state: Any) -> None:
        self.global_step, of_callback = deepcopy(state)
        if of_callback is not None:
            self.callback.load_state_dict(of_callback)
        self.callback.post_checkpoint_loaded("run/step60")


class Levanter(Protocol):
    """An optimizer asks once for the schedule of each peak. A checkpoint holds counts."""

    def __init__(self) -> None:
        super().__init__()

        class OptimizerConfig:
            learning_rate: float
            lr_scheduler: Any

        class LevanterTrainer:
            run_id = "run"
            config: Any

            def training_steps(self, state: Any, train_loader: Any) -> Any:
                for _ in train_loader:
                    state.opt_state.count += 1
                    yield state

        self.config_class = OptimizerConfig
        self.trainer_class = LevanterTrainer
        self.module("levanter.optim", OptimizerConfig=OptimizerConfig)
        self.module("levanter.trainer", Trainer=LevanterTrainer)

    def start(self, options: Options, hook: dict[str, Any]) -> None:
        self.state = SimpleNamespace(opt_state=SimpleNamespace(count=0))
        if not hook:
            return
        config: Any = self.config_class()
        config.learning_rate = options.peaks[0]
        self.schedules = [config.lr_scheduler(options.length)]
        for peak in options.peaks[1:]:
            self.schedules.append(config.lr_scheduler(options.length, override_lr=peak))
        self.trainer = self.trainer_class()

        def expanded_path(run_id: str) -> Path:
            return options.folder / run_id

        checkpointer = SimpleNamespace(expanded_path=expanded_path)
        self.trainer.config = SimpleNamespace(checkpointer=checkpointer)

    def train(self, updates: int) -> None:
        if not hasattr(self, "trainer"):
            self.state.opt_state.count += updates
            return
        for _ in self.trainer.training_steps(self.state, range(updates)):
            pass

    def save(self) -> Any:
        return self.state.opt_state.count

    def load(self, state: Any) -> None:
        self.state.opt_state.count = state
        self.train(0)

    def lrs(self) -> list[float]:
        return [float(schedule(self.state.opt_state.count)) for schedule in self.schedules]


class Litgpt(Protocol):
    """The schedule is asked at every micro-batch; numbers and the optimizer are saved."""

    has_groups = False
    updates_in_load = 1

    def __init__(self) -> None:
        super().__init__()

        def fit(state: dict[str, Any], updates: int, length: int) -> None:
            (group,) = state["optimizer"].param_groups
            for _ in range(updates):
                lr = self.pretrain.get_lr(self.peak, state["iter_num"], 0, length, 0.0)
                group["lr"] = lr
                state["iter_num"] += 1

        self.pretrain = self.module("litgpt.pretrain", fit=fit, get_lr=constant)
        self.module("litgpt.__main__", main=None)

    def start(self, options: Options, hook: dict[str, Any]) -> None:
        (self.peak,) = options.peaks
        self.length = options.length
        self.state: dict[str, Any] = {"optimizer": optimizer_of(options.peaks), "iter_num": 0}

    def train(self, updates: int) -> None:
        self.pretrain.fit(state=self.state, updates=updates, length=self.length)

    def save(self) -> Any:
        return deepcopy((self.state["optimizer"].state_dict(), self.state["iter_num"]))

    def load(self, state: Any) -> None:
        optimizer, self.state["iter_num"] = deepcopy(state)
        self.state["optimizer"].load_state_dict(optimizer)
        self.train(1)

    def lrs(self) -> list[float]:
        return [group["lr"] for group in self.state["optimizer"].param_groups]


SCRIPT = """
from nanochat import process, setup_optimizer

num_iterations = process.options.length
user_config = dict(zip(process.names, process.options.peaks))
batch_lr_scale = 1.0
orig_model = process
optimizer = setup_optimizer(**user_config)
resuming, step = process.state is not None, 0
if resuming:
    optimizer.param_groups, meta_data = process.copy(process.state)
    step = meta_data["step"]


def get_lr_multiplier(step):
    return 1.0


# Go!
for step in range(step, step + process.updates):
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * get_lr_multiplier(step)
meta_data = {"step": step + 1, "user_config": user_config}
process.state = process.copy((optimizer.param_groups, meta_data))
"""


class Nanochat(Protocol):
    """A script, whose checkpoint has the options as JSON, and the peaks in the optimizer."""

    runs_script = True
    updates_in_load = 1

    def __init__(self) -> None:
        super().__init__()

        def setup_optimizer(**peaks: float) -> Any:
            groups = [{"lr": peak, "initial_lr": peak} for peak in peaks.values()]
            return SimpleNamespace(param_groups=groups)

        self.process = SimpleNamespace(
            names=["embedding_lr", "unembedding_lr", "matrix_lr", "scalar_lr"],
            copy=deepcopy,
            setup_optimizer=setup_optimizer,
            state=None,
        )
        self.module("nanochat", process=self.process, setup_optimizer=setup_optimizer)

    def start(self, options: Options, hook: dict[str, Any]) -> None:
        peaks = [*options.peaks, *options.peaks]  # of two groups each
        self.process.options = replace(options, peaks=peaks)
        self.folder = options.folder

    def train(self, updates: int) -> None:
        self.process.updates = updates
        script = self.folder / "scripts" / "base_train.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(SCRIPT)
        with chdir(self.folder):
            exec(self.code or SCRIPT, {})

    def save(self) -> Any:
        return deepcopy(self.process.state)

    def load(self, state: Any) -> None:
        self.process.state = deepcopy(state)
        self.train(1)

    def lrs(self) -> list[float]:
        groups, _ = self.process.state
        return [group["lr"] for group in groups]
