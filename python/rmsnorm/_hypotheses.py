# SPDX-License-Identifier: Apache-2.0
"""Norms that an implementation may compute: options of the library, and a step beside them.

A step is a row of a table below: what it does in words, and small functions that replace parts of
the norm of Trial. The rest are the library's formulas in NumPy (doc/definition.md), which have the
same bits for many eps at once.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, byref, sizeof
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _library
from ._calls import c_context, c_options
from ._library import BF16, F16, F32, F64
from ._options import WORDS
from ._tensors import Tensor, rounded

__all__ = ["NAMES", "NARROW", "Array", "Call", "Distance", "Numbers", "Options", "Step", "Trial"]
__all__ += ["Stated", "cut_off", "decimal", "distance", "forward", "held", "lengths", "numbers_near"]
__all__ += ["order_of", "shortened", "shortest", "steps", "sums_of", "to", "with_ties_away"]

# NumPy's types call a product of f32 arrays one of any float.
F32Array = npt.NDArray[Any]
F64Array = npt.NDArray[Any]

NAMES = {F32: "f32", F16: "f16", BF16: "bf16"}
NARROW = (BF16, F16)


class Options(NamedTuple):
    """The options of a call. A divisor of 0 is d."""

    eps: float = 1e-5
    eps_placement: str = "inside"
    rounding: str = "after_weight"
    residual_rounding: str = "rounded"
    weight_offset: float = 0.0
    divisor: float = 0.0
    factor: float = 1.0
    activation: str = "silu"
    gate_placement: str = "after"
    gate_rounding: str = "unrounded"
    residual_factor: float = 1.0
    rotary_pairs: str = "halves"
    rotary_part: str = "start"
    rotary_rounding: str = "each"

    def given(self) -> dict[str, Any]:
        """Returns eps, and the options that differ from their defaults."""
        usual = Options._field_defaults
        return {k: v for k, v in self._asdict().items() if k == "eps" or v != usual[k]}

    def usual(self, *names: str) -> "Options":
        """Returns the options with the defaults of some."""
        return self._replace(**{name: Options._field_defaults[name] for name in names})


class Array(NamedTuple):
    """Numbers in f32, and the type that holds each of them."""

    values: F32Array
    dtype: int

    def holds(self, dtype: int) -> bool:
        """Whether a type holds each element exactly."""
        held: bool = ((to(dtype, self.values) == self.values) | np.isnan(self.values)).all()
        return held


def to(dtype: int, values: F32Array) -> F32Array:
    """Rounds numbers to a type."""
    if dtype == F16:
        return values.astype(np.float16).astype(np.float32)
    if dtype == BF16:
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    return values


def cut_off(dtype: int, values: F32Array, added: float = 0) -> F32Array:
    """Rounds numbers to f16 or bf16 towards zero, after a part of the last place was added."""
    unit = 2**16 if dtype == BF16 else 2**13
    bits = values.view(np.uint32) + np.uint32(added * unit)
    large = (bits & np.uint32(2**32 - unit)).view(np.float32)
    if dtype == BF16:
        return large
    scaled = values * np.float32(2**24)
    small = np.trunc(scaled + np.copysign(np.float32(added), scaled)) * np.float32(2**-24)
    return np.where(np.abs(values) < 2**-14, small, large)


with_ties_away = partial(cut_off, added=0.5)


def forward(operands: Mapping[str, Tensor], options: Options = Options()) -> None:  # noqa: B008
    """Calls the library. A refused call raises ValueError with its message."""
    struct = _library.Operands(size=sizeof(_library.Operands))
    views = {name: tensor.view() for name, tensor in operands.items()}
    for name, view in views.items():
        setattr(struct, name, addressof(view))
    chosen: dict[str, Any] = {**options._asdict(), "divisor": options.divisor or None}
    status = _library.c.rmsnorm_forward(byref(struct), c_options(**chosen), c_context(threads=1))
    if status:
        _library.raise_error(status)


def sums_of(x: F32Array) -> F64Array:
    """Returns the library's sums of squares of rows, with a dimension for columns."""
    sums = np.empty(x.shape[:-1], np.float64)
    forward({"x": rounded(np.ascontiguousarray(x), F32), "sums_out": Tensor(sums, F64)})
    return sums[..., np.newaxis]


