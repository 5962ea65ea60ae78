# SPDX-License-Identifier: Apache-2.0
"""The operators for PyTorch, examples/pytorch, compared with the library's own functions and with
the formula in binary64. Comparisons with the reference are bit for bit."""

import collections
import itertools
import os
import subprocess
import sys
import unittest

import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "examples", "python"))
import rmsnorm_ctypes  # noqa: E402

MODULE = os.environ["RMSNORM_TORCH"]
sys.path.insert(0, os.path.dirname(MODULE))
import cs336_adapter  # noqa: E402
from rmsnorm_module import RMSNorm  # noqa: E402

OPS = torch.ops.rmsnorm
LIBRARY = rmsnorm_ctypes.Library(MODULE)  # the module also exports the functions of librmsnorm

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRECISION = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
UNIT = 2.0**-24
ROUND_BEFORE_WEIGHT = 1
# The plain definition on one thread shares neither SIMD code nor executors with the operators.
REFERENCE = {"target": b"reference", "threads": 1}


def norm(x, weight, y, **values):
    LIBRARY.forward(x=x, weight=weight, y=y, **values)


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def bits(tensor):
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def formula(x, weight, eps):
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight


def roundings(d):
    """Returns the maximum number of roundings of an element in a row's sum: see test/oracle.h."""
    return -(-min(d, 4096) // 128) + 7 + -(-d // 4096) - 1


def inverse_rms_bound(d):
    """Returns the relative bound in rmsnorm.h."""
    return (roundings(d) / 2 + 4) * UNIT


def half_ulp(value, dtype):
    """Returns half a unit in the last place of each value, for normal numbers of the type."""
    smallest = {torch.float32: 2.0**-126, torch.float16: 2.0**-14, torch.bfloat16: 2.0**-126}
    exponent = torch.floor(torch.log2(value.abs().clamp(min=smallest[dtype])))
    return torch.exp2(exponent - PRECISION[dtype])


def page_programs():
    """Returns the programs on the operators' page."""
    with open(os.path.join(ROOT, "doc", "pytorch.md"), encoding="utf-8") as file:
        programs = [block.split("```")[0] for block in file.read().split("```python\n")[1:]]
    return [
        program.replace("build/examples/pytorch/rmsnorm_torch.so", MODULE) for program in programs
    ]


class Test(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        threads = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, threads)

    def assert_bits(self, actual, expected, message=None):
        self.assertEqual(actual.dtype, expected.dtype, message)
        self.assertEqual(actual.shape, expected.shape, message)
        self.assertTrue(torch.equal(bits(actual), bits(expected)), message)

    def assert_within(self, actual, value, error, message=None):
        """`error` is the bound before `actual` is rounded to its type."""
        if actual.dtype != torch.float32:
            error = error + half_ulp(value.abs() + error, actual.dtype)
        self.assertTrue(((actual.double() - value).abs() <= error).all(), message)

    def assert_refused(self, message, function, *arguments, **options):
        with self.assertRaisesRegex(RuntimeError, message):
            function(*arguments, **options)


class Forward(Test):
    def test_bits_of_the_reference(self):
        options = (
            ({}, {}),
            ({"weight_offset": 1.0}, {"weight_offset": 1.0}),
            ({"round_before_weight": True}, {"rounding": ROUND_BEFORE_WEIGHT}),
        )
        shapes = ((1, 4096), (96, 4096), (2, 3, 5, 200), (7,), (0, 8))
        for dtype, weight_dtype, shape in itertools.product(DTYPES, (*DTYPES, None), shapes):
            x = normal(*shape, dtype=dtype)
            weight = None if weight_dtype is None else normal(shape[-1], dtype=weight_dtype)
            for own, librarys in options[: 1 if weight is None else None]:
                expected = torch.empty_like(x)
                norm(x, weight, expected, eps=1e-6, **librarys, **REFERENCE)
                y = OPS.rms_norm(x, weight, 1e-6, **own)
                self.assert_bits(y, expected, (dtype, weight_dtype, shape, own))

    def test_default_eps(self):
        x = normal(4, 64) * 1e-3
        self.assert_bits(OPS.rms_norm(x), OPS.rms_norm(x, None, 1e-5))
        self.assertFalse(torch.equal(OPS.rms_norm(x), OPS.rms_norm(x, None, 1e-6)))

    def test_formula(self):
        for dtype in DTYPES:
            for d in (1, 100, 4096, 10000):
                x, weight = normal(3, d, dtype=dtype), normal(d, dtype=dtype)
                expected = formula(x.double(), weight.double(), 1e-5)
                # x * r and its product with the weight each round once.
                error = expected.abs() * 1.01 * (inverse_rms_bound(d) + 2 * UNIT)
                self.assert_within(OPS.rms_norm(x, weight), expected, error, (dtype, d))

    def test_every_layout(self):
        qkv = normal(6, 4, 3 * 64)
        many = normal(2, 3, 2, 2, 3, 2, 2, 64)
        odd = normal(*[3] * 7, 64)[(slice(2),) * 7]  # no two dimensions merge
        layouts = {
            "a slice of a fused buffer": qkv[..., 64:128],
            "every other row": qkv.view(24, 192)[::2],
            "one row, repeated": normal(64).expand(5, 64),
            "leading dimensions exchanged": qkv.transpose(0, 1)[..., :64],
            "eight dimensions that do not merge": odd,
            "nine, one of them single": odd[:, :, None],
            "eight dimensions that merge": many,
            "eight that merge to three": many[:, :, :, :, :2],
            "single elements": normal(1, 5).t(),
            "a row that begins off any alignment": normal(65)[1:],
        }
        for name, x in layouts.items():
            weight = normal(x.shape[-1])
            expected = torch.empty(x.shape).contiguous()
            flat = (-1, x.shape[-1])
            norm(x.reshape(flat), weight, expected.view(flat), **REFERENCE)
            self.assert_bits(OPS.rms_norm(x, weight), expected, name)

    def test_layout_of_the_result(self):
        # The layout matches PyTorch's operations: the same order of dimensions, without gaps.
        x = normal(6, 4, 64).transpose(0, 1)
        self.assertEqual(OPS.rms_norm(x).stride(), x.stride())
        self.assertEqual(OPS.rms_norm(x[:, :3]).stride(), (x[:, :3] * 2).stride())

    def test_nothing_is_copied(self):
        x, residual = normal(64, 2, 4096)[:, 0], normal(64, 2, 4096)[:, 1]
        weight = normal(4096)
        calls = {
            "rms_norm": lambda: OPS.rms_norm(x, weight),
            "add_rms_norm": lambda: OPS.add_rms_norm(x, residual, weight),
            "rms_norm_backward": lambda: OPS.rms_norm_backward(
                residual, x, weight, 1e-5, 0.0, [True, False]
            ),
        }
        for name, call in calls.items():
            with torch.autograd.profiler.profile() as profile:
                call()
            # The result is the only allocation, and PyTorch runs no other operation.
            events = collections.Counter(event.name for event in profile.function_events)
            # Below autograd the call appears again. The profiler omits that one unless it ends a
            # microsecond after the first.
            self.assertIn(events.pop("rmsnorm::" + name), (1, 2))
            self.assertEqual(events.pop("aten::empty_like"), 1, name)
            self.assertEqual(sum(events.values()), 1, events)
            self.assertIn(*events, ("aten::empty", "aten::empty_strided"))

    def test_out(self):
        weight = normal(64)
        for dtype, y_dtype in itertools.product(DTYPES, DTYPES):
            x, buffer = normal(5, 64, dtype=dtype), torch.full((5, 3, 64), 9.0, dtype=y_dtype)
            expected = torch.empty(5, 64, dtype=y_dtype)
            norm(x, weight, expected, **REFERENCE)
            OPS.rms_norm(x, weight, out=buffer[:, 1])
            self.assert_bits(buffer[:, 1], expected, (dtype, y_dtype))
            self.assertTrue((buffer[:, ::2] == 9).all())
        # The rows are dense in one tensor and not in the other.
        dense, buffer = normal(6, 4, 64), torch.zeros(6, 5, 64)
        expected = OPS.rms_norm(dense, weight)
        OPS.rms_norm(dense, weight, out=buffer[:, :4])
        self.assert_bits(buffer[:, :4], expected)
        self.assertTrue((buffer[:, 4] == 0).all())
        buffer[:, :4] = dense
        OPS.rms_norm(buffer[:, :4], weight, out=dense)
        self.assert_bits(dense, expected)

        in_place = normal(5, 64)
        expected = OPS.rms_norm(in_place, weight)
        OPS.rms_norm(in_place, weight, out=in_place)
        self.assert_bits(in_place, expected)

    def test_add_norm(self):
        options = ({}, {"weight_offset": 1.0}, {"round_before_weight": True})
        for dtype, own in itertools.product(DTYPES, options):
            for residual_dtype in DTYPES:
                x = normal(5, 2, 300, dtype=dtype)[:, 1]
                weight = normal(300, dtype=dtype)
                buffer = normal(5, 3, 300, dtype=residual_dtype)
                before, residual = buffer.clone(), buffer[:, 2]
                total = (before[:, 2].float() + x.float()).to(residual_dtype)
                expected = torch.empty_like(x)
                rounding = {"rounding": ROUND_BEFORE_WEIGHT} if "round_before_weight" in own else own
                norm(total, weight, expected, eps=1e-6, **rounding, **REFERENCE)
                y = OPS.add_rms_norm(x, residual, weight, 1e-6, **own)
                message = (dtype, residual_dtype, own)
                self.assert_bits(y, expected, message)
                self.assert_bits(residual, total, message)
                self.assert_bits(buffer[:, :2], before[:, :2], message)

    def test_in_inference_mode(self):
        x, weight = normal(5, 64), normal(64).requires_grad_()
        expected = OPS.rms_norm(x, weight.detach())
        total = x + x
        with torch.inference_mode():
            self.assert_bits(OPS.rms_norm(x, weight), expected)
            y = torch.empty(5, 64)
            OPS.rms_norm(x, weight, out=y)
            self.assert_bits(y, expected)
            residual = x.clone()
            self.assert_bits(OPS.add_rms_norm(x, residual), OPS.rms_norm(total))
            self.assert_bits(residual, total)

    def test_page(self):
        x, weight, residual = normal(4, 64), normal(64), normal(4, 64)
        total = residual + x
        names = {"torch": torch, "x": x, "weight": weight, "residual": residual}
        exec(page_programs()[0], names)
        self.assert_bits(residual, total)
        self.assert_bits(names["y"], OPS.rms_norm(total, weight, 1e-6))

    def test_refused(self):
        x, weight = normal(4, 64), normal(64)
        tall = normal(*[2] * 8, 8)
        refused = {
            r"x is of Double; rmsnorm takes Float": (x.double(), weight),
            r"weight is of Int; rmsnorm takes Float": (x, weight.int()),
            r"x has rows that are not contiguous \(stride 64 .* call \.contiguous\(\)": (
                x.t(),
                None,
            ),
            r"weight has rows that are not contiguous \(stride 2 ": (x, normal(128)[::2]),
            r"weight has 2 dimensions": (x, weight[None]),
            r"weight: 63 elements in its last dimension for rows of 64": (x, weight[:63]),
            r"x has no dimension": (torch.tensor(1.0), None),
            r"x: the last dimension, d, is 0": (normal(4, 0), None),
            r"eps is -1": (x, weight, -1.0),
            r"eps is inf": (x, weight, 1e39),
            r"x has 9 dimensions, .* call \.contiguous\(\)": (
                tall.permute(7, 6, 5, 4, 3, 2, 1, 0, 8),
            ),
            r"SparseCPU": (x.to_sparse(), weight),
            r"x is on cpu, and another argument on meta": (x, weight.to("meta")),
        }
        for message, arguments in refused.items():
            self.assert_refused(message, OPS.rms_norm, *arguments)
        self.assert_refused("offset", OPS.rms_norm, x, weight_offset=1.0)  # without a weight
        self.assert_refused(r"out has the shape \[3, 64\]", OPS.rms_norm, x, out=x[:3])
        self.assert_refused("tell rows apart", OPS.rms_norm, x, out=weight.expand(4, 64))
        self.assert_refused("overlap|shares", OPS.rms_norm, x[:3], out=x[1:])
        self.assert_refused("residual has the shape", OPS.add_rms_norm, x, x[0], weight)
        self.assert_refused("residual is of Double", OPS.add_rms_norm, x, x.double(), weight)

    def test_device_meta(self):
        x = torch.empty(6, 4, 64, dtype=torch.bfloat16, device="meta").transpose(0, 1)
        weight = torch.empty(64, device="meta")
        results = [OPS.rms_norm(x, weight), OPS.add_rms_norm(x, torch.empty_like(x), weight)]
        dx, dw = OPS.rms_norm_backward(x, x, weight, 1e-5, 0.0, [True, True])
        for result in (*results, dx):
            self.assertEqual(result.device.type, "meta")
            self.assertEqual((result.dtype, result.shape), (x.dtype, x.shape))
            self.assertEqual(
                result.stride(), OPS.rms_norm(torch.zeros(6, 4, 64).transpose(0, 1)).stride()
            )
        self.assertEqual((dw.dtype, dw.shape), (weight.dtype, weight.shape))


class Gradients(Test):
    def expected(self, x, weight, dy, eps):
        """Returns the gradients of the formula in binary64, by PyTorch, and the bounds that
        test/backward_oracle.h derives for the library's."""
        x = x.double().requires_grad_()
        weight = weight.double().requires_grad_()
        dy, d = dy.double(), x.shape[-1]
        dx, dw = torch.autograd.grad(formula(x, weight, eps), (x, weight), dy)
        with torch.no_grad():
            r = 1 / (x.square().mean(-1, keepdim=True) + eps).sqrt()
            g = dy * weight
            bound, terms = inverse_rms_bound(d), roundings(d) + 1
            second = (x * r * r / d).abs()
            size = g.abs() + second * (g * x).sum(-1, keepdim=True).abs()
            error = second * (g * x).abs().sum(-1, keepdim=True) * terms * UNIT
            error += (size - g.abs()) * (2 * bound + 4 * UNIT) + 2 * size * UNIT
            dx_error = 1.01 * (r * error + dx.abs() * (bound + UNIT))
            rows = x.numel() // d
            per_term = UNIT + bound + (rows / 64 + 17 + 63) * UNIT
            dw_error = 1.01 * (dy * x * r).abs().reshape(rows, d).sum(0) * per_term
        return (dx.detach(), dx_error), (dw.detach(), dw_error)

    def test_formula(self):
        shapes = ((1, 4096), (96, 512), (3, 5, 200))
        for dtype, weight_dtype, shape in itertools.product(DTYPES, DTYPES, shapes):
            x = normal(*shape, dtype=dtype).requires_grad_()
            weight = normal(shape[-1], dtype=weight_dtype).requires_grad_()
            dy = normal(*shape, dtype=dtype)
            OPS.rms_norm(x, weight, 1e-6).backward(dy)
            dx, dw = self.expected(x.detach(), weight.detach(), dy, 1e-6)
            message = (dtype, weight_dtype, shape)
            self.assertEqual((x.grad.dtype, weight.grad.dtype), (dtype, weight_dtype))
            self.assert_within(x.grad, *dx, message)
            self.assert_within(weight.grad, *dw, message)

    def test_weight_offset(self):
        x, weight = normal(8, 64).requires_grad_(), normal(64).requires_grad_()
        dy = normal(8, 64)
        dx, dw = self.expected(x.detach(), weight.detach() + 1, dy, 1e-5)
        for round_before_weight in (False, True):
            y = OPS.rms_norm(x, weight, weight_offset=1.0, round_before_weight=round_before_weight)
            gradients = torch.autograd.grad(y, (x, weight), dy)
            self.assert_within(gradients[0], *dx)
            self.assert_within(gradients[1], *dw)

    def test_bits_of_the_reference(self):
        for dtype in DTYPES:
            x = normal(96, 2, 512, dtype=dtype)[:, 1].requires_grad_()
            weight = normal(512).requires_grad_()
            dy = normal(96, 2, 512, dtype=dtype)[:, 0]
            gradients = torch.autograd.grad(OPS.rms_norm(x, weight, 1e-6), (x, weight), dy)
            expected = torch.empty(96, 512, dtype=dtype), torch.empty(512)
            tensors = dict(zip(("dy", "x", "weight", "dx", "dw"), (dy, x, weight, *expected)))
            LIBRARY.backward(**tensors, eps=1e-6, **REFERENCE)
            for actual, reference in zip(gradients, expected):
                self.assert_bits(actual, reference, dtype)

    def test_only_what_is_asked_for(self):
        values, weights, dy = normal(8, 64), normal(64), normal(8, 64)
        dx, dw = OPS.rms_norm_backward(dy, values, weights, 1e-5, 0.0, [True, True])
        x, weight = values.clone().requires_grad_(), weights.clone().requires_grad_()
        self.assert_bits(torch.autograd.grad(OPS.rms_norm(x, weights), x, dy)[0], dx)
        self.assert_bits(torch.autograd.grad(OPS.rms_norm(values, weight), weight, dy)[0], dw)
        y = OPS.rms_norm(x, weight)
        self.assert_bits(torch.autograd.grad(y, weight, dy)[0], dw)
        ones = OPS.rms_norm_backward(dy, values, torch.ones(64), 1e-5, 0.0, [True, False])[0]
        self.assert_bits(torch.autograd.grad(OPS.rms_norm(x), x, dy)[0], ones)
        for gradients in (OPS.rms_norm(values, weights), OPS.rms_norm(values)):
            self.assertFalse(gradients.requires_grad)
        with torch.no_grad():
            self.assertFalse(OPS.rms_norm(x, weight).requires_grad)

    def test_gradients_without_rows(self):
        # A sum's gradient is one number with strides of 0; the gradient of y.t() has columns for
        # rows.
        x = normal(8, 64).requires_grad_()
        weight = normal(64).requires_grad_()
        for loss, dy in (
            (lambda y: y.sum(), torch.ones(8, 64)),
            (lambda y: (y.t() * self.other).sum(), None),
        ):
            self.other = normal(64, 8)
            actual = torch.autograd.grad(loss(OPS.rms_norm(x, weight)), (x, weight))
            dy = self.other.t().contiguous() if dy is None else dy
            expected = torch.autograd.grad(OPS.rms_norm(x, weight), (x, weight), dy)
            self.assert_bits(actual[0], expected[0])
            self.assert_bits(actual[1], expected[1])

    def test_no_rows(self):
        x, weight = torch.empty(0, 8, requires_grad=True), normal(8).requires_grad_()
        OPS.rms_norm(x, weight).sum().backward()
        self.assert_bits(weight.grad, torch.zeros(8))
        self.assertEqual(x.grad.shape, (0, 8))

    def test_a_model_learns(self):
        def losses(norm):
            torch.manual_seed(3)
            first, second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 1)
            weight = torch.nn.Parameter(torch.ones(32))
            optimiser = torch.optim.SGD(
                [*first.parameters(), *second.parameters(), weight], lr=0.05
            )
            inputs = torch.randn(64, 16)
            targets = inputs.square().sum(-1, keepdim=True) / 16
            result = []
            for _ in range(30):
                optimiser.zero_grad()
                outputs = second(torch.tanh(norm(first(inputs), weight)))
                loss = (outputs - targets).square().mean()
                loss.backward()
                optimiser.step()
                result.append(loss.item())
            return result

        own = losses(lambda x, weight: OPS.rms_norm(x, weight, 1e-5))
        others = losses(lambda x, weight: formula(x, weight, 1e-5))
        self.assertLess(own[-1], own[0] / 2)
        # The losses of each step differ by some units of 2^-24, and descent hardly amplifies that
        # here.
        for one, other in zip(own, others):
            self.assertLess(abs(one - other), 1e-4 * other)

    def test_refused(self):
        x, weight = normal(4, 64).requires_grad_(), normal(64).requires_grad_()
        # Autograd would miss a write in place, whichever argument needs a gradient.
        for mutable in ("x", "residual", "weight"):
            arguments = {"x": x, "residual": normal(4, 64), "weight": weight}
            arguments = {k: v.detach() for k, v in arguments.items()}
            arguments[mutable] = arguments[mutable].clone().requires_grad_() * 1
            before = arguments["residual"].detach().clone()
            message = "add_rms_norm has no gradients: call it in torch.no_grad"
            self.assert_refused(message, OPS.add_rms_norm, **arguments)
            self.assert_bits(arguments["residual"].detach(), before)
            with torch.no_grad():
                OPS.add_rms_norm(**arguments)
        y = torch.empty(4, 64)
        self.assert_refused("rms_norm has no gradients", OPS.rms_norm, x, out=y)

        slope = torch.autograd.grad(OPS.rms_norm(x, weight).square().sum(), x, create_graph=True)[0]
        self.assert_refused("derivative for rmsnorm::rms_norm_backward", slope.sum().backward)

        from torch.autograd import forward_ad

        with forward_ad.dual_level(), torch.no_grad():
            dual = forward_ad.make_dual(normal(4, 64), normal(4, 64))
            self.assert_refused("jvp is not implemented", OPS.rms_norm, dual)

        detached = x.detach(), weight.detach()
        backward = OPS.rms_norm_backward
        self.assert_refused(
            "there is no weight", backward, detached[0], detached[0], None, 1e-5, 0.0, [True, True]
        )
        self.assert_refused(
            "dy has rows that are not contiguous",
            *(backward, torch.ones(1, 1).expand(4, 64), *detached, 1e-5, 0.0, [True, True]),
        )

    def test_overwritten_values(self):
        # The operators announce writes, so autograd refuses to use overwritten values.
        for write in (
            lambda h: OPS.add_rms_norm(torch.ones(4, 64), h),
            lambda h: OPS.rms_norm(torch.ones(4, 64), out=h),
        ):
            h = normal(4, 64).requires_grad_() * 1
            loss = h.square().sum()
            with torch.no_grad():
                write(h)
            self.assert_refused("modified by an inplace operation", loss.backward)


