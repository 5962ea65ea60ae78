# SPDX-License-Identifier: Apache-2.0
"""The package on arrays of NumPy, and of other libraries through DLPack. test_bits.py compares
exact results of every operand and option but sums."""

import copy
import ctypes
import fractions
import gc
import inspect
import itertools
import os
import pickle
import re
import sys
import threading
import time
import typing
import unittest.mock
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import ml_dtypes
import numpy as np
import programs
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from test_bits import BACKWARD_WAYS, FORWARD_WAYS

import rmsnorm
from rmsnorm import _arrays, _calls, _library, _options

RANDOM = np.random.default_rng(1)
ROTARY = "rotary_pairs", "rotary_part", "rotary_rounding"


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def refused(match, error=ValueError):
    return pytest.raises(error, match=match)


# ------------------------------------------------------------------------------------- results


def test_eps_is_a_hundred_thousandth_unless_given():
    x = normal(4, 64)
    assert (rmsnorm.rms_norm(x) == rmsnorm.rms_norm(x, eps=1e-5)).all()
    assert (rmsnorm.rms_norm(x) != rmsnorm.rms_norm(x, eps=1e-2)).any()
    assert (rmsnorm.rms_norm(x, None, 1e-2) == rmsnorm.rms_norm(x, eps=1e-2)).all()
    dx, _ = rmsnorm.rms_norm_backward(x, x, x[0], 1e-2, weight_offset=1)
    rmsnorm.backward(x=x, dy=x, weight=x[0], dx=(wanted := normal(4, 64)), eps=1e-2, weight_offset=1)
    assert (dx == wanted).all()


def test_a_slice_is_written_in_place_and_nothing_beside_it():
    heads = normal(6, 4, 3, 32)  # tokens, heads, and q, k and v side by side
    before = heads.copy()
    expected = rmsnorm.rms_norm(heads[:, :2, 1].copy())
    q = heads[:, :2, 1]
    assert rmsnorm.rms_norm(q, out=q) is q
    before[:, :2, 1] = expected
    assert (heads == before).all()


class Lying(np.ndarray):
    """A subclass may define attributes that differ from the memory."""

    shape = property(lambda self: (10**6, 64))
    strides = property(lambda self: (4, 4))
    dtype = property(lambda self: np.dtype(np.float64))
    flags = property(lambda self: unittest.mock.Mock(writeable=True))


INPUTS = {
    "one row, repeated": np.broadcast_to(normal(1, 40), (3, 40)),
    "no rows": np.empty((0, 5), np.float32),
    "one column": normal(6, 2)[:, :1],  # the stride of a single element is undefined
    "float16": normal(5, 300, dtype=np.float16),
    "bfloat16": normal(5, 300, dtype=ml_dtypes.bfloat16),
    "a subclass": normal(3, 64).view(Lying),
}


@pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)
def test_a_new_result_is_like_x_and_has_the_bits_of_a_given_one(x):
    y, plain = rmsnorm.rms_norm(x), np.ndarray.view(x, np.ndarray).copy()
    assert (y.shape, y.dtype) == (plain.shape, plain.dtype)
    assert (y == rmsnorm.rms_norm(plain, out=np.empty_like(plain))).all()


