"""The learning rates of the originals, as their own code computes them in their own loop.

A function for each library takes an original, as a row of the pages names it, and values for the names of
the row. It yields the multiplier of each update, or those of several groups, and goes on past the end.
"""

# pyright: reportMissingTypeStubs=false

import inspect
import math
from abc import ABC
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from itertools import accumulate, count, pairwise
from logging import getLogger
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import optax as installed_optax
import torch as installed_torch
import transformers as installed_transformers
from support.peers.sources import CITED, definitions, source

Settings = dict[str, Any]
Levels = Iterator[float] | Iterator[list[float]]

MUON_H = {
    "pull request 343": "20260720_muonh_minus_sqrt",
    "pull request 345": "20260722_muonh_power04_3150",
}
"""The folders of the code of pull requests, whose lengths are fixed."""


def cooldown_343(update: int, warmup: int, total: int, **_: Any) -> float:
    if update < warmup:
        return (update + 1) / warmup
    return 1 - min(1, (update - warmup) / (total - warmup)) ** 0.5


def cooldown_345(
    update: int, warmup: int, total: int, decay: int, peak: float, floor: float, power: float, **_: Any
) -> float:
    if update < warmup - 1:
        level = update / (warmup - 1)
    else:
        level = 1 - min(1, max(0, update - (total - decay)) / decay) ** power
    return (floor + (peak - floor) * level) / peak


def cooldown_351(
    update: int,
    warmup: int,
    total: int,
    decay: int,
    peak: float,
    floor: float,
    power: float,
    period: int,
    **_: Any,
) -> float:
    if update < warmup:
        return (update + 1) / warmup
    if update < total:
        return (peak + (floor - peak) * (max(0, update - (total - decay)) / decay) ** power) / peak
    return floor / peak * max(0, 1 - (update - total) / period)


COOLDOWNS = {
    "pull request 343": cooldown_343,
    "pull request 345": cooldown_345,
    "pull request 351": cooldown_351,
}
"""The multiplier of an update for other lengths, and for 351, of which we have only the description."""


def code(library: str, path: str, *names: str, **given: Any) -> SimpleNamespace:
    return SimpleNamespace(**definitions(source(CITED[library], path), *names, **given))


def optimizer_for(settings: Settings) -> installed_torch.optim.Optimizer:
    weights = [installed_torch.nn.Parameter(installed_torch.ones(1))]
    return installed_torch.optim.SGD(weights, settings.get("peak") or settings["lr"], momentum=0.9)


def stepped(
    optimizer: Any, scale: float, advance: Callable[[int], Any], option: str = "lr"
) -> Iterator[float]:
    for update in count(1):
        yield optimizer.param_groups[0][option] / scale
        optimizer.step()
        advance(update)


def called(original: str, settings: Settings, given: Any, momentum: bool = False) -> Levels:
    """Build a torch scheduler by its call, and step it after each update."""
    optimizer = optimizer_for(settings)
    scheduler = eval(original, {**vars(given), **vars(math), **settings, "optimizer": optimizer})
    option, scale = ("momentum", 1.0) if momentum else ("lr", settings["peak"])
    return stepped(optimizer, scale, lambda _: scheduler.step(), option)


def torch(original: str, settings: Settings) -> Levels:
    call = original.removeprefix("momentum of ")
    return called(call, settings, installed_torch.optim.lr_scheduler, momentum=call != original)


def transformers(original: str, settings: Settings) -> Levels:
    name = original.partition("(")[0]
    return called(original, settings, SimpleNamespace(**{name: getattr(installed_transformers, name)}))


def cosine_plateau_scheduler(original: str, settings: Settings) -> Levels:
    file = code("Cosine-Plateau-Scheduler", "src/cosine_plateau_scheduler/scheduler.py")
    return called(original, settings, file)


def optax(original: str, settings: Settings) -> Levels:
    schedule = eval(original, vars(installed_optax) | settings)
    return (float(schedule(jnp.int32(update))) / settings["peak"] for update in count())


def timm(original: str, settings: Settings) -> Levels:
    base = code("timm", "timm/scheduler/scheduler.py").Scheduler
    name, optimizer = original.partition("(")[0], optimizer_for(settings)
    file = name.removesuffix("Scheduler").removesuffix("LR").lower() + "_lr"
    build = vars(code("timm", f"timm/scheduler/{file}.py", Scheduler=base))[name]
    options = {"warmup_t": settings["warmup"], "warmup_lr_init": settings["start"]}
    build = partial(build, **options, warmup_prefix=True, t_in_epochs=False)
    scheduler = eval(original, settings | {name: build, "optimizer": optimizer})
    return stepped(optimizer, settings["peak"], scheduler.step_update)


