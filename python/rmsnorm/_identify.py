# SPDX-License-Identifier: Apache-2.0
"""Which RMSNorm another implementation computes.

This module calls the implementation with the probe, and looks at what the bits of a row depend on.
_search.py finds the norm.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as shown
from typing import Any

import numpy as np

from ._arrays import DTYPES, float_name
from ._calls import checked_integer, rms_norm
from ._hypotheses import NAMES, VARIANT, Array, Call, Trial
from ._library import F32
from ._probe import ORDINARY_ROWS, ORDINARY_TOKENS, probe
from ._rotations import find_rotary
from ._search import Ambiguity, Answer, find
from ._tensors import Framework, Tensor, changed_rows, framework_of, read_tensor
from ._texts import as_arguments, sentence, systems_like, text_of

__all__ = ["Ambiguity", "Identification", "identify", "identify_files", "identify_rotary"]

# What a row's bits may depend on.
_CAUSES = {
    "repetition": "a repetition of the call",
    "history": "the call before",
    "batch": "the other rows of the batch",
    "place": "its place in the batch",
    "alignment": "the alignment of the arrays",
    "threads": "the number of threads",
}

_RESULTS = ("y", "residual_out")


@dataclass(frozen=True)
class Identification:
    """Which norm an implementation computes. str() of it is the whole answer, in words.

    fit: "exact" if every element of ordinary rows is equal, "close" if the elements differ as much
        as sums in another order do, and "none" if no known norm fits.
    sentence: what the implementation computes, in one sentence.
    options: the arguments of rmsnorm.rms_norm() that compute the same: eps, and options that differ
        from their defaults. None with a mistake, and where no norm fits.
    variant: what the implementation does beside, for which this library has no option, or None.
    mistake: what it does that looks like a mistake, or None.
    equal: the share of elements that are equal to the nearest norm's.
    worst: the largest distance from the nearest norm, in units in the last place.
    ambiguous: what the data leave open.
    systems: systems that compute the same.
    special: sentences on rows of zeros, NaN, infinity, and squares that float32 does not hold.
    rows: how many rows were looked at.
    depends: how many rows changed with each of "repetition", "history" (the call before), "batch",
        "place", "alignment" and "threads" that was tried. Rows that change with one of the first
        two are left out of the others.
    writes: the arguments that the implementation wrote to, and the results of an earlier call that
        it wrote to.
    """

    fit: str
    sentence: str
    options: dict[str, Any] | None
    variant: str | None
    mistake: str | None
    equal: float
    worst: int
    ambiguous: tuple[Ambiguity, ...]
    systems: tuple[str, ...]
    special: tuple[str, ...]
    rows: int
    depends: dict[str, int]
    writes: tuple[str, ...]
    _text: str = field(repr=False)

    def __str__(self) -> str:
        sentences = [
            (
                f"A row's bits change with {_CAUSES[cause]}: {count} of {self.rows} rows."
                if count
                else f"A row's bits do not depend on {_CAUSES[cause]}."
            )
            for cause, count in self.depends.items()
        ]
        sentences += [
            (
                f"The function writes to the {name} that it returned before."
                if name in _RESULTS
                else f"The function writes to its argument {name}."
            )
            for name in self.writes
        ]
        return self._text + "".join(f"\n{sentence}" for sentence in sentences)


class _Implementation:
    """A function on a framework's arrays, with tensors as its arguments."""

    def __init__(
        self, f: Callable[..., Any], framework: Framework, inputs: Mapping[str, Tensor]
    ) -> None:
        self._f = f
        self._framework = framework
        self._inputs = inputs
        self._types: list[int] = []  # of the results
        self._before: list[tuple[Any, Tensor]] = []  # the last results, and what they held
        self.writes: set[str] = set()

    def run(self, batches: Sequence[Any], shift: int = 0) -> list[Tensor]:
        """Calls the function once for each batch, given by its rows, which together are all rows.

        Returns y and, if the function does, residual_out.
        """
        results: list[Tensor] = []
        for batch in batches:
            parts = self._call(batch, shift)
            if not results:
                shape = self._inputs["x"].bits.shape
                results = [Tensor.empty(shape, part.dtype) for part in parts]
            for result, part in zip(results, parts, strict=True):
                result.bits[batch] = part.bits
        return results

    def _call(self, batch: Any, shift: int) -> list[Tensor]:
        given = {
            name: tensor if name == "weight" else tensor.rows(batch)
            for name, tensor in self._inputs.items()
        }
        arrays = {name: self._framework.array(tensor, shift) for name, tensor in given.items()}
        try:
            with np.errstate(all="ignore"):  # some rows overflow on purpose
                returned = self._f(*arrays.values())
        except Exception as error:
            shapes = ", ".join(f"{name} {tensor.bits.shape}" for name, tensor in given.items())
            error.add_note(f"rmsnorm called the function with {shapes}")
            raise
        results = self._checked(returned, given["x"].bits.shape)
        if self._framework.can_write:
            known = [(name, arrays[name], given[name]) for name in arrays]
            known += [(name, *each) for name, each in zip(_RESULTS, self._before, strict=False)]
            for name, array, tensor in known:
                if not np.array_equal(self._framework.tensor(array).bits, tensor.bits):
                    self.writes.add(name)
            several = returned if isinstance(returned, tuple) else (returned,)
            self._before = list(zip(several, results, strict=True))
        return results

    def _checked(self, returned: Any, shape: tuple[int, ...]) -> list[Tensor]:
        """Returns the tensors that the function returned. Raises ValueError if they are wrong."""
        several = returned if isinstance(returned, tuple) else (returned,)
        most = 2 if "residual" in self._inputs else 1
        wanted = f"y of shape {shape}" + (" or (y, residual_out)" if most == 2 else "")
        if not 1 <= len(several) <= most:
            raise ValueError(f"the function returns {len(several)} results instead of {wanted}")
        results = []
        for each in several:
            try:
                result = self._framework.tensor(each)
            except TypeError as error:
                raise ValueError(f"the function returns {error}, instead of {wanted}") from None
            if result.bits.shape != shape:
                found = result.bits.shape
                raise ValueError(f"the function returns the shape {found} instead of {wanted}")
            results.append(result)
        types = [result.dtype for result in results]
        if self._types not in ([], types):
            raise ValueError("the function returns results of other types for other rows")
        self._types = types
        return results

    def dependence(self, batches: Sequence[Any], usual: list[Tensor]) -> dict[str, int]:
        """Returns the number of rows that differ from the usual results, for each cause."""
        rows = len(self._inputs["x"].bits)
        twice = [batch for batch in batches for _ in range(2)]
        runs = {
            "repetition": [self.run(twice)],
            # Each call after one of the same shape on other rows.
            "history": [
                self.run([each for batch in batches for each in (np.roll(batch, 1), batch)])
            ],
            # All rows in one call, halves, and each row alone.
            "batch": [self.run(np.array_split(np.arange(rows), n)) for n in (1, 2, rows)],
            "place": [self.run([batch[::-1] for batch in batches])],
            "alignment": [self.run(batches, shift=1)] if self._framework.can_shift else [],
            "threads": self._framework.with_threads(lambda: self.run(batches)),
        }
        depends = {}
        unsteady = np.zeros(rows, bool)  # rows that change where nothing about the call does
        for cause in (cause for cause in runs if runs[cause]):
            changed = np.zeros(rows, bool)
            for results in runs[cause]:
                for a, b in zip(usual, results, strict=True):
                    changed |= changed_rows(a, b)
            depends[cause] = int((changed & ~unsteady).sum())
            if cause in ("repetition", "history"):
                unsteady |= changed
            if unsteady.all():
                break
        return depends


