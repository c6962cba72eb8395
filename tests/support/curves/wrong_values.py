"""Values that are wrong for several arguments of curves, and what their messages say."""

from collections.abc import Iterable
from fractions import Fraction
from math import nan

import numpy as np
from proofs.shapes.specs import INTERPOLATED_SPECS, SPECS

NOT_INTEGERS = [
    True,
    np.True_,
    10.5,
    10.0,
    None,
    nan,
    3j,
    np.float32(10),
    [10],
    Fraction(10),
]
# Items of a dictionary or a set have no order that the user chose.
NOT_PAIRS = [
    (50,),
    (50, 10, 5),
    50,
    "50",
    None,
    (),
    {85, 10},
    frozenset((85, 10)),
    {85: 0, 10: 0},
]
VIEWS_OF_TWO = [{85: 0, 10: 0}.keys(), {0: 85, 1: 10}.values()]
NOT_SEQUENCES = [None, 50, "50", np.array(50), {(85, 10)}, {(85, 10): 0}, {85: 10}.items()]
NOT_COUNTS = [
    "k",
    ".5k",
    "1,5k",
    "-1k",
    "1e3k",
    "0x1B",
    "1_0k",
    "10kB",
    "10 thousand",
    "9" * 5000 + "k",
]
NOT_PERCENTAGES = [
    "-1%",
    "100.0001%",
    "nan%",
    "inf%",
    "%",
    "2%%",
    "2 % 3",
    "1/2%",
    "2%\n.",
]
NOT_POWERS = [
    "",
    "P",
    "1e-1",
    "+2",
    "-2",
    " 2",
    "2 ",
    "2\n",
    "1/2",
    "1,5",
    "1_0",
    "½",
    "٢",
    ".",
    "1.5.2",
    "inf",
    "nan",
    "0x2",
    "2" * 10**6,
    "0.5" + "0" * 30,
]
NOT_SHAPES = [
    "x^2",
    "1 - x^2",
    "1-x**2",
    "1-X^2",
    "(1-x)2",
    "1-x",
    "",
    "sqrt",
    "Linear",
    2,
    ["linear"],
]


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(map(repr, names))}, with a decimal for P, such as '1-x^2'"


A_SHAPE = _one_of(SPECS)
A_DECAY_SHAPE = _one_of(INTERPOLATED_SPECS)
A_LETTER = "end in k for thousand, M for million or B for billion"
A_PERCENTAGE = "a percentage from 0% to 100%"