def test_groups_beside_the_blocks_of_ggml():
    """doc/quantised.md: the scales of q8_0 are the same, and its integers differ by 1 at most."""
    x, group = normal(256, 4096), 32
    y, q = np.empty_like(x), np.empty(x.shape, np.int8)
    scale = np.empty((256, 4096 // group), np.float32)
    rmsnorm.forward(x=x, y=y, q=q, scale=scale, group=group)
    v, q = y.reshape(*scale.shape, group), q.reshape(*scale.shape, group)
    largest = abs(v).max(-1)
    assert (scale == largest / np.float32(127)).all()
    assert (q == np.rint(v * (np.float32(127) / largest)[..., None])).all()
    exact = (v * (1 / scale)[..., None]).astype(np.float64)
    of_ggml = np.copysign(np.floor(abs(exact) + 0.5), exact)
    assert 0 < (q != of_ggml).mean() < 1e-4
    assert abs(q - of_ggml).max() == 1


@pytest.mark.parametrize("words", itertools.product(*map(_options.WORDS.get, ROTARY)), ids=str)
def test_gradients_of_rotary_positions(words):
    """They are those of dy, rotated back in f32. The heads of a token share a row of a table."""
    (pairs, part, _), options = words, dict(zip(ROTARY, words, strict=True))
    types = np.float32, np.float16, ml_dtypes.bfloat16
    for of_rows, of_tables, half in itertools.product(types, types, (48, 20)):
        x, dy, weight = (normal(*shape, dtype=of_rows) for shape in ((3, 4, 96), (3, 4, 96), (96,)))
        cos, sin = normal(3, 1, half, dtype=of_tables), normal(3, 1, half, dtype=of_tables)
        places = np.arange(2 * half).reshape((2, half) if pairs == "halves" else (half, 2))
        a, b = (places if pairs == "halves" else places.T) + (96 - 2 * half) * (part == "end")
        dm, c, s = (array.astype(np.float32) for array in (dy, cos, sin))
        dm[..., a], dm[..., b] = dm[..., a] * c + dm[..., b] * s, dm[..., b] * c - dm[..., a] * s
        found = rmsnorm.rms_norm_backward(dy, x, weight, cos=cos, sin=sin, **options)
        for one, two in zip(found, rmsnorm.rms_norm_backward(dm, x, weight), strict=True):
            assert one.tobytes() == two.tobytes()


def test_several_norms_in_one_call_have_the_bits_of_each():
    buffer, weight = normal(5, 4, 32), normal(32)
    q, k = buffer[:, :3], buffer[:, 3:]
    expected = rmsnorm.rms_norm(q, weight), rmsnorm.rms_norm(k)
    rmsnorm.forward_all([{"x": q, "weight": weight, "y": q}, {"x": k, "y": k}], threads=1)
    assert (q == expected[0]).all() and (k == expected[1]).all()
    rmsnorm.forward_all([])


def test_gradients_have_the_same_bits_with_a_given_inverse_rms():
    x, weight, dy, rstd = normal(4, 96), normal(96), normal(4, 96), np.empty(4, np.float32)
    rmsnorm.rms_norm(x, weight, rstd=rstd)
    found, given = (rmsnorm.rms_norm_backward(dy, x, weight, rstd=r) for r in (None, rstd))
    dx = np.empty_like(x)
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, add_to=("dw",))  # which is absent
    assert (found[0] == dx).all() and (found[0] == given[0]).all() and (found[1] == given[1]).all()
    assert rmsnorm.rms_norm_backward(dy, x)[1] is None


def test_a_call_within_a_call():
    """An array's own code runs in the middle of a call, and may call, too."""
    x, other = normal(3, 64), normal(5, 32)

    def export(**arguments):
        rmsnorm.rms_norm(other, eps=1)
        return weight.__dlpack__(**arguments)

    y, weight = np.empty_like(x), normal(64)
    rmsnorm.forward(x=x, y=y, weight=Exported(export))
    assert (y == rmsnorm.rms_norm(x, weight)).all()


# --------------------------------------------------------------------------------- other libraries


class Exported:
    """What offers the memory of an array by DLPack alone, by a function, as that of a device."""

    def __init__(self, export, device=1):
        self.__dlpack__, self.device = export, device

    def __dlpack_device__(self):
        return (self.device, 0)


def old(array):
    """Returns an array of a library older than DLPack 1.0."""
    return Exported(lambda: array.__dlpack__())


def exporting(result):
    """Returns an array whose __dlpack__() returns something else, or raises it."""
    name = "side_effect" if isinstance(result, Exception) else "return_value"
    return Exported(unittest.mock.Mock(**{name: result}))


class Capsule(Exported):
    """An array that exports a capsule of DLPack with these fields, which may be lies."""

    def __init__(self, array, name=b"dltensor_versioned", major=1, flags=0, **fields):
        self.array, self.name = array, name
        self.kept = truth, _ = array.__dlpack__(), fields
        tensor = _arrays._DLTensor.from_address(_arrays._pointer_of(truth, b"dltensor"))
        for field, value in fields.items():
            setattr(tensor, field, value)
        self.managed = _arrays._DLManagedTensorVersioned(major=major, flags=flags, tensor=tensor)
        self.struct = self.managed if name.endswith(b"versioned") else self.managed.tensor
        super().__init__(self.export)

    def export(self, **arguments):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.struct), self.name, None)


NO_POINTER = ctypes.POINTER(ctypes.c_int64)()
EIGHT = ctypes.c_int64 * 8


@pytest.mark.parametrize("offered", [lambda array: Exported(array.__dlpack__), old])
def test_arrays_come_in_and_go_out_by_dlpack(offered):
    x, weight = normal(3, 4, 64)[:, 1:3], normal(64)
    y = np.empty((3, 2, 64), np.float32)
    expected = rmsnorm.rms_norm(x, weight)
    before = sys.getrefcount(x)
    inputs = offered(x), offered(weight)
    got = rmsnorm.rms_norm(*inputs, out=Capsule(y))
    assert got.array is y
    assert (y == expected).all()
    assert (rmsnorm.rms_norm(offered(x), weight) == expected).all()
    del inputs
    assert sys.getrefcount(x) == before
    assert (rmsnorm.rms_norm(Capsule(x.copy(), strides=NO_POINTER), weight) == expected).all()
    assert (rmsnorm.rms_norm(Capsule(x, device_type=3), weight) == expected).all()  # pinned
    assert rmsnorm.rms_norm(Capsule(np.empty((0, 5), np.float32), data=None)).shape == (0, 5)


LIES = [
    ({"name": b"used_dltensor"}, "no unused DLPack capsule"),
    ({"name": b"used_dltensor_versioned"}, "no unused DLPack capsule"),
    ({"name": b"PyCapsule.other"}, "no unused DLPack capsule"),
    ({"major": 2}, "version 2 of DLPack"),
    ({"device_type": 2}, "memory of another device"),
    ({"device_type": 0}, "memory of another device"),
    ({"device_type": -1}, "memory of another device"),
    ({"ndim": 10**9}, "1000000000 dimensions"),
    ({"ndim": 9}, "9 dimensions"),
    ({"ndim": -1}, "-1 dimensions"),
    ({"ndim": 0}, "0 dimensions"),
    ({"shape": NO_POINTER}, "2 dimensions without a shape"),
    ({"data": None}, "without memory"),
    ({"data": None, "byte_offset": 64}, "without memory"),
    ({"byte_offset": 2**64 - 64}, "at the address"),
    ({"byte_offset": 2}, "aligned"),
    ({"strides": EIGHT(2**62, 1)}, "address|bytes|stride"),
    ({"strides": EIGHT(64, 2)}, "stride 2 in the last dimension"),
    ({"lanes": 2}, "float32 in 2 lanes"),
    ({"lanes": 0}, "float32 in 0 lanes"),
    ({"type_code": 200}, "DLPack's code 200"),
    ({"type_code": 5}, "complex32"),
    ({"bits": 7}, "float7"),
    *(
        ({"shape": EIGHT(*shape), "ndim": len(shape), **strides}, "")
        for shape in ((-1, 64), (3, -64), (2**62, 2**62, 2**62), (2**63 - 1, 64))
        for strides in ({}, {"strides": NO_POINTER})
    ),
]


