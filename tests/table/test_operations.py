"""The operations that each framework executes: those of the proofs, and no other.

The proofs are about `+ - * << >> & |` of int64, comparisons, `where`, minimum and maximum. After
them, one conversion rounds an int64 to the nearest float32, and one product with a power of two is
exact. A framework that executes something else, after a change here or there, fails these tests;
then look at what it does, and at whether the proofs cover it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.core import ClosedJaxpr
from proofs.shapes.specs import SPECS
from torch.utils._python_dispatch import TorchDispatchMode

from plateau_jax import StagedCurve, multiplier, optax_schedule
from torch_bridge import multiplier as torch_multiplier, tensors

STAGES = [(9, 0.9**number, spec.samples[-1]) for number, spec in enumerate(SPECS.values(), 1)]
CURVE = StagedCurve(STAGES, start=1.0)
STEPS = np.arange(CURVE.total_steps + 1, dtype=np.int32)


# JAX: the primitives of the traced function, with the dtype of the result.

JAX_INTEGERS = {
    "abs",
    "add",
    "and",
    "max",
    "min",
    "mul",
    "neg",
    "or",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "sub",
}
JAX_COMPARISONS = {"eq", "ge", "le", "lt", "ne", "select_n"}
JAX_MOVES = {"broadcast_in_dim", "gather", "reshape", "slice"}
"""They move numbers, or gather them from the table, and change none."""

JAX_ROW_SEARCH = {"add", "convert_element_type", "max", "min", "reduce_sum", "select_n", "sub"}
"""int32: steps are clamped, subtracted and counted."""


def primitives(jaxpr: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each primitive, the dtype of its last operand, and that of its result."""
    for equation in jaxpr.eqns:
        inner = [
            value.jaxpr for value in equation.params.values() if isinstance(value, ClosedJaxpr)
        ]
        for function in inner:
            yield from primitives(function)
        if not inner:
            operand = equation.invars[-1].aval.dtype
            result = equation.outvars[0].aval.dtype
            yield equation.primitive.name, str(operand), str(result)


def traced_schedule() -> Any:
    return jax.make_jaxpr(optax_schedule(CURVE, 1e-3))(jnp.asarray(STEPS))


def traced_multiplier() -> Any:
    return jax.make_jaxpr(multiplier)(CURVE.table, jnp.asarray(STEPS))


@pytest.mark.parametrize(
    ("trace", "products"),
    [(traced_multiplier, 1), (traced_schedule, 2)],
    ids=["multiplier", "schedule"],
)
def test_jax_executes_the_operations_of_the_proofs(trace: Callable[[], Any], products: int) -> None:
    """The second product of a schedule is that with the peak, which rounds once more."""
    of_floats: Counter[str] = Counter()
    for name, operand, result in primitives(trace().jaxpr):
        match result:
            case "int64":
                assert name in JAX_INTEGERS | JAX_MOVES | {"convert_element_type"}
                assert operand in {"int32", "int64"}
            case "bool":
                assert name in JAX_COMPARISONS | JAX_MOVES
            case "int32":
                assert name in JAX_ROW_SEARCH | JAX_MOVES
            case _:
                of_floats[f"{name} to {result}"] += 1
    expected = {
        "convert_element_type to float32": 1,
        "mul to float32": products,
        "select_n to float32": 1,
        "gather to float32": 1,
    }
    of_floats.pop("bitcast_convert_type to float32", None)  # the start levels of a traced table
    assert of_floats == expected


# torch: the operators that run, and those of the graph that torch.compile makes.

TORCH_INTEGERS = {
    "abs",
    "add",
    "and",
    "clamp",
    "lshift",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "or",
    "rshift",
    "sub",
    "where",
}
TORCH_COMPARISONS = {"eq", "ge", "le", "lt", "ne", "where"}
TORCH_MOVES = {
    "as_strided",
    "detach",
    "flatten",
    "getitem",
    "index_select",
    "reshape",
    "scalar_tensor",
    "slice",
    "view",
}
TORCH_ROW_SEARCH = {"add", "sum"}
CONVERSION = "to"

SPELLINGS = {"_to_copy": CONVERSION, "bitwise_and": "and", "bitwise_or": "or", "rsub": "sub"}
"""The same operators under other names."""


@dataclass(frozen=True)
class TorchOperator:
    name: str
    dtype: torch.dtype


def torch_operator(name: str, dtype: torch.dtype) -> TorchOperator:
    return TorchOperator(SPELLINGS.get(name) or name.strip("_"), dtype)


class Recorder(TorchDispatchMode):
    """Records the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[TorchOperator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators.append(torch_operator(func.overloadpacket.__name__, result.dtype))
        return result


def eager_operators() -> list[TorchOperator]:
    table = tensors(CURVE.table)
    steps = torch.from_numpy(STEPS)
    with Recorder() as recorder:
        torch_multiplier(table, steps)
    return recorder.operators


def compiled_operators() -> list[TorchOperator]:
    """Return the calls in the graph that torch.compile hands to its backend."""
    graphs: list[torch.fx.GraphModule] = []

    def keep_graph(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(torch_multiplier, fullgraph=True, backend=keep_graph)
    compiled(tensors(CURVE.table), torch.from_numpy(STEPS))
    (graph,) = graphs
    operators: list[TorchOperator] = []
    for node in graph.graph.nodes:
        if node.op == "call_function":
            operators.append(torch_operator(node.target.__name__, node.meta["example_value"].dtype))
        elif node.op == "call_method":
            operators.append(torch_operator(node.target, node.meta["example_value"].dtype))
    return operators


@pytest.mark.parametrize(
    "run",
    [eager_operators, pytest.param(compiled_operators, marks=pytest.mark.slow)],
    ids=["eager", "compiled"],
)
def test_torch_executes_the_operations_of_the_proofs(
    run: Callable[[], list[TorchOperator]],
) -> None:
    of_floats: Counter[str] = Counter()
    for operator in run():
        if operator.name in TORCH_MOVES:
            continue
        match operator.dtype:
            case torch.int64:
                assert operator.name in TORCH_INTEGERS | {CONVERSION}
            case torch.bool:
                assert operator.name in TORCH_COMPARISONS
            case torch.int32:
                assert operator.name in TORCH_ROW_SEARCH
            case _:
                of_floats[f"{operator.name} {operator.dtype}"] += 1
    assert of_floats == {"to torch.float32": 1, "mul torch.float32": 1, "where torch.float32": 1}
