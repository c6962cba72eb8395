"""The learning rates of the originals, as their own code computes them in their own loop.

A function for each page of docs/other_schedulers/ yields the multiplier of each update, or those of several
groups, and goes on past the end of the run.
"""

import contextlib
from abc import ABC
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib.metadata import version
from itertools import accumulate, count, pairwise
from logging import getLogger
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import torch
from support.docs.other_schedulers import Pair, Settings, introduction, read_pairs
from support.peers.sources import definitions, importable, source

Levels = Iterator[float | list[float]]

_INSTALLED = {"pytorch": "torch", "index": "torch", "transformers": "transformers", "optax": "optax"}

CITED = {
    **{page: f"{name}=={version(name).partition('+')[0]}" for page, name in _INSTALLED.items()},
    "timm": "timm==1.0.31",
    "torchtitan": "torchtitan==0.3.0",
    "olmo_core": "ai2-olmo-core==2.6.0",
    "megatron_lm": "NVIDIA/Megatron-LM@00caa53af30912914981c86f39db123961678bbd",
    "composer": "mosaicml/composer@6405188805a0054b4551ec49e4919c54c971d0e8",
    "cosine_plateau_scheduler": "Koronos/Cosine-Plateau-Scheduler@9af8485965c13744af146449fa465f6e7a0dbcbd",
    "nanogpt": "karpathy/nanoGPT@3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
    "nanochat": "karpathy/nanochat@92d63d4e8bb4df75c3b71618f31ddde2378b2bcd",
    "modded_nanogpt": "KellerJordan/modded-nanogpt@f411b3d346aa52d3504324ca93c230fd84c6c07f",
    "litgpt": "Lightning-AI/litgpt@26857050fe3ff627cd714fe92f5838f51a3d5efa",
    "nanotron": "huggingface/nanotron@2411b022a75fb7f7561a1bb4166706da5e1b76de",
    "lingua": "facebookresearch/lingua@437d680e521873bb5971067148a69587790da853",
    "maxtext": "AI-Hypercomputer/maxtext@e591f30cbbf217ed67ef71263ec0538239f9c3b8",
    "levanter": "marin-community/levanter@9263f81e8b453241332c2c0b2d2001bfb2d2241c",
    "dinov2": "facebookresearch/dinov2@b8931f7bf91576930313be2c6d6af376033b35f0",
    "open_clip": "mlfoundations/open_clip@89fb801f1e6087880e951fc8354b8a2077b79c6d",
}
"""The package and version, or the repository and commit, of each page."""

EARLY_TORCHTITAN = "pytorch/torchtitan@2404197326669db64bc80f515d7bc9f69863f466"
MUON_H = {
    "modded-nanogpt, pull request 343": (
        "KellerJordan/modded-nanogpt@cc7b00acdb4206225f9786bd28fe959ec875f7ab",
        "records/track_3_optimization/results/20260720_muonh_minus_sqrt/train_gpt_simple_muonh.py",
    ),
    "modded-nanogpt, pull request 345": (
        "KellerJordan/modded-nanogpt@6f5d770320807b503f1953d59d44b28dbd222619",
        "records/track_3_optimization/results/20260722_muonh_power04_3150/train_gpt_simple_muonh.py",
    ),
}


def code(page: str, path: str, *names: str, **given: Any) -> SimpleNamespace:
    return SimpleNamespace(**definitions(source(CITED[page], path), *names, **given))


def before(pair: Pair, settings: Settings, module: str = "", **names: Any) -> dict[str, Any]:
    """Run the page's program, which can import these names from the module; return its names."""
    namespace = dict(settings)
    with importable(module, names) if module else contextlib.nullcontext():
        for block in (*introduction(pair.page), pair.before):
            exec(block, namespace)
    return namespace


def option(
    optimizer: torch.optim.Optimizer, name: str, highest: float, advance: Callable[[int], None]
) -> Levels:
    for update in count(1):
        levels = [group[name] / highest for group in optimizer.param_groups]
        yield levels if len(levels) > 1 else levels[0]
        optimizer.step()
        advance(update)