class Module(Test):
    OPTIONS = ({}, {"weight_offset": 1.0}, {"round_before_weight": True})

    def test_bits_of_the_operators(self):
        for dtype, weight_dtype, own in itertools.product(DTYPES, DTYPES, self.OPTIONS):
            module = RMSNorm(64, 1e-6, dtype=weight_dtype, **own)
            self.assertEqual(module.weight.dtype, weight_dtype)
            x = normal(3, 5, 64, dtype=dtype)
            ones = torch.full((64,), 1 - own.get("weight_offset", 0), dtype=weight_dtype)
            self.assert_bits(module(x).detach(), OPS.rms_norm(x, ones, 1e-6, **own))
            torch.nn.init.normal_(module.weight)
            y = module(x)
            self.assert_bits(y.detach(), OPS.rms_norm(x, module.weight.detach(), 1e-6, **own))
            dy = normal(3, 5, 64, dtype=dtype)
            y.backward(dy)
            weight = module.weight.detach().clone().requires_grad_()
            OPS.rms_norm(x, weight, 1e-6, **own).backward(dy)
            self.assert_bits(module.weight.grad, weight.grad)

    def test_add_norm(self):
        for dtype, residual_dtype, own in itertools.product(DTYPES, DTYPES, self.OPTIONS):
            message = (dtype, residual_dtype, own)
            module = RMSNorm(300, **own)
            torch.nn.init.normal_(module.weight)
            x, before = normal(4, 300, dtype=dtype), normal(4, 300, dtype=residual_dtype)
            residual = before.clone()
            if residual_dtype not in (dtype, torch.float32):
                with self.assertRaisesRegex(TypeError, "is narrower than x"):
                    module(x, residual)
                continue
            with torch.no_grad():
                y, updated = module(x, residual)
            self.assertIs(updated, residual)
            self.assert_bits(residual, (before.float() + x.float()).to(residual_dtype), message)
            # With gradients: the same results, and the given residual stays unchanged.
            given = before.clone().requires_grad_()
            recorded, stream = module(x, given)
            self.assert_bits(given.detach(), before, message)
            self.assert_bits(stream.detach(), residual, message)
            self.assert_bits(recorded.detach(), y, message)
            # The gradient of the stream is the gradient of the sum plus the gradient through its
            # norm.
            dy, dstream = normal(4, 300, dtype=dtype), normal(4, 300, dtype=residual_dtype)
            torch.autograd.backward((recorded, stream), (dy, dstream))
            total = residual.clone().requires_grad_()
            through = torch.autograd.grad(module(total).to(dtype), total, dy)[0]
            self.assert_bits(given.grad, through + dstream, message)

    def test_state(self):
        module = RMSNorm(16, dtype=torch.bfloat16)
        torch.nn.init.normal_(module.weight)
        self.assertEqual(list(module.state_dict()), ["weight"])
        other = RMSNorm(16)
        other.load_state_dict(module.state_dict())
        self.assert_bits(other.weight.detach(), module.weight.detach().float())
        module.reset_parameters()
        self.assert_bits(module.weight.detach(), torch.ones(16, dtype=torch.bfloat16))
        self.assertEqual(module.float().weight.dtype, torch.float32)
        with self.assertRaises(RuntimeError):
            RMSNorm(17).load_state_dict(module.state_dict())

    def test_device(self):
        module = RMSNorm(16, device="meta", dtype=torch.float16)
        self.assertTrue(module.weight.is_meta)
        y = module(torch.empty(2, 16, device="meta", dtype=torch.float16))
        self.assertEqual((y.shape, y.device.type), ((2, 16), "meta"))

    def test_text(self):
        self.assertEqual(repr(RMSNorm(64)), "RMSNorm(64, eps=1e-05)")
        gemma = RMSNorm(64, 1e-6, weight_offset=1.0)
        self.assertEqual(repr(gemma), "RMSNorm(64, eps=1e-06, weight_offset=1.0)")
        llama = RMSNorm(64, round_before_weight=True)
        self.assertEqual(repr(llama), "RMSNorm(64, eps=1e-05, round_before_weight=True)")

    def test_page(self):
        x, before = (normal(2, 4096, dtype=torch.bfloat16) for _ in range(2))
        names = {"torch": torch, "x": x, "residual": before}
        exec(page_programs()[2], names)
        total = before + x
        self.assert_bits(names["residual"].detach(), total)
        ones = torch.ones(4096, dtype=torch.bfloat16)
        self.assert_bits(names["y"].detach(), OPS.rms_norm(total, ones, 1e-6))
        exec(page_programs()[3], names)
        self.assertIs(names["run_rmsnorm"], cs336_adapter.run_rmsnorm)

    def test_cs336(self):
        # The sizes of the assignment's own test, and the sizes of a model in bf16.
        for dtype, shape in ((torch.float32, (4, 12, 64)), (torch.bfloat16, (2, 7, 2048))):
            x, weight = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype)
            y = cs336_adapter.run_rmsnorm(shape[-1], 1e-5, weight, x)
            self.assertEqual(y.dtype, dtype)
            expected = formula(x.double(), weight.double(), 1e-5)
            error = expected.abs() * 1.01 * (inverse_rms_bound(shape[-1]) + 2 * UNIT)
            self.assert_within(y, expected, error)


