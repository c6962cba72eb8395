"""The colours of curves on the design page: distinct for everybody, in light and dark."""

import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

# What a color-blind person sees, as linear RGB: Machado et al. 2009, severity 1.
VISIONS = {
    "full": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
# Björn Ottosson's Oklab, in which equal distances look about equally different.
CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
OKLAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
PAGE = files("plateau_jax.design") / "page"


def colours(scheme: int) -> Iterator[NDArray[np.float64]]:
    """Yield linear RGB of the card, then of the curves."""
    css = (PAGE / "page.css").read_text()
    for name in ("card", *(f"c{number}" for number in range(6))):
        text = re.findall(rf"--{name}: light-dark\(#(\w+), #(\w+)\)", css)[0][scheme]
        srgb = np.array([int(text[place : place + 2], 16) for place in (0, 2, 4)]) / 255
        yield np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_differ_for_every_vision(scheme):
    card, *curves = colours(scheme)
    for colour in curves:
        low, high = sorted(np.array([card, colour]) @ [0.2126, 0.7152, 0.0722] + 0.05)  # luminances
        assert high / low >= 3  # WCAG 2.2, 1.4.11
    for vision, matrix in VISIONS.items():
        seen = [OKLAB @ np.cbrt(CONES @ np.clip(matrix @ colour, 0, 1)) for colour in curves]
        for (place, one), (other_place, other) in combinations(enumerate(seen), 2):
            assert np.linalg.norm(one - other) > 0.11, (vision, place, other_place)


def test_every_curve_has_its_dash():
    """A look is a colour and a dash: all twelve dashes differ, for those who see no colour at all."""
    (listed,) = re.findall(r"DASHES = \[([^]]*)\]", (PAGE / "looks.js").read_text())
    dashes = re.findall(r'"([\d ]+)"', listed)
    assert len(set(dashes)) == len(dashes) == 12
