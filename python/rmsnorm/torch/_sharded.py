# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors that several processes share: torch.distributed.tensor.DTensor.

A norm needs whole rows. So rows stay where they are split, and a last dimension that is split, or a
partial sum, is first made whole. Each process then normalises its own rows, with whole weights. The
gradient of a weight is a partial sum in each process.
"""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ._operators import COLUMNS, FORWARD, NORM, OUTPUTS, names_of


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


def _local(name: str, value: Any, rows: list[Placement]) -> Any:
    """Returns this process's part of an operand, with the placements that its gradient has."""
    if not isinstance(value, DTensor):
        return value
    if name not in COLUMNS:
        return value.redistribute(placements=rows).to_local(grad_placements=rows)
    if value.ndim > 1 and any(isinstance(p, Shard) for p in rows):
        raise RuntimeError(f"{name}: {value.ndim} dimensions; for split rows it must have one")
    whole: list[Placement] = [Replicate() for _ in rows]
    partial = [Partial() if isinstance(p, Shard) else Replicate() for p in rows]
    return value.redistribute(placements=whole).to_local(grad_placements=partial)


def _local_inputs(operator: Any, inputs: tuple[Any, ...], rows: list[Placement]) -> list[Any]:
    names = names_of(operator)
    return [_local(n, value, rows) for n, value in zip(names, inputs, strict=False)]


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
