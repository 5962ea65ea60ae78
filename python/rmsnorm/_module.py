# SPDX-License-Identifier: Apache-2.0
"""A layer's norm, which keeps its weight, its bias and its post-norm weight prepared."""

import weakref
from collections.abc import Callable, Mapping
from ctypes import byref, c_void_p
from functools import partial
from typing import Any, Unpack

import numpy.typing as npt

from . import _arrays, _calls, _library
from ._arrays import Array
from ._calls import BACKWARD, FORWARD, OTHERS, Frame, ModuleBackwardOperands, ModuleOperands
from ._calls import OtherOperands, OtherOptions, split
from ._library import c, raise_error


class RMSNorm:
    """The norm of rows of d elements, with a weight that begins as ones.

    It also has a bias and a post_norm_weight where these are set. dtype is the type in which all of
    them are kept: "float32", "float16" or "bfloat16". The options are those of rmsnorm.forward(),
    and threads and target its context. Several threads may call a norm at once, as long as none of
    them sets one of its arrays at the same time.
    """

    def __init__(
        self,
        d: int,
        eps: float = 1e-5,
        *,
        dtype: str = "float32",
        bias: Array | None = None,
        post_norm_weight: Array | None = None,
        threads: int = 0,
        target: str | None = None,
        **options: Unpack[OtherOptions],
    ) -> None:
        self.d = d
        self._dtype = _arrays.DTYPES.get(dtype, 0)
        module = c_void_p()
        status = c.rmsnorm_module_create(
            byref(module),
            d,
            self._dtype,
            _calls.c_options(eps=eps, **options),
            _calls.c_context(threads, target),
        )
        if status:
            raise_error(status)
        self._module = module.value
        self._forward = partial(c.rmsnorm_module_forward, self._module)
        self._backward = partial(c.rmsnorm_module_backward, self._module)
        weakref.finalize(self, c.rmsnorm_module_destroy, self._module)
        # What was set beside the weight, each as the weight of another norm, which can give it back.
        self._others: dict[str, RMSNorm] = {}
        if bias is not None:
            self.bias = bias
        if post_norm_weight is not None:
            self.post_norm_weight = post_norm_weight

    def __repr__(self) -> str:
        return str(c.rmsnorm_module_describe(self._module).decode())

    @property
    def weight(self) -> npt.NDArray[Any]:
        """A copy of the weight; assign an array of d elements to set it."""
        weight = _arrays.empty((self.d,), self._dtype)
        self._transfer(c.rmsnorm_module_get_weight, weight, written=True)
        return weight

    @weight.setter
    def weight(self, weight: Array) -> None:
        self._transfer(c.rmsnorm_module_set_weight, weight, written=False)

    @property
    def bias(self) -> npt.NDArray[Any] | None:
        """A copy of the bias, or None; assign an array of d elements to set it, or None."""
        return self._other("bias")

    @bias.setter
    def bias(self, bias: Array | None) -> None:
        self._set_other("bias", c.rmsnorm_module_set_bias, bias)

    @property
    def post_norm_weight(self) -> npt.NDArray[Any] | None:
        """A copy of the weight by which x is normalised first, or None; assign as to bias."""
        return self._other("post_norm_weight")

    @post_norm_weight.setter
    def post_norm_weight(self, weight: Array | None) -> None:
        self._set_other("post_norm_weight", c.rmsnorm_module_set_post_norm_weight, weight)

    def _other(self, name: str) -> npt.NDArray[Any] | None:
        return self._others[name].weight if name in self._others else None

    def _set_other(self, name: str, function: Any, array: Array | None) -> None:
        if array is None:
            function(self._module, None)
            self._others.pop(name, None)
            return
        self._transfer(function, array, written=False)
        copy = RMSNorm(self.d, dtype=_arrays.name_of(self._dtype))
        copy.weight = array
        self._others[name] = copy

    def _transfer(self, function: Any, weight: Array, written: bool) -> None:
        address, layout, owner = _arrays.describe(weight, written)
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
        """Sets the weight, and what else the norm has, from a dictionary that holds nothing else."""
        own = ["weight", *self._others]
        if set(state) != set(own):
            raise ValueError(f"the state has {sorted(state)}, and this norm has {sorted(own)}")
        for name in own:
            setattr(self, name, state[name])

    def __call__(
        self, x: Array, *, out: Array | None = None, **operands: Unpack[OtherOperands]
    ) -> Any:
        """Returns y, which is `out` or a new NumPy array with the shape and the type of x. Other
        operands are possible as in rmsnorm.forward(), but for those that the norm has."""
        if out is None:
            out = _calls.new_like(x)
        arrays = {"x": x, "y": out}
        if operands:
            (others,) = split(operands, OTHERS)
            arrays.update(others)
        _calls.call_library(self._forward, arrays, None)
        return out

    def forward(self, **operands: Unpack[ModuleOperands]) -> None:
        """rmsnorm.forward() with the arrays and the options of this norm."""
        (arrays,) = split(operands, FORWARD)
        _calls.call_library(self._forward, arrays, None)

    def backward(self, **operands: Unpack[ModuleBackwardOperands]) -> None:
        """rmsnorm.backward() with the weight and the options of this norm."""
        arrays, rest = split(operands, BACKWARD, ("add_to",))
        _calls.call_library(self._backward, arrays, None, add_to=rest.get("add_to", ()))

    def bind(
        self, x: Array, y: Array | None = None, **operands: Unpack[OtherOperands]
    ) -> Callable[[], None]:
        """Returns a function without arguments that makes this call of forward() on these arrays,
        as often as it is called: for a loop that decodes token by token in fixed memory.

            step = norm.bind(x, y)
            step()  # reads x as it is now, and writes y

        The function keeps the norm and the arrays alive. One thread at a time may call it.
        """
        (others,) = split(operands, OTHERS)
        frame = Frame()
        struct, owners = frame.fill({"x": x, "y": y, **others})
        function, module = c.rmsnorm_module_forward, self._module

        def call() -> None:
            status = function(module, struct, None)
            if status:
                raise_error(status)

        call.kept = (self, frame, owners)  # type: ignore[attr-defined]
        return call