@pytest.mark.parametrize(("fields", "message"), LIES)
def test_a_capsule_that_lies_is_refused(fields, message):
    x = normal(3, 64)
    array = Capsule(x, **fields)
    y = np.zeros_like(x)
    for call in (
        lambda: rmsnorm.rms_norm(array),
        lambda: rmsnorm.rms_norm(array, out=y),
        lambda: rmsnorm.forward_all([{"x": array, "y": y}]),
        lambda: rmsnorm.RMSNorm(64)(array),
    ):
        with pytest.raises((TypeError, ValueError), match=f"x: .*{message}"):
            call()
    assert not y.any()


def test_a_tensor_of_pytorch():
    pytest.importorskip("torch.nn")
    import torch

    x, weight = torch.randn(3, 64), torch.nn.Parameter(torch.ones(64))
    y = torch.empty(3, 64)
    with refused("^weight: Parameter does not export its memory: .*detach"):
        rmsnorm.rms_norm(x, weight, out=y)
    assert rmsnorm.rms_norm(x, weight.detach(), out=y) is y
    assert (y.numpy() == rmsnorm.rms_norm(x.numpy())).all()
    with refused("^x: elements of type .*8; possible are float32"):
        rmsnorm.rms_norm(x.to(torch.float8_e4m3fn))
    with refused("^x: .*meta"):
        rmsnorm.rms_norm(x.to("meta"))


def test_an_array_of_jax_is_an_input_only():
    jnp = pytest.importorskip("jax.numpy")
    x, y = jnp.ones((3, 64)), jnp.zeros((3, 64))
    ones = np.ones((3, 64), np.float32)
    for name in ("y", "dx"):
        for call in ways_to_call(ones, **{name: y}):
            with refused(f"^(calls.0.: )?{name}: an output, and "):
                call()
    assert not y.any()
    assert (rmsnorm.rms_norm(x) == rmsnorm.rms_norm(ones)).all()


def ways_to_call(x, **arguments):
    """Returns a function for each way to make a call with these outputs and options."""
    ways, usual = FORWARD_WAYS, {"residual": x.copy(), "y": np.empty_like(x)}
    if {"dx", "dw", "db"} & arguments.keys():
        ways, usual = BACKWARD_WAYS, {"dy": x}
    arguments = {"x": x, "weight": x[0], **usual, **arguments}
    return [partial(way, **arguments) for way in ways.values()]


ROWS, PER_ROW = (3, 64), (3,)
OUTPUTS = {
    **dict.fromkeys(("y", "residual_out", "dx"), (ROWS, np.float32)),
    **dict.fromkeys(("rstd", "scale"), (PER_ROW, np.float32)),
    **dict.fromkeys(("dw", "db"), ((64,), np.float32)),
    **{"q": (ROWS, np.int8), "zero": (PER_ROW, np.int8), "sums_out": (PER_ROW, np.float64)},
}
PARTNERS = {"q": ["scale"], "scale": ["q"], "zero": ["q", "scale"]}
MUST_NOT_BE_WRITTEN = {
    "has a DLPack before 1.0.*pass an array of NumPy": {"name": b"dltensor"},
    "the array is read-only": {"flags": 1},
    "exports a copy": {"flags": 2},
}


@pytest.mark.parametrize("message", MUST_NOT_BE_WRITTEN)
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_written_only_where_its_owner_allows_it(name, message):
    x = normal(*ROWS)
    arrays = {key: np.ones(*OUTPUTS[key]) for key in (name, *PARTNERS.get(name, ()))}

    def calls(**fields):
        return ways_to_call(x, **{**arrays, name: Capsule(arrays[name], **fields)})

    for call in calls(**MUST_NOT_BE_WRITTEN[message]):
        with refused(f"{name}: an output, and .*{message}"):
            call()
    assert all((array == 1).all() for array in arrays.values())
    for call in calls():  # the same call writes where it may
        arrays[name][...] = 1
        call()
        assert (arrays[name] != 1).any()


# ------------------------------------------------------------------------------------ refusals


def frozen(array):
    array.flags.writeable = False
    return array


class Claiming:
    __class__ = np.ndarray


X, FROZEN, NORM = normal(4, 64), frozen(normal(4, 64)), rmsnorm.RMSNorm(64)
INTEGERS = X.astype(np.int32)
INT8 = {"q": X.astype(np.int8), "scale": X[:, :8].copy()}
RECORDS = np.zeros(4, [("row", np.float32, 2), ("flag", np.uint16)])["row"]
MASKED = np.ma.masked_array(normal(3, 64), mask=True)