def stepped(names: dict[str, Any], peak: float) -> Levels:
    return option(names["optimizer"], "lr", peak, lambda _: names["scheduler"].step())


def pytorch(pair: Pair, settings: Settings) -> Levels:
    """The page's programs, with the scheduler stepped after each update."""
    return stepped(before(pair, settings), settings["peak"])


transformers = pytorch


def optax(pair: Pair, settings: Settings) -> Levels:
    """The page's programs, called with the number of the update."""
    schedule = before(pair, settings)["schedule"]
    return (float(schedule(jnp.int32(update))) / settings["peak"] for update in count())


def timm(pair: Pair, settings: Settings) -> Levels:
    """The page's programs with the files of timm/scheduler/, and `step_update` after each update."""
    originals = vars(code("timm", "timm/scheduler/scheduler.py"))
    for file in ("cosine_lr", "poly_lr", "step_lr", "multistep_lr"):
        originals |= vars(code("timm", f"timm/scheduler/{file}.py", Scheduler=originals["Scheduler"]))
    names = before(pair, settings, "timm.scheduler", **originals)
    return option(names["optimizer"], "lr", settings["peak"], names["scheduler"].step_update)


def torchtitan(pair: Pair, settings: Settings) -> Levels:
    """The page's configurations, built with its lr_scheduler.py; before June 2025 see `early_torchtitan`."""
    if "before June" in pair.heading:
        return early_torchtitan(pair, settings)
    path = "torchtitan.components.optimizer.lr_scheduler"
    original = code("torchtitan", f"{path.replace('.', '/')}.py", Stateful=ABC, logger=getLogger())
    names = before(pair, settings, path, LRSchedulersContainer=original.LRSchedulersContainer)
    scheduler = names["lr_scheduler"].build(optimizers=[names["optimizer"]], training_steps=settings["total"])
    return option(names["optimizer"], "lr", settings["peak"], lambda _: scheduler.step())


def early_torchtitan(pair: Pair, settings: Settings) -> Levels:
    def container(_: list[torch.optim.Optimizer], multiplier: Callable[[int], float]) -> Any:
        return multiplier

    text = source(EARLY_TORCHTITAN, "torchtitan/components/lr_scheduler.py")
    build = definitions(text, "build_lr_schedulers", LRSchedulersContainer=container)["build_lr_schedulers"]
    shapes = {"linear": "linear", "cosine": "cosine", "1-sqrt": "sqrt"}
    options = SimpleNamespace(
        warmup_steps=settings["warmup"],
        decay_ratio=settings["decay"] / settings["total"],
        decay_type=shapes[settings.get("shape", "linear")],
        lr_min=settings["floor"] / settings["peak"],
    )
    training = SimpleNamespace(steps=settings["total"])
    return map(build([], SimpleNamespace(training=training, lr_scheduler=options)), count())


def megatron_lm(pair: Pair, settings: Settings) -> Levels:
    """The page's program with its optimizer_param_scheduler.py, stepped after each update."""
    path = "megatron.core.optimizer_param_scheduler"
    original = code("megatron_lm", f"{path.replace('.', '/')}.py")
    names = before(pair, settings, path, OptimizerParamScheduler=original.OptimizerParamScheduler)
    counts = iter(settings["counts"])
    return option(
        names["optimizer"], "lr", settings["peak"], lambda _: names["scheduler"].step(increment=next(counts))
    )


def olmo_core(pair: Pair, settings: Settings) -> Levels:
    """The page's programs with its scheduler.py, by `set_lr` as in its trainer: after counting the tokens."""

    class Registrable:
        @classmethod
        def register(cls, _: str) -> Callable[[type], type]:
            return lambda registered: registered

    given: dict[str, Any] = {
        "StrEnum": StrEnum,
        "Registrable": Registrable,
        "LR_FIELD": "lr",
        "INITIAL_LR_FIELD": "initial_lr",
        "OLMoConfigurationError": ValueError,
    }
    original = code("olmo_core", "olmo_core/optim/scheduler.py", **given)
    scheduler = before(pair, settings, "olmo_core.optim.scheduler", **vars(original))["scheduler"]
    tokens = sum(settings["counts"])
    for seen in accumulate(settings["counts"]):
        trainer = SimpleNamespace(global_train_tokens_seen=seen, max_tokens=tokens)
        yield scheduler.set_lr({"initial_lr": settings["peak"]}, trainer) / settings["peak"]


