"""Print a C file that computes a curve, from test vectors.

    python -m plateau_jax 10000 --wsd --warmup-steps 500 --decay-steps 20% --export vectors.json
    python examples/curve_in_c.py vectors.json > schedule.c

The file has the table of the first curve, and two functions. examples/schedule.c is such a file.
"""

import argparse
import json
from pathlib import Path
from string import Template
from textwrap import wrap

FILE = Template("""\
/* A learning-rate schedule: $curve */

#include <math.h>
#include <stdint.h>

/* A row begins at a step, and has pieces of 2^shift steps. */
static const struct { int32_t begin, shift, first_piece; } rows[] = {
$rows
};
enum { ROWS = sizeof rows / sizeof *rows };

/* A piece is a polynomial, divided by 2^exponent. The first coefficient is that of t^0. */
static const struct { int32_t exponent; int64_t c[$terms]; } pieces[] = {
$pieces
};

/* The multiplier at a step. */
float multiplier(int32_t step) {
    if (step < 0) step = 0;
    int row = 0;
    while (row + 1 < ROWS && rows[row + 1].begin <= step) row++;
    int shift = rows[row].shift;
    int64_t offset = step - rows[row].begin;
    int piece = rows[row].first_piece + (int)(offset >> shift);
    int64_t t = ((offset << (31 - shift)) & 0x7FFFFFFF) - (1 << 30), value = 0;
    for (int k = $terms - 1; k >= 0; k--)
        value = pieces[piece].c[k] + (value >> 31) * t + (((value & 0x7FFFFFFF) * t) >> 31);
    double number = ldexp((double)(float)value, -pieces[piece].exponent);
    return number < 0x1p-126 ? 0 : (float)number;
}

/* The learning rate at a step. The peak is 0, or at least 2^-126 and finite as a float. */
float learning_rate(int32_t step, double peak) {
    return (float)((double)(float)peak * multiplier(step));
}
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", type=Path, help="a .json file from --export")
    content = json.loads(parser.parse_args().vectors.read_text())
    entry = content["curves"][0]
    terms = max(len(piece) for piece in entry["pieces"]) - 1
    pieces = []
    for exponent, *coefficients in entry["pieces"]:
        # Without LL, -0xABD6220D would be an unsigned int.
        literals = [f"{coefficient}LL" for coefficient in coefficients]
        pieces += braces([exponent, "{" + ", ".join(literals) + "}"])
    print(
        FILE.substitute(
            curve="\n   ".join(wrap(json.dumps(entry["curve"]), 90)),
            rows="\n".join(line for row in entry["rows"] for line in braces(row)),
            terms=terms,
            pieces="\n".join(pieces),
        ),
        end="",
    )


def braces(numbers: list) -> list[str]:
    """Return the lines of an initializer."""
    text = f"{{{', '.join(map(str, numbers))}}},"
    return wrap(text, 100, initial_indent="    ", subsequent_indent="     ")


if __name__ == "__main__":
    main()
