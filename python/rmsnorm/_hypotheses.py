# SPDX-License-Identifier: Apache-2.0
"""Norms that an implementation may compute: options of the library, and a step beside them.

A step is a row of the table in steps(): what it does in words, and functions that replace a part of
the norm of Trial. The rest is the library's, or its formulas in NumPy (doc/definition.md), which
have the same bits for many eps at once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, byref, sizeof
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _library
from ._calls import c_context, c_options
from ._library import BF16, F16, F32, F64
from ._tensors import Tensor, rounded

__all__ = ["NAMES", "Array", "Call", "Distance", "Numbers", "Options", "Step", "Trial"]
__all__ += ["cut_off", "distance", "forward", "lengths", "sums_of", "steps", "to", "with_ties_away"]

# NumPy's types call a product of f32 arrays one of any float.
F32Array = npt.NDArray[Any]
F64Array = npt.NDArray[Any]

NAMES = {F32: "f32", F16: "f16", BF16: "bf16"}


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

    def given(self) -> dict[str, Any]:
        """Returns eps, and the options that differ from their defaults."""
        usual = Options._field_defaults
        return {
            name: value
            for name, value in self._asdict().items()
            if name == "eps" or value != usual[name]
        }


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


def cut_off(dtype: int, values: F32Array) -> F32Array:
    """Rounds numbers to f16 or bf16 towards zero."""
    bits = values.view(np.uint32)
    if dtype == BF16:
        return (bits & 0xFFFF0000).view(np.float32)
    small = np.trunc(values * np.float32(2**24)) * np.float32(2**-24)
    return np.where(np.abs(values) < 2**-14, small, (bits & 0xFFFFE000).view(np.float32))


def with_ties_away(dtype: int, values: F32Array) -> F32Array:
    """Rounds numbers to f16 or bf16, with ties away from zero."""
    bits = values.view(np.uint32)
    if dtype == BF16:
        return cut_off(dtype, (bits + 0x8000).view(np.float32))
    scaled = values * np.float32(2**24)
    small = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)) * np.float32(2**-24)
    large = cut_off(dtype, (bits + 0x1000).view(np.float32))
    return np.where(np.abs(values) < 2**-14, small, large)


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


def library_result(
    name: str, operands: Mapping[str, Array], dtype: int, options: Options
) -> F32Array:
    """Returns an output of the library that has the shape of x."""
    tensors = {each: rounded(array.values, array.dtype) for each, array in operands.items()}
    output = Tensor.empty(operands["x"].values.shape, dtype)
    forward({**tensors, name: output}, options)
    return output.values()


def sums_of(x: F32Array) -> F64Array:
    """Returns the library's sums of squares of rows, with a dimension for columns."""
    sums = np.empty(x.shape[:-1], np.float64)
    forward(
        {"x": Tensor(np.ascontiguousarray(x).view(np.uint32), F32), "sums_out": Tensor(sums, F64)}
    )
    return sums[..., np.newaxis]


@dataclass
class Call:
    """The operands of a norm as rows of d elements, or one row for all, and the type of y."""

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
    def d(self) -> int:
        return int(self.x.values.shape[-1])

    def rows(self, index: Any) -> "Call":
        """Returns the call on these rows."""
        taken = {
            name: array if len(array.values) == 1 else Array(array.values[index], array.dtype)
            for name, array in self.operands.items()
        }
        return Call(taken, self.y_dtype)

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

    def sum(self, options: Options) -> F32Array:
        """Returns the library's sum of the residual and x before it is rounded."""
        post_norm = "post_norm_weight" in self
        names = ("x", "residual", "post_norm_weight") if post_norm else ("x", "residual")
        taken = {name: self.operands[name] for name in names}
        taken["residual"] = Array(taken["residual"].values, F32)
        usual = Options(factor=options.factor)
        if post_norm:
            usual = options._replace(
                residual_rounding="rounded",
                activation="silu",
                gate_placement="after",
                gate_rounding="unrounded",
            )
        return library_result("residual_out", taken, F32, usual)

    def residual_out(self, options: Options) -> F32Array:
        return to(self.operands["residual"].dtype, self.sum(options))


_PLACES = {"inside": 0, "outside": 1, "floor": 2}