#: Calls of wrong arguments: the message, and the function with its arguments. Those of other types
#: than the function takes raise TypeError.
REFUSED_VALUES = [
    ("weight: 63 elements in its last dimension", rmsnorm.rms_norm, X, X[0, :63]),
    ("^x: elements of type int32", rmsnorm.rms_norm, INTEGERS),
    ("^x: elements of type >f4", rmsnorm.rms_norm, X.astype(">f4")),
    ("no multiples of an element", rmsnorm.rms_norm, RECORDS),
    ("9 dimensions", rmsnorm.rms_norm, X.reshape(1, 1, 1, 1, 1, 1, 1, 4, 64)),
    ("eps is -1", rmsnorm.rms_norm, X, None, -1),
    ("^y: an output, and the array is read-only", lambda: rmsnorm.rms_norm(X, out=FROZEN)),
    (
        "^y: an output, and the array is read-only",
        lambda: rmsnorm.rms_norm(X, out=FROZEN.view(Lying)),
    ),
    ("^x: memory of another device", rmsnorm.rms_norm, Exported(X.__dlpack__, device=2)),
    ("^x: elements of type int32", lambda: rmsnorm.rms_norm(Exported(INTEGERS.__dlpack__), out=X)),
    # The array for the result is made in the type of x, and the gradient in the type of the weight.
    ("^x: elements of type int32", rmsnorm.rms_norm, Exported(INTEGERS.__dlpack__)),
    (
        "^weight: elements of type int32",
        lambda: rmsnorm.rms_norm_backward(X, X, Exported(INTEGERS[0].__dlpack__)),
    ),
    *(
        ("^weight: .*tensor.detach", rmsnorm.rms_norm, X, exporting(kind("use tensor.detach()")))
        for kind in (BufferError, RuntimeError, TypeError, ValueError, AttributeError)
    ),
    ("calls\\[1\\]", rmsnorm.forward_all, [{"x": X, "y": X}, {"x": X, "y": X, "eps": -1}]),
    ("^cos: there is no sin", lambda: rmsnorm.rms_norm(X, out=X, cos=X[:, :32])),
    ("^sin: elements of type int32", lambda: rmsnorm.rms_norm(X, cos=X, sin=INTEGERS)),
    *(
        ("^dtype: .*; possible are float32, f", lambda d: rmsnorm.RMSNorm(4, dtype=d), dtype)
        for dtype in ("int32", np.int8, np.float64, float, None, 3, [], "float31")
    ),
    *(("^d: ", rmsnorm.RMSNorm, d) for d in (0, -1, 2**63, 2**64 + 4)),
    *(
        (f"^{name}: ", setattr, NORM, name, normal(2, 64))
        for name in ("weight", "bias", "post_norm_weight")
    ),
    ("the state has \\['bias'\\]", NORM.load_state_dict, {"bias": X[0]}),
    ("this norm has \\['weight'\\]", NORM.load_state_dict, {"weight": X[0], 3: X[0]}),
    *(
        ("^add_to: .*; a list of dx, dw, db is possible", call, add_to)
        for call in (
            lambda add_to: rmsnorm.backward(x=X, dy=X, dx=X, add_to=add_to),
            lambda add_to: NORM.backward(x=X, dy=X, dx=X, add_to=add_to),
        )
        for add_to in ("dw", ("y",), ["x"], [["dw"]], 3, True, np.ones(2), {"dw": 1})
    ),
]
REFUSED_TYPES = [
    ("^x: list is neither", rmsnorm.rms_norm, [1.0] * 64),
    ("^weight: list is neither", rmsnorm.rms_norm, X, [1.0] * 64),
    ("unknown argument 'wieght'", lambda: rmsnorm.rms_norm(X, wieght=X)),
    ("unknown argument 'y'", lambda: rmsnorm.rms_norm(X, y=X)),
    ("^x: ", rmsnorm.rms_norm, Claiming()),
    ("^x: a masked array", rmsnorm.rms_norm, MASKED),
    *(
        ("^weight: .*no unused DLPack capsule", rmsnorm.rms_norm, X, exporting(wrong))
        for wrong in (5, None, "dltensor", unittest.mock.Mock(), object())
    ),
    *(
        ("^calls: .*; a list of dictionaries is possible", rmsnorm.forward_all, calls)
        for calls in (5, None, [X], {"x": X, "y": X}, "calls")
    ),
    ("^calls\\[1\\]: unknown argument 3", rmsnorm.forward_all, [{}, {3: X}]),
    (
        "calls\\[0\\]: unknown argument 'threads'",
        rmsnorm.forward_all,
        [{"x": X, "y": X, "threads": 1}],
    ),
    *(
        ("^d: ", rmsnorm.RMSNorm, d)
        for d in (2.5, 4.0, True, np.True_, "4", None, [4], np.ones(4))
    ),
    *(
        (f"^{name}: ", setattr, NORM, name, [1.0] * 64)
        for name in ("weight", "bias", "post_norm_weight")
    ),
    *(("^y: ", partial(bind, x=X, y="text")) for bind in (rmsnorm.bind_forward, NORM.bind)),
    ("^state: 5; a dictionary is possible", NORM.load_state_dict, 5),
    # Also after an equal integer.
    ("^group: 8.0; ", lambda: [rmsnorm.forward(x=X, **INT8, group=group) for group in (8, 8.0)]),
]


