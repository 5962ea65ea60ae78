# SPDX-License-Identifier: Apache-2.0
"""The shared library from Python, through examples/python/rmsnorm_ctypes.py, on NumPy arrays and,
if PyTorch is installed, on its tensors."""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SKIPPED = 77  # tells Meson that the test is skipped

try:
    import numpy
except ImportError:
    print("NumPy is not installed")
    sys.exit(SKIPPED)
try:
    import torch
except ImportError:
    torch = None

if "RMSNORM_LIBRARY" not in os.environ:
    print("There is no shared library that this Python can load")
    sys.exit(SKIPPED)

sys.path.insert(0, os.path.join(ROOT, "examples", "python"))
import rmsnorm_ctypes  # noqa: E402

LIBRARY = rmsnorm_ctypes.Library(os.environ["RMSNORM_LIBRARY"])
ROUND_BEFORE_WEIGHT = 1
EPS = 2.0**-18


def norm(x, weight, y, **values):
    LIBRARY.forward(x=x, weight=weight, y=y, **values)


def exact(x, weight, eps=EPS):
    """Computes the norm in binary64."""
    x = x.astype(numpy.float64)
    return x / numpy.sqrt(numpy.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def bound(d):
    """Returns the relative error of a result in f32: the bound of the inverse RMS in rmsnorm.h,
    plus one rounding each for x * r and its product with the weight."""
    k, b = -(-min(d, 4096) // 128), -(-d // 4096) - 1
    return ((k + 7 + b) / 2 + 4 + 2 * 0.5 + 0.01) * 2.0**-24


def bfloat16_bits(values):
    """Rounds finite f32 to nearest even, and returns bits."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def from_bfloat16_bits(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


class Numpy(unittest.TestCase):
    def setUp(self):
        self.random = numpy.random.default_rng(1)

    def normal(self, *shape):
        return self.random.standard_normal(shape).astype(numpy.float32)

    def test_version_and_layout(self):
        self.assertRegex(LIBRARY.version(), r"^\d+\.\d+\.\d+$")
        # The library refuses fields that it does not know, and the message gives the size it
        # knows.
        x = ctypes.pointer(rmsnorm_ctypes.view(self.normal(1, 4)))
        operands = rmsnorm_ctypes.Operands(ctypes.sizeof(rmsnorm_ctypes.Operands), x=x, y=x)
        structs = [operands, rmsnorm_ctypes.Options(), rmsnorm_ctypes.Context()]
        self.assertEqual(LIBRARY.c.rmsnorm_forward(*structs), 0)
        for i, known in enumerate(structs):
            size = ctypes.sizeof(known)
            later = type("Later", (type(known),), {"_fields_": [("field", ctypes.c_uint32)]})
            grown = later.from_buffer_copy(bytes(known) + bytes(ctypes.sizeof(later) - size))
            grown.size, grown.field = ctypes.sizeof(later), 1
            arguments = [*structs[:i], grown, *structs[i + 1 :]]
            self.assertNotEqual(LIBRARY.c.rmsnorm_forward(*arguments), 0)
            message = LIBRARY.c.rmsnorm_error_message().decode()
            self.assertIn(f"beyond the {size} bytes that this library knows", message)
            grown.field = 0
            self.assertEqual(LIBRARY.c.rmsnorm_forward(*arguments), 0, message)

    def test_f32_within_the_bound(self):
        for d in (1, 7, 128, 1000, 4096, 5000, 16384):
            x, weight = self.normal(3, d), self.normal(d)
            y = numpy.full_like(x, numpy.nan)
            norm(x, weight, y, eps=EPS)
            expected = exact(x, weight)
            error = numpy.abs(y - expected) / numpy.abs(expected)
            self.assertLessEqual(error.max(), bound(d), d)

    def test_f16(self):
        x, weight = self.normal(5, 300).astype(numpy.float16), self.normal(300).astype(
            numpy.float16
        )
        y = numpy.empty_like(x)
        norm(x, weight, y, eps=EPS)
        expected = exact(x, weight.astype(numpy.float64))
        # Half a unit in the last place of f16, plus the error in f32 before the rounding.
        unit = numpy.spacing(numpy.abs(expected).astype(numpy.float16)).astype(numpy.float64)
        self.assertTrue(
            (numpy.abs(y - expected) <= unit / 2 + bound(300) * numpy.abs(expected)).all()
        )

    def test_options(self):
        x, weight = self.normal(4, 64), self.normal(64)
        y, twice = numpy.empty_like(x), numpy.empty_like(x)
        norm(x, weight, y, eps=EPS, weight_offset=1, threads=1, target=b"reference")
        expected = exact(x, (1 + weight).astype(numpy.float64))
        self.assertLessEqual((numpy.abs(y - expected) / numpy.abs(expected)).max(), bound(64))
        norm(x, None, y, eps=0.5, eps_placement=1)
        rms = numpy.sqrt(numpy.mean(x.astype(numpy.float64) ** 2, axis=-1, keepdims=True))
        self.assertTrue(numpy.allclose(y, x / (rms + 0.5), rtol=bound(64), atol=0))
        norm(x, None, y, eps=EPS)
        norm(x, None, twice, eps=EPS, divisor=64)
        self.assertTrue((y == twice).all())

    def test_strided_and_in_place(self):
        heads = self.normal(6, 4, 3, 32)  # tokens, then q, q, k, v heads side by side
        expected = numpy.empty((6, 2, 32), numpy.float32)
        before = heads.copy()
        norm(heads[:, :2, 1].copy(), None, expected)
        q = heads[:, :2, 1]
        norm(q, None, q)
        self.assertTrue((q == expected).all())
        before[:, :2, 1] = expected
        self.assertTrue((heads == before).all())

    def test_add_norm(self):
        x, residual, weight = self.normal(4, 96), self.normal(4, 96), self.normal(96)
        expected, y, total = numpy.empty_like(x), numpy.empty_like(x), residual.copy()
        norm(x, weight, y, residual=total, residual_out=total, eps=EPS)
        self.assertTrue((total == residual + x).all())
        norm(residual + x, weight, expected, eps=EPS)
        self.assertTrue((y == expected).all())

    def test_gate(self):
        x, gate, weight = self.normal(4, 96), 3 * self.normal(4, 96), self.normal(96)
        y = numpy.empty_like(x)
        wide = gate.astype(numpy.float64)
        sigmoid = 1 / (1 + numpy.exp(-wide))
        # The activation's 2 units in the last place, and one more product.
        tolerance = {"rtol": bound(96) + 5 * 2.0**-24, "atol": 0}
        norm(x, weight, y, gate=gate, activation=1, eps=EPS)
        self.assertTrue(numpy.allclose(y, exact(x, weight) * sigmoid, **tolerance))
        norm(x, weight, y, gate=gate, gate_placement=1, eps=EPS)
        tolerance["rtol"] += 5 * 2.0**-24
        self.assertTrue(numpy.allclose(y, exact(x * (wide * sigmoid), weight), **tolerance))

    def test_quantised(self):
        x, weight = self.normal(4, 96), self.normal(96)
        y, q = numpy.empty_like(x), numpy.empty(x.shape, numpy.int8)
        scale, zero = numpy.empty(4, numpy.float32), numpy.empty(4, numpy.int8)
        norm(x, weight, y, q=q, scale=scale)
        largest = numpy.abs(y).max(-1, keepdims=True)
        self.assertTrue((scale[:, None] == largest / numpy.float32(127)).all())
        self.assertTrue((q == numpy.rint(y * (numpy.float32(127) / largest))).all())
        norm(x, weight, None, q=q, scale=scale, zero=zero)
        low, high = y.min(-1), y.max(-1)
        self.assertTrue((scale == (high - low) / numpy.float32(255)).all())
        again = (q.astype(numpy.float64) - zero[:, None]) * scale[:, None]
        # Half a step of q and half a step of the zero point.
        self.assertTrue((numpy.abs(again - y) <= 1.001 * scale[:, None]).all())

    def test_two_phases(self):
        x, weight, bias = self.normal(4, 2, 96), self.normal(2, 96), self.normal(96)
        y, twice, sums = numpy.empty_like(x), numpy.empty_like(x), numpy.empty((4, 2))
        norm(x, weight, y, bias=bias, eps=EPS)
        LIBRARY.forward(x=x, sums_out=sums)
        norm(x, weight, twice, bias=bias, sums=sums, eps=EPS)
        self.assertTrue((y == twice).all())
        squares = (x.astype(numpy.float64) ** 2).sum(-1)
        self.assertTrue(numpy.allclose(sums, squares, rtol=2 * bound(96), atol=0))

    def test_gradients(self):
        x, weight, dy = self.normal(4, 96), self.normal(96), self.normal(4, 96)
        y, rstd = numpy.empty_like(x), numpy.empty(4, numpy.float32)
        norm(x, weight, y, rstd=rstd, eps=EPS)
        dx, dw, db = numpy.empty_like(x), numpy.ones(96, numpy.float32), numpy.empty_like(x[0])
        gradients = {"dx": dx, "dw": dw, "db": db}
        LIBRARY.backward(x=x, weight=weight, dy=dy, rstd=rstd, add_to=2, eps=EPS, **gradients)
        wide, g = x.astype(numpy.float64), dy.astype(numpy.float64) * weight
        r = 1 / numpy.sqrt(numpy.mean(wide * wide, axis=-1, keepdims=True) + EPS)
        self.assertTrue(numpy.allclose(rstd, r[:, 0], rtol=bound(96), atol=0))
        mean = numpy.mean(g * wide, axis=-1, keepdims=True)
        self.assertTrue(numpy.allclose(dx, r * (g - wide * r * r * mean), atol=1e-5))
        self.assertTrue(numpy.allclose(dw, 1 + (dy * wide * r).sum(0), atol=1e-5))
        self.assertTrue(numpy.allclose(db, dy.sum(0), atol=1e-5))

    def test_refused(self):
        x = self.normal(4, 64)
        with self.assertRaisesRegex(ValueError, "eps is -1"):
            norm(x, None, x, eps=-1)
        with self.assertRaisesRegex(ValueError, "stride 64 in the last dimension"):
            norm(x.T, None, x.T)
        with self.assertRaisesRegex(ValueError, "weight: 63 elements in its last dimension"):
            norm(x, x[0, :63], x)
        with self.assertRaisesRegex(ValueError, "no rmsnorm dtype for int32"):
            norm(x.astype(numpy.int32), None, x)
        with self.assertRaisesRegex(ValueError, "x: f64; it must be"):
            norm(x.astype(numpy.float64), None, x)
        with self.assertRaisesRegex(AttributeError, "wieght"):
            norm(x, None, x, wieght=x)
        fixed = x.copy()
        fixed.flags.writeable = False
        norm(fixed, None, x)
        with self.assertRaisesRegex(ValueError, "read-only"):
            norm(x, None, fixed)
        packed = numpy.zeros(4, [("row", numpy.float32, 2), ("flag", numpy.uint16)])["row"]
        with self.assertRaisesRegex(ValueError, "no multiples of an element"):
            norm(packed, None, x)
        with self.assertRaisesRegex(ValueError, "9 dimensions"):
            norm(x.reshape(1, 1, 1, 1, 1, 1, 1, 4, 64), None, x)

    @unittest.skipUnless("RMSNORM_COMMAND" in os.environ, "the command is not built")
    def test_the_bits_of_the_command(self):
        x, weight = self.normal(7, 1000), self.normal(1000)
        with tempfile.TemporaryDirectory() as directory:
            files = {name: os.path.join(directory, name + ".npy") for name in ("x", "weight", "y")}
            numpy.save(files["x"], x)
            numpy.save(files["weight"], weight)
            command = [os.environ["RMSNORM_COMMAND"], "apply", "--eps", repr(EPS)]
            for name, option in (("x", "input"), ("weight", "weight"), ("y", "output")):
                command += ["--" + option, files[name]]
            subprocess.run(command, check=True)
            y = numpy.empty_like(x)
            norm(x, weight, y, eps=EPS)
            self.assertEqual(y.tobytes(), numpy.load(files["y"]).tobytes())

    def test_bfloat16_bits(self):
        x = bfloat16_bits(self.normal(3, 512))
        weight = self.normal(512)
        y, wide = numpy.empty_like(x), numpy.empty((3, 512), numpy.float32)
        norm(x, weight, y, eps=EPS)
        norm(from_bfloat16_bits(x), weight, wide, eps=EPS)
        self.assertTrue((y == bfloat16_bits(wide)).all())
        normed = numpy.empty_like(wide)
        norm(from_bfloat16_bits(x), None, normed, eps=EPS)
        norm(x, weight, wide, eps=EPS, rounding=ROUND_BEFORE_WEIGHT)
        self.assertTrue((wide == from_bfloat16_bits(bfloat16_bits(normed)) * weight).all())


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Torch(unittest.TestCase):
    def test_bits_of_numpy(self):
        torch.manual_seed(1)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(5, 3, 256).to(dtype)[:, 1]  # strided
            weight = torch.randn(256).to(dtype)
            y = torch.empty(5, 256, dtype=dtype)
            norm(x, weight, y, eps=EPS)

            bits = torch.int32 if dtype == torch.float32 else torch.int16
            stored = {torch.float32: numpy.float32, torch.float16: numpy.float16}
            arrays = [
                tensor.contiguous().view(bits).numpy().view(stored.get(dtype, numpy.uint16))
                for tensor in (x, weight, y)
            ]
            expected = numpy.empty_like(arrays[2])
            norm(arrays[0], arrays[1], expected, eps=EPS)
            self.assertEqual(expected.tobytes(), arrays[2].tobytes())

    def test_near_torch(self):
        torch.manual_seed(2)
        x, weight = torch.randn(8, 512), torch.randn(512)
        y = torch.empty_like(x)
        norm(x, weight, y, eps=EPS)
        expected = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt() * weight
        self.assertLessEqual(((y - expected) / expected).abs().max().item(), bound(512))

    def test_other_devices(self):
        x = torch.empty(4, 64, device="meta")
        with self.assertRaisesRegex(ValueError, "a tensor on meta"):
            norm(x, None, x)


if __name__ == "__main__":
    unittest.main()