class Threads(Test):
    def test_bits(self):
        x, weight = normal(96, 4096), normal(4096)
        long = normal(1, 1 << 17)
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            dx, dw = OPS.rms_norm_backward(x, x, weight, 1e-5, 0.0, [True, True])
            residual = x.clone()
            y = OPS.add_rms_norm(x, residual, weight)
            results.append((OPS.rms_norm(x, weight), OPS.rms_norm(long), dx, dw, residual, y))
        for other in results[1:]:
            for result, expected in zip(other, results[0]):
                self.assert_bits(result, expected)

    def test_threads_are_pytorchs(self):
        # A new process has started no threads yet.
        program = """
import os, sys, torch
torch.ops.load_library(sys.argv[1])
x = torch.empty(512, 4096)

def started_by(function, *arguments):
    before = len(os.listdir("/proc/self/task"))
    function(*arguments)
    return len(os.listdir("/proc/self/task")) - before

torch.set_num_threads(1)
print(started_by(torch.ops.rmsnorm.rms_norm, x))
torch.set_num_threads(3)
print(started_by(torch.ops.rmsnorm.rms_norm, x))
print(started_by(x.fill_, 1))  # PyTorch's own work, on the threads that are there now
"""
        command = [sys.executable, "-c", program, MODULE]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.assertEqual(output.split(), ["0", "2", "0"])


