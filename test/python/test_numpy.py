# SPDX-License-Identifier: Apache-2.0
"""The package on arrays of NumPy, and of other libraries through DLPack, beside the formula in
float64."""

import ctypes
import gc
import subprocess
import sys
import threading
import time
import weakref

import ml_dtypes
import numpy as np
import pages
import pytest

import rmsnorm
from rmsnorm import _library

EPS = 2.0**-18
RANDOM = np.random.default_rng(1)


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def exact(x, weight, eps=EPS):
    """Computes the norm in float64."""
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def bound(d):
    """Returns the relative error of a result in f32: the bound of the inverse RMS in rmsnorm.h,
    plus one rounding each for x * r and its product with the weight."""
    k, b = -(-min(d, 4096) // 128), -(-d // 4096) - 1
    return ((k + 7 + b) / 2 + 4 + 2 * 0.5 + 0.01) * 2.0**-24


@pytest.mark.parametrize("d", [1, 7, 128, 1000, 4096, 5000, 16384])
def test_f32_is_within_the_bound(d):
    x, weight = normal(3, d), normal(d)
    y = rmsnorm.rms_norm(x, weight, eps=EPS)
    expected = exact(x, weight)
    assert y.dtype == np.float32
    assert (np.abs(y - expected) / np.abs(expected)).max() <= bound(d)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_types_of_16_bits_are_rounded_once(dtype):
    x, weight = normal(5, 300, dtype=dtype), normal(300, dtype=dtype)
    y = rmsnorm.rms_norm(x, weight, eps=EPS)
    assert y.dtype == dtype
    wide = np.empty(x.shape, np.float32)
    rmsnorm.rms_norm(x, weight, out=wide, eps=EPS)
    assert (y == wide.astype(dtype)).all()
    expected = exact(x, weight.astype(np.float64))
    assert (np.abs(wide - expected) <= bound(300) * np.abs(expected)).all()


def test_options():
    x, weight = normal(4, 64), normal(64)
    y = rmsnorm.rms_norm(x, weight, eps=EPS, weight_offset=1, threads=1, target="reference")
    expected = exact(x, (1 + weight).astype(np.float64))
    assert (np.abs(y - expected) / np.abs(expected)).max() <= bound(64)
    y = rmsnorm.rms_norm(x, eps=0.5, eps_placement="outside")
    rms = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True))
    assert np.allclose(y, x / (rms + 0.5), rtol=bound(64), atol=0)
    assert (rmsnorm.rms_norm(x, eps=EPS) == rmsnorm.rms_norm(x, eps=EPS, divisor=64)).all()
    assert (rmsnorm.rms_norm(x) == rmsnorm.rms_norm(x, eps=1e-5)).all()
    assert (rmsnorm.rms_norm(x) == rmsnorm.rms_norm(x, eps=np.float32(1e-5))).all()
    assert (rmsnorm.rms_norm(x) != rmsnorm.rms_norm(x, eps=1e-2)).any()


def test_strides_and_in_place():
    heads = normal(6, 4, 3, 32)  # tokens, heads, and q, k and v side by side
    before = heads.copy()
    expected = rmsnorm.rms_norm(heads[:, :2, 1].copy())
    q = heads[:, :2, 1]
    assert rmsnorm.rms_norm(q, out=q) is q
    assert (q == expected).all()
    before[:, :2, 1] = expected
    assert (heads == before).all()


def test_repeated_rows():
    x = np.broadcast_to(normal(1, 40), (3, 40))
    assert (rmsnorm.rms_norm(x) == rmsnorm.rms_norm(x.copy())).all()


def test_no_rows():
    assert rmsnorm.rms_norm(np.empty((0, 5), np.float32)).shape == (0, 5)


def test_one_column():
    x = normal(6, 2)[:, :1]  # the stride of a single element is undefined
    assert (rmsnorm.rms_norm(x) == rmsnorm.rms_norm(x.copy())).all()


