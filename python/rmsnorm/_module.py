# SPDX-License-Identifier: Apache-2.0
"""A layer's norm, which keeps its weight, its bias and its post-norm weight prepared."""

import weakref
from collections.abc import Mapping
from ctypes import byref, c_void_p
from functools import partial
from reprlib import repr as shown
from typing import Any, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _arrays, _calls, _library
from ._arrays import Array, float_name
from ._calls import BACKWARD, CONTEXT, DEFAULTS, FORWARD, HELP, OTHERS, Context
from ._calls import ModuleBackwardOperands, ModuleOperands, OtherArguments, OtherOperands
from ._calls import BoundCall, Out, call_struct, documented, prepared, split
from ._library import c, raise_error
from ._options import OPTIONS, OtherOptions

_SETTERS = {
    "weight": c.rmsnorm_module_set_weight,
    "bias": c.rmsnorm_module_set_bias,
    "post_norm_weight": c.rmsnorm_module_set_post_norm_weight,
}


def _argument(name: str) -> property:
    """Makes an attribute of an argument of the constructor."""
    return property(lambda self: self._arguments.get(name, DEFAULTS.get(name)), doc=HELP[name])


def _held(name: str, doc: str) -> property:
    """Makes an attribute of an array that a norm may have beside its weight."""

    def held(norm: "RMSNorm") -> npt.NDArray[Any] | None:
        return norm._others[name].weight if name in norm._others else None

    return property(held, lambda norm, array: norm._set(name, array), doc=doc)