@unittest.skipUnless(hasattr(torch, "compile"), "PyTorch before 2.0 has no torch.compile")
class Compiled(Test):
    def test_forward_and_backward(self):
        def loss(x, weight):
            return (OPS.rms_norm(x * 2, weight, 1e-6) + 1).square().sum()

        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        x, weight = normal(3, 64).requires_grad_(), normal(64).requires_grad_()
        expected, actual = loss(x, weight), compiled(x, weight)
        self.assert_bits(actual.detach()[None], expected.detach()[None])
        for gradients in zip(
            torch.autograd.grad(actual, (x, weight)), torch.autograd.grad(expected, (x, weight))
        ):
            self.assert_bits(*gradients)

    def test_add_norm(self):
        def step(x, residual, weight):
            return OPS.add_rms_norm(x, residual, weight) * 2

        x, weight, residual = normal(3, 64), normal(64), normal(3, 64)
        other = residual.clone()
        expected = step(x, residual, weight)
        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        self.assert_bits(compiled(x, other, weight), expected)
        self.assert_bits(other, residual)

    @unittest.skipUnless(hasattr(torch.library, "opcheck"), "PyTorch before 2.4 has no opcheck")
    def test_opcheck(self):
        x, weight = normal(3, 64), normal(64)
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        backward = OPS.rms_norm_backward.default
        cases = [
            (OPS.rms_norm.default, leaves, {}),
            (OPS.rms_norm.default, (leaves[0], None), {}),
            (OPS.rms_norm.default, (x, leaves[1], 1e-6), {"round_before_weight": True}),
            (OPS.rms_norm.out, (x, weight), {"out": torch.empty(3, 64)}),
            (OPS.add_rms_norm.default, (x, x.clone(), weight), {}),
            (backward, (x, x, weight, 1e-5, 0.0, [True, True]), {}),
            (backward, (x, x, None, 1e-5, 0.0, [True, False]), {}),
        ]
        for operation, arguments, options in cases:
            torch.library.opcheck(operation, arguments, options)

    @unittest.skipUnless(hasattr(torch.nn, "RMSNorm"), "PyTorch before 2.4 has no RMSNorm")
    def test_in_place_of_pytorchs(self):
        names = {"torch": torch, "rms_norm": OPS.rms_norm}
        exec(page_programs()[1], names)
        for dtype, eps in itertools.product(DTYPES, (None, 1e-6, 0.5)):
            norm, own = (
                kind(512, eps=eps, dtype=dtype) for kind in (torch.nn.RMSNorm, names["RMSNorm"])
            )
            torch.nn.init.normal_(norm.weight)
            own.load_state_dict(norm.state_dict())
            x = normal(8, 512, dtype=dtype)
            theirs, ours = norm(x), own(x)
            self.assertEqual((ours.dtype, ours.stride()), (theirs.dtype, theirs.stride()))
            # Both are within half a unit, plus the error in f32, of the exact value.
            exact = formula(x.double(), norm.weight.double(), eps or 2**-23).detach()
            f32_error = 2 * exact.abs() * (inverse_rms_bound(512) + 2 * UNIT)
            error = f32_error + 2 * half_ulp(exact.abs() + f32_error, dtype)
            self.assertTrue(((ours.double() - theirs.double()).abs() <= error).all(), dtype)


if __name__ == "__main__":
    unittest.main()