def _identification(
    answer: Answer, depends: Mapping[str, int] | None = None, writes: Iterable[str] = ()
) -> Identification:
    best = answer.best
    is_right = answer.fit != "none" and not answer.mistake
    steps = [best.step.words] * (best.step.kind == VARIANT) + [answer.held]
    variant = ", ".join(filter(None, steps)) if answer.fit != "none" else ""
    return Identification(
        fit=answer.fit,
        sentence=sentence(answer),
        options=as_arguments(best.used) if is_right else None,
        variant=variant or None,
        mistake=answer.mistake or None,
        equal=best.distance.share,
        worst=best.distance.worst,
        ambiguous=tuple(answer.open),
        systems=tuple(systems_like(answer)),
        special=tuple(answer.notes),
        rows=answer.rows,
        depends=dict(depends or {}),
        writes=tuple(sorted(writes)),
        _text=text_of(answer),
    )


def identify(
    f: Callable[..., Any],
    d: int = 4096,
    dtype: Any = "float32",
    *,
    weight: bool = True,
    residual: bool = False,
    gate: bool = False,
    weight_dtype: Any = None,
    eps: Iterable[float] = (),
    framework: str | None = None,
    device: Any = None,
) -> Identification:
    """Finds out which RMSNorm a function computes.

    f: f(x, weight) -> y, or with the arguments that are asked for below, in the order
        f(x, residual, gate, weight). x, residual, gate and y have the shape [rows, d], the weight
        [d]. Given a residual, f may return (y, residual_out). y and residual_out are float32,
        float16 or bfloat16.
    d: the number of elements of a row.
    dtype: the type of the arguments: "float32", "float16" or "bfloat16", or the framework's type.
    weight: whether f takes a weight.
    residual: whether f takes a residual, which is added to x first.
    gate: whether f takes a gate.
    weight_dtype: the type of the weight; None is dtype.
    eps: numbers to try beside the usual ones.
    framework: whose arrays f takes and returns: "numpy" (with ml_dtypes for bfloat16), "torch" or
        "jax". None is "torch" where dtype is a type of PyTorch, and otherwise "numpy".
    device: where PyTorch's or JAX's arguments are; None is the CPU or JAX's first device.

    f is called on a few dozen rows on which norms differ, then on special rows: zeros, NaN, infinity,
    and squares that float32 does not hold. To see what a row's bits depend on, it is called again:
    on the same arguments, after a call on other rows, in other batches, in reverse order, from an
    address that is less aligned, and on PyTorch's CPU with one and two threads. Arguments are new
    arrays each time.

        print(rmsnorm.identify(lambda x, weight: my_norm(x, weight, 1e-6), dtype="bfloat16"))

    A module keeps its weight, so let the function put it there:

        def f(x, weight):
            with torch.no_grad():
                norm.weight.copy_(weight)
                return norm(x)

        print(rmsnorm.identify(f, norm.weight.numel(), torch.bfloat16))

    An exception of f is passed on. A result of the wrong type or shape raises ValueError.
    """
    d = checked_integer("d", d, 2**31)
    code = _code("dtype", dtype)
    codes = {"x": code, "residual": code, "gate": code}
    codes["weight"] = _code("weight_dtype", weight_dtype, code)
    is_taken = {"x": True, "residual": residual, "gate": gate, "weight": weight}
    inputs = {name: probe(d, each)[name] for name, each in codes.items() if is_taken[name]}
    return _identify(f, _adapter(framework, dtype, device), inputs, ORDINARY_ROWS, eps)


