"""The site's own search, in a browser: titles of issues lead to the right page.

The titles are those of public issues and pull requests of other projects, chosen before the first measurement
and unchanged since. Found among the first three results:

    one page of troubleshooting, Sphinx's ranking     1 of 25   (19 found nothing at all)
    a page per theme, Sphinx's ranking                7 of 25   (14)
    a page per theme, docs/static/search.js          25 of 25   (0)
"""

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from support.design.browser import chromium
from support.docs.site import build_site

pytestmark = pytest.mark.slow

LR, RESUMING = "troubleshooting/learning_rate", "troubleshooting/resuming"
FP16, PROCESSES = "troubleshooting/loss", "troubleshooting/processes"

# Each issue with its title, and how the paths of the right pages begin.
ISSUES = {
    "pytorch/pytorch#76113": ("Deprecation warning from SequentialLR", LR),
    "pytorch/pytorch#162591": ("SequentialLR scheduler, bug with last_epoch = N", RESUMING),
    "pytorch/pytorch#44511": (
        "LR scheduler throws warning when using scaler.step instead of optimizer.step",
        FP16,
    ),
    "pytorch/pytorch#140900": (
        'DCP fails to save "initial_lr" field, created by an LR scheduler',
        RESUMING,
    ),
    "pytorch/examples#816": ("Resume will override learning rate on command line.", RESUMING),
    "pytorch/torchtitan#2340": ("Maintain same LR schedule for early stop debug runs", RESUMING, "cooldowns"),
    "huggingface/transformers#10880": ("Scheduler Not Pickleable", RESUMING),
    "huggingface/transformers#11106": ("lr scheduler before optimizer step warning", FP16),
    "huggingface/transformers#20029": (
        "Transformers scheduler doesn't alter LR of added param group after model unfreeze",
        LR,
    ),
    "huggingface/transformers#27749": (
        "Learning Rate doesn't anneal properly after resume_from_checkpoint",
        RESUMING,
    ),
    "huggingface/accelerate#963": (
        "Scheduler always steps when training with gradient accumulation",
        LR,
        "trainers",
    ),
    "huggingface/accelerate#2630": ("Support schedulefree optimizer", LR),
    "huggingface/accelerate#2926": ("Learning Rate Scheduler Stepping too fast on MultiGPU", PROCESSES),
    "Lightning-AI/pytorch-lightning#2005": ("Differential learning rates and parameter groups", LR),
    "Lightning-AI/pytorch-lightning#11694": ("DeepSpeed learning rate scheduler not working", PROCESSES),
    "google-deepmind/optax#206": ("Extracting learning rate from optimizer state directly", LR),
    "google/flax#4320": ("Extracting learning rate from nnx.optimizer directly", LR),
    "NVIDIA/Megatron-LM#963": ("learning rate error when continue training", RESUMING),
    "NVIDIA/Megatron-LM#1138": (
        "[BUG] Learning rate not overrided when set `--override-opt_param-scheduler`",
        RESUMING,
    ),
    "AI-Hypercomputer/maxtext#2882": (
        "Implement Warmup-Stable-Decay (WSD) Learning Rate Scheduler",
        "other_schedulers",
        "cooldowns",
        "curves",
    ),
    "allenai/OLMo#411": ("allow specifying LR schedule in terms of tokens", "clocks"),
    "allenai/OLMo-core#419": (
        "Add WSDS (Warmup-Stable-Decay-Simplified) Scheduler",
        RESUMING,
        "other_schedulers",
        "cooldowns",
    ),
    "mosaicml/composer#1384": (
        "[Q] How do the schedulers work with resume / interrupt?",
        RESUMING,
        "cooldowns",
    ),
    "mlfoundations/open_clip#831": ("feat: Layerwise LR Decay (LLRD) scheduling", LR),
    "alan-turing-institute/autocast#388": (
        "Add wall-clock cosine LR schedule (scheduler_interval: time)",
        LR,
        "clocks",
    ),
}


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[str]]]:
    """A function that returns the links of the results, from the first."""
    site = tmp_path_factory.mktemp("build") / "site"
    build_site(site)
    with chromium() as window:
        tab = window.new_page()

        def links(query: str) -> list[str]:
            tab.goto(f"{(site / 'search.html').as_uri()}?q={quote(query)}")
            tab.locator(".search-summary:not(:empty)").wait_for()
            return [str(link.get_attribute("href")) for link in tab.locator("#search-results li > a").all()]

        yield links


