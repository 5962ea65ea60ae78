# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.torch on two processes of a gloo group, against one process.

Two processes run every check, each with its half of the rows or of the model.
"""

import copy
import functools
import itertools
import traceback

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_models import assert_bits, gradients

import rmsnorm.torch

rt = rmsnorm.torch


def whole(*shape):
    """Returns integers, whose sums are exact in any order."""
    return torch.randint(-3, 4, shape).float()


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def spread(mesh, placement, *tensors):
    return [distribute_tensor(t, mesh, [placement]) for t in tensors]


MODULE = rt.RMSNorm(32)

#: The functions, of rows x and r and of vectors w and b.
CALLS = {
    "rms_norm": lambda x, r, w, b: (rt.rms_norm(x, w, bias=b),),
    "fused_add_rms_norm": lambda x, r, w, b: rt.fused_add_rms_norm(x, r, w, post_norm_weight=b),
    "gated": lambda x, r, w, b: (rt.gated(x, r, w),),
    "qk": lambda x, r, w, b: rt.qk(x, r, w, b),
    "norms": lambda x, r, w, b: rt.norms([{"x": x, "weight": w}, {"x": r, "bias": b}]),
    "module": lambda x, r, w, b: (torch.func.functional_call(MODULE, {"weight": w}, (x,)),),
}


def prepared(name, compiled):
    if not compiled:
        return CALLS[name]
    torch._dynamo.reset()
    return torch.compile(CALLS[name], backend="aot_eager", fullgraph=True)


def check_shards(mesh, name, compiled):
    call = prepared(name, compiled)
    x, r, w, b = operands = [torch.randn(4, 6, 32), torch.randn(4, 6, 32), *torch.randn(2, 32)]
    expected = CALLS[name](*operands)
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        ys = call(*spread(mesh, placement, x, r), *spread(mesh, Replicate(), w, b))
        assert_bits(list(map(full, ys)), expected)
        rows_stay = placement in (Shard(0), Shard(1))
        assert all(list(y.placements) == [placement if rows_stay else Replicate()] for y in ys)


def check_uneven_rows(mesh):
    x, w = torch.randn(5, 32), torch.randn(32)
    y = rt.rms_norm(*spread(mesh, Shard(0), x), *spread(mesh, Replicate(), w))
    assert_bits(full(y), rt.rms_norm(x, w))
    assert y.shape == x.shape


def check_partial_sums(mesh):
    parts = DTensor.from_local(torch.full((2, 32), 1.0 + dist.get_rank()), mesh, [Partial()])
    y = rt.rms_norm(parts, *spread(mesh, Replicate(), torch.ones(32)))
    assert_bits(full(y), rt.rms_norm(torch.full((2, 32), 3.0), torch.ones(32)))


def check_gradients(mesh, name, compiled):
    # The rows have an RMS of 2, so that the sums over rows that make dw are exact.
    signs = torch.randint(0, 2, (2, 4, 6, 32)) * 4.0 - 2
    rows = signs if name != "fused_add_rms_norm" else (signs[0], torch.zeros(4, 6, 32))
    vectors, dys = [torch.ones(32)] * 2, [whole(4, 6, 32), whole(4, 6, 32)]
    expected = gradients(CALLS[name], [*rows, *vectors], dys)
    call = prepared(name, compiled)
    for placement in (Shard(0), Shard(1), Replicate()):
        operands = *spread(mesh, placement, *rows), *spread(mesh, Replicate(), *vectors)
        found = list(map(full, gradients(call, operands, spread(mesh, placement, *dys))))
        assert_bits(found[:2], expected[:2])
        for one, two in zip(found[2:], expected[2:], strict=True):
            assert (one is None) == (two is None)
            if one is not None:  # a sum over the rows of two processes, of terms that round
                assert torch.allclose(one, two, rtol=0, atol=2e-6 * float(two.abs().max() + 1))


def check_in_place(mesh):
    x, r, w = torch.randn(4, 32), torch.randn(4, 32), torch.randn(32)
    expected = rt.fused_add_rms_norm(x, r, w)
    rows = spread(mesh, Shard(0), x.clone(), r.clone())
    with torch.no_grad():
        rt.fused_add_rms_norm_(*rows, *spread(mesh, Replicate(), w))
    assert_bits(list(map(full, rows)), expected)
    with pytest.raises(RuntimeError, match="^y: its placements are"):
        rt.fused_add_rms_norm_(*spread(mesh, Shard(1), x, r))


def check_tensors_beside_shards(mesh):
    x, weight = torch.ones(4, 32), torch.ones(32)
    message = "^{}: it is a torch.Tensor, and another operand is a DTensor"
    with pytest.raises(RuntimeError, match=message.format("weight")):
        rt.rms_norm(*spread(mesh, Shard(0), x), weight)
    with pytest.raises(RuntimeError, match=message.format("x")):
        rt.rms_norm(x, *spread(mesh, Replicate(), weight))


def train(model, inputs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [full(p.detach()) for p in model.parameters()]


def check_data_parallel(mesh, way):
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), rt.RMSNorm(32), torch.nn.Linear(32, 4))
    inputs = torch.randn(6, 8)
    expected = train(copy.deepcopy(model), inputs)
    if way == "FSDP":
        fully_shard(model[1], mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    # The mean of the gradients of two halves is that of all rows.
    half = inputs[3 * dist.get_rank() :][:3]
    for one, two in zip(train(model, half), expected, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-5)


CHECKS = {
    "uneven rows": check_uneven_rows,
    "partial sums": check_partial_sums,
    "in place": check_in_place,
    "tensors beside shards": check_tensors_beside_shards,
    **{way: functools.partial(check_data_parallel, way=way) for way in ("DDP", "FSDP")},
    **{
        f"{word}, {name}, {'compiled' if compiled else 'eager'}": functools.partial(
            check, name=name, compiled=compiled
        )
        for word, check in (("shards", check_shards), ("gradients", check_gradients))
        for name, compiled in itertools.product(CALLS, (False, True))
        if not compiled or name in ("fused_add_rms_norm", "module")
    },
}


def work(rank, folder):
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    errors = {}
    for name, check in CHECKS.items():
        torch.manual_seed(1)
        try:
            check(mesh)
        except Exception:
            errors[name] = traceback.format_exc()
        dist.barrier()
    torch.save(errors, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Returns the errors of each process by the names of the checks."""
    folder = tmp_path_factory.mktemp("group")
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / str(rank)) for rank in range(2)]


@pytest.mark.parametrize("name", CHECKS)
def test_two_processes(name, errors):
    for rank, found in enumerate(errors):
        assert name not in found, f"process {rank}: {found[name]}"
