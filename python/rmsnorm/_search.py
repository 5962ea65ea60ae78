# SPDX-License-Identifier: Apache-2.0
"""Finds the norm that another implementation computes.

It tries every combination of the library's usual options, alone and with each step of the table in
_hypotheses.py, and ranks them by how far their results are from the implementation's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._estimates import Coefficients, Estimate, Scale, coefficients_of, least_squares
from ._estimates import factor_of, number_like, residual_factor_of, scales_of
from ._hypotheses import MISTAKE, NAMES, OPTION, Array, Call, Distance, F32Array, Numbers, Options
from ._hypotheses import Stated, Step, Trial, cut_off, decimal, distance, forward, held, lengths
from ._hypotheses import numbers_near, order_of, shortened, shortest, steps, sums_of, to
from ._hypotheses import with_ties_away
from ._library import BF16, F16, F32
from ._options import WORDS
from ._tensors import Tensor

__all__ = ["USUAL_EPS", "Ambiguity", "Answer", "Candidate", "find", "gate_in_words"]
__all__ += ["answer_to", "compared", "find_in", "observe", "options_text", "ordinary_rows"]
__all__ += ["value_text"]

# The eps of models and frameworks (doc/migration.md), and the machine epsilons.
USUAL_EPS = [1e-6, 1e-5, 0, 1e-12, 1e-10, 1e-8, 1e-7, 2**-23, 1.5625e-7, 1e-4]
USUAL_EPS += [1e-3, 1e-2, 2**-52, 2**-10, 2**-7]
_MOST_EPS = 16  # that results show


class Candidate(NamedTuple):
    """A hypothesis: options as they are tried and as the step leaves them, and its place in the
    order from simple to far-fetched."""

    order: int
    step: Step
    options: Options
    used: Options
    distance: Distance = Distance(0, 0, 0, 0)  # until it is compared

    @property
    def nearness(self) -> tuple[int, int]:
        return self.distance.bits, self.order

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the options and the step, but for a divisor, which is an integer."""
        options = self.used.usual("divisor")._asdict().items()
        return {name: n for name, n in options if isinstance(n, float)} | self.step.numbers

    def with_number(self, name: str, value: float) -> "Candidate":
        number: dict[str, Any] = {name: held(F32, value)}
        if name in Options._fields:
            return self._replace(options=self.options._replace(**number))
        return self._replace(step=self.step.with_numbers(**number))


class Ambiguity(NamedTuple):
    """What the data leave open.

    name: an option, or "step" for what a norm does beside its options.
    values: the values that fit as well, in words, the one of the answer first.
    cure: the data that could tell them apart.
    """

    name: str
    values: str
    cure: str


@dataclass
class Answer:
    """What was found. `fit` is "exact", "close" or "none".

    is_near: whether most elements are those of the best hypothesis. residual_out: what is wrong with
    it, as a clause. mistake: of y and of residual_out, where a norm fits. held: what y in f32 is
    rounded to, as a clause. others: the nearest ones that differ from the best. good: those that
    fit as well as the best. call: the operands that were compared, without special rows. rows: of
    x, special ones included.
    """

    fit: str
    best: Candidate
    call: Call
    rows: int
    is_near: bool = True
    residual_out: str = ""
    mistake: str = ""
    held: str = ""
    others: list[Candidate] = field(default_factory=list)
    good: list[Candidate] = field(default_factory=list)
    open: list[Ambiguity] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def options_text(options: Options) -> str:
    """Returns options in the notation of cases."""
    return ",".join(f"{name}={value_text(value)}" for name, value in options.given().items())


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else decimal(value)


def observe(tensors: Mapping[str, Tensor]) -> Call:
    """Reads tensors as rows, but for the tables of a rotation. Raises ValueError with the library's
    message if they do not go together."""
    if "x" not in tensors or "y" not in tensors:
        raise ValueError("x and y are required")
    if "post_norm_weight" in tensors and "residual" not in tensors:
        raise ValueError("post_norm_weight: there is no residual")
    for name, (bits, _) in tensors.items():
        if bits.ndim and bits.size == 0:
            raise ValueError(f"{name}: no elements in the shape {bits.shape}")
    checked = dict(tensors)
    for name in {"y", "residual_out"} & set(tensors):
        dtype = tensors[name].dtype
        if name == "residual_out" and "residual" in tensors:
            # A sum in another type is a mistake that the answer names.
            dtype = tensors["residual"].dtype
        checked[name] = Tensor.empty(tensors[name].bits.shape, dtype)
    forward(checked)
    shape = tensors["x"].bits.shape
    d = shape[-1]

    def rows(tensor: Tensor) -> Array:
        """Returns the rows that belong to those of x, or the one for all."""
        values = tensor.values()
        if values.size == d and tensor is not tensors["x"]:
            return Array(values.reshape(1, d), tensor.dtype)
        return Array(np.broadcast_to(values, shape).reshape(-1, d), tensor.dtype)

    operands = {name: rows(tensors[name]) for name in tensors if name not in ("cos", "sin")}
    y = Array(operands["y"].values.reshape(-1, d), operands["y"].dtype)
    # A result in f32 may hold numbers of a narrower type, which the norm was rounded to.
    for narrow in (BF16, F16):
        if y.dtype == F32 and y.holds(narrow):
            y = Array(y.values, narrow)
    return Call(operands | {"y": y}, y.dtype)


