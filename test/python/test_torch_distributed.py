# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.torch on two processes of a gloo group, against one process.

Two processes run every check, each with its half of the rows or of the model.
"""

import copy
import traceback

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_models import (
    CALLS,
    WITH_GRADIENTS,
    Textbook,
    assert_bits,
    gradients,
    is_computed_by_library,
    operands,
)

import rmsnorm.torch

rt = rmsnorm.torch


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def spread(mesh, placement, *tensors):
    return [distribute_tensor(t, mesh, [placement]) for t in tensors]


def check_call(mesh, name, is_compiled):
    """Rows stay where they are, three and two of five, or are made whole. Sums over rows are those
    of two processes."""
    call, tensors = CALLS[name], operands(rows=(5, 6))
    function, expected = call, call(*tensors)
    dys = [torch.randn_like(y) for y in expected]
    gradients_of_one = gradients(call, tensors, dys)
    if is_compiled:
        torch._dynamo.reset()
        step = lambda *tensors: call(*tensors)
        function = torch.compile(step, backend="aot_eager", fullgraph=True)
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        rows_stay = placement in (Shard(0), Shard(1))
        leaves = spread(mesh, placement, *tensors[:2]) + spread(mesh, Replicate(), *tensors[2:])
        ys = function(*(leaf.requires_grad_() for leaf in leaves))
        assert_bits(list(map(full, ys)), list(expected))
        placement = placement if rows_stay else Replicate()
        assert all(list(y.placements) == [placement] for y in ys)
        found = torch.autograd.grad(ys, leaves, spread(mesh, placement, *dys), allow_unused=True)
        found = list(map(full, found))
        assert call.is_gated or assert_bits(found[:2], gradients_of_one[:2]) is None
        torch.testing.assert_close(found, list(gradients_of_one), rtol=1e-5, atol=1e-5)


def check_weights_and_tables(mesh, shape):
    """Where they have rows for samples, tokens or heads, each process takes those of its part."""
    x, w, tables = torch.randn(2, 5, 4, 32), torch.randn(shape), torch.randn(2, 5, 1, 16)
    expected = rt.rotary(x, *tables, w)
    [of_w] = gradients(lambda w: rt.rotary(x, *tables, w), [w], [expected])
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        rows, weight = spread(mesh, placement, x), spread(mesh, Replicate(), w)[0].requires_grad_()
        y = rt.rotary(*rows, *spread(mesh, Replicate(), *tables), weight)
        assert_bits(full(y), expected)
        assert list(y.placements) == [placement]
        [found] = torch.autograd.grad(y, [weight], spread(mesh, placement, expected))
        torch.testing.assert_close(full(found), of_w, rtol=1e-5, atol=1e-5)


def check_partial_sums(mesh):
    parts = DTensor.from_local(torch.full((2, 32), 1.0 + dist.get_rank()), mesh, [Partial()])
    y = rt.rms_norm(parts, *spread(mesh, Replicate(), torch.ones(32)))
    assert_bits(full(y), rt.rms_norm(torch.full((2, 32), 3.0), torch.ones(32)))


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
    layers = torch.nn.Linear(8, 32), rt.RMSNorm(32), Textbook(32), torch.nn.Linear(32, 4)
    model, inputs = torch.nn.Sequential(*layers), torch.randn(6, 8)
    expected = train(copy.deepcopy(model), inputs)
    assert [entry.name for entry in rt.use(model).replaced] == ["2"]
    if way == "FSDP":
        for part in (model[1], model[2], model):
            fully_shard(part, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    # Averaging the gradients of two halves gives the gradient of all rows.
    half = inputs[3 * dist.get_rank() :][:3]
    for one, two in zip(train(model, half), expected, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-5)


def check_use_after_fully_shard(mesh):
    """The weights are sharded between calls, and whole within them."""
    model, x = torch.nn.Sequential(*(Textbook(32) for _ in range(3))), torch.randn(4, 32)
    expected = model(x)
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    for _ in range(2):
        report = rt.use(model)
        assert len(report.replaced) == 3 and is_computed_by_library(model, x)
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    report.undo()
    bases = {base.__module__ for module in model for base in type(module).__mro__}
    assert "rmsnorm.torch._use" not in bases
    assert torch.equal(model(x), expected)


#: Each check, with its arguments beside the mesh.
CHECKS = [
    *((check_weights_and_tables, shape) for shape in ((32,), (4, 32), (2, 1, 1, 32))),
    (check_partial_sums,),
    (check_in_place,),
    (check_tensors_beside_shards,),
    (check_use_after_fully_shard,),
    *((check_data_parallel, way) for way in ("DDP", "FSDP")),
    *((check_call, name, False) for name in WITH_GRADIENTS),
    *((check_call, name, True) for name in ("add", "module")),
]
NAMES = [f"{check.__name__}{arguments}" for check, *arguments in CHECKS]


def work(rank, folder):
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    errors = {}
    for name, (check, *arguments) in zip(NAMES, CHECKS, strict=True):
        torch.manual_seed(1)
        try:
            check(mesh, *arguments)
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


@pytest.mark.parametrize("name", NAMES)
def test_two_processes(name, errors):
    for rank, found in enumerate(errors):
        assert name not in found, f"process {rank}: {found[name]}"
