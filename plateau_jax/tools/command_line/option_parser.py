"""The options of the command line."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from plateau_jax.shapes.known_shapes import SHAPES, SHAPES_ALLOWING_ZERO

_EXAMPLES = """\
examples:
  python -m plateau_jax 10000 --warmup-steps 500 --plateau 50 30 --min-lr-ratio 0.1
  python -m plateau_jax 10000 --plateau 0 80 --peak 3e-4 --plot curve.png
  python -m plateau_jax 10000 --wsd --warmup-steps 500 --decay-steps 20%
  python -m plateau_jax 10000 --stage 2% 1.0 --stage rest --stage 20% 0 1-sqrt
  python -m plateau_jax 10000 --peak 3e-4 --csv - | tail
  python -m plateau_jax 10000 --plateau 0 90 --json > curve.json
  python -m plateau_jax --from curve.json --export schedule.py
  python -m plateau_jax --from curve.json --cooldown 6000 500
  python -m plateau_jax 10000 --decay-shape linear --from curve.json --compare
  python -m plateau_jax --design
  python -m plateau_jax --design --from curve.json --peak 3e-4 --port 0 --no-browser
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def command_line_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m plateau_jax`."""
    parser = _Parser(
        prog="python -m plateau_jax",
        description="Print the segments of a learning-rate curve; draw it or write its values.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --min-lr 1e-5, a learning rate, must not become --min-lr-ratio
    )
    # So that -1e-3 counts as a value, too, not as an option.
    parser._negative_number_matcher = re.compile(r"-\.?[0-9]")
    _add_plateau_curve(parser)
    _add_staged_curve(parser)
    _add_general_options(parser)
    _add_outputs(parser)
    _add_columns(parser)
    _add_design_page(parser)
    return parser


def _add_plateau_curve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a PlateauCurve").add_argument
    add(
        "total_steps",
        metavar="TOTAL",
        nargs="?",
        help="steps of the curve, warmup included, as in 10000 or 10k",
    )
    add("--warmup-steps", metavar="N", help="warmup steps, or a percentage of TOTAL, as in 2%% (0)")
    add("--warmup-shape", metavar="SHAPE", help="linear or cosine (linear)")
    add(
        "--init-lr-ratio",
        metavar="R",
        help="initial learning rate of the warmup, as a fraction of the peak (0)",
    )
    add(
        "--plateau",
        metavar=("START", "DURATION"),
        nargs=2,
        action="append",
        dest="plateaus",
        help="a plateau, in percent of the steps after the warmup; may be repeated",
    )
    add(
        "--absolute-plateau",
        metavar=("FIRST", "STEPS"),
        nargs=2,
        action="append",
        dest="absolute_plateaus",
        help="a plateau, in steps; may be repeated",
    )
    add(
        "--decay-shape",
        metavar="SHAPE",
        help=f"{_join_names([*SHAPES_ALLOWING_ZERO])}, with a decimal for P, as in 1-x^2 (cosine)",
    )
    add("--min-lr-ratio", metavar="R", help="final learning rate, as a fraction of the peak (0)")


_OTHER_SHAPES = [name for name in SHAPES if name not in SHAPES_ALLOWING_ZERO]


def _join_names(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def _add_staged_curve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a StagedCurve").add_argument
    add(
        "--wsd",
        action="store_const",
        const=True,
        help="a warmup, the peak, then a decay: with TOTAL, --warmup-steps, --decay-steps, and "
        "optionally --decay-shape (1-sqrt), --min-lr-ratio and --start",
    )
    add("--decay-steps", metavar="N", help="decay steps of --wsd, or a percentage of TOTAL")
    add(
        "--stage",
        metavar=("STEPS", "TO SHAPE"),
        nargs="+",
        action="append",
        dest="stages",
        help="a stage to the level TO; without TO the level stays. STEPS is a number, or with "
        "TOTAL also a percentage, as in 2%%, or once the word rest; SHAPE is a shape as above, "
        f"{_join_names(_OTHER_SHAPES)} (linear); repeat it for the next stage",
    )
    add("--start", metavar="R", help="the level at step 0 (0)")


def _add_general_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--version", action="store_true", help="print the version")
    add(
        "--from",
        metavar="FILE",
        action="append",
        default=[],
        dest="files",
        help="instead of TOTAL or --stage: a curve that --json or to_dict wrote, or its mapping in "
        "a configuration: JSON, or YAML if FILE ends in .yaml or .yml (needs PyYAML); - is JSON "
        "from standard input; may be repeated",
    )
    add(
        "--cooldown",
        metavar=("AT", "STEPS"),
        nargs=2,
        help="end the curve at step AT with a 1-sqrt cooldown to 0 in STEPS steps",
    )
    add(
        "--peak",
        metavar="P",
        type=float,
        help="peak learning rate (1); the table then shows learning rates",
    )
    add("--plot", metavar="FILE", type=Path, help="write a picture (needs matplotlib)")


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    outputs = parser.add_argument_group("one of")
    add = outputs.add_mutually_exclusive_group().add_argument
    add(
        "--csv",
        metavar="FILE",
        help="write step, learning_rate for every step; - for standard output, without the table",
    )
    add(
        "--export",
        metavar="FILE",
        help="write the curve for programs without this library. A FILE that ends in .py becomes a "
        "Python file without dependencies; --peak is then the default peak of its learning_rate; - "
        "prints it, without the table. A FILE that ends in .json becomes test vectors of one or "
        "several curves",
    )
    add("--json", action="store_true", help="print the curve's arguments as JSON instead")
    add(
        "--log",
        metavar="FILE",
        help="compare the learning rates in the log of a run with the curve and --peak, and print "
        "the first that differs, and each fault that explains them. FILE is JSON, CSV with commas "
        "or tabs, or the lines of a console; - is standard input",
    )
    add(
        "--compare",
        action="store_true",
        help="print a table instead that compares TOTAL's curve, if there is one, and each --from "
        "by their theoretical bounds, each at its best peak; the first curve is the reference. If "
        "--peak is the best peak of the first curve, the table shows the best peaks of all",
    )
    add("--design", action="store_true", help="open a page in the browser for designing curves")


def _add_columns(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("with --log").add_argument
    add("--step-column", metavar="NAME", help="the column of updates, if it has an unusual name")
    add(
        "--lr-column",
        metavar="NAME",
        help="the column of learning rates, if it has an unusual name or there are several",
    )


def _add_design_page(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("with --design").add_argument
    add(
        "--port",
        metavar="N",
        type=int,
        help="port of the page (8700); 0 for a free one",
    )
    add("--no-browser", action="store_true", help="print the page's address without opening it")