def composer(pair: Pair, settings: Settings) -> Levels:
    """The page's programs, compiled for a state that is advanced as in its trainer: after the scheduler."""
    unit = code("composer", "composer/utils/string_enum.py")
    time = code("composer", "composer/core/time.py", StringEnum=unit.StringEnum)
    original = code("composer", "composer/optim/scheduler.py", Time=time.Time, TimeUnit=time.TimeUnit)
    names = before(pair, settings, "composer.optim", **vars(original))
    duration = time.Time(settings.get("total", 1), "ba")
    state = SimpleNamespace(
        timestamp=time.Timestamp(), max_duration=duration, optimizers=[names["optimizer"]]
    )
    scheduler = original.compile_composer_scheduler(names["scheduler"], state)

    def end_of_batch(_: int) -> None:  # in the order of Trainer._train_loop
        scheduler.step()
        state.timestamp = state.timestamp.to_next_batch()

    return option(names["optimizer"], "lr", settings["peak"], end_of_batch)


def cosine_plateau_scheduler(pair: Pair, settings: Settings) -> Levels:
    """The page's program with its scheduler.py, stepped after each update."""
    original = code("cosine_plateau_scheduler", "src/cosine_plateau_scheduler/scheduler.py")
    return stepped(before(pair, settings, "cosine_plateau_scheduler", **vars(original)), settings["peak"])


def nanogpt(pair: Pair, settings: Settings) -> Levels:
    """`get_lr` of train.py, with the options as its globals."""
    get_lr = code("nanogpt", "train.py", "get_lr", **settings).get_lr
    return (get_lr(update) / settings["learning_rate"] for update in count())


def nanochat(pair: Pair, settings: Settings) -> Levels:
    """`get_lr_multiplier` of the two scripts, with the options as its globals."""
    script = "chat_rl" if "chat_rl" in pair.heading else "base_train"
    steps = settings["num_iterations"]
    given = {"args": SimpleNamespace(**settings), "num_iterations": steps, "num_steps": steps}
    return map(
        code("nanochat", f"scripts/{script}.py", "get_lr_multiplier", **given).get_lr_multiplier, count()
    )


def nanochat_options(settings: Settings) -> Levels:
    steps, decay = settings["num_iterations"], settings["weight_decay"]
    given = {"args": SimpleNamespace(**settings), "num_iterations": steps, "weight_decay_scaled": decay}
    names = "get_muon_momentum", "get_weight_decay"
    original = code("nanochat", "scripts/base_train.py", *names, **given)
    for update in count():
        yield [original.get_muon_momentum(update), original.get_weight_decay(update)]


def modded_nanogpt(pair: Pair, settings: Settings) -> Levels:
    """`TrainingSchedule.get_lr` of train_gpt.py, with other lengths; for pull requests see `muon_h`."""
    if "pull request" in pair.heading:
        return muon_h(pair, settings)
    schedule = training_schedule(settings)
    highest = max(settings["lr_muls"])
    return (schedule.get_lr(update) / highest for update in count())


def training_schedule(settings: Settings) -> Any:
    """Return modded-nanogpt's `training_schedule`, with other lengths and factors."""
    names = "TrainingStage", "TrainingSchedule"
    original = code(
        "modded_nanogpt", "train_gpt.py", *names, accumulate=accumulate, pairwise=pairwise, device="cpu"
    )
    rest: dict[str, Any] = {
        "batch_size": 1,
        "window_sizes": (1, 3),
        "train_max_seq_len": 1,
        "mtp_weights_start": [],
        "mtp_weights_end": [],
    }
    stages = [original.TrainingStage(lr_mul, duration=1 / 3, **rest) for lr_mul in settings["lr_muls"]]
    return original.TrainingSchedule(
        [*stages, original.TrainingStage(1.0, **rest)],
        settings["num_scheduled_iterations"],
        settings["num_extension_iterations"],
        cooldown_frac=settings["cooldown_frac"],
    )