class Trial:
    """A norm for several eps and placements of eps, whose parts a step changes."""

    def __init__(self, call: Call, options: Sequence[Options]) -> None:
        self.call = call
        self.operands = dict(call.operands)
        self.options = options[0]  # eps and its placement are below
        self.eps = np.array([each.eps for each in options], np.float32)[:, np.newaxis, np.newaxis]
        places = [_PLACES[each.eps_placement] for each in options]
        self.place = np.array(places)[:, np.newaxis, np.newaxis]
        self.inner: int | None = None  # the type that n is rounded to, if options do not say it

    def set(self, **options: Any) -> None:
        self.options = self.options._replace(**options)

    def put(self, name: str, values: F32Array, dtype: int) -> None:
        self.operands[name] = Array(values, dtype)

    def weights(self) -> F32Array | None:
        """Returns offset + weight."""
        weight = self.operands.get("weight")
        return None if weight is None else np.float32(self.options.weight_offset) + weight.values

    def activated(self) -> F32Array:
        """Returns the library's activation of the gate."""
        gate = self.operands["gate"]
        activation = self.options.activation

        def compute() -> F32Array:
            ones = np.ones_like(gate.values)
            operands = {
                "x": Tensor(ones.view(np.uint32), F32),
                "sums": Tensor(np.ones(ones.shape[:-1]), F64),
                "gate": rounded(gate.values, gate.dtype),
                "y": Tensor(np.empty(ones.shape, np.uint32), F32),
            }
            forward(operands, Options(eps=0, divisor=1, activation=activation))
            return operands["y"].values()

        found: F32Array = self.call.known(activation, (gate.values,), compute)
        return found

    def input(self) -> Array:
        """Returns the input of the norm, and the type that n is rounded to."""
        x, residual, options = self.operands["x"], self.operands.get("residual"), self.options
        if "gate" in self.operands and options.gate_placement == "before":
            act = self.activated()
            return Array(self.call.known("gated", (x.values, act), lambda: x.values * act), x.dtype)
        if residual is None:
            return x
        total, dtype = self.sum(), residual.dtype
        if options.residual_rounding == "unrounded":
            return Array(total, x.dtype)
        return Array(self.call.known(dtype, (total,), lambda: to(dtype, total)), dtype)

    def sum(self) -> F32Array:
        """Returns the sum of the residual and x."""
        given, options = Call(self.operands, F32), self.options
        if "post_norm_weight" in self.operands:
            return np.stack([given.sum(each) for each in self.each()])
        arrays = self.operands["x"].values, self.operands["residual"].values
        total: F32Array = self.call.known(options.factor, arrays, lambda: given.sum(options))
        return total

    def each(self) -> list[Options]:
        """Returns the options of each norm."""
        words = list(_PLACES)
        return [
            self.options._replace(eps=float(eps), eps_placement=words[place])
            for eps, place in zip(self.eps.ravel(), self.place.ravel(), strict=True)
        ]

    def result(
        self, step: "Step", columns: Any = None, by_library: bool = False
    ) -> F32Array | None:
        """Returns y of columns by the eps, or None where the step does not fit the options. With
        `by_library`, it is the library's own if that computes the norm."""
        if not step.applies(self.options) or (step.change and step.change(self) is False):
            return None
        options = self.options
        if "post_norm_weight" in self.operands and not (step.is_plain or step.cast):
            return None
        if options.weight_offset and not ({"weight", "post_norm_weight"} & set(self.operands)):
            return None
        is_whole = columns is None and self.operands["x"].values.ndim == 2
        if by_library and is_whole and step.is_plain and not self.inner:
            known = {name: a for name, a in self.operands.items() if name != "residual_out"}
            results = [library_result("y", known, self.call.y_dtype, each) for each in self.each()]
            return np.stack(results)
        columns = slice(None) if columns is None else columns
        h, inner = self.input()
        if step.input:
            h, inner = step.input(self, h), step.inner
        weight = self.weights()
        d = h.shape[-1]
        divisor = np.float32(options.divisor or d // step.groups)
        if step.sums:
            of_step = step.sums
            sums = self.call.known(step.words, (h,), lambda: of_step(self, h))
        elif step.under or step.norm or step.product:
            sums = self.call.known("squares", (h,), lambda: _squares(h))
        else:
            sums = self.call.known("sums", (h,), lambda: sums_of(h))
        sums = sums if sums.shape[-1] == 1 else sums[..., columns]
        eps = self.eps
        if step.under:
            sums = step.under(sums / np.float64(divisor), eps.astype(np.float64), divisor) * divisor
            eps = eps if step.where == "outside" else np.zeros_like(eps)
        h = h[..., columns]
        weight = None if weight is None else weight[..., columns]
        inner = self.inner or inner
        m: F32Array
        if step.product:
            m = step.product(h, weight, sums / np.float64(divisor), eps)
        else:
            if step.norm:
                n = step.norm(h, sums / np.float64(divisor), eps)
            else:
                n = self._scaled(h, sums, divisor, eps, inner)
            if options.rounding != "after_weight" or self.inner:
                n = to(inner, n)
            m = n if weight is None else n * weight
            if "bias" in self.operands:
                bias = self.operands["bias"].values[..., columns].astype(np.float64)
                exact = n if weight is None else n.astype(np.float64) * weight
                m = (exact + bias).astype(np.float32)
        if "gate" in self.operands and options.gate_placement == "after":
            if options.gate_rounding == "rounded":
                m = to(inner, m)
            gate = self.operands["gate"].values
            m = m * (step.activation(gate) if step.activation else self.activated())[..., columns]
        return to(self.call.y_dtype, step.cast(self, m, columns) if step.cast else m)

    def _scaled(
        self, h: F32Array, sums: F64Array, divisor: np.float32, eps: F32Array, inner: int
    ) -> F32Array:
        """Returns h / RMS."""
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


def _order(values: F32Array, dtype: int) -> npt.NDArray[np.int32]:
    """Returns numbers in the order of the values. Those of neighbours differ by 1."""
    if dtype == F16:
        short = values.astype(np.float16).view(np.int16).astype(np.int32)
        return np.where(short < 0, -(short & 0x7FFF), short)
    bits = np.ascontiguousarray(values).view(np.int32)
    order = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return order >> 16 if dtype == BF16 else order


_FAR = 2**32 - 1


def lengths(values: F32Array, y: Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns how far elements are from those of y, in units in the last place, and the lengths of
    these as binary numbers."""
    a, b = _order(values, y.dtype), _order(y.values, y.dtype)
    apart = np.abs(a.astype(np.int64) - b) if y.dtype == F32 else np.abs(a - b)
    is_nan, is_y_nan = np.isnan(values), np.isnan(y.values)
    if is_y_nan.any() or is_nan.any():
        apart = np.where(is_nan | is_y_nan, np.int64(_FAR), apart.astype(np.int64))
        apart[is_nan & is_y_nan] = 0
    return apart, np.maximum((apart.astype(np.float32).view(np.int32) >> 23) - 126, 0)


def distance(values: F32Array, y: Array) -> Distance:
    apart, bits = lengths(values, y)
    return Distance(apart.size, int((apart == 0).sum()), int(apart.max()), int(bits.sum()))


# --------------------------------------------------------------------------------------- the table


def _always(options: Options) -> bool:
    return True


OPTION, VARIANT, MISTAKE = range(3)


@dataclass(frozen=True)
class Step:
    """What an implementation does beside the options.

    kind: OPTION if the library has an option for it or nothing changes, VARIANT if some systems do
        it on purpose, or MISTAKE.
    words: a clause such as "the mean is subtracted from x".
    applies: whether it goes with options. change: of operands and options; False where it changes
        nothing. where: the only placement of eps.

    Parts of the norm: its input, of the type `inner`; the sums of squares; the mean under the root,
    eps included; n from h and the mean; the product with the weight; the activation; y from its
    value in f32.
    """

    kind: int
    words: str = ""
    applies: Callable[[Options], bool] = _always
    change: Callable[[Trial], bool | None] | None = None
    where: str = ""
    input: Callable[[Trial, F32Array], F32Array] | None = None
    inner: int = F32
    sums: Callable[[Trial, F32Array], F64Array] | None = None
    groups: int = 1
    under: Callable[[F64Array, F64Array, np.float32], F64Array] | None = None
    norm: Callable[[F32Array, F64Array, F32Array], F32Array] | None = None
    product: Callable[[F32Array, Any, F64Array, F32Array], F32Array] | None = None
    activation: Callable[[F32Array], F32Array] | None = None
    cast: Callable[[Trial, F32Array, Any], F32Array] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a call of the library computes it: nothing changes but operands and options."""
        parts = (self.input, self.sums, self.under, self.norm, self.product, self.activation)
        return self.cast is None and not any(parts)


@dataclass
class Numbers:
    """Numbers of an implementation that steps depend on.

    offsets: of the weight. times, plus: y is multiplied by one of the first, and added to the
    second. divisor: of the sum of squares, if not 0.
    """

    offsets: list[float]
    times: list[float]
    plus: float = 0.0
    divisor: int = 0


def usual_groups(d: int) -> list[int]:
    """Returns the numbers of groups of a row that models have, such as the heads of q and k."""
    lengths = {groups: d // groups for groups in range(2, d // 16 + 1) if d % groups == 0}
    return [
        groups
        for groups, length in lengths.items()
        if groups <= 8 or length % 32 == 0 or length % 80 == 0
    ]


def decimal(number: Any) -> str:
    """Returns the shortest decimal that gives an f32 number back."""
    value = np.float32(number)
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=2)


def _squares(h: F32Array) -> F64Array:
    wide = h.astype(np.float64)
    sums: F64Array = np.einsum("...i,...i->...", wide, wide)[..., np.newaxis]
    return sums


def _total(values: F32Array) -> F64Array:
    sums: F64Array = values.astype(np.float64).sum(axis=-1, keepdims=True)
    return sums


def _largest(h: F32Array) -> F64Array:
    largest: F64Array = np.abs(h).max(axis=-1, keepdims=True).astype(np.float64)
    return largest


def _root(mean: F64Array, eps: F32Array) -> F32Array:
    root: F32Array = np.sqrt(mean + eps.astype(np.float64)).astype(np.float32)
    return root


def _narrow_sum(dtype: int, h: F32Array) -> F64Array:
    """Returns the sums of squares whose every partial sum is rounded to a type."""
    squares = to(dtype, h * h)
    sums = np.zeros(h.shape[:-1], np.float32)
    for column in np.moveaxis(squares, -1, 0):
        sums = to(dtype, sums + column)
    return sums[..., np.newaxis].astype(np.float64)


def _centered(h: F32Array) -> F32Array:
    return (h - np.mean(h, axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)


def _in_steps(dtype: int, divides: bool, h: F32Array, mean: F64Array, eps: F32Array) -> F32Array:
    """Returns n where each operation rounds to a type."""
    root = np.sqrt(to(dtype, to(dtype, mean.astype(np.float32)) + eps))
    return to(dtype, h / to(dtype, root) if divides else h * to(dtype, np.float32(1) / root))


def _gelu(z: F32Array) -> F32Array:
    values = [0.5 * v * (1 + math.erf(v * math.sqrt(0.5))) for v in z.ravel().tolist()]
    return np.array(values, np.float32).reshape(z.shape)


def _name(operand: str) -> str:
    return operand if operand == "x" else f"the {operand}"


def steps(call: Call, numbers: Numbers) -> list[Step]:
    """Returns the table for a call: the steps that can change its results, simple ones first."""
    d, x, y_dtype = call.d, call.x, call.y_dtype
    weight, has_gate, has_residual = call.operands.get("weight"), "gate" in call, "residual" in call
    table = [Step(OPTION)]

    def variant(words: str, **parts: Any) -> None:
        table.append(Step(VARIANT, words, **parts))

    def mistake(words: str, **parts: Any) -> None:
        table.append(Step(MISTAKE, words, **parts))

    def setting(**options: Any) -> Callable[[Trial], None]:
        return lambda trial: trial.set(**options)

    def with_values(
        name: str, dtype: int, f: Callable[[F32Array], F32Array], **options: Any
    ) -> Callable[[Trial], None]:
        """An operand is f of its elements, rounded to a type."""

        def change(trial: Trial) -> None:
            trial.set(**options)
            trial.put(name, to(dtype, f(trial.operands[name].values)), dtype)

        return change

    def after_weight(options: Options) -> bool:
        return options.rounding == "after_weight"

    def is_single(options: Options) -> bool:
        return options.rounding != "inverse"

    def same(values: F32Array) -> F32Array:
        return values

    def rounded_sum(dtype: int, a: np.float32, b: F32Array) -> F32Array:
        return to(dtype, a + b)

    # Divisors.
    table.append(Step(OPTION, change=setting(divisor=1.0)))
    known = {0, 1, d}
    power = 1 << (d - 1).bit_length()
    multiples = (
        (f"d rounded up to a multiple of {n}", -(-d // n) * n) for n in (8, 16, 32, 64, 128)
    )
    for words, number in (
        ("d - 1", d - 1),
        ("d + 1", d + 1),
        ("the next power of two", power),
        *multiples,
        (str(numbers.divisor), numbers.divisor),
    ):
        if number not in known:
            known.add(number)
            mistake(
                f"the sum of squares is divided by {words}", change=setting(divisor=float(number))
            )

    # Roundings of operands and of n.
    for narrow in (BF16, F16):
        name = NAMES[narrow]
        for operand in ("x", "weight"):
            if operand not in call or call.operands[operand].holds(narrow):
                continue
            words = f"{_name(operand)} is rounded to {name} first"
            variant(words, change=with_values(operand, narrow, same))
            if operand == "x" and x.dtype == F32 and not has_residual:
                variant(
                    f"{words}, and so is the norm before the weight",
                    change=with_values("x", narrow, same, rounding="before_weight"),
                )
        if x.dtype == F32 and x.holds(narrow) and not has_residual:
            variant(
                f"the norm is rounded to {name}, the type of the numbers in x, before the weight",
                change=with_values("x", narrow, same, rounding="before_weight"),
            )
        in_weight = weight is not None and weight.holds(narrow)
        for offset in numbers.offsets if in_weight else ():
            if offset:
                added = np.float32(offset)
                variant(
                    f"{decimal(offset)} + weight is rounded to {name}",
                    applies=lambda o, offset=offset: o.weight_offset == offset,
                    change=with_values(
                        "weight", F32, partial(rounded_sum, narrow, added), weight_offset=0.0
                    ),
                )
        if in_weight and "bias" not in call and not has_gate and x.dtype != narrow:

            def round_n(trial: Trial, narrow: int = narrow) -> None:
                trial.inner = narrow

            variant(
                f"the norm is rounded to {name} before the weight",
                applies=after_weight,
                change=round_n,
            )

    # Roundings of the result.
    if y_dtype != F32:
        name = NAMES[y_dtype]
        mistake(
            f"the result is cut off to {name} instead of rounded",
            cast=lambda t, y, columns: cut_off(y_dtype, y),
        )
        mistake(
            f"the result is rounded to {name} with ties away from zero",
            cast=lambda t, y, columns: with_ties_away(y_dtype, y),
        )
    for times in numbers.times:
        factor, plus = np.float32(times), np.float32(numbers.plus)
        if times == 1 and plus == 0:
            continue
        is_exact = plus == 0 and abs(math.frexp(times)[0]) == 0.5
        product, total = f"is multiplied by {decimal(times)}", f"{decimal(plus)} is added to "
        for first in sorted({F32, y_dtype}):
            if is_exact and first != y_dtype:
                continue
            result = "the result" if first == F32 or is_exact else "the rounded result"
            words = f"{result} {product}"
            if times == 1:
                words = total + result
            elif plus:
                words += f", and {total}the product"
            mistake(
                words,
                cast=lambda t, y, columns, first=first, a=factor, b=plus: to(first, y) * a + b,
            )

    # Roundings of what is computed for a row.
    for narrow in (BF16, F16) if "bias" not in call and not has_gate else ():
        name, inside = NAMES[narrow], {"where": "inside"}
        variant(
            f"x is divided by the RMS, which is rounded to {name}",
            applies=is_single,
            norm=lambda h, mean, eps, n=narrow: h / to(n, _root(mean, eps)),
            **inside,
        )
        variant(
            f"1 / RMS is rounded to {name}",
            applies=is_single,
            norm=lambda h, mean, eps, n=narrow: h * to(n, np.float32(1) / _root(mean, eps)),
            **inside,
        )
        if weight is not None:
            variant(
                f"the weight times 1 / RMS is rounded to {name}",
                applies=after_weight,
                product=lambda h, w, mean, eps, n=narrow: h
                * to(n, w * (np.float32(1) / _root(mean, eps))),
                **inside,
            )
        for words, divides in ((", and x is divided by the RMS", True), ("", False)):
            variant(
                f"every operation rounds to {name}{words}",
                applies=after_weight,
                sums=lambda t, h, n=narrow: _total(to(n, h * h)),
                norm=partial(_in_steps, narrow, divides),
                **inside,
            )

    # Operands that are left out, or used in another place.
    for operand in ("residual", "gate", "weight", "bias", "post_norm_weight"):
        if operand in call:

            def leave_out(trial: Trial, operand: str = operand) -> bool:
                del trial.operands[operand]
                gated = Options._fields[-3:]
                usual = Options()
                return "gate" in trial.operands or all(
                    getattr(trial.options, each) == getattr(usual, each) for each in gated
                )

            mistake(f"{_name(operand)} is not used", change=leave_out)
    if weight is not None:
        mistake(
            "the weight is multiplied twice", change=with_values("weight", F32, lambda w: w * w)
        )
        if weight.values.min() < 0:
            mistake(
                "the magnitudes of the weight are used", change=with_values("weight", F32, np.abs)
            )

        def multiplied_first(dtype: int, added: int | None = None) -> dict[str, Any]:
            """x is multiplied by the weight before the norm, and rounded to a type. `added` is the
            type of 1 + weight."""

            def multiply(trial: Trial, h: F32Array) -> F32Array:
                w = trial.weights()
                assert w is not None
                del trial.operands["weight"]
                return to(dtype, h * (w if added is None else to(added, w + np.float32(1))))

            return {"input": multiply, "inner": dtype}

        words = "x is multiplied by the weight before the norm"
        mistake(words, **multiplied_first(F32))
        if x.dtype != F32:
            mistake(f"{words}, and rounded", **multiplied_first(x.dtype))
            variant(
                "x is multiplied by 1 + weight before the norm, both rounded",
                applies=lambda o: o.weight_offset == 1,
                change=setting(weight_offset=0.0),
                **multiplied_first(x.dtype, weight.dtype),
            )

        def weight_of(index: npt.NDArray[np.intp]) -> Callable[[Trial], bool]:
            """Each element has the weight of another one."""

            def change(trial: Trial) -> bool:
                given = trial.operands["weight"]
                trial.put("weight", given.values[:, index], given.dtype)
                return not np.array_equal(given.values[:, index], given.values)

            return change

        j = np.arange(d)
        places = {
            "the weight is read from its end": d - 1 - j,
            "each element has the weight of the next one": (j + 1) % d,
            "each element has the weight of the one before": (j + d - 1) % d,
        }
        for groups in usual_groups(d):
            length = d // groups
            shape = f"{groups} x {length} elements"
            places |= {
                f"the weight is that of rows of {shape}, transposed": j % groups * length
                + j // groups,
                f"the weight is transposed from rows of {shape}": j % length * groups + j // length,
                f"the first {length} elements of the weight are repeated": j % length,
            }
        for words, index in places.items():
            mistake(words, change=weight_of(index))
    for operand in ("x", "weight"):
        if operand not in call or call.operands[operand].dtype == F32:
            continue
        dtype = call.operands[operand].dtype
        other = BF16 if dtype == F16 else F16

        def read(trial: Trial, name: str = operand, dtype: int = dtype, other: int = other) -> None:
            bits = rounded(trial.operands[name].values, dtype).bits
            trial.put(name, Tensor(bits, other).values(), other)

        mistake(f"the bits of {_name(operand)} are read as {NAMES[other]}", change=read)
    if not has_gate and not has_residual:

        def twice(trial: Trial) -> None:
            y = Trial(call=trial.call, options=trial.each()).result(table[0])
            assert y is not None
            trial.put("x", y, y_dtype)

        mistake("the norm is applied twice", change=twice)
    if has_gate and not has_residual:
        for words, activation in {
            "the gate has no activation": same,
            "gelu replaces the activation of the gate": _gelu,
            "relu replaces the activation of the gate": lambda z: np.maximum(z, np.float32(0)),
        }.items():
            mistake(
                words,
                applies=lambda o: o.activation == "silu" and o.gate_placement == "after",
                activation=activation,
            )
    if has_residual:

        def is_rounded(options: Options) -> bool:
            return options.residual_rounding == "rounded"

        if "post_norm_weight" not in call:
            if call.operands["residual"].dtype != F32:
                variant(
                    "the sum is scaled by the RMS that it had before it was rounded",
                    applies=is_rounded,
                    sums=lambda t, h: _squares(t.sum()),
                )
            given = call.operands.get("residual_out")
            if given and not np.array_equal(call.residual_out(Options()), given.values):

                def norm_of_sum(trial: Trial) -> None:
                    trial.operands["x"] = trial.operands["residual_out"]
                    del trial.operands["residual"]

                mistake(
                    "y is the norm of residual_out",
                    applies=lambda o: is_rounded(o) and o.factor == 1,
                    change=norm_of_sum,
                )
            mistake(
                "the RMS is that of x without the residual",
                sums=lambda t, h: _squares(t.operands["x"].values),
            )

        def without_residual(trial: Trial) -> None:
            del trial.operands["residual"]

        mistake(
            "the residual is added to the norm",
            applies=lambda o: o.factor == 1,
            change=without_residual,
            cast=lambda t, y, columns: (
                to(x.dtype, y) + t.call.operands["residual"].values[..., columns]
            ),
        )

    # Sums of squares, what is under the root, and groups.
    def sums(words: str, f: Callable[..., F64Array]) -> None:
        mistake(words, sums=lambda trial, h: f(h))

    def rounded_to(dtype: int, values: F64Array) -> F64Array:
        return to(dtype, values.astype(np.float32)).astype(np.float64)

    if d > 1:
        sums("the last element is left out of the sum of squares", lambda h: _squares(h[..., :-1]))
        sums("the first element is left out of the sum of squares", lambda h: _squares(h[..., 1:]))
    ends = {d // n * n for n in (4, 8, 16, 32, 64, 128)} | {d // n for n in (2, 4, 8, 16)}
    for end in sorted(ends - {0, d}):
        words = f"the elements from {end} on are left out of the"
        sums(f"{words} sum of squares", lambda h, end=end: _squares(h[..., :end]))
        sums(f"{words} mean of the squares", lambda h, end=end: _squares(h[..., :end]) / end * d)
    for narrow in (BF16, F16):
        name = NAMES[narrow]
        sums(f"the squares are rounded to {name}", lambda h, n=narrow: _total(to(n, h * h)))
        sums(f"the squares are added in {name}", partial(_narrow_sum, narrow))
        sums(
            f"the sum of squares is rounded to {name}",
            lambda h, n=narrow: rounded_to(n, _squares(h)),
        )
        sums(
            f"the mean of the squares is rounded to {name}",
            lambda h, n=narrow: rounded_to(n, _squares(h) / d) * d,
        )
    centered = {"applies": after_weight, "input": lambda trial, h: _centered(h)}
    layer_norm = "the mean is subtracted from x: a LayerNorm"
    sums("the variance replaces the mean of the squares", lambda h: _squares(_centered(h)))
    mistake(layer_norm, sums=lambda t, h: _squares(h), **centered)
    if d > 2:
        unbiased = d / (d - 1)
        sums(
            "the variance, divided by d - 1, replaces the mean of the squares",
            lambda h: _squares(_centered(h)) * unbiased,
        )
        mistake(
            f"{layer_norm} whose variance is divided by d - 1",
            sums=lambda t, h: _squares(h) * unbiased,
            **centered,
        )
    mistake(
        "the mean is subtracted from x, but not in the RMS",
        sums=lambda t, h: _squares(t.input().values),
        **centered,
    )
    sums("the mean of the magnitudes replaces the RMS", lambda h: _total(np.abs(h)) ** 2 / d)
    sums("the largest magnitude replaces the RMS", lambda h: _largest(h) ** 2 * d)
    for words, under in {
        "the root is left out": lambda u, eps, divisor: (u + eps) ** 2,
        "x is multiplied by the RMS": lambda u, eps, divisor: 1 / (u + eps),
        "eps is added to 1 / RMS instead": lambda u, eps, divisor: (1 / np.sqrt(u) + eps) ** -2,
        "eps is added to the sum of squares before the division": lambda u, eps, divisor: (
            u + eps / float(divisor)
        ),
    }.items():
        mistake(words, where="inside", under=under)
    mistake(
        "eps is added both inside and outside the root",
        where="outside",
        under=lambda u, eps, divisor: u + eps,
    )
    if not has_residual:
        mean = float(np.mean(_squares(x.values)))
        sums("one RMS is used for all rows", lambda h: np.full((1, 1), mean))
    for groups in usual_groups(d):
        variant(
            f"each row is normalised in {groups} groups of {d // groups} elements",
            groups=groups,
            sums=lambda t, h, n=groups: np.repeat(
                sums_of(h.reshape(*h.shape[:-1], n, d // n))[..., 0], d // n, axis=-1
            ),
        )
    return table
