# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors that several processes share: torch.distributed.tensor.DTensor.

A norm needs whole rows. So rows stay where they are split, and a last dimension that is split, or a
partial sum, is first made whole. Each process then normalises its own rows, with whole weights, and
with the rows of a weight or a table that its own rows take where it has several. The gradient of a
whole weight is a partial sum in each process.
"""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ._operators import FORWARD, NORM, OUTPUTS, SHARED, names_of


def _operands(operator: Any, inputs: tuple[Any, ...]) -> dict[str, DTensor]:
    """Returns the tensors among the inputs by their names."""
    operands: dict[str, DTensor] = {}
    for name, value in zip(names_of(operator), inputs, strict=False):
        if not isinstance(value, Tensor):
            continue
        if not isinstance(value, DTensor):
            raise RuntimeError(
                f"{name}: it is a torch.Tensor, and another operand is a DTensor; "
                "make it one by torch.distributed.tensor.distribute_tensor()"
            )
        if value.device_mesh != inputs[0].device_mesh:
            raise RuntimeError(f"{name}: it is on another device mesh than x")
        operands[name] = value
    return operands


def _placements_of_rows(x: DTensor) -> list[Placement]:
    """Returns x's placements, with whole rows."""
    return [
        p if type(p) is Shard and p.dim % x.ndim != x.ndim - 1 else Replicate()
        for p in x.placements
    ]


def _local(name: str, value: Any, x: DTensor, rows: list[Placement]) -> Any:
    """Returns this process's part of an operand, with the placements that its gradient has."""
    if not isinstance(value, DTensor):
        return value
    if name not in SHARED:
        return value.redistribute(placements=rows).to_local(grad_placements=rows)
    # Its last dimension aligns with the last one of x.
    missing = x.ndim - value.ndim
    own: list[Placement] = [Replicate() for _ in rows]
    gradient: list[Placement] = [Replicate() for _ in rows]
    for i, p in enumerate(rows):
        if isinstance(p, Shard):
            dim = p.dim % x.ndim - missing
            is_split = dim >= 0 and value.shape[dim] == x.shape[p.dim]
            own[i] = Shard(dim) if is_split else Replicate()
            gradient[i] = Shard(dim) if is_split else Partial()
    return value.redistribute(placements=own).to_local(grad_placements=gradient)


def _local_inputs(operator: Any, inputs: tuple[Any, ...], rows: list[Placement]) -> list[Any]:
    arguments = zip(names_of(operator), inputs, strict=False)
    return [_local(name, value, inputs[0], rows) for name, value in arguments]


def norm_of_shards(*inputs: Any) -> list[Tensor]:
    """Returns y, and with a residual residual_out, of the operator `norm`."""
    x = _operands(NORM.operator, inputs)["x"]
    rows = _placements_of_rows(x)
    stride = [1]
    for size in reversed(x.shape[1:]):
        stride.insert(0, stride[0] * size)
    whole: Any = {"run_check": False, "shape": x.shape, "stride": tuple(stride)}
    outputs = NORM(*_local_inputs(NORM.operator, inputs, rows))[:2]
    return [DTensor.from_local(output, x.device_mesh, rows, **whole) for output in outputs]


def write_shards(*inputs: Any) -> None:
    """Calls the operator `forward`, which writes each process's part of the outputs."""
    operands = _operands(FORWARD, inputs)
    rows = _placements_of_rows(operands["x"])
    for name in OUTPUTS:
        if name in operands and list(operands[name].placements) != rows:
            raise RuntimeError(
                f"{name}: its placements are {operands[name].placements}; they must be {rows}"
            )
    FORWARD(*_local_inputs(FORWARD, inputs, rows))