def identify_rotary(
    f: Callable[..., Any],
    d: int = 128,
    dtype: Any = "bfloat16",
    *,
    rotated: int | None = None,
    weight: bool = True,
    weight_dtype: Any = None,
    table_dtype: Any = None,
    eps: Iterable[float] = (),
    framework: str | None = None,
    device: Any = None,
) -> Identification:
    """Finds out which norm and which rotary positions a function computes.

    f: f(x, weight, cos, sin) -> y. x and y have the shape [tokens, d], the weight [d], and cos and
        sin [tokens, R / 2], one number for each pair of elements. Every token has its own row.
    d: the number of elements of a row, at most 4096.
    dtype: the type of the arguments: "float32", "float16" or "bfloat16", or the framework's type.
    rotated: R, the elements of a row that are rotated, an even number; None is d.
    weight: whether f takes a weight. If not, it is f(x, cos, sin).
    weight_dtype, table_dtype: the type of the weight, and of cos and sin; None is dtype.
    eps, framework, device: see identify().

    Tables of float32 show whether they are rounded. Some tokens have the angle 0, where the norm
    shows alone. cos and sin are drawn independently: a function must not compute one from the
    other, or from positions. A function that takes each number twice gets it so:

        def f(x, weight, cos, sin):
            cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))
            q = norm(x, weight)
            return q * cos + rotate_half(q) * sin

        print(rmsnorm.identify_rotary(f, 128, torch.bfloat16))

    The options of the answer are those of rms_norm(x, weight, cos=cos, sin=sin, ...).
    """
    d = checked_integer("d", d, 4097)
    if rotated is None:
        rotated = d
    possible = f"possible are even numbers from 2 to d, {d}"
    if checked_integer("rotated", rotated, d + 1, possible) % 2:
        raise ValueError(f"rotated: {rotated}; {possible}")
    code = _code("dtype", dtype)
    table = _code("table_dtype", table_dtype, code)
    codes = {"x": code, "weight": _code("weight_dtype", weight_dtype, code)}
    codes |= {"cos": table, "sin": table}
    if not weight:
        del codes["weight"]
    inputs = {name: probe(d, each, rotated)[name] for name, each in codes.items()}
    return _identify(f, _adapter(framework, dtype, device), inputs, ORDINARY_TOKENS, eps)


def _adapter(framework: str | None, dtype: Any, device: Any) -> Framework:
    return framework_of(framework or ("torch" if _is_of_torch(dtype) else "numpy"), device)


