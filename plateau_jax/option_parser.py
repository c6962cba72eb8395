"""The options of the command line, its parser with one-line errors, and messages that name options."""

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from plateau_jax.curves.config_values import parse_integer, parse_number
from plateau_jax.validation.messages import (
    LearningRate,
    Name,
    Pair,
    Setting,
    Stages,
    Subject,
    Words,
    plain,
    unquoted,
)

_EXAMPLES = """\
examples:
  python -m plateau_jax 10000 --warmup-steps 500 --plateau 50 30 --min-lr-ratio 0.1
  python -m plateau_jax 10000 --plateau 0 80 --peak 3e-4 --plot curve.png
  python -m plateau_jax 10000 --stage 2% 1.0 --stage rest --stage 20% 0 1-sqrt
  python -m plateau_jax 10000 --peak 3e-4 --csv - | tail
  python -m plateau_jax 10000 --plateau 0 90 --json > curve.json
  python -m plateau_jax --from curve.json --cooldown 6000 500
  python -m plateau_jax 10000 --decay-shape linear --from curve.json --compare
  python -m plateau_jax --design
  python -m plateau_jax --design --from curve.json --peak 3e-4 --port 0 --no-browser
"""

OPTIONS = {
    "total_steps": "TOTAL",
    "warmup_steps": "--warmup-steps",
    "warmup_shape": "--warmup-shape",
    "init_lr_ratio": "--init-lr-ratio",
    "plateaus": "--plateau",
    "absolute_plateaus": "--absolute-plateau",
    "decay_shape": "--decay-shape",
    "min_lr_ratio": "--min-lr-ratio",
    "stages": "--stage options",
    "start": "--start",
    "peak": "--peak",
    "peak_value": "--peak",
    "runs": "--fit",
    "best_peak(runs, curve)": "--best-peak",
}
"""The option for each argument of a curve, the peak, the runs, and a function that messages suggest."""

_OF_COOLDOWNS = {"at": "AT of --cooldown", "steps": "STEPS of --cooldown"}


class OptionParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage; they suggest the option that was meant."""

    # A signature of the standard library, with overloads.
    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # pyright: ignore[reportIncompatibleMethodOverride]
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _suggestion(self, unknown: Sequence[str]) -> str:
        typed = next((word.partition("=")[0] for word in unknown if re.match("--?[a-z]", word)), None)
        if typed is None:
            return ""
        # The names that a Python user may type, and what they are here.
        meant = {word: word for word in re.findall(r"--[a-z-]+", self.format_usage())}
        meant |= {
            f"--{name.replace('_', '-')}": option for name, option in OPTIONS.items() if name != "stages"
        }
        begun = [word for word in meant if word.startswith(typed)]
        close = begun or difflib.get_close_matches(typed.replace("_", "-"), meant, 1, 0.75)
        return f"; did you mean {meant[close[0]]}?" if close else ""


def command_line_parser() -> OptionParser:
    """Return the parser of `python -m plateau_jax`."""
    parser = OptionParser(
        prog="python -m plateau_jax",
        description="Print the segments of a learning-rate curve; draw it or write its values.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --min-lr 1e-5, a learning rate, must not become --min-lr-ratio
    )
    described = parser.add_argument_group("a PlateauCurve")
    described.add_argument(
        "total_steps", metavar="TOTAL", nargs="?", type=integer, help="steps of the curve, warmup included"
    )
    described.add_argument(
        "--warmup-steps",
        metavar="N",
        type=steps_or_percentage,
        help="warmup steps, or a percentage of TOTAL, as in 2%% (0)",
    )
    described.add_argument("--warmup-shape", metavar="SHAPE", help="linear or cosine (linear)")
    described.add_argument(
        "--init-lr-ratio",
        metavar="R",
        type=float,
        help="initial learning rate of the warmup, as a fraction of the peak (0)",
    )
    described.add_argument(
        "--plateau",
        metavar=("START", "DURATION"),
        nargs=2,
        type=float,
        action="append",
        dest="plateaus",
        help="a plateau, in percent of the steps after the warmup; may be repeated",
    )
    described.add_argument(
        "--absolute-plateau",
        metavar=("FIRST", "STEPS"),
        nargs=2,
        type=integer,
        action="append",
        dest="absolute_plateaus",
        help="a plateau, in steps; may be repeated",
    )
    described.add_argument(
        "--decay-shape",
        metavar="SHAPE",
        help="cosine, linear, 1-sqrt, 1-x^P or (1-x)^P, with a decimal for P, as in 1-x^2 (cosine)",
    )
    described.add_argument(
        "--min-lr-ratio", metavar="R", type=float, help="final learning rate, as a fraction of the peak (0)"
    )
    staged = parser.add_argument_group("a StagedCurve")
    staged.add_argument(
        "--stage",
        metavar=("STEPS", "TO SHAPE"),
        nargs="+",
        action="append",
        dest="stages",
        help="a stage to the level TO; without TO the level stays. STEPS is a number, or with TOTAL also a "
        "percentage, as in 2%%, or once the word rest; SHAPE is a shape as above, exponential or t^-P "
        "(linear); repeat it for the next stage",
    )
    staged.add_argument("--start", metavar="R", type=float, help="the level at step 0 (0)")
    parser.add_argument(
        "--from",
        metavar="FILE",
        action="append",
        default=[],
        dest="files",
        help="instead of TOTAL or --stage: a curve that --json or to_dict wrote; - is standard input; may be "
        "repeated",
    )
    parser.add_argument(
        "--cooldown",
        metavar=("AT", "STEPS"),
        nargs=2,
        type=integer,
        help="end the curve at step AT with a 1-sqrt cooldown to 0 in STEPS steps",
    )
    parser.add_argument(
        "--peak", metavar="P", type=float, help="peak learning rate (1); the table then shows learning rates"
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (needs matplotlib)")
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="write step, learning_rate for every step; - for standard output, without the table",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="print a table instead that compares TOTAL's curve, if there is one, and each --from by their "
        "theoretical bounds, each at its best peak; the first curve is the reference. If --peak is the best "
        "peak of the first curve, the table shows the best peaks of all",
    )
    parser.add_argument(
        "--fit",
        metavar=("FILE", "CURVE"),
        nargs="+",
        action="append",
        default=[],
        help="with --compare: forecast the losses of the curves from the log of a run; CURVE is a file as "
        "for --from, needed if the log has no learning rates; --peak is then the peak of the run and of the "
        "curves; may be repeated for runs of one peak, and with --best-peak of several",
    )
    parser.add_argument(
        "--best-peak",
        action="store_true",
        help="print the best peak of each curve from the logs of --fit, which must have learning rates, at "
        "three peaks or more about a factor of 2 apart",
    )
    parser.add_argument("--json", action="store_true", help="print the curve's arguments as JSON instead")
    page = parser.add_argument_group("the page")
    page.add_argument("--design", action="store_true", help="open a page in the browser for designing curves")
    page.add_argument("--port", metavar="N", type=integer, help="port of the page (8700); 0 for a free one")
    page.add_argument("--no-browser", action="store_true", help="print the page's address without opening it")
    return parser


def integer(text: str) -> int:
    """Return the integer that the text says, in any form that the design page accepts: 10000, 1e4, 10_000."""
    number = parse_integer(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer")
    return number


def steps_or_percentage(text: str) -> float | str:
    """Return the integer; or a percentage or a fraction as it is, which the curve checks and advises on."""
    if "%" in text:
        return text
    number = parse_number(text)
    return number if number is not None and 0 < number < 1 else integer(text)


class OptionWords(Words):
    """The words of the command line: options in place of arguments.

    >>> from plateau_jax import PlateauCurve
    >>> from plateau_jax.validation.messages import message_of
    >>> try:
    ...     PlateauCurve(100, warmup_steps=100)
    ... except ValueError as error:
    ...     print(OptionWords().text(message_of(error)))
    --warmup-steps 100 must lie in 0 … TOTAL - 1 = 99, so that a step is left to decay
    """

    def __init__(self) -> None:
        super().__init__(OPTIONS | _OF_COOLDOWNS)

    def name(self, name: Name) -> str:
        # After --stage, TOTAL would be one of its values.
        return super().name(name) + (" before the first --stage" if name.is_missing else "")

    def keyword(self, name: str) -> str:
        return self.name(Name(name))

    def setting(self, setting: Setting) -> str:
        pairs = [self.pair(Pair(setting.name, pair)) for pair in setting.pairs]
        return " ".join(pairs) or f"{self.names[setting.name]} {setting.value}"

    def pair(self, pair: Pair) -> str:
        return " ".join([self.names[pair.argument], *(str(plain(number)) for number in pair.pair)])

    def stages(self, stages: Stages) -> str:
        words = [" ".join(["--stage", *map(unquoted, stage)]) for stage in stages.stages]
        return " ".join(words) + ("" if stages.start is None else f" --start {stages.start}")

    def learning_rate(self, rate: LearningRate) -> str:
        value = f"the value of {rate.lr!r} / peak"
        return value if rate.name is None else f"{self.names[rate.name]} with {value}"

    def subject(self, subject: Subject) -> str:
        place, option = subject.place, self.names.get(subject.place.argument)
        if option is None:
            return super().subject(subject)
        if place.index is None:
            text = f"{option}{' ' if option.startswith('--') else ' = '}{self.text(subject.value)}"
        else:
            words = subject.words if subject.has_value else ("number", str(place.index + 1))
            text = " ".join([option.partition(" ")[0], *words])
            if place.part is not None:
                text += f": {place.part} = {self.text(subject.value)}"
        return f"{text}: " if subject.clause else text