def torchtitan(original: str, settings: Settings) -> Levels:
    path = "torchtitan/components/optimizer/lr_scheduler.py"
    config = code("torchtitan", path, Stateful=ABC, logger=getLogger()).LRSchedulersContainer.Config(
        warmup_steps=settings["warmup"],
        total_steps=settings["total"],
        decay_ratio=settings["decay"] / settings["total"],
        decay_type=original,
        min_lr_factor=settings["floor"] / settings["peak"],
    )
    optimizer = optimizer_for(settings)
    scheduler = config.build(optimizers=[optimizer], training_steps=settings["total"])
    return stepped(optimizer, settings["peak"], lambda _: scheduler.step())


def megatron_lm(original: str, settings: Settings) -> Levels:
    """Step the scheduler after each update, with its samples."""
    style, _, wsd_style = original.partition(" ")
    optimizer, counts, o = optimizer_for(settings), iter(settings["counts"]), SimpleNamespace(**settings)
    build = code("Megatron-LM", "megatron/core/optimizer_param_scheduler.py").OptimizerParamScheduler
    lrs = {"init_lr": o.start, "max_lr": o.peak, "min_lr": o.floor}
    lengths = {"lr_warmup_steps": o.warmup, "lr_decay_steps": o.total, "wsd_decay_steps": o.decay}
    styles = {"lr_decay_style": style, "lr_wsd_decay_style": wsd_style, "wd_incr_style": "constant"}
    weight_decay = {"start_wd": 0.01, "end_wd": 0.01, "wd_incr_steps": o.total}
    scheduler = build(optimizer, **lrs, **lengths, **styles, **weight_decay)
    return stepped(optimizer, o.peak, lambda _: scheduler.step(increment=next(counts)))


def olmo_core(original: str, settings: Settings) -> Levels:
    """Call `set_lr` as the trainer does: after counting the tokens of the update."""

    class Registrable:
        @classmethod
        def register(cls, _: str) -> Callable[[type], type]:
            return lambda registered: registered

    given: dict[str, Any] = {"StrEnum": StrEnum, "LR_FIELD": "lr", "INITIAL_LR_FIELD": "initial_lr"}
    given["Registrable"] = Registrable
    file = code("OLMo-core", "olmo_core/optim/scheduler.py", **given)
    o, tokens = SimpleNamespace(**settings), settings["length"]
    values: dict[str, Any] = {
        "units": file.SchedulerUnits.tokens,
        "warmup": tokens * o.warmup,
        "warmup_min_lr": o.start,
        "alpha_f": 0.0 if original == "InvSqrtWithWarmup" else settings.get("floor", 0.0) / o.peak,
        "decay": tokens * settings.get("decay", 0),
        "decay_fraction": None,
        "decay_min_lr": settings.get("floor"),
        "b": -settings.get("power", 0),
        "period_lengths": [tokens * period for period in settings.get("periods", [])],
        "period_lr_multipliers": settings.get("multipliers"),
    }
    stage = file.ComposableSchedulerStage
    rise = partial(stage, duration=values["warmup"], start_lr=o.start, end_lr_fraction=1.0)
    fall = partial(stage, shape=file.ComposableSchedulerStageType.cosine, end_lr=values["decay_min_lr"])
    if original == "ComposableScheduler":
        constant = stage(duration=tokens * (o.total - o.warmup - o.decay), end_lr_fraction=1.0)
        values["stages"] = [rise(), constant, fall(duration=values["decay"])]
    if original == "OverrideDecay":
        original = "ComposableScheduler"
        values["stages"] = [rise(), fall(duration=tokens * (o.total - o.warmup))]
        values["override_decay"] = file.OverrideDecay(
            start=tokens * (o.total - o.decay), duration=values["decay"], end_lr=o.floor
        )
    if original == "SequentialScheduler":
        first = accepted(file.CosWithWarmup, values | {"alpha_f": o.middle})
        last = values | {"warmup": 0, "alpha_f": o.floor / (o.peak * o.middle), "warmup_min_lr": 0.0}
        values["schedulers"] = [first, accepted(file.LinearWithWarmup, last)]
        values["schedulers_max"] = [tokens * (o.total - o.decay)]
    scheduler = accepted(vars(file)[original], values)
    for seen in accumulate(o.counts):
        trainer = SimpleNamespace(global_train_tokens_seen=seen, max_tokens=sum(o.counts))
        yield scheduler.set_lr({"initial_lr": o.peak}, trainer) / o.peak


def accepted(build: Callable[..., Any], values: Settings) -> Any:
    """Call with the values that it has arguments for."""
    names = getattr(build, "__dataclass_fields__", None) or inspect.signature(build).parameters
    return build(**{name: values[name] for name in names if name in values})