def _input(call: Call) -> F32Array:
    return call.sum(Options()) if "residual" in call else call.x.values


def _kinds_of(call: Call) -> tuple[list[str], npt.NDArray[Any]]:
    """Returns what may be unusual about rows, after "" for ordinary ones, and the index of what each
    row is."""
    h = _input(call)
    wide = h.astype(np.float64)
    sums = np.einsum("ij,ij->i", wide, wide)
    tables = [call.operands[name].values for name in ("cos", "sin") if name in call]
    numbers = np.concatenate([h[:, :0], *tables], axis=1)
    unusual = {
        "of zeros": sums == 0,
        "with a NaN": np.isnan(h).any(axis=1),
        "with an infinity": np.isinf(h).any(axis=1),
        "whose squares overflow f32": sums > np.finfo(np.float32).max,
        "whose squares are too small for f32": sums < 2.0**-100 * call.d,
        "whose tables hold a NaN or an infinity": ~np.isfinite(numbers).all(axis=1),
    }
    names = ["", *unusual]
    return names, np.select(list(unusual.values()), range(1, len(names)), 0)


# ----------------------------------------------------------------------------------------- numbers


class _Numbers(Numbers):
    """The numbers that hypotheses take: the usual eps, those given, and what the results show.

    usual: the numbers of each kind that are no estimates.
    """

    def __init__(self, call: Call, given: Sequence[float]) -> None:
        known = (*given, *USUAL_EPS)
        self.eps = [float(np.float32(eps)) for eps in known]
        # One that is added to the sum of squares is divided by d with it.
        self._of_sums = [float(np.float32(eps / call.d)) for eps in self.eps]
        self.usual = {"eps": {*self.eps, *self._of_sums}}
        self._d, self._known_eps = call.d, list(self.eps)
        is_constant = bool((call.y.values == call.y.values[0, 0]).all())
        found = Coefficients() if is_constant else coefficients_of(call)
        if found.factor and "residual_out" in call:
            found.factor = factor_of(call, found.factor.value) or found.factor
        super().__init__(list(found.offsets), [1.0], factors=[1.0], residual_factors=[1.0])
        self.gates, offsets = list(found.gates), self.offsets
        if found.factor and abs(found.factor.value - 1) > 0.005:
            _add(self.factors, found.factor)
        if found.offset:
            _add(offsets, found.offset)
        if found.plus and abs(found.plus.value) > 1e-4:
            self.plus = number_like(found.plus)
        options = Options(activation=found.activation, factor=self.factors[-1])
        if "residual_out" in call:
            self._read_residual_out(call, options)
        self.usual["residual_factor"] = set(self.residual_factors)
        if found.offset:
            value = found.offset.value
            offsets = [min(offsets, key=lambda offset: abs(offset - value))]
        for offset in offsets if "weight" in call and not is_constant else (0.0,):
            for placement in dict.fromkeys(placement for _, placement in self.gates):
                tried = options._replace(weight_offset=offset, gate_placement=placement)
                for scale in scales_of(call, Step(OPTION), tried, self.plus):
                    self._add_scale(scale)

    def _read_residual_out(self, call: Call, options: Options) -> None:
        """Leaves out gates that do not make the sum, and adds factors of it."""
        fitting = []
        eps_of_sum = self.eps if "post_norm_weight" in call else [options.eps]
        for gate in self.gates:
            activation, placement = gate
            tried = options._replace(activation=activation, gate_placement=placement)
            found = (residual_factor_of(call, tried._replace(eps=eps)) for eps in eps_of_sum)
            factor = min(filter(None, found), key=lambda each: each.error, default=None)
            if factor:
                fitting.append(gate)
                if abs(factor.value - 1) > 0.005:
                    _add(self.residual_factors, factor)
        self.gates = fitting or self.gates

    def _add_scale(self, scale: Scale) -> None:
        """Adds eps, and a factor of y or a divisor, which explain the same scales with another
        eps."""
        times = scale.times.value
        if times == 1:
            return self._add_eps(scale.eps)
        square = times * times
        divisor = square * self._d
        error = 2 * divisor * scale.times.error / abs(times)
        per_eps = square if scale.placement == "inside" else times
        eps = Estimate(scale.eps.value / per_eps, scale.eps.error / per_eps)
        like = number_like(scale.times)
        is_usual, was_usual = self._is_usual(eps), self._is_usual(scale.eps)
        is_likely = is_usual if is_usual != was_usual else len(decimal(like)) >= 6
        is_near = error < 0.25 and abs(divisor - round(divisor)) <= error
        if times > 0 and is_near and is_likely:
            self.divisor = round(divisor)
            return self._add_eps(eps)
        self.times.append(like)
        return self._add_eps(scale.eps)

    def _is_usual(self, eps: Estimate) -> bool:
        return eps.value == 0 or any(map(eps.may_be, self._known_eps))

    def _add_eps(self, eps: Estimate) -> None:
        if 0 < eps.value < _MOST_EPS:
            _add(self.eps, eps, *filter(eps.may_be, self._of_sums))