@documented(OtherOptions, Context)
class RMSNorm:
    """The norm of rows of d elements, with a weight that begins as ones.

    It also has a bias and a post_norm_weight where these are set. All three have d elements of any
    float type, and are kept in the type dtype. The options are those of rmsnorm.forward(). What the
    norm was made with are attributes that cannot be set. repr() is the call that makes the norm,
    without the values of its arrays.

    copy.copy(), copy.deepcopy() and pickle make an independent norm with the same state.

    Several threads may call a norm at once, as long as none of them sets one of its arrays at the
    same time.
    """

    def __init__(
        self,
        d: int,
        eps: float = 1e-5,
        *,
        dtype: npt.DTypeLike = "float32",
        bias: Array | None = None,
        post_norm_weight: Array | None = None,
        **arguments: Unpack[OtherArguments],
    ) -> None:
        options, context = split(arguments, OPTIONS, CONTEXT)
        name = float_name("dtype", dtype)
        c_context = _calls.c_context(**context)
        self._arguments: dict[str, Any] = {
            "d": _calls.checked_integer("d", d, 2**63),
            **_calls.checked_options({"eps": eps}),
            "dtype": name,
            **_calls.checked_options(options),
        }
        if c_context and c_context.threads:
            self._arguments["threads"] = c_context.threads
        if c_context and c_context.target:
            self._arguments["target"] = c_context.target.decode()
        module = c_void_p()
        status = c.rmsnorm_module_create(
            byref(module),
            self.d,
            _arrays.DTYPES[name],
            _calls.c_options(eps, **options),
            c_context,
        )
        if status:
            raise_error(status)
        self._module = module.value
        self._forward = partial(c.rmsnorm_module_forward, self._module)
        self._backward = partial(c.rmsnorm_module_backward, self._module)
        # The module is freed with this array, not with the norm. In a cycle of references every
        # __del__() runs before an array is freed, as the garbage collector does not track arrays,
        # and may still call the norm. At exit nothing is freed: a function of atexit may call it.
        self._owner = np.empty(0)
        weakref.finalize(self._owner, c.rmsnorm_module_destroy, self._module).atexit = False
        # What was set beside the weight, each as the weight of a norm, which can return it.
        self._others: dict[str, RMSNorm] = {}
        if bias is not None:
            self.bias = bias
        if post_norm_weight is not None:
            self.post_norm_weight = post_norm_weight

    d = _argument("d")
    eps = _argument("eps")
    dtype = _argument("dtype")
    eps_placement = _argument("eps_placement")
    rounding = _argument("rounding")
    residual_rounding = _argument("residual_rounding")
    weight_offset = _argument("weight_offset")
    divisor = _argument("divisor")
    factor = _argument("factor")
    activation = _argument("activation")
    gate_placement = _argument("gate_placement")
    gate_rounding = _argument("gate_rounding")
    group = _argument("group")
    residual_factor = _argument("residual_factor")
    rotary_pairs = _argument("rotary_pairs")
    rotary_part = _argument("rotary_part")
    rotary_rounding = _argument("rotary_rounding")
    threads = _argument("threads")
    target = _argument("target")

    def __repr__(self) -> str:
        named = [f"{name}={value!r}" for name, value in self._arguments.items() if name != "d"]
        held = [f"{name}=..." for name in self._others]
        return f"{type(self).__name__}({', '.join([str(self.d), *named, *held])})"

    def __getstate__(self) -> dict[str, Any]:
        # The values of float32 are exact, and need no package for bfloat16.
        norms = {"weight": self, **self._others}
        arrays = {name: norm._values("float32") for name, norm in norms.items()}
        state: Any = super().__getstate__()
        attributes, slots = state if isinstance(state, tuple) else (state, {})
        made = ("_module", "_forward", "_backward", "_owner", "_others")
        kept = {name: value for name, value in attributes.items() if name not in made}
        return {"arrays": arrays, "attributes": {**kept, **slots}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        RMSNorm.__init__(self, **state["attributes"]["_arguments"])
        for name, value in state["attributes"].items():
            setattr(self, name, value)
        for name, array in state["arrays"].items():
            self._set(name, array)

    @property
    def weight(self) -> npt.NDArray[Any]:
        """A copy of the weight; assign an array of d elements to set it."""
        return self._values(self.dtype)

    @weight.setter
    def weight(self, weight: Array) -> None:
        self._set("weight", weight)

    bias = _held("bias", "A copy of the bias, or None; assign an array of d elements, or None.")
    post_norm_weight = _held(
        "post_norm_weight", "A copy of the weight by which x is normalised first; as bias."
    )

    def _values(self, dtype: str) -> npt.NDArray[Any]:
        """Returns a copy of the weight in a type."""
        values = _arrays.empty((self.d,), _arrays.DTYPES[dtype])
        self._transfer("weight", c.rmsnorm_module_get_weight, values)
        return values

    def _set(self, name: str, array: Array | None) -> None:
        """Sets the weight, the bias or the post-norm weight, or changes nothing."""
        if array is None and name != "weight":
            _SETTERS[name](self._module, None)
            self._others.pop(name, None)
        else:
            self._take(name, self._checked(name, array))

    def _checked(self, name: str, array: Any) -> "RMSNorm":
        """Returns a norm with this array as its weight, or raises an error that names the array."""
        norm = RMSNorm(self.d, dtype=self.dtype)
        norm._transfer(name, _SETTERS[name], array)
        norm._transfer(name, _SETTERS["weight"], array)
        return norm

    def _take(self, name: str, norm: "RMSNorm") -> None:
        self._transfer(name, _SETTERS[name], norm._values("float32"))
        if name != "weight":
            self._others[name] = norm

    def _transfer(self, name: str, function: Any, array: Any) -> None:
        written = function is c.rmsnorm_module_get_weight
        address, layout, owner = _arrays.describe_as(name, array, written)
        view = _library.View.from_buffer_copy(bytes(_library.View.dtype.offset) + layout)
        view.data = address
        status = function(self._module, byref(view))
        del owner
        if status:
            raise_error(status)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """The weight by its name, as in PyTorch, and what else was set."""
        others = {name: norm.weight for name, norm in self._others.items()}
        return {"weight": self.weight, **others}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Sets the weight, and what else the norm has, from a dictionary that holds nothing else.
        An array that is refused leaves the norm as it was."""
        own = ["weight", *self._others]
        if not isinstance(state, Mapping):
            raise TypeError(f"state: {shown(state)}; a dictionary is possible")
        if set(state) != set(own):
            given = sorted(map(str, state))
            raise ValueError(f"the state has {given}, and this norm has {sorted(own)}")
        norms = {name: self._checked(name, state[name]) for name in own}
        for name, norm in norms.items():
            self._take(name, norm)

    @overload
    def __call__(
        self, x: Array, *, out: None = None, **operands: Unpack[OtherOperands]
    ) -> npt.NDArray[Any]: ...

    @overload
    def __call__(self, x: Array, *, out: Out, **operands: Unpack[OtherOperands]) -> Out: ...

    @documented(OtherOperands)
    def __call__(
        self, x: Array, *, out: Array | None = None, **operands: Unpack[OtherOperands]
    ) -> Array:
        """Returns y, which is `out` or a new NumPy array with the shape and the type of x. Other
        operands are possible as in rmsnorm.forward(), but for those that the norm has."""
        if out is None:
            out = _arrays.new_like("x", x)
        arrays = {"x": x, "y": out}
        if operands:
            (others,) = split(operands, OTHERS)
            arrays.update(others)
        _calls.call_library(self._forward, arrays, None)
        return out

    @documented(ModuleOperands)
    def forward(self, **operands: Unpack[ModuleOperands]) -> None:
        """rmsnorm.forward() with the arrays and the options of this norm."""
        (arrays,) = split(operands, FORWARD)
        _calls.call_library(self._forward, arrays, None)

    @documented(ModuleBackwardOperands)
    def backward(self, **operands: Unpack[ModuleBackwardOperands]) -> None:
        """rmsnorm.backward() with the weight and the options of this norm."""
        arrays, rest = split(operands, BACKWARD, ("add_to",))
        _calls.call_library(self._backward, arrays, None, **rest)

    @documented(OtherOperands)
    def bind(
        self, x: Array, y: Array | None = None, **operands: Unpack[OtherOperands]
    ) -> "BoundCall":
        """Returns a function without arguments that makes this call of forward() on these arrays,
        as often as it is called: for a loop that decodes token by token in fixed memory.

            step = norm.bind(x, y)
            step()  # reads x as it is now, and writes y

        The function keeps the norm's module and the arrays alive. It uses the weight as it is when
        it is called, and a bias and a post_norm_weight if the norm has them now. One thread at a
        time may call it. It cannot be copied or pickled.
        """
        (others,) = split(operands, OTHERS)
        arrays = {"x": x, "y": y, **others}
        struct, kept = call_struct(arrays, module=self._module)
        return prepared(c.rmsnorm_prepare, byref(struct), 1, None, kept=(self._owner, kept))

    @documented(ModuleBackwardOperands)
    def bind_backward(self, **operands: Unpack[ModuleBackwardOperands]) -> BoundCall:
        """Returns a function without arguments that makes this call of backward(); see bind()."""
        arrays, rest = split(operands, BACKWARD, ("add_to",))
        struct, kept = call_struct(arrays, module=self._module, **rest)
        return prepared(c.rmsnorm_prepare_backward, byref(struct), None, kept=(self._owner, kept))
