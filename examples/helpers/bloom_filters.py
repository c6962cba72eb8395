"""Bloom filters of names, for train_bloom.py: registries compare them instead of names.

Every two-gram of a name, its ends marked (_S SM MI IT TH H_), sets some bits of the name's filter.
Hash functions with a key choose the bits: Schnell, Bachteler and Reiher, 2009, "Privacy-preserving
record linkage using Bloom filters", BMC Medical Informatics and Decision Making 9:41; their filters
have 1,000 bits and 30 hash functions. Here all names are encoded at once and, for comparison, one
after another.
"""

import hmac
import statistics
import time

import names
import numpy as np
import torch

# Of the US census of 1990: the most common first, in lines of one width.
SURNAMES = names.FILES["last"]
LINE, LONGEST = 35, 13  # bytes of a line, letters of a name
LETTERS = "_ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TWO_GRAMS = [first + second for first in LETTERS for second in LETTERS]
TWO_GRAMS.remove("__")  # no name has it


def positions(bits, hashes):
    """Return the bits that each two-gram sets: (h₁ + i·h₂) mod bits, with two keyed hashes."""
    digests = (
        [
            int.from_bytes(hmac.digest(b"the registries' secret", gram.encode(), kind))
            for kind in ("sha1", "md5")
        ]
        for gram in TWO_GRAMS
    )
    return [[(first + i * second) % bits for i in range(hashes)] for first, second in digests]


def encode(source, count, bits, positions, digest=None):
    """Return the filters and the two-grams of the first `count` names, eight bits per byte.

    `digest`, of the source's bytes, is unused here: it is a part of the cache's key.
    """
    lines = np.fromfile(source, np.uint8, count * LINE).reshape(-1, LINE)[:, :LONGEST]
    # Letters are 1 to 26; blanks and the ends of a name are 0. A two-gram's number is 27·first +
    # second: SM is 27·19 + 13 = 526.
    letters = np.pad(np.where(lines > 64, lines - 64, 0).astype(np.int64), ((0, 0), (1, 1)))
    numbers = 27 * letters[:, :-1] + letters[:, 1:]
    # The two-gram of two blanks sets an extra bit, which is cut off below.
    sets = np.array([[bits] * len(positions[0]), *positions])
    all_filters, all_grams = [], []
    for part in np.array_split(numbers, -(-len(numbers) // 8192)):
        row = np.arange(len(part))[:, None]
        grams = np.zeros((len(part), 1 + len(positions)), bool)
        grams[row, part] = True
        filters = np.zeros((len(part), bits + 1), bool)
        filters[row[..., None], sets[part]] = True
        all_filters.append(np.packbits(filters[:, :-1], axis=1))
        all_grams.append(np.packbits(grams[:, 1:], axis=1))
    return {"filters": np.concatenate(all_filters), "grams": np.concatenate(all_grams)}


def unpacked(packed, width):
    return torch.from_numpy(np.unpackbits(packed, axis=1, count=width))


def encode_row_by_row(source, count, bits, positions):
    """Encode one name after another, through strings of bits and lists, as float tensors."""
    filters, grams = [], []
    with open(source) as lines:
        for _, line in zip(range(count), lines, strict=False):
            name = f"_{line.split()[0]}_"
            name_grams = [name[i : i + 2] for i in range(len(name) - 1)]
            ones = {bit for gram in name_grams for bit in positions[TWO_GRAMS.index(gram)]}
            bit_string = "".join("1" if bit in ones else "0" for bit in range(bits))
            filters.append(
                torch.tensor(np.array([int(bit) for bit in bit_string], dtype=np.float32))
            )
            label = np.zeros(len(TWO_GRAMS), dtype=np.float32)
            for gram in name_grams:
                if gram in TWO_GRAMS:
                    label[TWO_GRAMS.index(gram)] = 1
            grams.append(torch.tensor(label))
    return torch.stack(filters), torch.stack(grams)


def encode_at_once(source, count, bits, positions):
    packed = encode(source, count, bits, positions)
    widths = {"filters": bits, "grams": len(TWO_GRAMS)}
    return tuple(unpacked(packed[name], width).float() for name, width in widths.items())


def compare(*arguments):
    """Time both functions, which must agree; return medians of three rounds, in seconds."""
    seconds = {encode_row_by_row: [], encode_at_once: []}
    for _ in range(3):
        results = []
        for encode_names, taken in seconds.items():
            start = time.perf_counter()
            results.append(encode_names(*arguments))
            taken.append(time.perf_counter() - start)
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    return [statistics.median(taken) for taken in seconds.values()]
