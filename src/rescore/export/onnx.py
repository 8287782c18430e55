"""A flat program as an ONNX graph: one operator, or two or three, for each primitive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.extend.core import Literal

from rescore.core import UsageError
from rescore.export.program import Program, live

OPSET, IR_VERSION = 17, 8
# Primitives that are one operator of nearly the same name.
NAMED_ALIKE = "add sub mul div max min exp log tanh neg sqrt abs sin cos sign erf and or not pow"
SAME = {name: name.capitalize() for name in f"{NAMED_ALIKE} floor ceil".split()}
SAME |= {"lt": "Less", "gt": "Greater", "le": "LessOrEqual", "ge": "GreaterOrEqual", "eq": "Equal"}
SAME |= {"logistic": "Sigmoid", **dict.fromkeys(("stop_gradient", "copy", "copy_p"), "Identity")}


class Graph:
    """Nodes and constants in the order in which they are needed."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, list[str], list[str], dict[str, Any]]] = []
        self.constants: dict[str, np.ndarray] = {}
        self._names: dict[bytes, str] = {}

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        content = str((array.dtype, array.shape)).encode() + array.tobytes()
        name = self._names.setdefault(content, f"c{len(self._names)}")
        self.constants[name] = array
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append((op, list(inputs), names, attributes))
        return names[0] if outputs == 1 else names


def lower(graph: Graph, equation: Any, x: list[str]) -> list[str]:
    """The nodes of one primitive; the names of its outputs."""
    name, p, out = equation.primitive.name, equation.params, equation.outvars[0].aval
    shapes, node, ints = [v.aval.shape for v in equation.invars], graph.node, graph.ints
    if name in SAME:
        return [node(SAME[name], *x)]
    match name:
        case "reshape" | "squeeze" | "expand_dims":
            made = node("Reshape", x[0], ints(*out.shape))
        case "broadcast_in_dim":
            at = dict(zip(p["broadcast_dimensions"], shapes[0]))
            made = node("Reshape", x[0], ints(*(at.get(i, 1) for i in range(out.ndim))))
            made = node("Expand", made, ints(*out.shape))
        case "dot_general":
            made = dot(graph, x, p["dimension_numbers"], [len(shape) for shape in shapes])
        case "gather":
            made = gather(graph, x, p, out, shapes)
        case "slice":
            strides = p["strides"] or [1] * out.ndim
            bounds = (p["start_indices"], p["limit_indices"], range(out.ndim), strides)
            made = node("Slice", x[0], *(ints(*values) for values in bounds))
        case "split":
            parts, sizes = len(p["sizes"]), ints(*p["sizes"])
            made = node("Split", x[0], sizes, outputs=parts, axis=p["axis"])
            return [made] if parts == 1 else made
        case "concatenate":
            made = node("Concat", *x, axis=p["dimension"])
        case "transpose":
            made = node("Transpose", x[0], perm=list(p["permutation"]))
        case "integer_pow":
            made = node("Pow", x[0], graph.constant(np.asarray(p["y"], out.dtype)))
        case "square":
            made = node("Mul", x[0], x[0])
        case "rsqrt":
            made = node("Reciprocal", node("Sqrt", x[0]))
        case "log1p":
            made = node("Log", node("Add", x[0], graph.constant(np.float32(1))))
        case "select_n":
            made = node("Where", x[0], x[2], x[1])
        case "clamp":
            made = node("Min", node("Max", x[1], x[0]), x[2])
        case "convert_element_type":
            made = node("Cast", x[0], to=np.dtype(out.dtype))
        case "argmax":
            made = node("ArgMax", x[0], axis=p["axes"][0], keepdims=0)
            made = node("Cast", made, to=np.dtype(out.dtype))
        case "reduce_sum":  # the only one whose axes are an input in this opset
            made = node("ReduceSum", x[0], ints(*p["axes"]), keepdims=0)
        case "reduce_min" | "reduce_max":
            op = f"Reduce{name[-3:].capitalize()}"
            made = node(op, x[0], axes=list(p["axes"]), keepdims=0)
        case _:
            raise UsageError(f"the policy uses {name!r}, which ONNX lacks here: --format jax")
    return [made]