def _add(numbers: list[float], estimate: Estimate, *likely: float) -> None:
    """Adds the numbers that an estimate may stand for, unless it may be one of them already."""
    if not any(map(estimate.may_be, numbers)):
        numbers += [*likely, number_like(estimate)]


def _options_to_try(call: Call, numbers: _Numbers) -> list[Options]:
    """Returns every combination of options that can matter, the usual ones first."""
    residual = call.operands.get("residual")
    rounds = call.x.dtype != F32 or (residual is not None and residual.dtype != F32)
    varied: dict[str, Iterable[Any]] = {"eps": numbers.eps, "factor": numbers.factors}
    varied["eps_placement"] = WORDS["eps_placement"]
    if rounds:
        varied["rounding"] = WORDS["rounding"]
    if residual is not None:
        varied["residual_factor"] = numbers.residual_factors
    if "weight" in call:
        varied["weight_offset"] = numbers.offsets
    if rounds and residual is not None:
        varied["residual_rounding"] = WORDS["residual_rounding"]
    if "gate" in call:
        varied["activation"] = WORDS["activation"]
        varied["gate_placement"] = WORDS["gate_placement"]
        if rounds:
            varied["gate_rounding"] = WORDS["gate_rounding"]
    options = [
        Options(**dict(zip(varied, values, strict=True))) for values in product(*varied.values())
    ]
    return [
        each
        for each in options
        if (each.eps_placement == "inside" or each.eps != 0)
        and (each.activation, each.gate_placement) in numbers.gates
    ]


# -------------------------------------------------------------------------------------- comparison


def _without_eps(options: Options) -> Options:
    return options._replace(eps=0, eps_placement="")