def modded_momentum(settings: Settings) -> Levels:
    given = {"training_schedule": training_schedule(settings)}
    return map(
        code("modded_nanogpt", "train_gpt.py", "get_muon_momentum", **given).get_muon_momentum, count()
    )


def muon_h(pair: Pair, settings: Settings) -> Levels:
    """The page's programs; for two, where the numbers are those of the pull request, its `set_hparams`."""
    if settings["warmup"] != 100:
        yield from stepped(before(pair, settings), settings["peak"])
        return
    adam, muon = (
        SimpleNamespace(param_groups=[{"initial_lr": settings["peak"], "cooldown_frac": share}])
        for share in (0.85, 1.0)
    )
    set_hparams = definitions(
        source(*MUON_H[pair.heading]),
        "set_hparams",
        optimizers=[muon],
        optimizer1=adam,
        optimizer2=muon,
        train_steps=settings["total"],
    )["set_hparams"]
    for update in range(settings["total"] + 1):
        set_hparams(update)
        yield muon.param_groups[0]["lr"] / settings["peak"]


def litgpt(pair: Pair, settings: Settings) -> Levels:
    """`get_lr` with the warmup of `TrainArgs` for pretraining, `get_lr_scheduler` for finetuning."""
    o = SimpleNamespace(**settings)
    if "pretrain" not in pair.heading:
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], o.lr)
        build = code("litgpt", "litgpt/finetune/lora.py", "get_lr_scheduler").get_lr_scheduler
        scheduler = build(optimizer, warmup_steps=o.lr_warmup_steps, max_steps=o.max_steps)
        return option(optimizer, "lr", o.lr, lambda _: scheduler.step())
    get_lr = code("litgpt", "litgpt/pretrain.py", "get_lr").get_lr
    options = {
        name: settings[name]
        for name in ("global_batch_size", "micro_batch_size", "lr_warmup_steps", "max_tokens", "min_lr")
    }
    train = code("litgpt", "litgpt/args.py").TrainArgs(**options)
    steps = micro_batches(settings)
    warmup = train.warmup_iters(o.devices, 1, steps, None)
    return (get_lr(o.lr, step, warmup, steps, train.min_lr) / o.lr for step in count())


def micro_batches(settings: Settings) -> int:
    per_device = settings["max_tokens"] // settings["devices"]
    return per_device // (settings["micro_batch_size"] * settings["max_seq_length"])


def nanotron(pair: Pair, settings: Settings) -> Levels:
    """The functions of `lr_scheduler_builder`, for the groups of the page."""
    options = code("nanotron", "src/nanotron/config/config.py", "LRSchedulerArgs").LRSchedulerArgs
    build = code(
        "nanotron", "src/nanotron/helpers.py", "lr_scheduler_builder", logger=getLogger()
    ).lr_scheduler_builder
    optimizer = before(pair._replace(before=""), settings)["optimizer"]
    wrapped = SimpleNamespace(get_base_optimizer=lambda: optimizer)
    scheduler = build(wrapped, options(**settings), 0)
    for update in count():
        yield [multiplier(update) for multiplier in scheduler.lr_lambdas]


def lingua(pair: Pair, settings: Settings) -> Levels:
    """`build_lr_fn` of lingua/optim.py."""
    original = code("lingua", "lingua/optim.py")
    fields = original.OptimArgs.__dataclass_fields__
    options = {name: value for name, value in settings.items() if name in fields}
    return map(original.build_lr_fn(original.OptimArgs(**options), settings["steps"]), count())