@pytest.mark.parametrize(
    ("error", "row"),
    [*((ValueError, row) for row in REFUSED_VALUES), *((TypeError, row) for row in REFUSED_TYPES)],
)
def test_refusals_name_what_is_wrong_and_write_nothing(error, row):
    message, call, *arguments = row
    before = X.copy(), FROZEN.copy()
    with refused(message, error):
        call(*arguments)
    assert (X == before[0]).all()
    assert (FROZEN == before[1]).all()
    assert list(NORM.state_dict()) == ["weight"]
    assert (NORM.weight == 1).all()


# Of each argument values that are refused, and how the message says what is possible.
WRONG_ARGUMENTS = {
    "eps": (
        [None, "1e-5", True, [1e-5], np.ones(3), np.array(1e-5), 1j, -1, np.inf, 1e39, 10**400],
        "must be (a number, )?finite and not negative",
    ),
    "weight_offset": (["1", True, [1], np.ones(64), np.nan, 1e39], "must be (a )?finite"),
    "divisor": (
        [0, 0.0, -0.0, 1e-60, "d", True, [64], np.ones(3), -1, np.nan],
        r"must be (a number )?from 2\^-126 to 2\^126.*(None is|default,) d",
    ),
    **dict.fromkeys(
        ("factor", "residual_factor"),
        (
            [0, 0.0, -0.0, 1e-60, "1", True, [1], np.ones(3), np.inf, -1e39],
            "must be (finite|a finite number other than 0.*None leaves)",
        ),
    ),
    **{
        name: (
            ["other", "", words[1].encode(), None, 0, 1, True, [], {}, np.ones(3)],
            f"are {', '.join(words)}",
        )
        for name, words in _options.WORDS.items()
    },
    "group": (
        [0, -8, 12, 8192, 2**31, 2**32 + 8, 8.0, True, "8", [8], np.ones(1)],
        "must be a power of two from 8 to 4096.*(None is|default,) d",
    ),
    "threads": (
        [0, -1, 2**31, 2**32 + 1, 1.0, 1.5, True, "1", [1], np.ones(1)],
        "possible are 1|an integer|no OpenMP, and 1 is possible",
    ),
    "target": (
        ["AVX9", "", "reference\0", "r\xe9ference", b"reference", 3, ["AVX2"], np.ones(1)],
        "reference",
    ),
}


assert WRONG_ARGUMENTS.keys() == _options.OPTIONS.keys() | _calls.CONTEXT


@pytest.mark.parametrize(
    ("name", "value"), [(name, v) for name, (values, _) in WRONG_ARGUMENTS.items() for v in values]
)
def test_a_wrong_option_is_refused_by_name(name, value):
    y = np.zeros((4, 64), np.float32)
    x, option = normal(4, 64), {name: value}
    for call in ways_to_call(x, y=y, **option) + ways_to_call(x, dx=y, **option):
        # The library's own messages begin with the name of the struct.
        match = f"^(calls.0.(: |.))?(options: )?{name}\\b.*({WRONG_ARGUMENTS[name][1]})"
        with pytest.raises((TypeError, ValueError), match=match):
            call()
    assert not y.any()


@pytest.mark.skipif(
    _library.c.rmsnorm_has_openmp() == 1, reason="this library has OpenMP, and takes threads"
)
def test_more_threads_are_refused_without_openmp():
    x, y = normal(4, 64), np.empty((4, 64), np.float32)
    for call in ways_to_call(x, y=y, threads=2):
        with refused("^threads: 2; this library has no OpenMP.*concurrent.futures"):
            call()
    for threads in (1, None):
        for call in ways_to_call(x, y=y, threads=threads):
            call()


# ------------------------------------------------------------------------------------- options


def test_options_take_numbers_of_other_types():
    x, weight = normal(4, 64), normal(64)
    for half in (0.5, np.float16(0.5), np.float64(0.5), fractions.Fraction(1, 2)):
        y = rmsnorm.rms_norm(x, weight, eps=half, weight_offset=half, factor=half)
        expected = rmsnorm.rms_norm(x * 0.5, 0.5 + weight, eps=0.5)
        assert np.allclose(y, expected, rtol=1e-6, atol=0)
    for one in (1, 1.0, np.int8(1), np.float32(1)):
        y = rmsnorm.rms_norm(x, weight, eps=one)
        assert (y == rmsnorm.rms_norm(x, weight, eps=1.0)).all()


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_the_sign_of_zero_counts_whatever_was_called_before(zeros):
    """0.0 + -0.0 is 0.0, and -0.0 + -0.0 is -0.0."""
    x, weight = np.ones((1, 4), np.float32), np.full(4, -0.0, np.float32)
    for zero in zeros:
        norm = rmsnorm.RMSNorm(4, weight_offset=zero)
        norm.weight = weight
        y = np.ones_like(x)
        rmsnorm.forward_all([{"x": x, "weight": weight, "y": y, "weight_offset": zero}])
        results = [rmsnorm.rms_norm(x, weight, weight_offset=zero), norm(x), y]
        for result in results:
            assert (np.signbit(result) == np.signbit(zero)).all()
        assert np.signbit(norm.weight_offset) == np.signbit(zero)


def test_a_number_that_changes_is_not_remembered():
    class Changing(float):
        value = 0.5

        def __float__(self):
            return self.value

    x, eps = normal(4, 64), Changing(0.5)
    assert (rmsnorm.rms_norm(x, eps=eps) == rmsnorm.rms_norm(x, eps=0.5)).all()
    eps.value = 2.0
    assert (rmsnorm.rms_norm(x, eps=eps) == rmsnorm.rms_norm(x, eps=2.0)).all()