def composer(original: str, settings: Settings) -> Levels:
    """Step the scheduler as `Trainer._train_loop` does: before counting the batch."""
    unit = code("composer", "composer/utils/string_enum.py")
    time = code("composer", "composer/core/time.py", StringEnum=unit.StringEnum)
    file = code("composer", "composer/optim/scheduler.py", Time=time.Time, TimeUnit=time.TimeUnit)
    o, optimizer = SimpleNamespace(**settings), optimizer_for(settings)
    values: dict[str, Any] = {
        "t_warmup": f"{settings.get('warmup')}ba",
        "t_max": f"{settings.get('total')}ba",
        "t_0": f"{settings.get('t_0')}ba",
        "decay_period": "1ba",
        "alpha_f": settings.get("floor", 0.0) / o.peak,
        "gamma": settings.get("gamma", settings.get("factor")),
        "milestones": [f"{settings.get(name)}ba" for name in ("first", "second")],
        "power": settings.get("power"),
    }
    if original == "ConstantWithWarmupScheduler":
        del values["alpha_f"]
    state = SimpleNamespace(
        timestamp=time.Timestamp(),
        max_duration=time.Time(settings.get("total", 1), "ba"),
        optimizers=[optimizer],
    )
    scheduler = file.compile_composer_scheduler(accepted(vars(file)[original], values), state)

    def end_of_batch(_: int) -> None:
        scheduler.step()
        state.timestamp = state.timestamp.to_next_batch()

    return stepped(optimizer, o.peak, end_of_batch)


def litgpt(original: str, settings: Settings) -> Levels:
    o = SimpleNamespace(**settings)
    if original == "finetune":
        optimizer = optimizer_for(settings)
        build = code("litgpt", "litgpt/finetune/lora.py", "get_lr_scheduler").get_lr_scheduler
        scheduler = build(optimizer, warmup_steps=o.lr_warmup_steps, max_steps=o.max_steps)
        return stepped(optimizer, o.lr, lambda _: scheduler.step())
    get_lr = code("litgpt", "litgpt/pretrain.py", "get_lr").get_lr
    train = accepted(code("litgpt", "litgpt/args.py").TrainArgs, settings | {"max_steps": None})
    batches = o.max_tokens // o.devices // (o.micro_batch_size * o.max_seq_length)
    warmup = train.warmup_iters(o.devices, 1, batches, None)
    return (get_lr(o.lr, update, warmup, batches, train.min_lr) / o.lr for update in count())


def nanotron(_: str, settings: Settings) -> Levels:
    """Two groups, of which the first has half the peak."""
    options = code("nanotron", "src/nanotron/config/config.py", "LRSchedulerArgs").LRSchedulerArgs
    build = code("nanotron", "src/nanotron/helpers.py", "lr_scheduler_builder", logger=getLogger())
    peak = settings["learning_rate"]
    groups: list[dict[str, Any]] = [{"params": [], "lr": peak / 2}, {"params": [], "lr": peak}]
    optimizer = installed_torch.optim.SGD(groups)
    wrapped = SimpleNamespace(get_base_optimizer=lambda: optimizer)
    arguments = options(**settings, lr_warmup_style="linear")
    scheduler = build.lr_scheduler_builder(wrapped, arguments, 0)
    for update in count():
        yield [multiplier(update) for multiplier in scheduler.lr_lambdas]


def lingua(original: str, settings: Settings) -> Levels:
    file = code("lingua", "lingua/optim.py")
    options = accepted(file.OptimArgs, settings | {"scheduler": original})
    return map(file.build_lr_fn(options, settings["steps"]), count())


def maxtext(original: str, settings: Settings) -> Levels:
    types = code("MaxText", "src/maxtext/configs/types.py", "LearningRateScheduleType", "WsdDecayStyle")
    create = "create_learning_rate_schedule"
    file = code("MaxText", "src/maxtext/utils/maxtext_utils.py", create, types=types)
    schedule = vars(file)[create](SimpleNamespace(**settings, lr_schedule_type=original))
    return (float(schedule(jnp.int32(update))) / settings["learning_rate"] for update in count())


def levanter(original: str, settings: Settings) -> Levels:
    file = code("levanter", "src/levanter/optim/config.py")
    schedule = file.InvSqrtLrSchedule(settings["timescale"]) if original == "inv_sqrt" else original
    options = accepted(file.AdamConfig, {"lr_schedule": schedule} | settings)
    schedule = options.lr_scheduler(settings["num_train_steps"])
    return (float(schedule(jnp.int32(update))) / settings["learning_rate"] for update in count())


def nanogpt(_: str, settings: Settings) -> Levels:
    get_lr = code("nanoGPT", "train.py", "get_lr", **settings).get_lr
    return (get_lr(update) / settings["learning_rate"] for update in count())


