"""What a notebook shows of a curve: a picture, its expression, and the table of segments."""

import base64
import io
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from hypothesis import given
from matplotlib import image
from support.curves.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import PlateauCurve, StagedCurve

mpl.use("Agg")


@examples(8)
@given(descriptions(scaled=True))
def test_picture_and_table_are_those_of_the_curve(description):
    curve = build(description)
    root = ElementTree.fromstring(curve._repr_html_())
    (table,) = root.iter("pre")
    assert table.text == curve.describe()
    (picture,) = root.iter("img")
    data = base64.b64decode(picture.get("src").removeprefix("data:image/png;base64,"))
    pixels = image.imread(io.BytesIO(data))
    assert np.ptp(pixels) > 0


def test_short_curve_has_its_expression():
    curve = PlateauCurve(1000, warmup_steps=100, warmup_shape="cosine")
    (expression,) = ElementTree.fromstring(curve._repr_html_()).iter("code")
    assert expression.text == repr(curve)


def test_long_curve_has_short_html():
    """The table shows the beginning."""
    levels = np.random.default_rng(0).random(1500).repeat(2)
    steps = np.arange(3000) // 2 * 10 + 5 * (np.arange(3000) % 2)
    curve = StagedCurve.through(zip(steps, levels, strict=True))
    html = curve._repr_html_()
    assert len(html) < 300_000
    assert "The table shows the first 200 of 3000 segments." in html