def test_residual():
    x, residual, weight = normal(4, 96), normal(4, 96), normal(96)
    total = residual.copy()
    y = rmsnorm.rms_norm(x, weight, residual=total, residual_out=total)
    assert (total == residual + x).all()
    assert (y == rmsnorm.rms_norm(residual + x, weight)).all()


def test_quantised():
    x, weight = normal(4, 96), normal(96)
    q, scale = np.empty(x.shape, np.int8), np.empty(4, np.float32)
    y = rmsnorm.rms_norm(x, weight, q=q, scale=scale)
    largest = np.abs(y).max(-1, keepdims=True)
    assert (scale[:, None] == largest / np.float32(127)).all()
    assert (q == np.rint(y * (np.float32(127) / largest))).all()
    alone = np.empty_like(q)
    rmsnorm.forward(x=x, weight=weight, q=alone, scale=scale)
    assert (q == alone).all()


def test_two_phases():
    x, weight, bias = normal(4, 2, 96), normal(2, 96), normal(96)
    sums = np.empty((4, 2))
    rmsnorm.forward(x=x, sums_out=sums)
    assert np.allclose(sums, (x.astype(np.float64) ** 2).sum(-1), rtol=2 * bound(96), atol=0)
    y = rmsnorm.rms_norm(x, weight, bias=bias, sums=sums)
    assert (y == rmsnorm.rms_norm(x, weight, bias=bias)).all()


def test_several_norms():
    buffer = normal(5, 4, 32)
    q, k = buffer[:, :3], buffer[:, 3:]
    weights = normal(32), normal(32)
    expected = [rmsnorm.rms_norm(x, w) for x, w in zip((q, k), weights, strict=True)]
    rmsnorm.forward_all(
        [{"x": q, "weight": weights[0], "y": q}, {"x": k, "weight": weights[1], "y": k}], threads=1
    )
    assert (q == expected[0]).all()
    assert (k == expected[1]).all()
    rmsnorm.forward_all([])
    with pytest.raises(ValueError, match=r"calls\[1\]\.eps|calls\[1\]"):
        rmsnorm.forward_all([{"x": q, "y": q}, {"x": k, "y": k, "eps": -1}])
    with pytest.raises(TypeError, match=r"calls\[0\]: unknown argument 'threads'"):
        rmsnorm.forward_all([{"x": q, "y": q, "threads": 1}])


def test_gradients():
    x, weight, dy = normal(4, 96), normal(96), normal(4, 96)
    rstd = np.empty(4, np.float32)
    rmsnorm.rms_norm(x, weight, rstd=rstd, eps=EPS)
    wide, g = x.astype(np.float64), dy.astype(np.float64) * weight
    r = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + EPS)
    assert np.allclose(rstd, r[:, 0], rtol=bound(96), atol=0)
    exact_dx = r * (g - wide * r * r * np.mean(g * wide, axis=-1, keepdims=True))
    exact_dw = (dy * wide * r).sum(0)
    for given in (None, rstd):
        dx, dw = rmsnorm.rms_norm_backward(dy, x, weight, eps=EPS, rstd=given)
        assert np.allclose(dx, exact_dx, atol=1e-5)
        assert np.allclose(dw, exact_dw, atol=1e-5)
    assert rmsnorm.rms_norm_backward(dy, x)[1] is None
    dw, db = np.ones(96, np.float32), np.empty(96, np.float32)
    rmsnorm.backward(x=x, weight=weight, dy=dy, dw=dw, db=db, add_to=("dw",), eps=EPS)
    assert np.allclose(dw, 1 + exact_dw, atol=1e-5)
    assert np.allclose(db, dy.sum(0), atol=1e-5)


def test_add_to_of_an_absent_gradient_is_ignored():
    x, dy = normal(4, 96), normal(4, 96)
    dx, dw, expected = np.empty_like(x), np.ones(96, np.float32), np.empty(96, np.float32)
    weight = normal(96)
    rmsnorm.backward(x=x, weight=weight, dy=dy, dw=expected)
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, add_to=("dw",))
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, dw=dw)
    assert (dw == expected).all()


