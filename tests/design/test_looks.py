"""The looks of curves on the design page: each is visible in light and dark, and has its own dash."""

import re
from collections.abc import Iterator
from importlib.resources import files

import numpy as np
import pytest
from numpy.typing import NDArray

PAGE = files("plateau_jax.design") / "page"


def colours(scheme: int) -> Iterator[NDArray[np.float64]]:
    """Yield linear RGB of the card, then of the curves."""
    css = (PAGE / "page.css").read_text()
    for name in ("card", *(f"c{number}" for number in range(6))):
        text = re.findall(rf"--{name}: light-dark\(#(\w+), #(\w+)\)", css)[0][scheme]
        srgb = np.array([int(text[place : place + 2], 16) for place in (0, 2, 4)]) / 255
        yield np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_differ_from_the_card(scheme):
    card, *curves = colours(scheme)
    for colour in curves:
        low, high = sorted(np.array([card, colour]) @ [0.2126, 0.7152, 0.0722] + 0.05)  # luminances
        assert high / low >= 3  # WCAG 2.2, 1.4.11


def test_every_curve_has_its_dash():
    """A look is a colour and a dash: all twelve dashes differ, for those who see no colour at all."""
    (listed,) = re.findall(r"DASHES = \[([^]]*)\]", (PAGE / "looks.js").read_text())
    dashes = re.findall(r'"([\d ]+)"', listed)
    assert len(set(dashes)) == len(dashes) == 12
