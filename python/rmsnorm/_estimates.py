# SPDX-License-Identifier: Apache-2.0
"""Numbers of a norm, estimated from its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ._hypotheses import Call, F64Array, Options, Step, Trial, numbers_near, to
from ._library import BF16, F16, F32
from ._options import WORDS

__all__ = ["Coefficients", "Estimate", "Scale", "coefficients_of", "least_squares", "number_like"]
__all__ += ["factor_of", "residual_factor_of", "scales_of"]


class Estimate(NamedTuple):
    """A number that is hardly further from the true value than `error`."""

    value: float
    error: float

    def may_be(self, number: float) -> bool:
        return self.value - self.error <= number <= self.value + self.error


def number_like(estimate: Estimate) -> float:
    """Returns the simplest number that an estimate may stand for."""
    return next(filter(estimate.may_be, numbers_near(estimate.value)), estimate.value)


def least_squares(columns: Sequence[F64Array], y: F64Array) -> tuple[F64Array, F64Array]:
    """Returns the factors of the columns whose sum is nearest to y, for each row of all arrays, and
    their errors where y has an error of 1; NaN where the columns depend on each other."""
    a = np.stack(columns, axis=-2)
    size = np.sqrt(_dot(a, a))
    a /= size[..., np.newaxis]
    matrix = a @ a.swapaxes(-1, -2)
    found, errors = np.full((2, *size.shape), np.nan)
    is_apart = np.linalg.eigvalsh(np.nan_to_num(matrix))[..., 0] > 1e-9
    inverse, size = np.linalg.inv(matrix[is_apart]), size[is_apart]
    projections = (a @ y[..., np.newaxis])[is_apart]
    found[is_apart] = (inverse @ projections)[..., 0] / size
    errors[is_apart] = np.sqrt(np.diagonal(inverse, axis1=-2, axis2=-1)) / size
    return found, errors


def _fit(y: F64Array, *columns: F64Array) -> F64Array:
    """Returns the factor of each column, and its error."""
    found = least_squares([column[np.newaxis] for column in columns], y[np.newaxis])
    pairs: F64Array = np.stack(found)[:, 0].T
    return pairs


def _dot(a: F64Array, b: F64Array) -> F64Array:
    product: F64Array = np.einsum("...i,...i->...", a, b)
    return product


def _median(values: F64Array) -> float:
    return float(np.sort(values)[len(values) // 2])


def _agreed(of_rows: F64Array, share: float) -> Estimate | None:
    """Returns the median of what rows say, if they agree to a share of it."""
    found = np.sort(of_rows[np.isfinite(of_rows)])
    rows = len(found)
    if rows == 0:
        return None
    value, spread = float(found[rows // 2]), float(found[rows * 3 // 4] - found[rows // 4])
    if spread > share * abs(value):
        return None
    # Four standard errors of the median. Few rows do not show their spread.
    least = abs(value) * (2**-8 if rows < 6 else 2**-12)
    return Estimate(value, max(3.7 * spread / rows**0.5, least))


@dataclass
class Coefficients:
    """The numbers in y = (offset + weight) * norm(residual + factor * x) + plus, where rows agree on
    them, and the nearest activation of a gate.

    offsets, gates: the usual offsets of the weight, and the gates with their placements, that the
    rows do not rule out.
    """

    factor: Estimate | None = None
    offset: Estimate | None = None
    plus: Estimate | None = None
    activation: str = "silu"
    offsets: Sequence[float] = (0.0, 1.0)
    gates: Sequence[tuple[str, str]] = (("silu", "after"),)


def _wide(call: Call, name: str, absent: float = 1) -> F64Array:
    array = call.operands.get(name)
    wide = np.full((1, call.d), absent) if array is None else array.values.astype(np.float64)
    return np.broadcast_to(wide, call.x.values.shape)


def coefficients_of(call: Call) -> Coefficients:
    is_gated = "gate" in call
    choices = product(WORDS["activation"], WORDS["gate_placement"])
    gates = list(choices) if is_gated else [("silu", "after")]
    found = Coefficients(gates=gates)
    if "post_norm_weight" in call:
        return found
    of_y = call.y.values - _wide(call, "bias", 0)
    square_of_y, weight, one = _dot(of_y, of_y), _wide(call, "weight"), np.ones_like(of_y)

    def misfit(columns: Sequence[F64Array], c: F64Array) -> float:
        """Returns the usual share of a row that columns times c leave."""
        apart = of_y - sum(c[:, i, np.newaxis] * column for i, column in enumerate(columns))
        of_rows = (_dot(apart, apart) / square_of_y)[~np.isnan(c[:, 0])]
        return _median(of_rows) if len(of_rows) else np.inf

    names = [name for name in ("x", "residual") if name in call]
    n, least = len(names), np.inf
    nearest: list[F64Array] = []
    misfits: dict[tuple[str, str], float] = {}
    for activation, placement in gates:
        if n == 1 and placement == "before":  # it only changes the scale of rows
            misfits[activation, placement] = misfits[activation, "after"]
            continue
        act: Any = 1.0
        if is_gated:
            z = _wide(call, "gate")
            act = 1.0 if activation == "sigmoid" else z
            act = act if activation == "none" else act / (1 + np.exp(-z))
        gated = ["x"] if placement == "before" else names
        plain = [_wide(call, name) * (act if name in gated else 1.0) for name in names]
        weighted = [column * weight for column in plain]
        # The terms of the sum, times the weight and without it, and 1.
        columns = [*weighted, *plain, one]
        c = least_squares(columns, of_y)[0]
        has_offset = ~np.isnan(c[:, 0])
        rest = least_squares([*weighted, one], of_y)[0]
        without = np.insert(rest, [n] * n, 0, axis=1)
        c = np.where(has_offset[:, np.newaxis], c, without)
        misfits[activation, placement] = share = misfit(columns, c)
        if not share < least:
            continue
        least, nearest = share, plain
        a, b = c[:, :n], c[:, n : 2 * n]
        found.activation = activation
        found.offset = _agreed((_dot(a, b) / _dot(a, a))[has_offset], 0.05)
        found.plus = _agreed(c[~np.isnan(c[:, 0]), -1], 0.1)
        if n == 2:
            of_residual = a[:, 1] ** 2 + b[:, 1] ** 2
            found.factor = _agreed((a[:, 0] * a[:, 1] + b[:, 0] * b[:, 1]) / of_residual, 0.02)
    # Roundings to bf16 leave 1e-5. If y is of this form, others are not.
    most = 0.01 if least < 1e-4 else np.inf
    found.gates = [gate for gate in gates if not misfits[gate] > most]
    if nearest and "weight" in call:
        of_offsets = {o: [*(each * (weight + o) for each in nearest), one] for o in (0.0, 1.0)}
        fitting = [
            offset
            for offset, columns in of_offsets.items()
            if not misfit(columns, least_squares(columns, of_y)[0]) > most
        ]
        found.offsets = fitting or found.offsets
    return found


def _half_units(values: F64Array, dtype: int) -> F64Array:
    """Returns half of the unit in the last place of each number, rounded to a type."""
    bits, least = {F32: (24, -149), F16: (11, -24), BF16: (8, -133)}[dtype]
    half: F64Array = np.ldexp(0.5, np.maximum(np.frexp(values)[1] - bits, least))
    return half


def _between(low: F64Array, high: F64Array, base: Any, terms: F64Array) -> Estimate | None:
    """Returns the number c, if there is one, for which base + c * terms lies between others."""
    is_known = np.isfinite(low) & np.isfinite(high) & (terms != 0)
    ends = ((np.stack((low, high)) - base) / terms)[:, is_known]
    least, most = ends.min(axis=0).max(initial=-np.inf), ends.max(axis=0).min(initial=np.inf)
    return Estimate(float(least + most) / 2, float(most - least) / 2) if least <= most else None


def factor_of(call: Call, factor: float, share: float = 1.0) -> Estimate | None:
    """Returns the number near `factor` that x is multiplied by in residual_out, if it is one. `share`
    is that of the residual."""
    (found, dtype), x = call.operands["residual_out"], _wide(call, "x")
    half, residual = _half_units(found, dtype), share * _wide(call, "residual")
    for of_product in (F32, call.x.dtype):
        error = half + _half_units(factor * x, of_product)
        estimate = _between(found - error, found + error, residual, x)
        if estimate and abs(estimate.value - factor) <= 0.02 * abs(factor):
            return estimate
    return None


def residual_factor_of(call: Call, options: Options) -> Estimate | None:
    """Returns the number that residual_out is of the sum by these options, if it is one."""
    found, dtype = call.operands["residual_out"]
    total, half = call.sum(options), _half_units(found, dtype)
    for sums in (to(call.operands["residual"].dtype, total), total):
        if estimate := _between(found - half, found + half, 0.0, sums.astype(np.float64)):
            return estimate
    wide = total.astype(np.float64)
    factor = least_squares([wide], found.astype(np.float64))[0][:, 0]
    apart = found - factor[:, np.newaxis] * wide
    # A rounding to bf16 moves a row by 2^-9 of its length at most.
    is_like = _dot(apart, apart) < 2.0**-12 * _dot(found, found)
    return _agreed(factor, 0.01) if 2 * is_like.sum() > len(is_like) else None


class Scale(NamedTuple):
    """One explanation of the scales of the rows of y: they are times / sqrt(u + eps), or the same
    for another placement of eps, where u is the mean of the squares.

    eps is 0, and times is 1, where the rows do not show another one. misfit: of the rows, in
    multiples of what their roundings explain.
    """

    placement: str
    eps: Estimate
    times: Estimate
    misfit: float


def _explain(scale: F64Array, error: F64Array, inverse: F64Array, placement: str) -> Scale | None:
    """Explains the scales of rows, with their relative errors and 1 / the mean of squares, by
    scale = times / (1 + eps * v) or, with a floor, by times / max(1, eps * v), where v is 1 / RMS;
    or by the squares of all for eps inside the root. With a = 1 / times and b = eps / times,
    scale * (a + b * v) is 1."""
    if placement == "inside":
        scale, error = scale * scale, error * 2
    else:
        inverse = np.sqrt(inverse)
    has_floor = placement == "floor"
    for _ in range(3):
        of_a, of_b, target = scale / error, scale * inverse / error, 1 / error

        def fit_b(a: float) -> F64Array:
            # With a floor, rows with large elements show a, which tells the rows that show b.
            rows = scale * a < 0.98 if has_floor else slice(None)
            rest = target if has_floor else target - a * of_a
            found: F64Array = np.nan_to_num(_fit(rest[rows], of_b[rows])[0])
            return found

        def misfits(a: float, b: float) -> F64Array:
            v = b * inverse
            apart: F64Array = (1 - scale * (np.maximum(a, v) if has_floor else a + v)) / error
            return np.abs(apart)

        if has_floor:
            low = inverse <= np.sort(inverse)[len(inverse) // 4]
            a, a_error = _fit(target[low], of_a[low])[0]
        else:
            (a, a_error), (b, b_error) = _fit(target, of_a, of_b)
        if has_floor or np.isnan(a):
            a, a_error = (1.0, 0.0) if np.isnan(a) else (a, a_error)
            b, b_error = fit_b(a)
        usual = max(_median(misfits(a, b)), 1.0)
        spread = usual * 1.5
        if abs(a - 1) <= 4 * spread * a_error:
            a, a_error = 1.0, 0.0
            b, b_error = fit_b(a)
        # Without rows that are wrong for another reason.
        rest = misfits(a, b) <= 6 * usual
        if rest.sum() < 2 or 2 * rest.sum() < len(scale):
            break
        scale, error, inverse = scale[rest], error[rest], inverse[rest]
    if not a > 0:
        return None
    if not b > 4 * spread * b_error:
        b = 0.0
    relative = 4 * spread * float(np.hypot(b_error / b if b > 0 else 0, a_error / a))
    times, times_error = 1 / a, 4 * spread * a_error / a / a
    if placement == "inside":
        times, times_error = times**0.5, times**0.5 * 2 * spread * a_error / a
    eps = Estimate(float(b / a), float(b / a * max(relative, 2**-20)))
    times_error = max(times_error, times * 2**-20) if times != 1 else 0.0
    return Scale(placement, eps, Estimate(float(times), float(times_error)), spread)


def scales_of(call: Call, step: Step, options: Options, plus: float = 0.0) -> list[Scale]:
    """Returns the explanations of y - plus for a step with options, of which eps does not matter."""
    some_eps = 2.0**20  # a large one shows the mean of the squares to all bits
    operands = {name: array for name, array in call.operands.items() if name != "bias"}
    with_eps = [options._replace(eps=eps, eps_placement="inside") for eps in (0.0, some_eps)]
    fits = step.fits(with_eps[1]) and "post_norm_weight" not in call
    results = Trial(Call(operands, F32), with_eps).result(step) if fits else None
    if results is None:
        return []
    n, other = np.broadcast_to(results, (2, *call.y.values.shape)).astype(np.float64)
    of_y = call.y.values - _wide(call, "bias", 0) - plus
    rounding = {BF16: 2**-10, F16: 2**-13, F32: 2**-26}[call.y.dtype]
    square = _dot(n, n)
    scale, ratio = _dot(n, of_y) / square, square / _dot(other, other)
    rest = _dot(of_y, of_y) - scale * scale * square
    # An element's rounding counts as much as the element. Roundings share a quarter of it at most,
    # and the scale itself rounds to f32.
    of_rest = np.sqrt(np.maximum(rest, 0) / call.d / square)
    of_roundings = rounding * np.sqrt(_dot(n * n, n * n)) / square
    error = np.hypot(np.maximum(of_rest / np.abs(scale), of_roundings), max(rounding / 4, 2**-24))
    good = (np.abs(scale) > 0) & np.isfinite(scale) & np.isfinite(ratio)
    if not good.any():
        return []
    scale, error, ratio = scale[good], error[good], ratio[good]
    sign = -1.0 if _median(scale) < 0 else 1.0
    inverse = np.maximum(ratio - 1, 0) / np.float32(some_eps)
    found = [
        each._replace(times=Estimate(sign * each.times.value, each.times.error))
        for placement in ("inside", "outside", "floor")
        if (each := _explain(sign * scale, error, inverse, placement))
    ]
    least = min((each.misfit for each in found), default=0.0)
    return [each for each in found if each.misfit <= 4 * least]