def test_a_call_within_a_call():
    """An array's own code runs in the middle of a call, and may call, too."""
    x, other = normal(3, 64), normal(5, 32)

    class Calling(Exported):
        def __dlpack__(self, **arguments):
            rmsnorm.rms_norm(other, eps=1)
            return super().__dlpack__(**arguments)

    weight = normal(64)
    expected = rmsnorm.rms_norm(x, weight)
    y = np.empty_like(x)
    rmsnorm.forward(x=x, y=y, weight=Calling(weight))
    assert (y == expected).all()


def refused(match, error=ValueError):
    return pytest.raises(error, match=match)


def test_refusals_name_what_is_wrong():
    x = normal(4, 64)
    before = x.copy()
    with refused("eps is -1"):
        rmsnorm.rms_norm(x, out=x, eps=-1)
    with refused("stride 64 in the last dimension"):
        rmsnorm.rms_norm(x.T)
    with refused("weight: 63 elements in its last dimension"):
        rmsnorm.rms_norm(x, x[0, :63])
    with refused("^x: elements of type <i4"):
        rmsnorm.rms_norm(x.astype(np.int32))
    with refused("^x: elements of type >f4"):
        rmsnorm.rms_norm(x.astype(">f4"))
    with refused("x: f64; it must be"):
        rmsnorm.rms_norm(x.astype(np.float64))
    with refused("unknown argument 'wieght'", TypeError):
        rmsnorm.rms_norm(x, wieght=x)
    with refused("unknown argument 'y'", TypeError):
        rmsnorm.rms_norm(x, y=x)
    with refused("rounding: 'before'; possible are after_weight, before_weight, inverse"):
        rmsnorm.rms_norm(x, rounding="before")
    with refused("^x: list is neither", TypeError):
        rmsnorm.rms_norm([1.0, 2.0])
    with refused("^weight: list is neither", TypeError):
        rmsnorm.rms_norm(x, [1.0] * 64)
    with refused("add_to: 'y'"):
        rmsnorm.backward(x=x, dy=x, dx=x, add_to=("y",))
    with refused("threads: -1"):
        rmsnorm.rms_norm(x, threads=-1)
    with refused("threads: 4294967297"):
        rmsnorm.rms_norm(x, threads=2**32 + 1)
    with refused("target"):
        rmsnorm.rms_norm(x, target="AVX9")
    fixed = x.copy()
    fixed.flags.writeable = False
    rmsnorm.rms_norm(fixed)
    with refused("^y: an output, and the array is read-only"):
        rmsnorm.rms_norm(x, out=fixed)
    packed = np.zeros(4, [("row", np.float32, 2), ("flag", np.uint16)])["row"]
    with refused("no multiples of an element"):
        rmsnorm.rms_norm(packed)
    with refused("9 dimensions"):
        rmsnorm.rms_norm(x.reshape(1, 1, 1, 1, 1, 1, 1, 4, 64))
    assert (x == before).all()


def test_a_norm_with_its_weight():
    norm = rmsnorm.RMSNorm(48, 1e-6, dtype="bfloat16", weight_offset=1)
    assert repr(norm) == "RmsNorm(48, eps=1e-06, bf16, weight_offset=1)"
    assert (norm.weight == 1).all()
    weight = normal(48, dtype=ml_dtypes.bfloat16)
    norm.weight = weight
    assert norm.weight.dtype == weight.dtype
    assert (norm.weight == weight).all()
    x = normal(3, 48, dtype=ml_dtypes.bfloat16)
    expected = rmsnorm.rms_norm(x, weight, eps=1e-6, weight_offset=1)
    assert (norm(x) == expected).all()

    state = norm.state_dict()
    other = rmsnorm.RMSNorm(48, 1e-6, dtype="bfloat16", weight_offset=1)
    other.load_state_dict(state)
    assert (other(x, out=x) == expected).all()
    with refused("the state has \\['bias'\\]"):
        other.load_state_dict({"bias": weight})
    with refused("47"):
        other.weight = weight[:47]
    assert (other.weight == weight).all()
    with refused("dtype"):
        rmsnorm.RMSNorm(48, dtype="int32")
    with refused("d is 0|d: 0"):
        rmsnorm.RMSNorm(0)