@dataclass
class Call:
    """The operands of a norm as rows of d elements, or one row for all, and the type of y. y is what
    an implementation returned."""

    operands: dict[str, Array]
    y_dtype: int

    def __post_init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._kept = {id(array.values) for array in self.operands.values()}

    def __contains__(self, name: str) -> bool:
        return name in self.operands

    @property
    def x(self) -> Array:
        return self.operands["x"]

    @property
    def y(self) -> Array:
        return self.operands["y"]

    @property
    def d(self) -> int:
        return int(self.x.values.shape[-1])

    def rows(self, index: Any) -> "Call":
        """Returns the call on these rows."""
        rows = len(self.x.values)
        taken = {
            name: array if len(array.values) < rows else Array(array.values[index], array.dtype)
            for name, array in self.operands.items()
        }
        return Call(taken, self.y_dtype)

    def spread(self, count: int) -> "Call":
        """Returns at most `count` rows, from the smallest to the largest sum of squares of x."""
        rows = len(self.x.values)
        if rows <= count:
            return self
        order = np.argsort(sums_of(self.x.values)[:, 0], kind="stable")
        return self.rows(order[np.arange(count) * (rows - 1) // (count - 1)])

    def known(self, key: Any, arrays: Sequence[F32Array], compute: Callable[[], Any]) -> Any:
        """Returns what `compute` gave before for a key and these arrays, or calls it. What follows
        from operands of the call is kept."""
        ids = tuple(map(id, arrays))
        if not self._kept.issuperset(ids):
            return compute()
        if (key, ids) not in self._known:
            self._known[key, ids] = result = compute()
            self._kept.add(id(result))
        return self._known[key, ids]

    def _is_gated(self, options: Options) -> bool:
        """Whether the gate multiplies x."""
        return "gate" in self and options.gate_placement == "before"

    def options_of_sum(self, options: Options) -> Options:
        """Returns the options with the defaults of those that do not change the sum."""
        kept = {"factor"} | (set(_OF_GATES) if self._is_gated(options) else set())
        if "post_norm_weight" in self:
            kept |= set(Options._fields) - {"residual_rounding", "residual_factor", *_OF_GATES}
        return options.usual(*set(Options._fields) - kept)

    def sum(self, options: Options) -> F32Array:
        """Returns the library's sum of the residual and x before anything is done with it."""
        names = [each for each in ("x", "residual", "post_norm_weight") if each in self]
        names += ["gate"] if self._is_gated(options) else []
        taken = {name: self.operands[name] for name in names}
        taken["residual"] = Array(taken["residual"].values, F32)
        tensors = {name: rounded(array.values, array.dtype) for name, array in taken.items()}
        tensors["residual_out"] = total = Tensor.empty(self.x.values.shape, F32)
        forward(tensors, self.options_of_sum(options))
        return total.values()


def scaled_sum(total: F32Array, dtype: int, options: Options) -> F32Array:
    """Returns what is normalised of a sum with a residual of this type."""
    factor = np.float32(options.residual_factor)
    if options.residual_rounding == "unrounded":
        return total * factor
    return to(dtype, to(dtype, total) * factor)


_OF_GATES = ("activation", "gate_placement", "gate_rounding")
_PLACES = WORDS["eps_placement"]


class Trial:
    """A norm for several eps and placements of eps, whose parts a step changes.

    While it is computed, step is the step, n its value, h are the rows that are normalised, mean is
    what is under the root but for eps, w is the weight with its offset or None, and `columns` are
    those of the result.
    """

    step: "Step"
    n: Any
    h: F32Array
    mean: F64Array
    w: Any
    columns: Any

    def __init__(self, call: Call, options: Sequence[Options]) -> None:
        self.call = call
        self.operands = dict(call.operands)
        self.options = options[0]  # eps and its placement are below
        self.eps = np.array([each.eps for each in options], np.float32)[:, np.newaxis, np.newaxis]
        places = [_PLACES.index(each.eps_placement) for each in options]
        self.place = np.array(places)[:, np.newaxis, np.newaxis]

    def set(self, **options: Any) -> "Trial":
        self.options = self.options._replace(**options)
        return self

    def put(self, name: str, dtype: int = 0, f: Callable[[F32Array], Any] | None = None) -> "Trial":
        """Replaces an operand by f of its elements, rounded to a type, or to its own."""
        values, own = self.operands[name]
        dtype = dtype or own
        self.operands[name] = Array(to(dtype, f(values) if f else values), dtype)
        return self

    def take(self, name: str) -> Array:
        """Returns an operand, which is left out."""
        return self.operands.pop(name)

    @property
    def d(self) -> int:
        return self.call.d

    @property
    def root(self) -> F32Array:
        """The RMS, with eps inside the root."""
        root: F32Array = np.sqrt(self.mean + self.eps).astype(np.float32)
        return root

    def activated(self) -> F32Array:
        """Returns the activation of the gate: the library's, or what the step makes of it."""
        gate, activation = self.operands["gate"].values, self.options.activation
        of_step = self.step.activation

        def compute() -> F32Array:
            x = Tensor(np.ones_like(gate).view(np.uint32), F32)
            sums = Tensor(np.ones(gate.shape[:-1]), F64)
            y = Tensor.empty(gate.shape, F32)
            options = Options(eps=0, divisor=1, activation=activation)
            forward({"x": x, "sums": sums, "gate": rounded(gate, F32), "y": y}, options)
            return of_step(self, y.values()) if of_step else y.values()

        key = activation, of_step, of_step and self.n
        found: F32Array = self.call.known(key, (gate,), compute)
        return found

    def input(self) -> Array:
        """Returns the input of the norm, and the type that the norm is rounded to."""
        x, residual, known = self.operands["x"], self.operands.get("residual"), self.call.known
        options = self.options
        if residual is None:
            if "gate" not in self.operands or options.gate_placement == "after":
                return x
            act, dtype = self.activated(), x.dtype if options.gate_rounding == "rounded" else F32
            return Array(known(dtype, (x.values, act), lambda: to(dtype, x.values * act)), x.dtype)
        total, dtype = self.sum(), residual.dtype
        if self.step.sum:
            return Array(self.step.sum(self), dtype)
        key = dtype, options.residual_rounding, options.residual_factor
        h = known(key, (total,), lambda: scaled_sum(total, dtype, options))
        return Array(h, x.dtype if options.residual_rounding == "unrounded" else dtype)

    def sum(self) -> F32Array:
        """Returns the sum of the residual and x."""
        given, options = Call(self.operands, F32), self.options
        if "post_norm_weight" in self.operands:
            return np.stack([given.sum(each) for each in self.each()])
        key = given.options_of_sum(options)
        names = ("x", "residual", "gate") if "gate" in self.operands else ("x", "residual")
        arrays = [self.operands[name].values for name in names]
        total: F32Array = self.call.known(key, arrays, lambda: given.sum(options))
        return total

    def each(self) -> list[Options]:
        """Returns the options of each norm."""
        pairs = zip(self.eps.ravel().tolist(), self.place.ravel(), strict=True)
        return [self.options._replace(eps=e, eps_placement=_PLACES[place]) for e, place in pairs]

    def _leave_out_options(self, step: "Step") -> None:
        """Leaves out options that change nothing: two descriptions of one norm would leave it open
        which of them it is."""
        names = set(self.operands)
        if "residual" not in names:
            self.options = self.options.usual("residual_rounding", "residual_factor")
        if self.options.gate_placement == "before" and self.operands["x"].dtype == F32:
            self.options = self.options.usual("gate_rounding")
        if self.options.rounding == "after_weight" or names & {"weight", "bias"}:
            return
        is_residual = "residual" in names and self.options.residual_rounding == "rounded"
        inner = self.operands["residual" if is_residual else "x"].dtype
        if self.options.rounding == "inverse":
            if inner == self.call.y_dtype and self.options.rotary_rounding == "none":
                self.options = self.options._replace(rotary_rounding="norm")
            if self.options.gate_placement == "after":
                self.options = self.options.usual("gate_rounding")
        elif "gate" in names and self.options.gate_placement == "after":
            self.options = self.options.usual("rounding")._replace(gate_rounding="rounded")
        elif inner == self.call.y_dtype and not step.cast:
            self.options = self.options.usual("rounding")

    def begin(self, step: "Step") -> bool:
        """Takes a step. Returns whether it goes with the operands."""
        self.step, self.n = step, step.n
        return not step.change or bool(step.change(self))

    def result(self, step: "Step", columns: Any = slice(None)) -> F32Array | None:
        """Returns y of columns by the eps, or None where the step does not go with the operands."""
        if not self.begin(step):
            return None
        self._leave_out_options(step)
        options, operands = self.options, self.operands
        if "post_norm_weight" in operands and not step.is_plain:
            return None
        if step.activation and "residual" in operands and options.gate_placement == "before":
            return None  # the library adds them
        if options.weight_offset and not ({"weight", "post_norm_weight"} & set(operands)):
            return None
        self.columns = columns
        self.h, inner = self.input()
        self.h = step.input(self) if step.input else self.h
        if step.turn and step.place == "before the norm":
            self.h = to(inner, step.turn(self, self.h, inner))
        weight = operands.get("weight")
        self.w = weight and (np.float32(options.weight_offset) + weight.values)[..., columns]
        divisor = np.float32(options.divisor or self.d // (self.n if step.is_grouped else 1))
        is_exact = step.under or step.norm or step.product
        of_rows = step.sums or (_squares if is_exact else _usual_sums)
        key = of_rows, step.sums and self.n
        sums = self.call.known(key, (self.h,), lambda: of_rows(self))
        sums = sums if sums.shape[-1] == 1 else sums[..., columns]
        self.mean, self.h = sums / np.float64(divisor), self.h[..., columns]
        m: F32Array
        if step.product:
            m = step.product(self)
        else:
            inner = self.n if step.rounds else inner
            m = step.norm(self) if step.norm else self._scaled(step, sums, divisor, inner)
            if options.rounding != "after_weight" or step.rounds:
                m = to(inner, m)
            if "bias" in operands:
                bias = operands["bias"].values[..., columns].astype(np.float64)
                exact = m if self.w is None else m.astype(np.float64) * self.w
                m = (exact + bias).astype(np.float32)
            elif self.w is not None and step.place != "before the weight":
                m = m * self.w
        if "gate" in operands and options.gate_placement == "after":
            m = to(inner, m) if options.gate_rounding == "rounded" else m
            m = m * self.activated()[..., columns]
        m = step.cast(self, m) if step.cast else m
        if step.turn and step.place != "before the norm":
            m = step.turn(self, m, self.call.y_dtype)
            if step.place == "before the weight" and self.w is not None:
                m = m * self.w
        return to(self.call.y_dtype, m)

    def _scaled(self, step: "Step", sums: F64Array, divisor: np.float32, inner: int) -> F32Array:
        """Returns h / RMS."""
        eps, h = self.eps, self.h
        if step.under:
            sums = step.under(self) * divisor
            eps = eps if _OUTSIDE in step.only else np.zeros_like(eps)
        inside, outside, least = (np.where(self.place == i, eps, np.float32(0)) for i in range(3))
        product = sums.astype(np.float32).astype(np.float64) * float(np.float32(1) / divisor)
        under = (product + inside).astype(np.float32)
        r = np.float32(1) / np.maximum(np.sqrt(under) + outside, least)
        is_inverse = self.options.rounding == "inverse"
        n = h * (to(inner, r) if is_inverse else r)
        is_safe = (under >= 2**-100) & (under <= np.finfo(np.float32).max)
        if is_safe.all():
            return n
        wide = sums / np.float64(divisor) + inside
        r64 = 1 / np.maximum(np.sqrt(wide) + outside, least)
        cold = h * (to(inner, r64.astype(np.float32)) if is_inverse else r64)
        return np.where(is_safe, n, cold.astype(np.float32))


class Distance(NamedTuple):
    """How far numbers are from those of the same type, in units in the last place.

    Zeros of both signs are equal, and so are two NaNs. `bits` is the sum of the lengths of all
    distances as binary numbers: few wrong elements do not hide the others, as in a mean.
    """

    elements: int
    equal: int
    worst: int
    bits: int

    @property
    def share(self) -> float:
        return self.equal / self.elements

    @property
    def mean_bits(self) -> float:
        return self.bits / self.elements

    @property
    def is_exact(self) -> bool:
        return self.equal == self.elements


def order_of(values: F32Array, dtype: int) -> npt.NDArray[np.int32]:
    """Returns numbers in the order of the values. Those of neighbours differ by 1."""
    if dtype == F16:
        short = values.astype(np.float16).view(np.int16).astype(np.int32)
        return np.where(short < 0, -(short & 0x7FFF), short)
    bits = np.ascontiguousarray(values).view(np.int32)
    order = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return order >> 16 if dtype == BF16 else order


_FAR = 2**32 - 1


def lengths(
    values: F32Array, y: Array, order: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns how far elements are from those of y, in units in the last place, and the lengths of
    these as binary numbers. `order` is that of y, which many are compared with."""
    a, b = order_of(values, y.dtype), order
    apart = np.abs(a.astype(np.int64) - b) if y.dtype == F32 else np.abs(a - b)
    is_nan, is_y_nan = np.isnan(values), np.isnan(y.values)
    if is_y_nan.any() or is_nan.any():
        apart = np.where(is_nan | is_y_nan, np.int64(_FAR), apart.astype(np.int64))
        apart[is_nan & is_y_nan] = 0
    return apart, np.maximum((apart.astype(np.float32).view(np.int32) >> 23) - 126, 0)


def distance(values: F32Array, y: Array, order: npt.NDArray[Any] | None = None) -> Distance:
    apart, bits = lengths(values, y, order_of(*y) if order is None else order)
    return Distance(apart.size, int((apart == 0).sum()), int(apart.max()), int(bits.sum()))


# ------------------------------------------------------------------------------------- the tables

OPTION, VARIANT, MISTAKE = range(3)
# Options, whether a step goes with one value of them or with all others, and that value.
_INSIDE = ("eps_placement", True, "inside")
_OUTSIDE = ("eps_placement", True, "outside")
_AT_LEAST = ("eps_placement", True, "floor")
_SOME_EPS = ("eps", False, 0)
_NO_EPS = ("eps", True, 0)
_AFTER = ("rounding", True, "after_weight")
_SINGLE = ("rounding", False, "inverse")
_SILU = ("activation", True, "silu")
_ACTIVATED = ("activation", False, "none")
_GATE_AFTER = ("gate_placement", True, "after")
_OFFSET = ("weight_offset", True, 1)
_SOME_OFFSET = ("weight_offset", False, 0)
_ROUNDED = ("residual_rounding", True, "rounded")
_NO_FACTOR = ("factor", True, 1)
_ONE_SUM = ("residual_factor", True, 1)


@dataclass(frozen=True)
class Step:
    """What an implementation does beside the options.

    kind: OPTION if the library has an option for it or nothing changes, VARIANT if some systems do
        it on purpose, or MISTAKE.
    words: a clause such as "the mean is subtracted from x". n: its number, type, or place.
    only: the values of options that it goes with.
    change: of operands and options; False where it changes nothing.
    rounds: whether the norm is rounded to the type n. is_grouped: whether it is that of n groups.

    Parts of the norm, as functions of a Trial: the sum of the residual and x, rounded; the input h
    of the norm; the sums of squares; what is under the root, eps included; h / RMS; the product of
    this with the weight; the activation of the gate, from the library's; y from its value in f32.

    turn: the rotation of rows, for a result of a type. place: "before the norm" or "before the
    weight" if it is not after both.
    """

    kind: int
    words: str = ""
    n: Any = None
    only: tuple[tuple[str, bool, Any], ...] = ()
    change: Callable[[Trial], Any] | None = None
    rounds: bool = False
    is_grouped: bool = False
    sum: Callable[[Trial], F32Array] | None = None
    input: Callable[[Trial], F32Array] | None = None
    sums: Callable[[Trial], F64Array] | None = None
    under: Callable[[Trial], F64Array] | None = None
    norm: Callable[[Trial], F32Array] | None = None
    product: Callable[[Trial], F32Array] | None = None
    activation: Callable[[Trial, F32Array], F32Array] | None = None
    cast: Callable[[Trial, F32Array], F32Array] | None = None
    turn: Callable[[Trial, F32Array, int], F32Array] | None = None
    place: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether nothing changes but operands, options and the result."""
        parts = (self.sum, self.input, self.sums, self.under, self.norm, self.product)
        return not any((*parts, self.activation))

    def fits(self, options: Options) -> bool:
        return all((getattr(options, name) == value) is wanted for name, wanted, value in self.only)

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that the words state."""
        n = self.n
        return {"value": n.value, "plus": n.plus} if isinstance(n, Stated) else {}

    def with_numbers(self, **numbers: float) -> "Step":
        n = self.n._replace(**numbers)
        return replace(self, n=n, words=str(n))


@dataclass
class Numbers:
    """Numbers of an implementation that steps depend on.

    offsets: of the weight. times, plus: y is multiplied by one of the first, and added to the
    second. factors, residual_factors: of x in the sum, and of the sum; 1 is no step. divisor: of the
    sum of squares, if not 0.
    """

    offsets: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    plus: float = 0.0
    factors: list[float] = field(default_factory=list)
    residual_factors: list[float] = field(default_factory=list)
    divisor: int = 0


class Stated(NamedTuple):
    """Numbers of a step that its words state, and the type of a result or a sum of them."""

    clause: str
    value: float
    plus: float = 0.0
    dtype: int = F32

    def __str__(self) -> str:
        return self.clause.format(decimal(self.value), decimal(self.plus))


def decimal(number: Any) -> str:
    """Returns the shortest decimal that gives an f32 number back."""
    value = np.float32(number)
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=2)


def shortened(value: float, digits: int) -> float:
    """Returns the number in f32 with few decimal digits."""
    return float(np.float32(f"{value:.{digits - 1}e}"))


def held(dtype: int, value: float) -> float:
    """Returns a number rounded to a type."""
    return float(to(dtype, np.array([value], np.float32))[0])


def numbers_near(value: float) -> list[float]:
    """Returns the numbers that a value may stand for, the simple ones first. Few bits are as likely
    as few digits."""
    digits = [shortened(value, count) for count in range(1, 10)]
    return [*digits[:3], held(BF16, value), held(F16, value), *digits[3:]]


def shortest(value: float, dtype: int) -> float:
    """Returns the shortest decimal that a type rounds to a number."""
    tried = (shortened(value, digits) for digits in range(1, 10))
    return next(each for each in tried if held(dtype, each) == value)


# Sums of squares, and parts of norms.


def _of_squares(h: F32Array) -> F64Array:
    wide = h.astype(np.float64)
    sums: F64Array = np.einsum("...i,...i->...", wide, wide)[..., np.newaxis]
    return sums


def _total(values: F32Array) -> F64Array:
    sums: F64Array = values.astype(np.float64).sum(axis=-1, keepdims=True)
    return sums


def _largest(h: F32Array) -> F64Array:
    largest: F64Array = np.abs(h).max(axis=-1, keepdims=True).astype(np.float64)
    return largest


def _centered(h: F32Array) -> F32Array:
    return (h - np.mean(h, axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)


def _squares(t: Trial) -> F64Array:
    return _of_squares(t.h)


def _usual_sums(t: Trial) -> F64Array:
    return sums_of(t.h)


def _of_groups(t: Trial) -> F64Array:
    """Returns the sum of the group of each element."""
    length = t.d // t.n
    sums = sums_of(t.h.reshape(*t.h.shape[:-1], t.n, length))[..., 0]
    return np.repeat(sums, length, axis=-1)


def _in_type(dtype: int, values: F64Array) -> F64Array:
    return to(dtype, values.astype(np.float32)).astype(np.float64)


def _rounded_squares(t: Trial) -> F64Array:
    return _total(to(t.n, t.h * t.h))


def _added_in_type(t: Trial) -> F64Array:
    """Returns the sums of squares whose every partial sum is rounded to a type."""
    sums = np.zeros(t.h.shape[:-1], np.float32)
    for column in np.moveaxis(to(t.n, t.h * t.h), -1, 0):
        sums = to(t.n, sums + column)
    return sums[..., np.newaxis].astype(np.float64)


def _root_in_steps(t: Trial) -> F32Array:
    mean = to(t.n, t.mean.astype(np.float32))
    return to(t.n, np.sqrt(to(t.n, mean + t.eps)))


def _length(t: Trial) -> F32Array:
    return np.maximum(to(t.n, np.sqrt(t.mean * t.d).astype(np.float32)), to(t.n, t.eps))


def _gelu(z: F32Array) -> F32Array:
    values = [0.5 * v * (1 + math.erf(v * math.sqrt(0.5))) for v in z.ravel().tolist()]
    return np.array(values, np.float32).reshape(z.shape)


def _gelu_by_tanh(z: F32Array) -> F32Array:
    inner = np.float32(math.sqrt(2 / math.pi)) * (z + np.float32(0.044715) * (z * z * z))
    y: F32Array = np.float32(0.5) * z * (np.float32(1) + np.tanh(inner))
    return y


_ACTIVATIONS: dict[str, Callable[[F32Array], Any]] = {
    "gelu": _gelu,
    "gelu by tanh": _gelu_by_tanh,
    "gelu by a sigmoid": lambda z: z / (1 + np.exp(-1.702 * z.astype(np.float64))),
    "relu": lambda z: np.maximum(z, np.float32(0)),
    "the square of relu": lambda z: np.maximum(z, np.float32(0)) ** 2,
    "tanh": lambda z: np.tanh(z.astype(np.float64)),
}


def _add_in_type(t: Trial) -> Any:
    """The sum of an offset and the weight is rounded."""
    offset = np.float32(t.n.value)
    return t.set(weight_offset=0.0).put("weight", F32, lambda w: to(t.n.dtype, w + offset))


def _read_as(t: Trial) -> Any:
    """The bits of an operand are those of another type."""
    name, other = t.n
    dtype = t.operands[name].dtype
    return t.put(name, other, lambda v: Tensor(rounded(v, dtype).bits, other).values())


def _weighted(t: Trial) -> F32Array:
    """Returns x times the weight."""
    return t.h * (np.float32(t.options.weight_offset) + t.take("weight").values)


def _weighted_in_type(t: Trial) -> F32Array:
    """Returns x times 1 + weight, both rounded."""
    weight = t.take("weight")
    return to(t.n, t.h * to(weight.dtype, weight.values + np.float32(1)))


def _leave_out(t: Trial) -> bool:
    t.take(t.n)
    return "gate" in t.operands or t.options == t.options.usual(*_OF_GATES)


def _swap(t: Trial) -> bool:
    x, gate = t.operands["x"], t.operands["gate"]
    t.operands |= {"x": gate, "gate": x}
    # Products of them are the same.
    return t.options.gate_placement == "after" or t.options.activation != "none"


def _normalise_twice(t: Trial) -> Any:
    return t.put("x", t.call.y_dtype, lambda x: Trial(t.call, t.each()).result(Step(OPTION)))


def _normalise_sum(t: Trial) -> Any:
    t.operands["x"] = t.take("residual_out")
    return t.take("residual")


def _rounded_sum(t: Trial, x: F32Array) -> F32Array:
    residual = t.operands["residual"]
    return to(residual.dtype, residual.values + x)


def _scaled_sum(t: Trial) -> F32Array:
    return t.sum() * np.float32(t.options.residual_factor)


def _plus_residual(t: Trial, y: F32Array) -> F32Array:
    return to(t.call.x.dtype, y) + t.call.operands["residual"].values[..., t.columns]


# Steps by words, in which {} is the text of n. Steps with one key have the same kind, replace the
# same parts, take their values n from the same list of steps(), and need the same options.
_TABLE: dict[tuple[Any, ...], dict[str, Any]] = {
    (MISTAKE, "change", "divisors"): {
        "the sum of squares is divided by {}": lambda t: t.set(divisor=float(t.n)),
    },
    (VARIANT, "change", "changing x"): {
        "x is rounded to {} first": lambda t: t.put("x", t.n),
    },
    (VARIANT, "change", "changing x in f32"): {
        "x is rounded to {} first, and so is the norm before the weight": lambda t: (
            t.put("x", t.n).set(rounding="before_weight")
        ),
    },
    (VARIANT, "change", "of x in f32"): {
        "the norm is rounded to {}, the type of the numbers in x, before the weight": lambda t: (
            t.put("x", t.n).set(rounding="before_weight")
        ),
    },
    (VARIANT, "change", "changing weight"): {
        "the weight is rounded to {} first": lambda t: t.put("weight", t.n),
    },
    (VARIANT, "change", "offsets", _SOME_OFFSET): {"{}": _add_in_type},
    (VARIANT, "rounds", "of weight", _AFTER): {"the norm is rounded to {} before the weight": True},
    (MISTAKE, "cast", "of y"): {
        "the result is cut off to {} instead of rounded": lambda t, y: cut_off(t.n, y),
        "the result is rounded to {} with ties away from zero": lambda t, y: (
            with_ties_away(t.n, y)
        ),
    },
    (MISTAKE, "cast", "multiples"): {
        "{}": lambda t, y: to(t.n.dtype, y) * np.float32(t.n.value) + np.float32(t.n.plus),
    },
    (MISTAKE, "cast", "limits"): {"{}": lambda t, y: np.clip(y, -t.n.value, t.n.value)},
    (VARIANT, "sum", "factors", _NO_FACTOR, _ROUNDED): {
        "{}": lambda t: _rounded_sum(t, t.operands["x"].values * np.float32(t.n.value)),
    },
    (VARIANT, "sum", "residual factors", _ONE_SUM, _ROUNDED): {
        "the sum multiplied by {} before it is rounded": lambda t: to(
            t.operands["residual"].dtype, t.sum() * np.float32(t.n)
        ),
    },
    (VARIANT, "sum", "other sums", _ROUNDED): {
        "the sum is rounded to {} first": lambda t: (
            to(t.operands["residual"].dtype, to(t.n, _scaled_sum(t)))
        ),
    },
    (MISTAKE, "sum", "narrow sums", _ROUNDED): {
        "the sum is cut off to {} instead of rounded": lambda t: cut_off(t.n, _scaled_sum(t)),
        "the sum is rounded to {} with ties away from zero": lambda t: (
            with_ties_away(t.n, _scaled_sum(t))
        ),
    },
    (VARIANT, "norm", "plain", _SINGLE, _INSIDE): {
        "x is divided by the RMS, which is rounded to {}": lambda t: t.h / to(t.n, t.root),
        "1 / RMS is rounded to {}": lambda t: t.h * to(t.n, 1 / t.root),
    },
    (VARIANT, "norm", "plain", _AT_LEAST, _AFTER): {
        "x is divided by its length, at least eps, and multiplied by the root of d, all rounded "
        "to {}": lambda t: to(t.n, to(t.n, t.h / _length(t)) * np.float32(math.sqrt(t.d))),
    },
    (VARIANT, "product", "weighted", _AFTER, _INSIDE): {
        "the weight times 1 / RMS is rounded to {}": lambda t: t.h * to(t.n, t.w * (1 / t.root)),
    },
    (VARIANT, ("norm", "sums"), "plain", _AFTER, _INSIDE): {
        "every operation rounds to {}, and x is divided by the RMS": (
            lambda t: to(t.n, t.h / _root_in_steps(t)),
            _rounded_squares,
        ),
        "every operation rounds to {}": (
            lambda t: to(t.n, t.h * to(t.n, 1 / _root_in_steps(t))),
            _rounded_squares,
        ),
    },
    (MISTAKE, "change", "operands"): {"{} is not used": _leave_out},
    (MISTAKE, "change", "weight"): {
        "the weight is multiplied twice": lambda t: t.put("weight", F32, lambda w: w * w),
        "the magnitudes of the weight are used": lambda t: (
            (t.operands["weight"].values < 0).any() and t.put("weight", F32, np.abs)
        ),
    },
    (MISTAKE, "input", "weight"): {"x is multiplied by the weight before the norm": _weighted},
    (MISTAKE, "input", "weight and x"): {
        "x is multiplied by the weight before the norm, and rounded": lambda t: (
            to(t.n, _weighted(t))
        ),
    },
    (VARIANT, ("change", "input"), "weight and x", _OFFSET): {
        "x is multiplied by 1 + weight before the norm, both rounded": (
            lambda t: t.set(weight_offset=0.0),
            _weighted_in_type,
        ),
    },
    (MISTAKE, "change", "places"): {"{}": lambda t: t.put("weight", f=lambda w: w[:, t.n])},
    (MISTAKE, "change", "bits"): {"the bits of {}": _read_as},
    (MISTAKE, "change", "x alone"): {"the norm is applied twice": _normalise_twice},
    (MISTAKE, "activation", "activations", _SILU): {
        "{} replaces the activation of the gate": lambda t, _: (
            t.n(t.operands["gate"].values).astype(np.float32)
        ),
    },
    (VARIANT, "activation", "types of gates", _ACTIVATED): {
        "the activation of the gate is rounded to {}": lambda t, activated: to(t.n, activated),
    },
    (MISTAKE, "change", "gate alone"): {"x and the gate are swapped": _swap},
    (VARIANT, "sums", "narrow sum", _ROUNDED): {
        "the sum is scaled by the RMS that it had before it was rounded": lambda t: (
            _of_squares(t.sum())
        ),
    },
    (MISTAKE, "change", "wrong sum", _ROUNDED, _NO_FACTOR): {
        "y is the norm of residual_out": _normalise_sum,
    },
    (MISTAKE, "sums", "sum"): {
        "the RMS is that of x without the residual": lambda t: _of_squares(t.operands["x"].values),
    },
    (MISTAKE, "change", "residual", _NO_FACTOR, _GATE_AFTER): {
        "x is not used": lambda t: t.operands.update(x=t.take("residual")) or True,
    },
    (MISTAKE, ("change", "cast"), "residual", _NO_FACTOR): {
        "the residual is added to the norm": (lambda t: t.take("residual"), _plus_residual),
    },
    (MISTAKE, "sums", "parts"): {
        "{} left out of the sum of squares": lambda t: _of_squares(t.h[..., t.n[0] : t.n[1]]),
    },
    (MISTAKE, "sums", "ends"): {
        "the elements from {} on are left out of the mean of the squares": lambda t: (
            _of_squares(t.h[..., : t.n]) / t.n * t.d
        ),
    },
    (MISTAKE, "sums", "types"): {
        "the squares are rounded to {}": _rounded_squares,
        "the squares are added in {}": _added_in_type,
        "the sum of squares is rounded to {}": lambda t: _in_type(t.n, _squares(t)),
    },
    (MISTAKE, "sums", "types of means"): {
        "the mean of the squares is rounded to {}": lambda t: (
            _in_type(t.n, _squares(t) / t.d) * t.d
        ),
    },
    (MISTAKE, "sums", "all"): {
        "the variance replaces the mean of the squares": lambda t: _of_squares(_centered(t.h)),
        "the mean of the magnitudes replaces the RMS": lambda t: _total(np.abs(t.h)) ** 2 / t.d,
        "the largest magnitude replaces the RMS": lambda t: _largest(t.h) ** 2 * t.d,
    },
    (MISTAKE, "sums", "unbiased"): {
        "the variance, divided by d - 1, replaces the mean of the squares": lambda t: (
            _of_squares(_centered(t.h)) * t.n
        ),
    },
    (MISTAKE, ("sums", "input"), "all", _AFTER): {
        "the mean is subtracted from x: a LayerNorm": (_squares, lambda t: _centered(t.h)),
        "the mean is subtracted from x, but not in the RMS": (
            lambda t: _of_squares(t.input().values),
            lambda t: _centered(t.h),
        ),
    },
    (MISTAKE, ("sums", "input"), "unbiased", _AFTER): {
        "the mean is subtracted from x: a LayerNorm whose variance is divided by d - 1": (
            lambda t: _squares(t) * t.n,
            lambda t: _centered(t.h),
        ),
    },
    (MISTAKE, "input", "all", _SOME_EPS): {
        "x is divided by its largest magnitude first, and eps is not scaled": lambda t: (
            (t.h / np.maximum(_largest(t.h), 1e-37)).astype(np.float32)
        ),
    },
    (MISTAKE, "norm", "all", _NO_EPS, _AFTER): {"x is not normalised": lambda t: t.h[np.newaxis]},
    (MISTAKE, ("change", "norm"), "weight", _NO_EPS, _AFTER): {
        "x is not normalised, and the weight is not used": (
            lambda t: t.take("weight"),
            lambda t: t.h[np.newaxis],
        ),
    },
    (MISTAKE, "under", "all", _INSIDE): {
        "the root is left out": lambda t: (t.mean + t.eps) ** 2,
        "x is multiplied by the RMS": lambda t: 1 / (t.mean + t.eps),
    },
    (MISTAKE, "under", "all", _INSIDE, _SOME_EPS): {
        "eps is added to 1 / RMS instead": lambda t: (1 / np.sqrt(t.mean) + t.eps) ** -2,
    },
    (MISTAKE, "under", "all", _OUTSIDE): {
        "eps is added both inside and outside the root": lambda t: t.mean + t.eps,
    },
    (MISTAKE, "sums", "mean of all"): {
        "one RMS is used for all rows": lambda t: np.full((1, 1), t.n),
    },
    (VARIANT, ("sums", "is_grouped"), "groups"): {
        "each row is normalised in {}": (_of_groups, True),
    },
    (VARIANT, ("change", "sums", "is_grouped"), "weighted groups"): {
        "each row is normalised in {}, which all have the first weights": (
            lambda t: t.put("weight", f=lambda w: np.tile(w[:, : t.d // t.n], t.n)),
            _of_groups,
            True,
        ),
    },
}


def _by_words(values: Iterable[Any]) -> dict[str, Any]:
    return {str(value): value for value in values}


def _name(operand: str) -> str:
    return operand if operand == "x" else f"the {operand}"


def _unlike(named: Mapping[str, Any], *known: Any) -> dict[str, Any]:
    """Leaves out the names of values that are known or have a name already: two descriptions of one
    norm would leave it open which of them it is."""
    seen, found = set(known), {}
    for words, value in named.items():
        key = value.tobytes() if isinstance(value, np.ndarray) else value
        if key not in seen:
            seen.add(key)
            found[words] = value
    return found


def _multiples(dtype: int, numbers: Numbers) -> list[Stated]:
    """Returns what y may be multiplied by and added to, before it is rounded and after it."""
    found, plus = [], numbers.plus
    for times in numbers.times:
        # A power of two changes no rounding, except of small and large numbers of f16.
        is_exact = plus == 0 and abs(math.frexp(times)[0]) == 0.5 and dtype != F16
        for first in (F32,) if is_exact else sorted({F32, dtype}):
            result = "the result" if first == F32 else "the rounded result"
            words = result + " is multiplied by {0}"
            if times == 1:
                words = "{1} is added to " + result
            elif plus:
                words += ", and {1} is added to the product"
            # A factor that the rounding undoes has no effect.
            if plus or abs(times - 1) > {F32: 0, F16: 2**-12, BF16: 2**-9}[first]:
                found.append(Stated(words, times, plus, first))
    return found


def _limits(y: Array) -> list[Stated]:
    """Returns the largest magnitude of elements that are often as large."""
    size = np.abs(y.values)
    largest = size.max()
    is_often = 0.01 < np.mean(size == largest) < 0.9 and np.isfinite(largest)
    return [Stated("the result is limited to {}", float(largest))] if is_often else []


def _usual_groups(d: int) -> list[int]:
    """Returns the numbers of groups of a row that models have, such as the heads of q and k."""
    numbers = (groups for groups in range(2, d // 16 + 1) if d % groups == 0)
    return [n for n in numbers if n <= 8 or d // n % 32 == 0 or d // n % 80 == 0]


def _places(weight: F32Array) -> dict[str, Any]:
    """Returns the places of the weights that elements may have, if they differ."""
    d = weight.shape[-1]
    j = np.arange(d)
    places = {
        "the weight is read from its end": d - 1 - j,
        "each element has the weight of the next one": (j + 1) % d,
        "each element has the weight of the one before": (j + d - 1) % d,
        "each element has the first weight": 0 * j,
    }
    for n in _usual_groups(d):
        length = d // n
        shape = f"{n} x {length} elements"
        places |= {
            f"the weight is that of rows of {shape}, transposed": j % n * length + j // n,
            f"the weight is transposed from rows of {shape}": j % length * n + j // length,
            f"the first {length} elements of the weight are repeated": j % length,
        }
    return _unlike({k: p for k, p in places.items() if not np.array_equal(weight[:, p], weight)})


def steps(call: Call, numbers: Numbers) -> list[Step]:
    """Returns the table for a call: the steps that can change its results, simple ones first."""
    d, x, operands, dtype = call.d, call.x, call.operands, call.y_dtype
    weight, residual, total = (operands.get(n) for n in ("weight", "residual", "residual_out"))
    names, once = set(operands), {"": None}
    types = {NAMES[n]: n for n in NARROW}
    in_x = {name: n for name, n in types.items() if x.holds(n)}
    other = {name: n for name, n in types.items() if name not in in_x}
    is_wide = x.dtype == F32 and residual is None
    divisors = {"d - 1": d - 1, "d + 1": d + 1, "the next power of two": 1 << (d - 1).bit_length()}
    divisors |= {f"d rounded up to a multiple of {n}": -(-d // n) * n for n in (8, 16, 32, 64, 128)}
    divisors |= {str(numbers.divisor): numbers.divisor}
    numbers_of_ends = {d // n * n for n in (4, 8, 16, 32, 64, 128)} | {
        d // n for n in (2, 4, 8, 16)
    }
    ends = {str(end): end for end in sorted(numbers_of_ends - {0, d})}
    summed = {"the last element is": (0, d - 1), "the first element is": (1, d)} if d > 1 else {}
    summed |= {f"the elements from {end} on are": (0, end) for end in ends.values()}
    optional = ("residual", "gate", "weight", "bias", "post_norm_weight")
    bits = {name: operands[name].dtype for name in ("x", "weight") if name in call}
    swapped = {BF16: F16, F16: BF16}
    is_plain = not names & {"bias", "gate"}
    values: dict[str, Mapping[str, Any]] = {
        "all": once,
        "types": types,
        # In bf16, the mean of a power of two of squares is rounded as their sum.
        "types of means": types if d & (d - 1) else {"f16": F16},
        "divisors": _unlike(divisors, 0, 1, d),
        "changing x": other,
        "of y": {NAMES[n]: n for n in {dtype} - {F32}},
        "multiples": _by_words(_multiples(dtype, numbers)),
        "limits": _by_words(_limits(call.y)),
        "operands": {_name(each): each for each in optional if each in names},
        "bits": {
            f"{_name(each)} are read as {NAMES[swapped[n]]}": (each, swapped[n])
            for each, n in bits.items()
            if n != F32
        },
        "parts": _unlike(summed),
        "ends": ends,
        "unbiased": {"": d / (d - 1)} if d > 2 else {},
        "groups": {f"{n} groups of {d // n} elements": n for n in _usual_groups(d)},
    }
    if is_plain:
        values |= {"plain": types}
    if "gate" in names:
        values |= {"activations": _ACTIVATIONS, "types of gates": types}
    if is_wide:
        values |= {"changing x in f32": other, "of x in f32": in_x}
    if weight is not None:
        in_weight = {name: n for name, n in types.items() if weight.holds(n)}
        known = in_x if is_wide else {NAMES[x.dtype]: x.dtype}
        values |= {
            "weight": once,
            "weight and x": {NAMES[n]: n for n in {x.dtype} - {F32}},
            "places": _places(weight.values),
            "weighted groups": values["groups"],
            "changing weight": {name: n for name, n in types.items() if name not in in_weight},
            "offsets": _by_words(
                Stated(f"{{}} + weight is rounded to {name}", offset, dtype=n)
                for name, n in in_weight.items()
                for offset in filter(None, numbers.offsets)
            ),
        }
        if is_plain:
            values |= {
                "weighted": types,
                "of weight": {name: n for name, n in in_weight.items() if name not in known},
            }
    if residual is None:
        values |= {"mean of all": {"": float(np.mean(_of_squares(x.values)))}}
        values |= {"gate alone" if "gate" in names else "x alone": once}
    else:
        other_sums = {name: n for name, n in types.items() if n != residual.dtype}
        values |= {"residual": once, "other sums": other_sums}
        if residual.dtype != F32:
            values |= {"narrow sums": {NAMES[residual.dtype]: residual.dtype}}
            # Which residual_out shows, but not y.
            factors = (n for n in numbers.residual_factors if n != 1)
            values |= {"residual factors": {decimal(n): n for n in factors}}
            if "gate" not in names:
                product = "the product of {} and x added to the residual unrounded"
                products = (Stated(product, factor) for factor in numbers.factors if factor != 1)
                values |= {"factors": _by_words(products)}
        if "post_norm_weight" not in names:
            values |= {"sum": once, "narrow sum": {} if residual.dtype == F32 else once}
            is_wrong = total and (total.values != to(residual.dtype, call.sum(Options()))).any()
            values |= {"wrong sum": once if is_wrong else {}}
    table = [Step(OPTION), Step(OPTION, change=lambda t: t.set(divisor=1.0))]
    for (kind, part, name, *only), rows in _TABLE.items():
        for text, n in values.get(name, {}).items():
            for words, f in rows.items():
                parts = dict(zip(part, f, strict=True)) if isinstance(part, tuple) else {part: f}
                table.append(Step(kind, words.format(text), n, tuple(only), **parts))
    return table