OPTIONS, CONTEXT = [*_options.OPTIONS], ["threads", "target"]
FORWARD = {*_library.INPUTS, *_library.OUTPUTS} - {"dy", "dx", "dw", "db"}
BACKWARD = ["x", "dy", "cos", "sin", "rstd", "dx", "dw", "db", "add_to"]
OTHERS = FORWARD - {"x", "y", "weight"}
#: The arguments of each function.
ARGUMENTS = {
    rmsnorm.forward: [*FORWARD, *OPTIONS, *CONTEXT],
    rmsnorm.backward: [*BACKWARD, "weight", *OPTIONS, *CONTEXT],
    rmsnorm.rms_norm: ["x", "weight", "out", *OTHERS, *OPTIONS, *CONTEXT],
    rmsnorm.rms_norm_backward: ["dy", "x", "weight", "rstd", "cos", "sin", *OPTIONS, *CONTEXT],
    rmsnorm.forward_all: ["calls", *CONTEXT],
    rmsnorm.RMSNorm: ["d", "dtype", "bias", "post_norm_weight", *OPTIONS, *CONTEXT],
    rmsnorm.RMSNorm.__call__: ["self", "x", "out", *OTHERS],
    rmsnorm.RMSNorm.forward: ["self", "x", "y", *OTHERS],
    rmsnorm.RMSNorm.backward: ["self", *BACKWARD],
    rmsnorm.RMSNorm.bind: ["self", "x", "y", *OTHERS],
    rmsnorm.RMSNorm.bind_backward: ["self", *BACKWARD],
    rmsnorm.bind_forward: [*FORWARD, *OPTIONS, *CONTEXT],
    rmsnorm.bind_backward: [*BACKWARD, "weight", *OPTIONS, *CONTEXT],
    rmsnorm.bind_forward_all: ["calls", *CONTEXT],
}


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__qualname__)
def test_help_and_signatures_name_each_argument(function):
    parameters = inspect.signature(function).parameters
    assert sorted(parameters) == sorted(ARGUMENTS[function])
    in_calls = [*FORWARD, *OPTIONS] if function == rmsnorm.forward_all else []
    lines = inspect.getdoc(function).split("\n")
    for argument in {*parameters, *in_calls} - {"self"}:
        start = argument
        if argument in {*OPTIONS, *CONTEXT} & {*parameters}:
            start = f"{argument}={parameters[argument].default!r}"
        assert sum(line.startswith((f"{start}:", f"{start}=")) for line in lines) == 1, argument


def test_the_defaults_in_signatures_are_the_defaults():
    """None, where it is one, is an absent option."""
    parameters = inspect.signature(rmsnorm.forward).parameters
    arguments = {"x": normal(4, 64), "weight": normal(64), "gate": normal(4, 64)}
    expected = rmsnorm.rms_norm(**arguments)
    for name in [*OPTIONS, *CONTEXT, "residual"]:
        for way in FORWARD_WAYS.values():
            y = np.zeros_like(expected)
            way(**arguments, y=y, **{name: parameters[name].default})
            assert (y == expected).all()


def test_what_is_returned_has_a_type():
    for function in (rmsnorm.rms_norm, rmsnorm.RMSNorm.__call__):
        new, given = typing.get_overloads(function)
        assert inspect.signature(new).return_annotation == NDArray[typing.Any]
        assert given.__annotations__["return"] == given.__annotations__["out"]


# ------------------------------------------------------------------------------------- RMSNorm


def test_a_norm_takes_the_types_of_numpy(monkeypatch):
    for dtype in ("float32", "f4", np.float32, np.dtype("float32")):
        assert rmsnorm.RMSNorm(np.int64(4), dtype=dtype).weight.dtype == np.float32
    norm = rmsnorm.RMSNorm(4, dtype=ml_dtypes.bfloat16)
    assert norm.weight.dtype == ml_dtypes.bfloat16
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with refused("^bfloat16 takes the package ml_dtypes: pip install"):
        norm.weight


def test_a_norm_shows_what_it_was_made_with():
    given = {"d": 8, "eps": 1e-6, "dtype": "float16", "threads": np.int64(1), "target": "reference"}
    given |= {"weight_offset": 1.0, "divisor": 3.0, "factor": 2.0, "residual_factor": 0.5, "group": 8}
    given |= {name: words[1] for name, words in _options.WORDS.items()}
    assert given.keys() > {*OPTIONS, *CONTEXT}
    norm = rmsnorm.RMSNorm(**given)
    plain = rmsnorm.RMSNorm(8)
    parameters = inspect.signature(rmsnorm.RMSNorm).parameters
    again = eval(repr(norm), {"RMSNorm": rmsnorm.RMSNorm})
    for name, value in given.items():
        assert getattr(norm, name) == getattr(again, name) == value
        assert getattr(plain, name) == (8 if name == "d" else parameters[name].default)
        with pytest.raises(AttributeError, match=name):
            setattr(norm, name, value)
    assert repr(again) == repr(norm)
    assert repr(norm).startswith("RMSNorm(8, eps=1e-06, dtype='float16', ")
    assert "threads=1" in repr(norm)
    assert repr(plain) == "RMSNorm(8, eps=1e-05, dtype='float32')"
    plain.bias = normal(8)
    assert repr(plain) == "RMSNorm(8, eps=1e-05, dtype='float32', bias=...)"


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle{n}": lambda norm, n=n: pickle.loads(pickle.dumps(norm, n))
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