def dot(graph: Graph, x: list[str], numbers: Any, ranks: list[int]) -> str:
    (left, right), (left_batch, right_batch) = numbers
    plain = (left, right, left_batch, ranks[1]) == ((ranks[0] - 1,), (0,), (), 2)
    if plain or (numbers, ranks) == ((((2,), (1,)), ((0,), (0,))), [3, 3]):
        return graph.node("MatMul", *x)
    first, second = list("abcdefgh"[: ranks[0]]), list("ijklmnop"[: ranks[1]])
    for i, j in zip((*left, *left_batch), (*right, *right_batch)):
        second[j] = first[i]
    rest = [c for i, c in enumerate(first) if i not in (*left, *left_batch)]
    rest += [c for i, c in enumerate(second) if i not in (*right, *right_batch)]
    kept = [first[i] for i in left_batch] + rest
    return graph.node("Einsum", *x, equation=f"{''.join(first)},{''.join(second)}->{''.join(kept)}")


def gather(graph: Graph, x: list[str], params: Any, out: Any, shapes: list) -> str:
    """Whole rows by their number, as the choice among candidates takes them."""
    numbers, axes = params["dimension_numbers"], params["dimension_numbers"].start_index_map
    expected = tuple(1 if i in axes else size for i, size in enumerate(shapes[0]))
    if len(axes) != 1 or params["slice_sizes"] != expected or shapes[1] != (1, 1):
        raise UsageError("the policy looks values up as ONNX cannot: --format jax")
    assert not numbers.operand_batching_dims
    rows = graph.node("Gather", x[0], graph.node("Reshape", x[1], graph.ints(1)), axis=axes[0])
    return graph.node("Reshape", rows, graph.ints(*out.shape))


def serialise(program: Program, about: Mapping[str, str]) -> bytes:
    """The model: inputs `observation` and, where there is any, `noise`; output `action`."""
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError:
        raise UsageError("ONNX files need a package: pip install onnx onnxruntime") from None
    graph, jaxpr = Graph(), program.flat.jaxpr
    number: Any = helper.np_dtype_to_tensor_dtype
    names: dict[Any, str] = dict(zip(jaxpr.invars, ("observation", "noise")))
    names |= {v: graph.constant(x) for v, x in zip(jaxpr.constvars, program.flat.consts)}

    def read(v: Any) -> str:
        is_literal = isinstance(v, Literal)
        return graph.constant(np.asarray(v.val, v.aval.dtype)) if is_literal else names[v]

    equations, used = live(jaxpr)
    for equation in equations:
        made = lower(graph, equation, [read(v) for v in equation.invars])
        names.update(zip(equation.outvars, made))
    graph.node("Identity", read(jaxpr.outvars[0]))
    attribute = lambda v: number(v) if isinstance(v, np.dtype) else v  # noqa: E731
    nodes = [
        helper.make_node(op, given, made, **{k: attribute(v) for k, v in more.items()})
        for op, given, made, more in graph.nodes
    ]
    nodes[-1].output[0] = "action"
    tensor = lambda name, v: helper.make_tensor_value_info(  # noqa: E731
        name, number(np.dtype(np.float32)), v.aval.shape
    )
    inputs = [tensor(names[v], v) for v, is_used in zip(jaxpr.invars, (True, used[1])) if is_used]
    read_by = {name for _, given, _, _ in graph.nodes for name in given}
    constants = [numpy_helper.from_array(x, n) for n, x in graph.constants.items() if n in read_by]
    outputs = [tensor("action", jaxpr.outvars[0])]
    model = helper.make_model(
        helper.make_graph(nodes, "policy", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="rescore",
    )
    helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model)
    return model.SerializeToString()