def maxtext(pair: Pair, settings: Settings) -> Levels:
    """`create_learning_rate_schedule` of maxtext_utils.py."""
    types = code("maxtext", "src/maxtext/configs/types.py", "LearningRateScheduleType", "WsdDecayStyle")
    create = code(
        "maxtext", "src/maxtext/utils/maxtext_utils.py", "create_learning_rate_schedule", types=types
    ).create_learning_rate_schedule
    schedule = create(SimpleNamespace(**settings))
    return (float(schedule(jnp.int32(update))) / settings["learning_rate"] for update in count())


def levanter(pair: Pair, settings: Settings) -> Levels:
    """`AdamConfig.lr_scheduler` of optim/config.py."""
    original = code("levanter", "src/levanter/optim/config.py")
    options = {
        name: value for name, value in settings.items() if name in original.AdamConfig.__dataclass_fields__
    }
    if "type" in settings:
        options["lr_schedule"] = original.InvSqrtLrSchedule(settings["timescale"])
    schedule = original.AdamConfig(**options).lr_scheduler(settings["num_train_steps"])
    return (float(schedule(jnp.int32(update))) / settings["learning_rate"] for update in count())


def dinov2(pair: Pair, settings: Settings) -> Levels:
    """`build_schedulers` of train.py, after the scaling rule of config.py."""
    (lr, _, _, _, last_layer_lr), peak = dinov2_schedules(settings)
    return ([float(lr[update]) / peak, float(last_layer_lr[update]) / peak] for update in count())


def dinov2_weight_decay(settings: Settings) -> Levels:
    (_, weight_decay, *_), _ = dinov2_schedules(settings)
    return (float(weight_decay[update]) for update in count())


def dinov2_schedules(settings: Settings) -> tuple[Any, float]:
    scheduler = code("dinov2", "dinov2/utils/utils.py", "CosineScheduler").CosineScheduler
    build = code(
        "dinov2", "dinov2/train/train.py", "build_schedulers", CosineScheduler=scheduler, logger=getLogger()
    )
    world = SimpleNamespace(get_global_size=lambda: settings["world_size"])
    apply = code(
        "dinov2",
        "dinov2/utils/config.py",
        "apply_scaling_rules_to_cfg",
        distributed=world,
        logger=getLogger(),
    ).apply_scaling_rules_to_cfg
    teacher = ("momentum_teacher", "final_momentum_teacher", "teacher_temp", "warmup_teacher_temp")
    options = Options({"weight_decay": 0.0, "scaling_rule": "sqrt_wrt_1024"} | settings)
    configuration = SimpleNamespace(
        train=options,
        optim=options,
        teacher=dict.fromkeys(teacher, 0.0) | {"warmup_teacher_temp_epochs": 0},
    )
    apply(configuration)
    return build.build_schedulers(configuration), options.lr


class Options(dict[str, Any]):
    """Options by key and by attribute."""

    __getattr__ = dict[str, Any].__getitem__
    __setattr__ = dict[str, Any].__setitem__


def open_clip(pair: Pair, settings: Settings) -> Levels:
    """The functions of open_clip_train/scheduler.py, called before each update."""
    o = SimpleNamespace(**settings)
    original = code("open_clip", "src/open_clip_train/scheduler.py")
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.0}])
    arguments = [optimizer, o.lr, o.warmup, o.epochs * o.updates]
    if o.lr_scheduler == "const-cooldown":
        cooldown = o.epochs_cooldown * o.updates
        scheduler = original.const_lr_cooldown(*arguments, cooldown, o.lr_cooldown_power, o.lr_cooldown_end)
    else:
        build = {"cosine": original.cosine_lr, "const": original.const_lr}[o.lr_scheduler]
        scheduler = build(*arguments)
    for update in count():
        scheduler(update)
        yield optimizer.param_groups[0]["lr"] / o.lr


def index(settings: Settings) -> Levels:
    """The momentum of the page's program for `OneCycleLR`."""
    (pair,) = (pair for pair in read_pairs() if pair.heading == "OneCycleLR")
    names = before(pair, settings)
    return option(names["optimizer"], "momentum", 1.0, lambda _: names["scheduler"].step())