class NamedNorm(rmsnorm.RMSNorm):
    __slots__ = ("layer",)

    def __init__(self, name, layer):
        super().__init__(48, 1e-3, dtype="bfloat16", weight_offset=-0.0, threads=1)
        self.name, self.layer = name, layer


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_norm_is_independent(way):
    norm = NamedNorm("q", 3)
    norm.weight = -np.abs(normal(48))
    norm.bias, norm.post_norm_weight = normal(48), normal(48)
    x = normal(3, 48)
    expected = norm(x)
    state = norm.state_dict()
    other = COPIES[way](norm)
    assert (type(other), other.name, other.layer) == (NamedNorm, "q", 3)
    assert repr(other) == repr(norm)
    norm.weight, norm.bias, norm.post_norm_weight = normal(48), None, normal(48)
    del norm
    others = [rmsnorm.RMSNorm(48) for _ in range(50)]  # in the memory of the norm
    assert (other(x) == expected).all()
    del others
    assert other.state_dict().keys() == state.keys()
    assert all((other.state_dict()[name] == state[name]).all() for name in state)
    other.bias = None
    assert (other(x) != expected).any()


def test_a_bound_call_is_not_copied():
    norm = rmsnorm.RMSNorm(64)
    step = norm.bind(normal(1, 64), np.empty((1, 64), np.float32))
    for way in (*COPIES.values(), lambda step: copy.deepcopy({"norm": norm, "step": step})):
        with refused("^BoundCall: it belongs to its arrays; bind the copies", TypeError):
            way(step)


@pytest.mark.parametrize("wrong", ["weight", "bias", "post_norm_weight"])
@pytest.mark.parametrize("value", [normal(47), [1.0] * 48, None, np.ones(48, np.int32)], ids=type)
def test_a_state_is_loaded_in_full_or_not_at_all(wrong, value):
    norm = rmsnorm.RMSNorm(48, bias=normal(48), post_norm_weight=normal(48))
    before = norm.state_dict()
    state = {name: normal(48) for name in before}
    with pytest.raises((TypeError, ValueError), match=f"^{wrong}: "):
        norm.load_state_dict({**state, wrong: value})
    assert all((norm.state_dict()[name] == before[name]).all() for name in before)
    norm.load_state_dict(state)
    assert all((norm.state_dict()[name] == state[name]).all() for name in state)


def test_a_norm_in_a_cycle_lives_until_nothing_can_call_it():
    x, norm = normal(3, 64), rmsnorm.RMSNorm(64, eps=0.5)
    expected, results = norm(x), []

    class Owner:
        def __del__(self):
            others = [rmsnorm.RMSNorm(64) for _ in range(10)]  # in the memory of what is freed
            results.append(self.norm(x))
            del others

    owner = Owner()
    owner.norm, norm.owner = norm, owner
    del owner, norm
    gc.collect()
    assert len(results) == 1
    assert (results[0] == expected).all()


def test_a_norm_lives_until_the_functions_of_atexit_have_run():
    program = """
import atexit, numpy

@atexit.register
def last():
    others = [rmsnorm.RMSNorm(64) for _ in range(10)]
    print((norm(x) == expected).all(), (bound(), (y == expected).all())[1])

import rmsnorm
norm = rmsnorm.RMSNorm(64, eps=0.5)
x = numpy.ones((3, 64), "float32")
y = numpy.empty_like(x)
expected, bound = norm(x), norm.bind(x, y)
"""
    assert programs.run(program) == "True True\n"


def test_a_norm_keeps_its_arrays_in_its_type():
    held = {name: normal(48) for name in ("weight", "bias", "post_norm_weight")}
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in held.items()}
    norm = rmsnorm.RMSNorm(48, 0.5, dtype="bfloat16", weight_offset=1)
    assert (norm.weight == 1).all() and norm.bias is norm.post_norm_weight is None
    x, residual = normal(3, 48), normal(3, 48)
    expected = []  # with each array that is set
    for name, array in held.items():
        setattr(norm, name, array)
        assert getattr(norm, name).dtype == ml_dtypes.bfloat16
        assert (getattr(norm, name) == rounded[name]).all()
        expected.append(norm(x))
    wanted = rmsnorm.rms_norm(x, eps=0.5, weight_offset=1, residual=residual, **rounded)
    assert (norm(x, residual=residual) == wanted).all()
    for name in ("bias", "post_norm_weight"):
        with refused(f"{name}: the module has its own"):
            norm(x, **{name: rounded[name]})
    state = norm.state_dict()
    assert list(state) == list(held)
    norm.bias = norm.post_norm_weight = held["weight"]
    norm.load_state_dict(state)
    assert (norm(x, residual=residual) == wanted).all()
    for name, before in (("post_norm_weight", expected[1]), ("bias", expected[0])):
        setattr(norm, name, None)
        assert getattr(norm, name) is None
        assert (norm(x, out=x.copy()) == before).all()
        with refused("this norm has "):
            norm.load_state_dict(state)


# --------------------------------------------------------------------------------- bound calls