def nanochat(original: str, settings: Settings) -> Levels:
    script = "chat_rl" if original == "chat_rl" else "base_train"
    functions = {"Muon's momentum": "get_muon_momentum", "Muon's weight decay": "get_weight_decay"}
    function, steps = functions.get(original, "get_lr_multiplier"), settings["num_iterations"]
    given = {"args": SimpleNamespace(**settings), "num_iterations": steps, "num_steps": steps}
    given["weight_decay_scaled"] = settings.get("weight_decay")
    return map(vars(code("nanochat", f"scripts/{script}.py", function, **given))[function], count())


def modded_nanogpt(original: str, settings: Settings) -> Levels:
    if original in COOLDOWNS:
        return muon_h(original, settings)
    names = "TrainingStage", "TrainingSchedule"
    given = {"accumulate": accumulate, "pairwise": pairwise, "device": "cpu"}
    file = code("modded-nanogpt", "train_gpt.py", *names, **given)
    arguments = ("batch_size", "window_sizes", "train_max_seq_len", "mtp_weights_start", "mtp_weights_end")
    stage = partial(file.TrainingStage, **dict(zip(arguments, (1, (1, 3), 1, [], []), strict=True)))
    lr_muls = settings.get("lr_muls", [1.0, 1.52, 1.73])
    schedule = file.TrainingSchedule(
        [*(stage(lr_mul, duration=1 / 3) for lr_mul in lr_muls), stage(1.0)],
        settings["num_scheduled_iterations"],
        settings["num_extension_iterations"],
        cooldown_frac=settings.get("cooldown_frac", 0.6),
    )
    if original == "Muon's momentum":
        function = "get_muon_momentum"
        file = code("modded-nanogpt", "train_gpt.py", function, training_schedule=schedule)
        return map(file.get_muon_momentum, count())
    return (schedule.get_lr(update) / max(lr_muls) for update in count())


def muon_h(original: str, settings: Settings) -> Levels:
    if settings["warmup"] != 100:
        yield from (COOLDOWNS[original](update, **settings) for update in count())
        return
    path = f"records/track_3_optimization/results/{MUON_H[original]}/train_gpt_simple_muonh.py"
    groups = [{"initial_lr": settings["peak"], "cooldown_frac": fraction} for fraction in (0.85, 1.0)]
    adam, muon = (SimpleNamespace(param_groups=[group]) for group in groups)
    given = {"optimizers": [muon], "optimizer1": adam, "optimizer2": muon, "train_steps": settings["total"]}
    set_hparams = code(f"modded-nanogpt, {original}", path, "set_hparams", **given).set_hparams
    for update in range(settings["total"] + 1):
        set_hparams(update)
        yield muon.param_groups[0]["lr"] / settings["peak"]


def dinov2(original: str, settings: Settings) -> Levels:
    """The schedules of `build_schedulers`, after the scaling rule of the configuration."""
    cosine = code("DINOv2", "dinov2/utils/utils.py", "CosineScheduler").CosineScheduler
    given = {"CosineScheduler": cosine, "logger": getLogger()}
    build = code("DINOv2", "dinov2/train/train.py", "build_schedulers", **given).build_schedulers
    world = SimpleNamespace(get_global_size=lambda: settings["world_size"])
    given = {"distributed": world, "logger": getLogger()}
    file = code("DINOv2", "dinov2/utils/config.py", "apply_scaling_rules_to_cfg", **given)
    teacher = ("momentum_teacher", "final_momentum_teacher", "teacher_temp", "warmup_teacher_temp")
    options = Options({"weight_decay": 0.0, "scaling_rule": "sqrt_wrt_1024"} | settings)
    config = SimpleNamespace(
        train=options,
        optim=options,
        teacher=dict.fromkeys(teacher, 0.0) | {"warmup_teacher_temp_epochs": 0},
    )
    file.apply_scaling_rules_to_cfg(config)
    lr, weight_decay, _, _, last_layer_lr = build(config)
    if original == "weight decay":
        return (float(weight_decay[update]) for update in count())
    return ([float(lrs[update]) / options.lr for lrs in (lr, last_layer_lr)] for update in count())


class Options(dict[str, Any]):
    """Options by key and by attribute."""

    __getattr__ = dict[str, Any].__getitem__
    __setattr__ = dict[str, Any].__setitem__


def open_clip(original: str, settings: Settings) -> Levels:
    """The schedulers are called before each update."""
    o = SimpleNamespace(**settings)
    file = code("open_clip", "src/open_clip_train/scheduler.py")
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.0}])
    arguments = [optimizer, o.lr, o.warmup, o.epochs * o.updates]
    if original == "const-cooldown":
        arguments += [o.epochs_cooldown * o.updates, o.lr_cooldown_power, o.lr_cooldown_end]
    names = {"cosine": "cosine_lr", "const": "const_lr", "const-cooldown": "const_lr_cooldown"}
    scheduler = vars(file)[names[original]](*arguments)
    return (scheduler(update) / o.lr for update in count())