def test_a_norm_with_a_bias_and_a_post_norm_weight():
    arrays = {"bias": normal(48), "post_norm_weight": normal(48)}
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    norm = rmsnorm.RMSNorm(48, 1e-6, dtype="bfloat16", weight_offset=1, **arrays)
    ones = norm.weight
    x, residual = normal(3, 48), normal(3, 48)
    expected_sum, total = np.empty_like(x), np.empty_like(x)

    def expected(**operands):
        return rmsnorm.rms_norm(x, ones, eps=1e-6, weight_offset=1, **operands)

    wanted = expected(residual=residual, residual_out=expected_sum, **rounded)
    assert (norm(x, residual=residual, residual_out=total) == wanted).all()
    assert (total == expected_sum).all()
    for name, array in rounded.items():
        assert (getattr(norm, name) == array).all()
        with refused(f"{name}: the module has its own"):
            norm(x, **{name: array})
    with refused("bias: 47 elements"):
        norm.bias = arrays["bias"][:47]

    state = norm.state_dict()
    assert list(state) == ["weight", "bias", "post_norm_weight"]
    norm.bias = arrays["post_norm_weight"]
    norm.load_state_dict(state)
    assert (norm(x) == expected(**rounded)).all()
    norm.post_norm_weight = None
    assert norm.post_norm_weight is None
    assert (norm(x) == expected(bias=rounded["bias"])).all()
    with refused("this norm has \\['bias', 'weight'\\]"):
        norm.load_state_dict(state)
    norm.bias = None
    assert (norm(x) == expected()).all()


def test_a_norm_takes_other_operands_and_has_gradients():
    norm = rmsnorm.RMSNorm(96)
    norm.weight = normal(96)
    x, residual, dy = normal(4, 96), normal(4, 96), normal(4, 96)
    total, dx, dw = np.empty_like(x), np.empty_like(x), np.empty(96, np.float32)
    y = norm(x, residual=residual, residual_out=total)
    assert (y == rmsnorm.rms_norm(residual + x, norm.weight)).all()
    norm.backward(x=total, dy=dy, dx=dx, dw=dw)
    expected = rmsnorm.rms_norm_backward(dy, total, norm.weight)
    assert (dx == expected[0]).all()
    assert (dw == expected[1]).all()


def test_a_bound_call():
    norm = rmsnorm.RMSNorm(64)
    x, y = normal(1, 64), np.empty((1, 64), np.float32)
    step = norm.bind(x, y)
    for _ in range(2):
        x += 1
        step()
        assert (y == rmsnorm.rms_norm(x)).all()
    total = np.empty_like(x)
    norm.bind(x, y, residual=x, residual_out=total)()
    assert (total == x + x).all()
    step()
    # The call keeps everything that it needs alive, and lets go of it.
    alive = weakref.ref(norm)
    expected = y.copy()
    del norm
    gc.collect()
    y[:] = 0
    step()
    assert (y == expected).all()
    del step
    gc.collect()
    assert alive() is None


def test_many_threads():
    inputs = [normal(64, 256 + i) for i in range(8)]
    expected = [rmsnorm.rms_norm(x) for x in inputs]
    wrong = []

    def work(i):
        for _ in range(200):
            if (rmsnorm.rms_norm(inputs[i]) != expected[i]).any():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_releases_the_lock():
    x = normal(2048, 4096)
    y = np.empty_like(x)
    counted = 0
    done = threading.Event()

    def call():
        for _ in range(5):
            rmsnorm.rms_norm(x, out=y, threads=1)
        done.set()

    # A thread switches only where it gives the lock up, as sleep() does. If the calls held it, this
    # thread would count a few times between them.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=call)
        thread.start()
        while not done.is_set():
            counted += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert counted > 100