def test_a_bound_call_reads_its_arrays_each_time():
    x, norm = normal(4, 96), rmsnorm.RMSNorm(96)
    y, dw = np.empty_like(x), np.empty_like(x[0])
    step, back = norm.bind(x, y), norm.bind_backward(x=x, dy=x, dw=dw)
    for _ in range(2):
        x[:], norm.weight = normal(4, 96), normal(96)
        assert step() is None and back() is None
        assert (y == rmsnorm.rms_norm(x, norm.weight)).all()
        assert (dw == rmsnorm.rms_norm_backward(x, x, norm.weight)[1]).all()


def test_a_bound_call_keeps_what_it_needs_as_it_was():
    norm = rmsnorm.RMSNorm(64, bias=normal(64))
    x, y = normal(1, 64), np.empty((1, 64), np.float32)
    expected = norm(x)
    step = norm.bind(x, y)
    norm.bias = None
    norm.post_norm_weight = normal(64)
    alive = weakref.ref(norm)
    del norm
    others = [rmsnorm.RMSNorm(64, eps=9.0) for _ in range(50)]  # in the memory of a freed norm
    step()
    assert (y == expected).all()
    del step, others
    assert alive() is None


# ------------------------------------------------------------------------- threads, processes


def test_calls_on_many_threads_have_the_same_bits():
    inputs = [normal(64, 256 + i) for i in range(8)]
    expected = [rmsnorm.rms_norm(x) for x in inputs]
    norm = rmsnorm.RMSNorm(256)

    def is_right(i):
        return (rmsnorm.rms_norm(inputs[i]) == expected[i]).all() and (
            norm(inputs[0]) == expected[0]
        ).all()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, [*range(8)] * 200))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_calls_do_not_hang_after_a_fork():
    program = """
import os, signal, threading, warnings
import numpy, rmsnorm
warnings.simplefilter("ignore")  # some Pythons warn of a fork beside threads

x = numpy.ones((64, 4096), "float32")
norm = rmsnorm.RMSNorm(4096)
expected = norm(x)
done = threading.Event()

def work():
    while not done.is_set():
        rmsnorm.rms_norm(x, eps=1e-5)
        norm(x)

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that hangs
        y, z = rmsnorm.rms_norm(x, eps=1e-5), rmsnorm.RMSNorm(4096)(x)
        right = all((got == expected).all() for got in (y, z, norm(x)))
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
print("done")
"""
    assert programs.run(program) == "done\n"


def test_a_call_releases_the_lock():
    x = normal(2048, 4096)
    y = np.empty_like(x)
    counted = 0
    done = threading.Event()

    def call():
        for _ in range(30):
            if counted <= 100:  # a busy machine takes more calls
                rmsnorm.rms_norm(x, out=y, threads=1)
        done.set()

    # A thread switches only where it gives the lock up, as sleep() does. If the calls held it, this
    # thread would count at most once between two of them.
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


# ----------------------------------------------------------------------------- library and pages


def test_the_structs_are_those_of_the_library():
    """The library refuses fields that it does not know, and says which size it knows."""
    c = _library.c
    x = normal(1, 4)
    view = ctypes.pointer(_library.View(x.ctypes.data, _library.F32, 2, (1, 4), (4, 1)))
    address = ctypes.addressof(view.contents)
    operands = _library.Operands(ctypes.sizeof(_library.Operands), x=address, y=address)
    options = _options.Options(ctypes.sizeof(_options.Options), eps=1e-5)
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


def test_importing_all_names_takes_numpy_alone():
    code = "from rmsnorm import *\nimport sys; print({'torch', 'ml_dtypes'} & sys.modules.keys())"
    assert programs.run(code) == "set()\n"


@pytest.mark.parametrize("block", programs.blocks())
def test_programs_of_the_pages(block, capsys, tmp_path, monkeypatch):
    d, bf16 = 4096, ml_dtypes.bfloat16
    x, dy, weight = normal(2, d), normal(2, d), normal(d, dtype=bf16)
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", x)
    np.save("dy.npy", dy)
    save_file({"model.norm.weight": weight}, "model.safetensors")
    names = {"rmsnorm": rmsnorm, "numpy": np, "norm": rmsnorm.RMSNorm(d)}
    names |= {"x": x, "dy": dy, "weight": weight, "dw": np.empty(d, np.float32)}
    names |= {name: normal(2, d) for name in ("stream", "z", "y", "dx")}
    names |= {name: normal(2, d // 2) for name in ("cos", "sin")}
    names |= {"q": np.empty((2, d), np.int8), "scale": np.empty(2, np.float32)}
    exec(block, names)
    printed = capsys.readouterr().out
    if "rmsnorm.identify" in block and printed:  # the page quotes the first sentence
        (quoted,) = re.findall(r"^> (.*)$", (programs.ROOT / "README.md").read_text("utf-8"), re.M)
        assert printed.startswith(quoted)
    elif printed:
        assert printed == programs.expected(block)
    if "safetensors" in block:
        y, gradients = np.load("y.npy"), load_file("gradients.safetensors")
        assert (y == rmsnorm.rms_norm(x, weight, eps=1e-6)).all()
        expected = rmsnorm.rms_norm_backward(dy, x, weight, eps=1e-6)
        assert (gradients["dx"] == expected[0]).all()
        assert gradients["dw"].dtype == bf16 and (gradients["dw"] == expected[1]).all()
    if "ThreadPoolExecutor" in block:
        assert (names["y"] == rmsnorm.rms_norm(x, weight)).all()
    if "step()" in block:
        assert (names["y"] == rmsnorm.rms_norm(x)).all()
