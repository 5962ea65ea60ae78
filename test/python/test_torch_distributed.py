# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.torch on two processes of a gloo group, against one process.

Two processes run every check, each with its half of the rows or of the model.
"""

import copy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import rmsnorm.torch

rt: Any = rmsnorm.torch  # options come from dictionaries, which mypy cannot follow


def whole(*shape: int) -> Tensor:
    """Returns integers, whose sums are exact in any order."""
    return torch.randint(-3, 4, shape).float()


def bits_agree(one: Any, two: Tensor) -> bool:
    return torch.equal(one.full_tensor() if isinstance(one, DTensor) else one, two)


MODULE = rt.RMSNorm(32)

#: The functions, of rows x and r and of vectors w and b.
CALLS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "rms_norm": lambda x, r, w, b: (rt.rms_norm(x, w, bias=b),),
    "fused_add_rms_norm": lambda x, r, w, b: rt.fused_add_rms_norm(x, r, w, post_norm_weight=b),
    "gated": lambda x, r, w, b: (rt.gated(x, r, w),),
    "qk": lambda x, r, w, b: rt.qk(x, r, w, b),
    "norms": lambda x, r, w, b: rt.norms([{"x": x, "weight": w}, {"x": r, "bias": b}]),
    "module": lambda x, r, w, b: (torch.func.functional_call(MODULE, {"weight": w}, (x,)),),
}


def check_shards(mesh: DeviceMesh, name: str, compiled: bool) -> None:
    call = CALLS[name]
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.manual_seed(1)
    x, r, w, b = operands = [torch.randn(4, 6, 32), torch.randn(4, 6, 32), *torch.randn(2, 32)]
    expected = CALLS[name](*operands)
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        split = [distribute_tensor(t, mesh, [placement]) for t in (x, r)]
        vectors = [distribute_tensor(t, mesh, [Replicate()]) for t in (w, b)]
        for one, two in zip(call(*split, *vectors), expected, strict=True):
            assert bits_agree(one, two)
            rows_stay = placement in (Shard(0), Shard(1))
            assert list(one.placements) == [placement if rows_stay else Replicate()]


def check_uneven_rows(mesh: DeviceMesh) -> None:
    torch.manual_seed(1)
    x, w = torch.randn(5, 32), torch.randn(32)
    y = rt.rms_norm(
        distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(w, mesh, [Replicate()])
    )
    assert bits_agree(y, rt.rms_norm(x, w))
    assert y.shape == x.shape


def check_partial_sums(mesh: DeviceMesh) -> None:
    parts = DTensor.from_local(torch.full((2, 32), 1.0 + dist.get_rank()), mesh, [Partial()])
    w = distribute_tensor(torch.ones(32), mesh, [Replicate()])
    assert bits_agree(rt.rms_norm(parts, w), rt.rms_norm(torch.full((2, 32), 3.0), torch.ones(32)))


def check_gradients(mesh: DeviceMesh, name: str, compiled: bool) -> None:
    torch.manual_seed(1)
    # The rows have an RMS of 2, so that the sums over rows that make dw are exact.
    signs = torch.randint(0, 2, (2, 4, 6, 32)) * 4.0 - 2
    x, r = signs if name != "fused_add_rms_norm" else (signs[0], torch.zeros(4, 6, 32))
    vectors = [torch.ones(32), torch.ones(32)]
    dys = [whole(4, 6, 32), whole(4, 6, 32)]

    def gradients(function: Any, rows: list[Tensor], columns: list[Tensor], dys: Any) -> Any:
        leaves = [t.detach().requires_grad_() for t in (*rows, *columns)]
        outputs = function(*leaves)
        return torch.autograd.grad(outputs, leaves, dys[: len(outputs)], allow_unused=True)

    function = CALLS[name]
    expected = gradients(function, [x, r], vectors, dys)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    for placement in (Shard(0), Shard(1), Replicate()):
        rows, split_dys = (
            [distribute_tensor(t, mesh, [placement]) for t in ts] for ts in ([x, r], dys)
        )
        columns = [distribute_tensor(t, mesh, [Replicate()]) for t in vectors]
        for i, (one, two) in enumerate(
            zip(gradients(function, rows, columns, split_dys), expected, strict=True)
        ):
            assert (one is None) == (two is None)
            if one is None:
                continue
            one = one.full_tensor()
            if i < 2:
                assert torch.equal(one, two)
            else:  # a sum over the rows of two processes, of terms that round
                assert torch.allclose(one, two, rtol=0, atol=2e-6 * float(two.abs().max() + 1))


def check_in_place(mesh: DeviceMesh) -> None:
    torch.manual_seed(1)
    x, r, w = torch.randn(4, 32), torch.randn(4, 32), torch.randn(32)
    expected = rt.fused_add_rms_norm(x, r, w)
    rows = [distribute_tensor(t.clone(), mesh, [Shard(0)]) for t in (x, r)]
    with torch.no_grad():
        rt.fused_add_rms_norm_(*rows, distribute_tensor(w, mesh, [Replicate()]))
    assert all(bits_agree(one, two) for one, two in zip(rows, expected, strict=True))
    columns = [distribute_tensor(t, mesh, [Shard(1)]) for t in (x, r)]
    with pytest.raises(RuntimeError, match="^y: its placements are"):
        rt.fused_add_rms_norm_(*columns)


def check_tensors_beside_shards(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(4, 32), mesh, [Shard(0)])
    with pytest.raises(
        RuntimeError, match="^weight: it is a torch.Tensor, and another operand is a DT"
    ):
        rt.rms_norm(x, torch.ones(32))
    with pytest.raises(
        RuntimeError, match="^x: it is a torch.Tensor, and another operand is a DTensor"
    ):
        rt.rms_norm(torch.ones(4, 32), distribute_tensor(torch.ones(32), mesh, [Replicate()]))


def train(model: Any, inputs: Tensor) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
    parameters = [p.detach() for p in model.parameters()]
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]


def check_data_parallel(mesh: DeviceMesh, way: str) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), rt.RMSNorm(32), torch.nn.Linear(32, 4))
    inputs = torch.randn(6, 8)
    expected = train(copy.deepcopy(model), inputs)
    if way == "FSDP":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[1], mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    # The mean of the gradients of two halves is that of all rows.
    half = inputs[3 * dist.get_rank() :][:3]
    for one, two in zip(train(model, half), expected, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-5)


CHECKS: dict[str, Callable[[DeviceMesh], None]] = {
    "uneven rows": check_uneven_rows,
    "partial sums": check_partial_sums,
    "in place": check_in_place,
    "tensors beside shards": check_tensors_beside_shards,
    "DDP": lambda mesh: check_data_parallel(mesh, "DDP"),
    "FSDP": lambda mesh: check_data_parallel(mesh, "FSDP"),
}
for _name in CALLS:
    for _compiled in (False, True) if _name in ("fused_add_rms_norm", "module") else (False,):
        _word = "compiled" if _compiled else "eager"
        CHECKS[f"shards, {_name}, {_word}"] = lambda mesh, n=_name, c=_compiled: check_shards(
            mesh, n, c
        )
        CHECKS[f"gradients, {_name}, {_word}"] = lambda mesh, n=_name, c=_compiled: check_gradients(
            mesh, n, c
        )


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    errors = {}
    for name, check in CHECKS.items():
        try:
            check(mesh)
        except Exception:
            errors[name] = traceback.format_exc()
        dist.barrier()
    torch.save(errors, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Returns the errors of each process by the names of the checks."""
    folder: Path = tmp_path_factory.mktemp("group")
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=2)  # type: ignore[no-untyped-call]
    return [torch.load(folder / str(rank)) for rank in range(2)]


@pytest.mark.parametrize("name", CHECKS)
def test_two_processes(name: str, errors: list[dict[str, str]]) -> None:
    for rank, found in enumerate(errors):
        assert name not in found, f"process {rank}: {found[name]}"
