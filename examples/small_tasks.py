"""Small networks and their data, for experiments that train many of them with Adam in JAX."""

import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from sklearn.datasets import load_digits

from plateau_jax import StagedCurve


class Task(NamedTuple):
    """A network and its data, with a seed."""

    weights: jax.Array
    """The initial weights, flat."""
    training_loss: Callable
    """Of weights and the number of an update: the loss of its batch."""
    held_out_loss: Callable
    """Of weights."""
    stable: StagedCurve
    peak: float


def digits(seed, updates, *, batch_norm=False):
    """Return the task of choosing_a_curve.ipynb, with batch normalization if asked for.

    Its statistics are computed again for the weights that are evaluated, over all training images.
    """
    random = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    images, labels = jnp.array(images / 16, "float32"), jnp.array(labels)
    training, held_out = np.split(random.permutation(len(images)), [1000])
    sizes = (64, 32), (32, 10)
    layers = [
        (random.normal(0, n**-0.5, (n, m)).astype("float32"), np.zeros(m, "float32"))
        for n, m in sizes
    ]
    scale = np.ones(32, "float32")
    weights, unravel = ravel_pytree((layers, scale))
    batches = jnp.array(random.choice(training, (updates, 8)))

    def loss(weights, chosen, normalized_over):
        layers, scale = unravel(weights)
        (to_hidden, hidden_bias), (to_output, output_bias) = layers
        hidden = images[chosen] @ to_hidden
        if batch_norm:
            over = images[normalized_over] @ to_hidden
            hidden = scale * (hidden - over.mean(0)) / jnp.sqrt(over.var(0) + 1e-5)
        logits = jax.nn.relu(hidden + hidden_bias) @ to_output + output_bias
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[chosen]).mean()

    def training_loss(weights, step):
        return loss(weights, batches[step], batches[step])

    held_out_loss = partial(loss, chosen=held_out, normalized_over=training)
    stable = StagedCurve([(30, 1.0), (updates - 30,)])
    return Task(weights, training_loss, held_out_loss, stable, 0.02)


def regression(seed, updates):
    """Return the task of a network with 64 hidden units. The held-out samples have no noise."""
    random = np.random.default_rng(seed)
    layers = {
        "hidden": random.normal(0, 8**-0.5, (8, 64)).astype("float32"),
        "bias": np.zeros(64, "float32"),
        "output": random.normal(0, 1 / 8, 64).astype("float32"),
    }
    weights, unravel = ravel_pytree(layers)

    def function(inputs):
        return jnp.sin(inputs).sum(1)

    def loss(weights, inputs, targets):
        network = unravel(weights)
        hidden = jnp.tanh(inputs @ network["hidden"] + network["bias"])
        return jnp.square(hidden @ network["output"] - targets).mean()

    def training_loss(weights, step):
        for_inputs, for_noise = jax.random.split(jax.random.fold_in(jax.random.key(seed), step))
        inputs = jax.random.normal(for_inputs, (32, 8))
        return loss(weights, inputs, function(inputs) + jax.random.normal(for_noise, 32))

    inputs = jnp.array(random.normal(size=(4096, 8)), "float32")
    held_out_loss = partial(loss, inputs=inputs, targets=function(inputs))
    stable = StagedCurve([(30, 1.0), (updates - 30,)])
    return Task(weights, training_loss, held_out_loss, stable, 0.01)


CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 2, 2


def norm(x):
    """Return rows of mean 0 and variance 1."""
    return jax.nn.standardize(x, epsilon=1e-5)


def logits_of(network, text):
    """Return the logits of the next byte, (batch, time, 256), of a decoder-only transformer."""
    x = network["bytes"][text] + network["positions"][: text.shape[1]]
    for layer in network["layers"]:
        qkv = jnp.split(norm(x) @ layer["qkv"], 3, axis=-1)
        q, k, v = (part.reshape(*part.shape[:2], HEADS, -1) for part in qkv)
        attention = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x += attention.reshape(x.shape) @ layer["projection"]
        x += jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return norm(x) @ network["bytes"].T


def text(seed, updates):
    """Return the task of a transformer that reads bytes; every tenth file is held out."""
    random = np.random.default_rng(seed)

    def matrix(rows, columns, scale=1.0):
        return random.normal(0, scale * rows**-0.5, (rows, columns)).astype("float32")

    network = {
        "bytes": matrix(256, WIDTH, 0.3),
        "positions": matrix(CONTEXT, WIDTH, 0.1),
        "layers": [
            {
                "qkv": matrix(WIDTH, 3 * WIDTH),
                "projection": matrix(WIDTH, WIDTH, 0.5),
                "up": matrix(WIDTH, 4 * WIDTH),
                "down": matrix(4 * WIDTH, WIDTH, 0.5),
            }
            for _ in range(LAYERS)
        ],
    }
    weights, unravel = ravel_pytree(network)
    files = [file.read_bytes() for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    held_out = b"".join(files[9::10])
    del files[9::10]
    training = jnp.array(np.frombuffer(b"".join(files), np.uint8))
    rows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(held_out, np.uint8), CONTEXT + 1)[
        ::CONTEXT
    ]
    rows = jnp.array(rows[:: len(rows) // 128][:128])
    starts = jnp.array(random.integers(len(training) - CONTEXT, size=(updates, 8)))

    def loss(weights, rows):
        rows = rows.astype(jnp.int32)
        logits = logits_of(unravel(weights), rows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()

    def training_loss(weights, step):
        return loss(weights, training[starts[step][:, None] + jnp.arange(CONTEXT + 1)])

    stable = StagedCurve([(100, 1.0), (updates - 100,)])
    return Task(weights, training_loss, partial(loss, rows=rows), stable, 3e-3)


TASKS = {"digits": (digits, 2000), "regression": (regression, 2000), "text": (text, 1200)}
"""Functions that return the task of a seed, and the updates of its run."""