@pytest.mark.parametrize("issue", ISSUES)
def test_title_of_issue_finds_its_page(issue: str, search: Callable[[str], list[str]]) -> None:
    title, *pages = ISSUES[issue]
    first = search(title)[:3]
    assert any(link.startswith(tuple(pages)) for link in first), first


# Words, and the section that they lead to, among the first four results.
WORDS = {
    "Tried to step 1002 times": "tried-to-step",
    "ValueError: Tried to step 281 times. The specified number of total steps is 279": "tried-to-step",
    "learning rate not changing": "the-learning-rate-is-not-changing",
    "learning rate constant": "the-learning-rate-is-not-changing",
    "Learning rate scheduler does not change the learning rate": "the-learning-rate-is-not-changing",
    "fine-tuning old optimizer new learning rate": "how-do-i-fine-tune",
    "Can't alter the learning rate though loading optimizer states": "how-do-i-fine-tune",
    "jax.distributed": "several-processes",
    "multi-host": "several-processes",
    "multi_transform": "how-do-i-give-each-parameter-group-its-own-curve-optax-partition",
    "adamw support for weight decay schedules": "how-do-i-schedule-the-weight-decay",
    "stale weight decay after OptimizerParamScheduler.load_state_dict": "how-do-i-schedule-the-weight-decay",
    "separate learning rate for AdamW components in Muon optimizer": "how-do-i-give-muon",
    "checkpoint merge & model averaging": "how-good-would-the-model-be",
    "extend cosine schedule": "how-do-i-extend-a-cosine-schedule",
    "Keras learning rate schedule": "keras-3",
    "skorch": "skorch",
    "ignite param scheduler": "pytorch-ignite",
    "stable baselines learning rate schedule": "stable-baselines3",
    "fastai": "fastai",
    "NumPyro": "numpyro",
    "CleanRL": "cleanrl",
    "diffusers": "diffusers",
    "sentence-transformers": "sentence-transformers",
    "detectron2": "detectron2-fvcore",
    "fvcore": "detectron2-fvcore",
    "mmengine": "mmengine",
    "Ray Train": "ray-train",
    "torchvision": "torchvision",
    "ultralytics": "ultralytics-yolo",
}


@pytest.mark.parametrize("words", WORDS)
def test_words_find_their_section(words: str, search: Callable[[str], list[str]]) -> None:
    first = search(words)[:4]
    assert any(f"#{WORDS[words]}" in link or f"-{WORDS[words]}" in link for link in first), first


def test_heading_leads_to_its_section(search: Callable[[str], list[str]]) -> None:
    first, *_ = search("How do I train longer than planned, or stop earlier?")
    assert first == f"{RESUMING}.html#how-do-i-train-longer-than-planned-or-stop-earlier"


def test_search_finds_a_name_without_a_server(search: Callable[[str], list[str]]) -> None:
    assert "find_batch_size" in search("find_batch_size")[0]


def test_small_words_of_a_name_do_not_count(search: Callable[[str], list[str]]) -> None:
    first, *others = search("get_cosine_schedule_with_warmup")
    assert first == "other_schedulers/transformers.html#get-cosine-schedule-with-warmup"
    assert not any("with-your-own" in link for link in others)


def test_unknown_words_find_nothing(search: Callable[[str], list[str]]) -> None:
    assert search("xyzzy plugh") == []