def _identify(
    f: Callable[..., Any],
    adapter: Framework,
    inputs: Mapping[str, Tensor],
    ordinary: int,
    eps: Iterable[float],
) -> Identification:
    eps = _checked_eps(eps)
    # Rows with a NaN, for example, are in another call: where rows depend on each other, they would
    # hide all else.
    batches = np.split(np.arange(len(inputs["x"].bits)), [ordinary])
    implementation = _Implementation(f, adapter, inputs)
    results = implementation.run(batches)
    outputs = dict(zip(_RESULTS, results, strict=False))
    answer = _find({**inputs, **outputs}, eps, ordinary)
    depends = implementation.dependence(batches, results)
    return _identification(answer, depends, implementation.writes)


def _checked_eps(eps: Iterable[float]) -> list[float]:
    """Returns numbers to try as eps. Raises what rms_norm() raises for one that it refuses."""
    if not isinstance(eps, Iterable):
        raise TypeError(f"eps: {shown(eps)}; it must be a list of numbers")
    numbers = list(eps)
    for number in numbers:
        rms_norm(np.ones(1, np.float32), eps=number)
    return numbers


def _find(tensors: Mapping[str, Tensor], eps: Iterable[float], first: int = 0) -> Answer:
    answer = find_rotary(tensors, eps, first) if "cos" in tensors else find(tensors, eps)
    narrow = answer.call.y_dtype
    if tensors["y"].dtype == tensors["x"].dtype == F32 != narrow and answer.fit != "none":
        # A norm in f32 would not round its results to a narrower type.
        call, kind = Call(answer.call.operands, F32), answer.best.step.kind
        good = [each for each in answer.good if each.step.kind <= kind]
        with np.errstate(all="ignore"):
            results = [Trial(call, [each.options]).result(each.step) for each in good]
        if not any(each is None or Array(each, F32).holds(narrow) for each in results):
            answer.held = f"the result is rounded to {NAMES[narrow]}"
    return answer


def _is_of_torch(dtype: Any) -> bool:
    return type(dtype).__module__ == "torch"


def _code(argument: str, dtype: Any, default: int | None = None) -> int:
    """Returns the number of a type of NumPy or PyTorch in the C interface; of None the default."""
    if dtype is None and default is not None:
        return default
    name = str(dtype).removeprefix("torch.") if _is_of_torch(dtype) else dtype
    return DTYPES[float_name(argument, name)]


def identify_files(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    weight: str | os.PathLike[str] | None = None,
    residual: str | os.PathLike[str] | None = None,
    residual_output: str | os.PathLike[str] | None = None,
    gate: str | os.PathLike[str] | None = None,
    bias: str | os.PathLike[str] | None = None,
    post_norm_weight: str | os.PathLike[str] | None = None,
    cos: str | os.PathLike[str] | None = None,
    sin: str | os.PathLike[str] | None = None,
    eps: Iterable[float] = (),
) -> Identification:
    """Finds out which RMSNorm gave `output` for `input`, from tensors in files.

        rmsnorm.identify_files("run.safetensors:x", "run.safetensors:y", "model.safetensors:w")

    A tensor is FILE.npy, FILE.safetensors:NAME, or FILE.safetensors if that holds one tensor, in
    float32, float16 or bfloat16. input, output, residual, residual_output and gate have the shape
    [..., d], weight, bias and post_norm_weight [d].

    cos and sin, [..., R / 2], are those of rotary positions after the norm, with a weight alone.
    Each of their leading dimensions is that of input or 1, as in [batch, tokens, 1, R / 2] for
    [batch, tokens, heads, d]. A weight of [heads, d] may belong to a norm of all heads together, as
    in OLMo 2. Where fewer than eight rows, and their tokens' neighbours, have the angle 0, only
    norms of the library's options with a usual eps, or one of those named, are tried.

    eps: numbers to try beside the usual ones.

    The rows of a model can leave eps and more open, and the answer says so; those of identify()
    do not. A file that does not hold such a tensor, and shapes that do not go together, raise
    ValueError, and a file that cannot be opened OSError.
    """
    locations = {
        "x": input,
        "residual": residual,
        "gate": gate,
        "weight": weight,
        "bias": bias,
        "post_norm_weight": post_norm_weight,
        "cos": cos,
        "sin": sin,
        "residual_out": residual_output,
        "y": output,
    }
    given = {name: path for name, path in locations.items() if path is not None}
    if {"cos", "sin"} & set(given):
        for name in sorted(set(given) - {"x", "weight", "cos", "sin", "y"}):
            raise ValueError(f"{name}: not together with cos and sin")
        for name in {"cos", "sin"} - set(given):
            raise ValueError(f"{name}: required with the other table of a rotation")
    eps = _checked_eps(eps)
    return _identification(_find({name: read_tensor(path) for name, path in given.items()}, eps))