class Exported:
    """An array that offers its memory by DLPack alone, with the version and the device given."""

    def __init__(self, array, versioned=True, device=1):
        self.array, self.versioned, self.device = array, versioned, device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **arguments):
        if not self.versioned and arguments:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**arguments)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned):
    x, weight = normal(3, 4, 64)[:, 1:3], normal(64)
    y = np.empty((3, 2, 64), np.float32)
    expected = rmsnorm.rms_norm(x, weight)
    got = rmsnorm.rms_norm(
        Exported(x, versioned), Exported(weight, versioned), out=Exported(y, versioned)
    )
    assert got.array is y
    assert (y == expected).all()
    assert (rmsnorm.rms_norm(Exported(x, versioned), weight) == expected).all()


def test_dlpack_refusals():
    x = normal(3, 64)
    with refused("^x: memory of another device"):
        rmsnorm.rms_norm(Exported(x, device=2), out=x)
    with refused("^x: elements of DLPack's type 0 with 32 bits"):
        rmsnorm.rms_norm(Exported(x.astype(np.int32)), out=x)


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy 2.1 is the first to export them"
)
def test_read_only_dlpack():
    x = normal(3, 64)
    fixed = x.copy()
    fixed.flags.writeable = False
    assert (rmsnorm.rms_norm(Exported(fixed)) == rmsnorm.rms_norm(x)).all()
    with refused("^y: an output, and the array is read-only"):
        rmsnorm.rms_norm(x, out=Exported(fixed))


def test_dlpack_leaks_nothing():
    x = normal(4, 64)
    before = sys.getrefcount(x)
    for _ in range(10):
        rmsnorm.rms_norm(Exported(x))
    assert sys.getrefcount(x) == before


def test_the_structs_are_those_of_the_library():
    """The library refuses fields that it does not know, and says which size it knows."""
    c = _library.c
    x = normal(1, 4)
    view = ctypes.pointer(_library.View(x.ctypes.data, _library.F32, 2, (1, 4), (4, 1)))
    address = ctypes.addressof(view.contents)
    operands = _library.Operands(ctypes.sizeof(_library.Operands), x=address, y=address)
    options = _library.Options(ctypes.sizeof(_library.Options), eps=1e-5)
    structs = [operands, options, _library.Context(ctypes.sizeof(_library.Context))]
    assert c.rmsnorm_forward(*structs) == 0
    for i, known in enumerate(structs):
        size = ctypes.sizeof(known)
        later = type("Later", (type(known),), {"_fields_": [("field", ctypes.c_uint32)]})
        grown = later.from_buffer_copy(bytes(known) + bytes(ctypes.sizeof(later) - size))
        grown.size, grown.field = ctypes.sizeof(later), 1
        arguments = [*structs[:i], grown, *structs[i + 1 :]]
        assert c.rmsnorm_forward(*arguments) != 0
        message = c.rmsnorm_error_message().decode()
        assert f"beyond the {size} bytes that this library knows" in message
        grown.field = 0
        assert c.rmsnorm_forward(*arguments) == 0


def test_importing_takes_numpy_alone():
    code = "import rmsnorm, sys; print(*(m for m in ('torch', 'ml_dtypes') if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "\n", "")


@pytest.mark.parametrize("block", pages.blocks())
def test_programs_of_the_pages(block, capsys):
    d, bf16 = 4096, ml_dtypes.bfloat16
    names = {name: normal(2, d) for name in ("x", "stream", "z")}
    names |= {"weight": normal(d), "rmsnorm": rmsnorm, "numpy": np}
    names |= {"q": np.empty((2, d), np.int8), "scale": np.empty(2, np.float32)}
    if "RMSNorm(" in block or "norm.bind" in block:
        names |= {name: normal(2, d, dtype=bf16) for name in ("x", "y", "dy", "dx")}
        names |= {"weight": normal(d, dtype=bf16), "dw": np.empty(d, np.float32)}
        names["norm"] = rmsnorm.RMSNorm(d)
    exec(block, names)
    printed = capsys.readouterr().out
    if "print(" in block:  # the comment says what is printed
        expected = pages.numbers_of(block.split("#", 1)[1])
        assert len(expected) == 8
        assert np.allclose(pages.numbers_of(printed), expected, atol=0.005)
    if "step()" in block:
        assert (names["y"] == rmsnorm.rms_norm(names["x"])).all()