def _screened(
    seen: Call, all_steps: Sequence[Step], options: Sequence[Options], count: int
) -> list[Candidate]:
    """Returns the candidates that are nearest in a few elements. Most are far away already there."""
    columns = np.sort(np.random.RandomState(1).permutation(seen.d)[:16])
    call = seen.spread(16)
    y = Array(call.y.values[:, columns], call.y.dtype)
    order_of_y = order_of(*y)
    alike: dict[Any, list[int]] = {}
    for index, each in enumerate(options):
        alike.setdefault(_without_eps(each), []).append(index)
    bits, orders = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, step in enumerate(all_steps):
        for members in alike.values():
            some = [i for i in members if step.fits(options[i])] if step.only else members
            values = Trial(call, [options[i] for i in some]).result(step, columns) if some else None
            if values is not None:
                values = np.broadcast_to(values, (len(some), *y.values.shape))
                bits.append(lengths(values, y, order_of_y)[1].sum(axis=(1, 2)))
                orders.append(np.array(some) + number * len(options))
    order = np.concatenate(orders)
    chosen = order[np.lexsort((order, np.concatenate(bits)))[:count]]
    return [
        Candidate(int(each), all_steps[each // len(options)], tried, tried)
        for each in chosen
        for tried in (options[each % len(options)],)
    ]


def compared(seen: Call, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Returns the candidates that fit their options with their distances, the nearest ones first."""
    alike: dict[Any, list[Candidate]] = {}
    for each in candidates:
        if each.step.fits(each.options):
            alike.setdefault((id(each.step), _without_eps(each.options)), []).append(each)
    found: dict[Any, Candidate] = {}
    order_of_y = order_of(*seen.y)
    at_once = max(1, 2**20 // seen.y.values.size)
    for members in alike.values():
        for first in range(0, len(members), at_once):
            part = members[first : first + at_once]
            trial = Trial(seen, [each.options for each in part])
            results = trial.result(part[0].step)
            if results is None:
                break
            values = np.broadcast_to(results, (len(part), *seen.y.values.shape))
            for each, used, y in zip(part, trial.each(), values, strict=True):
                new = each._replace(used=used, distance=distance(y, seen.y, order_of_y))
                found.setdefault((each.step.words, used), new)
    return sorted(found.values(), key=lambda each: each.nearness)


def _with_other_eps(seen: Call, numbers: _Numbers, nearest: list[Candidate]) -> list[Candidate]:
    """Returns the nearest candidates with the eps that the rows show for their own steps."""
    refined: dict[Any, Candidate] = {}
    for candidate in nearest:
        refined.setdefault((id(candidate.step), _without_eps(candidate.options)), candidate)
    others: list[Candidate] = []
    part = seen.spread(_MOST_ESTIMATED)
    for candidate in list(refined.values())[:8]:
        for scale in scales_of(part, candidate.step, candidate.options):
            eps = scale.eps
            if 0 < eps.value < _MOST_EPS and not any(map(eps.may_be, numbers.eps)):
                found: dict[str, Any] = {"eps": number_like(eps), "eps_placement": scale.placement}
                order = 2**62 + len(others)  # behind all others
                options = candidate.options._replace(**found)
                others.append(candidate._replace(order=order, options=options))
    return compared(seen, others)


def _refined(seen: Call, candidate: Candidate, names: Sequence[str]) -> Candidate:
    """Returns a candidate with these numbers moved to where the results are nearest, in ever smaller
    steps: from 2^-12 of a number to 2^-24."""
    rows = seen.spread(max(6, 2**15 // seen.d))
    (best,) = compared(rows, [candidate])
    for power, name in product((12, 15, 18, 21, 24), names):
        value = best.numbers[name]
        near = (value * (1 + k * 2.0**-power) for k in range(-8, 9))
        best = compared(rows, [best, *(best.with_number(name, each) for each in near)])[0]
    return best


def _simplified(seen: Call, candidate: Candidate, name: str) -> Candidate:
    """Returns a candidate with the simplest number of this name that fits as well."""
    value = candidate.numbers[name]
    roots = [value] if value in (held(F32, seen.d**0.5), held(F32, seen.d**-0.5)) else []
    simple = [*roots, *numbers_near(value), value]
    tried = compared(seen, [candidate, *(candidate.with_number(name, each) for each in simple)])
    found = {each.numbers[name]: each for each in tried}
    least = min(each.distance.bits for each in tried)
    has_sum = not _mistake_of_sum(seen, candidate)
    for number in simple:
        each = found.get(number)
        # The errors of sums move a number a little.
        extra = 3 if abs(number - value) <= 2**-18 * abs(value) else 0
        if each and each.distance.bits <= 2 * least + extra:
            if not (has_sum and _mistake_of_sum(seen, each)):
                return each
    return found[value]


def _settled(seen: Call, candidate: Candidate, names: Sequence[str]) -> Candidate:
    """Returns a candidate whose numbers of these names fit best, each as the simplest that does."""
    best = candidate if candidate.distance.is_exact else _refined(seen, candidate, names)
    for name in names:
        best = _simplified(seen, best, name)
    return best


def _with_settled(seen: Call, nearest: list[Candidate], numbers: _Numbers) -> list[Candidate]:
    """Returns the candidates, with settled numbers where those of the nearest ones are estimates."""

    def estimates(each: Candidate) -> list[str]:
        pairs = each.numbers.items()
        return [name for name, value in pairs if value not in numbers.usual.get(name, (0, 1))]

    def family(each: Candidate) -> Any:
        """What candidates share that differ in estimates alone."""
        names, n = estimates(each), each.step.n
        options = [value for name, value in each.used._asdict().items() if name not in names]
        step = (n.clause, n.dtype) if isinstance(n, Stated) else each.step.words
        return (*options, *names, step)

    if not estimates(nearest[0]) and (nearest[0].distance.is_exact or _is_close(seen, nearest[0])):
        return nearest
    families: dict[Any, Candidate] = {}
    for each in nearest:
        families.setdefault(family(each), each)
    settled: dict[Any, Candidate] = {}
    for key, each in list(families.items())[:3]:
        if estimates(each):
            settled[key] = _settled(seen, each, estimates(each))
            if each.step.kind == OPTION and settled[key].distance.is_exact:
                break
    others = (each for each in nearest if family(each) not in settled)
    found = sorted([*settled.values(), *others], key=lambda each: each.nearness)
    # Candidates that differ by no more than errors of sums: the simplest comes first.
    most = 2 * found[0].distance.bits + 3
    alike = [each for each in settled.values() if each.distance.bits <= most] or found[:1]
    first = min(alike, key=lambda each: (each.step.kind, each.nearness))
    return [first, *(each for each in found if each is not first)]


def _sum_error(d: int) -> float:
    """Returns the relative error that another order of adding d squares leaves in the inverse RMS of
    a row, in units in the last place of f32: each addition rounds, but random errors cancel."""
    return 16 + d / 64


def _is_near_in_rows(a: F32Array, b: F32Array, ulps: float) -> bool:
    """Whether the elements are within a number of ulp of the largest one of their row. The sum of a
    post-norm and the residual can cancel, which leaves the error of the post-norm in a small
    element."""
    error = np.abs(a.astype(np.float64) - b).max(axis=1)
    return bool((error <= ulps * 2**-23 * np.abs(b).max(axis=1)).all())


def _has_small_rows(seen: Call, best: Candidate, expected: F32Array) -> bool:
    """Whether the rows of y in f32 are smaller than expected more often than another order of a sum
    makes them. Inverse roots by Newton's method are never too large."""
    exact = expected.astype(np.float64)
    error = np.einsum("ij,ij->i", seen.y.values - exact, exact) * 2**23
    error /= np.einsum("ij,ij->i", exact, exact)
    # Rows that are small against eps have the same scale, so one error.
    error = error[sums_of(_input(seen))[:, 0] >= seen.d * best.used.eps]
    if len(error) < 10:
        return False
    # The sums of good implementations have errors of both signs.
    larger = error[error >= 0.02]
    usual = float(np.sqrt(np.mean(larger**2))) if len(larger) else 0.0
    return bool(error.sum() < -4 * max(usual, 0.4) * len(error) ** 0.5)


def _expected(seen: Call, best: Candidate) -> F32Array:
    """Returns y by a candidate that goes with the operands."""
    result = Trial(seen, [best.options]).result(best.step)
    assert result is not None
    rows: F32Array = np.broadcast_to(result, (1, *seen.y.values.shape))[0]
    return rows


def _is_alike(seen: Call, a: Candidate, b: Candidate) -> bool:
    """Whether two candidates differ by no more than roundings of f32, but for options that round."""
    in_f32, names = Call(seen.operands, F32), ("rounding", "gate_rounding")
    rows_of_a, rows_of_b = (
        _expected(in_f32, each._replace(options=each.options.usual(*names))) for each in (a, b)
    )
    return _is_near_in_rows(rows_of_a, rows_of_b, 16)


def _is_close(seen: Call, best: Candidate) -> bool:
    """Whether errors of the sums explain the distance of a candidate."""
    distance, error, expected = best.distance, _sum_error(seen.d), _expected(seen, best)
    # Small elements of y may be differences of larger numbers.
    step = best.step
    parts = (step.input, step.cast, step.activation)
    can_cancel = {"post_norm_weight", "cos"} & set(seen.operands) or any(parts)
    if seen.y.dtype == F32:
        if _has_small_rows(seen, best, expected):
            return False
        return distance.worst <= 2 * error or (
            bool(can_cancel) and _is_near_in_rows(seen.y.values, expected, 2 * error)
        )
    differs = seen.y.values != expected
    if len(differs) >= 8 and differs.mean(axis=0).max() > 0.5:
        return False  # errors of sums are in other elements of each row
    # An error of e ulp of f32 rounds a share of 2 e ulp of the narrow type to the next number. A
    # rounding in between doubles the share, and moves the result by one more.
    used = best.used
    between = int(used.rounding != "after_weight" or used.gate_rounding != "unrounded")
    if step.cast and isinstance(step.n, Stated) and step.n.dtype != F32:
        between = 2  # a product of the rounded result moves by two units
    ulp = 2**-13 if seen.y.dtype == F16 else 2**-16  # of f32 in the narrow type
    allowed = 2 * error * ulp * (1 + between)
    if "cos" in seen:  # each element of the norm is in two of y, which may be small differences
        is_near = _is_near_in_rows(seen.y.values, expected, (2 + between) / ulp)
        return is_near and 1 - distance.share <= 2 * allowed + 4 / distance.elements
    return distance.worst <= 1 + between and 1 - distance.share <= allowed + 2 / distance.elements


def _is_as_good(distance: Distance, best: Distance, d: int) -> bool:
    """Whether results at this distance may come from the same norm as those at the best distance.
    Exact results may still be one of several: in 16 bits, few elements show another order of a
    sum. In f32, one row that is far away would be hidden by the errors of all others."""
    if distance.worst > best.worst + 2 * _sum_error(d):
        return False
    return distance.mean_bits <= 2 * best.mean_bits + 1.5 / best.elements


def _cure_of(option: str) -> str:
    if option.startswith("eps"):
        return "rows with an RMS near eps and near its root"
    return "more rows in f16 or bf16" if option.endswith("rounding") else "other rows"


def _left_open(good: list[Candidate], best: Candidate) -> list[Ambiguity]:
    """Returns what the data leave open: values that fit as well where nothing else changes."""
    found = []
    for name in Options._fields:
        value = getattr(best.used, name)
        others = []
        for candidate in good:
            other = getattr(candidate.used, name)
            # Estimates of one number differ in digits that the data do not settle.
            is_same = (
                other == value
                if isinstance(value, str)
                else abs(other - value) <= 0.002 * abs(value)
            )
            alone = candidate.used._replace(**{name: value}) == best.used
            if alone and not is_same and candidate.step.words == best.step.words:
                others.append(value_text(other))
        if others:
            texts = " or ".join([value_text(value), *others])
            found.append(Ambiguity(name, texts, _cure_of(name)))
    words = [
        candidate.step.words
        for candidate in good
        if candidate.options == best.options and candidate.step.words != best.step.words
    ]
    if words:
        texts = " or ".join([best.step.words or "nothing else", *words])
        found.append(Ambiguity("step", texts, "other rows and another weight"))
    return found


# ------------------------------------------------------------------------------------ descriptions


def _count_of_rows(rows: Sequence[int], of: int, one: str, several: str) -> str:
    """Returns "5 of 43 rows differ: 3, 8, 11, ...", with a verb for one row or several."""
    named, verb = ", ".join(map(str, rows[:3])), one if len(rows) == 1 else several
    return f"{len(rows)} of {of} rows {verb}: {named}" + (", ..." if len(rows) > 3 else ".")


def _differing_rows(seen: Call, expected: F32Array, numbers: npt.NDArray[Any]) -> str:
    """Returns which rows differ, if most are equal. `numbers` are those of the rows that were
    given."""
    a, b = expected, seen.y.values
    rows = numbers[((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=1)]
    if not 0 < len(rows) <= len(numbers) // 2:
        return ""
    return _count_of_rows(rows, len(numbers), "differs", "differ")


def _errors_of(
    seen: Call, best: Candidate, expected: F32Array, numbers: npt.NDArray[Any]
) -> tuple[str, bool]:
    """Returns where y is wrong: columns, rows, or the size of each row; and whether at least half of
    the elements are right."""
    y, e = seen.y.values, expected
    rows, d = y.shape
    if (y == y[0, 0]).all():
        return f"Every element of y is {decimal(shortest(y[0, 0] + 0, seen.y.dtype))}.", False
    tolerance = 2**-6 if seen.y.dtype == BF16 else 2**-9
    least = 2**-14 if seen.y.dtype == F16 else 0  # smaller numbers have the same last place
    is_wrong = ~(np.abs(y - e) <= np.float32(tolerance) * np.maximum(np.abs(e), least))
    wrong = int(is_wrong.sum())
    wide = e.astype(np.float64)
    factor = np.einsum("ij,ij->i", y, wide) / np.einsum("ij,ij->i", wide, wide)
    scaled = factor[:, np.newaxis] * wide
    if wrong == 0:
        is_scaled = _is_near_in_rows(y, scaled, 2 * _sum_error(d))
        if seen.y.dtype == F32 and is_scaled and _has_small_rows(seen, best, expected):
            return "Rows are smaller than by this norm, as an imprecise 1 / RMS makes them.", True
        few = _differing_rows(seen, expected, numbers)
        return f"Every element is near this norm, but rounded differently. {few}".rstrip(), True
    is_near = 2 * wrong <= y.size
    largest = np.abs(y).max()
    if 8 <= wrong < y.size and (np.abs(y[is_wrong]) == largest).all():
        size = decimal(shortest(largest, seen.y.dtype))
        return f"The wrong elements are all {size} in size: y is limited.", is_near
    wrong_rows = numbers[is_wrong.any(axis=1)]
    columns = np.flatnonzero(is_wrong.any(axis=0))
    is_zero = (y == 0).all(axis=1)
    if columns[-1] - columns[0] + 1 <= d // 2:
        text = f"Only elements {columns[0]} to {columns[-1]} of rows are wrong."
        rest = distance(e[~is_wrong], Array(y[~is_wrong], seen.y.dtype))
        is_rounded = rest.worst > 2 * _sum_error(d) if seen.y.dtype == F32 else rest.share < 0.9
        return text + " Others are rounded differently." * is_rounded, is_near
    if is_zero.any() and not is_wrong[~is_zero].any():
        return _count_of_rows(numbers[is_zero], rows, "is zero", "are zero"), is_near
    is_scaled = (np.abs(y - scaled) <= 2 * tolerance * np.abs(scaled)).all()
    if is_scaled and np.abs(factor - 1).max() > tolerance:
        text = (
            f"from {factor.min():.6g} to {factor.max():.6g}: look at the sum, the divisor and eps."
        )
        return f"Each row is the RMSNorm of x times a factor, {text}", is_near
    if len(wrong_rows) < rows:
        return _count_of_rows(wrong_rows, rows, "is wrong", "are wrong"), is_near
    return f"{wrong} of {rows * d} elements are wrong.", is_near


def _special_rows(
    whole: Call, names: Sequence[str], kinds: npt.NDArray[Any], best: Candidate
) -> list[str]:
    """Returns what became of special rows, compared with the library by the options of the best
    hypothesis."""
    notes, as_here = [], []
    for kind, name in enumerate(names):
        part = whole.rows(kinds == kind)
        y = part.y.values
        if kind == 0 or not len(y):
            continue
        found = compared(part, [best])
        if found and found[0].distance.worst <= 2 * _sum_error(whole.d):
            as_here.append(name)
            continue
        kinds_of_y = {"zeros": y == 0, "NaN": np.isnan(y), "infinite": np.isinf(y)}
        became = next(
            (words for words, is_so in kinds_of_y.items() if is_so.all()), "something else"
        )
        notes.append(f"Rows {name} become {became}, unlike in this library.")
    if as_here:
        notes.append(f"As in this library are rows {', '.join(as_here)}.")
    return notes


def _mistake_of_sum(call: Call, best: Candidate) -> str:
    """Returns what is wrong with residual_out of a call, as a clause. Nothing if it is the sum, or
    if there is none."""
    if "residual_out" not in call:
        return ""
    trial = Trial(call, [best.options])
    trial.begin(best.step)
    if "residual" not in trial.operands:
        trial = Trial(call, [best.options])
        trial.begin(Step(OPTION))
    given, residual, x = (call.operands[name] for name in ("residual_out", "residual", "x"))
    options, total = best.used, trial.sum() * np.float32(best.used.residual_factor)
    expected = to(residual.dtype, trial.input().values)

    def is_given(values: F32Array) -> bool:
        return distance(to(given.dtype, values), given).is_exact

    if given.dtype == residual.dtype and is_given(expected):
        return ""
    if given.dtype != residual.dtype and is_given(total):
        return f"residual_out is {NAMES[given.dtype]} instead of {NAMES[residual.dtype]}"
    # A factor, a gate or a norm of x may round otherwise.
    rounds = call.options_of_sum(options) != Options() or options.residual_factor != 1
    near = 2 * _sum_error(call.d)
    if given.dtype == F32 and rounds and _is_near_in_rows(given.values, expected, near):
        return ""
    known = {"y": call.y.values, "zeros": np.zeros_like(given.values)}
    for narrow, name in ((BF16, "bf16"), (F16, "f16")):
        known[f"cut off to {name}"] = cut_off(narrow, total)
        known[f"rounded to {name}"] = to(narrow, total)
        known[f"rounded to {name} with ties away from zero"] = with_ties_away(narrow, total)
    a, b = _shares(residual, x, given)
    for share in (shortened(a, 2), a):
        if estimate := factor_of(call, b, share):
            a, b = share, number_like(estimate)
            break
    terms = [
        ("" if share == 1 else f"{decimal(share)} ") + name
        for share, name in ((a, "residual"), (abs(b), "x"))
    ]
    words = f"{terms[0]} {'-' if b < 0 else '+'} {terms[1]}"
    if a == 0 or b == 0:
        words = f"{terms[0] if b == 0 else '-' * (b < 0) + terms[1]} alone"
    known[words] = np.float32(a) * residual.values + np.float32(b) * x.values
    for words, values in known.items():
        if is_given(values):
            return f"residual_out is {words}"
    differing = int((given.values != expected).sum())
    return f"residual_out is wrong in {differing} of {given.values.size} elements"


def _shares(residual: Array, x: Array, total: Array) -> tuple[float, ...]:
    """Returns the multiples of the residual and of x whose sum is nearest to a sum."""
    finite = np.isfinite(total.values)
    columns = (np.where(finite, np.nan_to_num(each.values), 0.0) for each in (residual, x, total))
    *terms, sums = (column.astype(np.float64).reshape(1, -1) for column in columns)
    shares = np.nan_to_num(least_squares(terms, sums)[0][0])
    return tuple(0.0 if abs(each) < 1e-3 else shortened(each, 3) for each in shares)


def _sum_in_words(call: Call, options: Options) -> str:
    """Returns "residual + 0.22 x", or with the norm of x, the gate or a factor of the sum."""
    text = "residual + " + ("" if options.factor == 1 else f"{decimal(options.factor)} ")
    text += "the norm of x" if "post_norm_weight" in call else "x"
    if "gate" in call and options.gate_placement == "before":
        text += f" times {gate_in_words(options)}"
    factor = options.residual_factor
    return text if factor == 1 else f"{decimal(factor)} times ({text})"


def gate_in_words(options: Options) -> str:
    return "the gate" if options.activation == "none" else f"{options.activation} of the gate"


# ------------------------------------------------------------------------------------------ search

# The candidates that each round compares in more elements, and the rows that give estimates.
_FIRST, _BEST, _MOST_ESTIMATED = 512, 64, 512


def find(tensors: Mapping[str, Tensor], eps: Iterable[float]) -> Answer:
    """Finds the norm that gives y, and residual_out if there is one, from the other tensors. `eps`
    are numbers to try beside the usual ones. Raises ValueError if the tensors do not go together,
    and if there is no row to compare."""
    with np.errstate(all="ignore"):
        return find_in(observe(tensors), list(eps))


def find_in(whole: Call, eps: list[float]) -> Answer:
    """Does what find() does, for a call."""
    seen = ordinary_rows(whole)
    d, size = seen.d, seen.y.values.size
    numbers = _Numbers(seen.spread(_MOST_ESTIMATED), eps)
    all_steps = steps(seen, numbers)
    options = _options_to_try(seen, numbers)
    nearest = _screened(seen, all_steps, options, _FIRST)
    nearest = compared(seen.spread(max(6, 2**15 // d)), nearest)
    nearest = compared(seen, nearest[: max(8, min(_BEST, 2**28 // size))])
    if not nearest[0].distance.is_exact:
        nearest += _with_other_eps(seen, numbers, nearest)
        nearest.sort(key=lambda each: each.nearness)
    return answer_to(whole, _with_settled(seen, nearest, numbers))


def ordinary_rows(whole: Call) -> Call:
    """Returns the call on its ordinary rows. Raises ValueError if there is none."""
    rows = _kinds_of(whole)[1] == 0
    if not rows.any():
        raise ValueError("x: each row holds zeros, NaN, infinity or squares that f32 cannot add")
    return whole.rows(rows)


def answer_to(whole: Call, nearest: list[Candidate]) -> Answer:
    """Returns the answer, given the candidates that are nearest to the ordinary rows of a call, in
    order."""
    names, kinds = _kinds_of(whole)
    ordinary = np.flatnonzero(kinds == 0)
    seen = whole.rows(ordinary)
    d = seen.d
    good = [each for each in nearest if _is_as_good(each.distance, nearest[0].distance, d)]

    def place(each: Candidate) -> Any:
        return each.step.kind, len(each.used.given()), each.order

    # Those with the right sum, if there are, and the simplest of these.
    if len(good) > 1:
        good = [each for each in good if not _mistake_of_sum(seen, each)] or good
    best = min(good, key=place)
    usual = next((each for each in nearest if each.step.kind == OPTION), best)
    if best.step.kind == MISTAKE and _is_close(seen, usual) and _is_alike(seen, best, usual):
        best, good = usual, [usual, *good]  # the mistake is too small to be seen
    expected = _expected(seen, best)
    fit = "exact" if best.distance.is_exact else "close" if _is_close(seen, best) else "none"
    answer = Answer(fit, best, seen, len(kinds), good=good)
    for candidate in nearest:
        words = candidate.step.words
        is_new = not words or words not in (other.step.words for other in answer.others)
        is_apart = fit == "none" or not _is_as_good(candidate.distance, nearest[0].distance, d)
        if len(answer.others) < 4 and is_new and is_apart and candidate.order != best.order:
            answer.others.append(candidate)
    mistakes = [best.step.words] if best.step.kind == MISTAKE else []
    if fit != "none":
        answer.open = _left_open(good, best)
        few = _differing_rows(seen, expected, ordinary)
        answer.notes = [few] * bool(few) + _special_rows(whole, names, kinds, best)
    if "residual_out" in seen:
        total = _sum_in_words(seen, best.used)
        total = f"the sum, {best.step.words}," if best.step.sum else total
        answer.residual_out = _mistake_of_sum(seen, best)
        if answer.residual_out:
            mistakes.append(answer.residual_out)
        elif not _mistake_of_sum(whole, best):
            answer.notes.append(f"residual_out is {total} in every element.")
        else:
            answer.notes.append(f"residual_out differs from {total} in special rows alone.")
    if fit == "none":
        words, answer.is_near = _errors_of(seen, best, expected, ordinary)
        if not answer.is_near:
            answer.others = []
        if answer.residual_out:
            answer.notes.append(f"{answer.residual_out}.")
        answer.notes.append("Another eps than those tried may fit: name it with eps=.")
        answer.notes.append(words)
    else:
        answer.mistake = ", ".join(mistakes)
    return answer
