# SPDX-License-Identifier: Apache-2.0
"""Finds the norm and the rotation that another implementation computes.

Where cos is 1 and sin is 0, every rotation gives the norm, which _search.py finds. The rotation is
then looked for on all rows: each combination of the options, alone and with each row of a table
below.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ._hypotheses import MISTAKE, NAMES, NARROW, OPTION, VARIANT, Array, Call, F32Array, Numbers
from ._hypotheses import Options, Step, Trial, steps, sums_of, to
from ._library import F32
from ._options import WORDS
from ._search import USUAL_EPS, Answer, Candidate, answer_to, compared, find_in, observe
from ._search import ordinary_rows
from ._tensors import Tensor

__all__ = ["find_rotary"]


class Turn(NamedTuple):
    """What a rotation does beside the options.

    kind, words: as those of a Step. tables: what it makes of cos and sin, with the type n. position:
    of the row of the tables, "" for the token's own. times: how often rows are rotated. place: see
    Step. pairs: those that replace an option's. is_mixed: whether the tables are repeated as for the
    other pairs. is_split: whether only the products of sin take the rounded norm. fused: which
    products of an element a and an element b are contracted with the sum. is_inner: whether every
    operation rounds to the type n. of: the value of rotary_pairs that it goes with, "" for all.
    """

    kind: int = OPTION
    words: str = ""
    tables: Callable[[F32Array, F32Array, int], tuple[F32Array, F32Array]] | None = None
    n: int = 0
    position: str = ""
    times: int = 1
    place: str = ""
    pairs: str = ""
    is_mixed: bool = False
    is_split: bool = False
    fused: tuple[str, ...] = ("", "")
    is_inner: bool = False
    of: str = ""

    def rotated(self, t: Trial, m: F32Array, dtype: int) -> F32Array:
        """Returns rows rotated as definition 10 does it, but for what this turn does otherwise."""
        options = t.options
        c, s = (t.operands[self.position + name].values for name in ("cos", "sin"))
        is_outside = np.isnan(c[:, :1]) if self.position else False
        c, s = self.tables(c, s, self.n) if self.tables else (c, s)
        inner = partial(to, self.n if self.is_inner else dtype)
        each = inner if options.rotary_rounding == "each" else partial(to, F32)
        is_exact = options.rotary_rounding == "none" and not self.is_split
        v = m if is_exact else inner(to(dtype, m))
        c, s, y = each(c), each(s), m.copy()
        (a, b), (to_a, to_b) = _places(self.pairs or options.rotary_pairs, m.shape[-1], c.shape[-1])
        first = m.shape[-1] - 2 * c.shape[-1] if options.rotary_part == "end" else 0
        of_a, of_b = slice(None), slice(None)
        if self.is_mixed:
            is_half = options.rotary_pairs == "halves"
            of_a, of_b = (n // 2 if is_half else n % c.shape[-1] for n in (a, b))
        for _ in range(self.times):
            at_a, at_b = v[..., first + a], v[..., first + b]
            by_cos = m if self.is_split else v
            y[..., first + to_a] = _sum(
                each, self.fused[0], by_cos[..., first + a], c[:, of_a], -at_b, s[:, of_a]
            )
            y[..., first + to_b] = _sum(
                each, self.fused[1], by_cos[..., first + b], c[:, of_b], at_a, s[:, of_b]
            )
            v = y if options.rotary_rounding == "none" else to(dtype, y)
        return np.where(is_outside, t.call.y.values, y) if self.position else y


def _places(pairs: str, d: int, count: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns the elements of pairs in the rotated part: where they are read, and written."""
    i = np.arange(count)
    halves, neighbours = (i, i + count), (2 * i, 2 * i + 1)
    return {
        "halves": (halves, halves),
        "neighbours": (neighbours, neighbours),
        "neighbours as halves": (neighbours, halves),
        "halves of d": ((i, i + d // 2), (i, i + d // 2)),
    }[pairs]


def _sum(
    each: Callable[[F32Array], F32Array],
    fused: str,
    v: F32Array,
    c: F32Array,
    w: F32Array,
    s: F32Array,
) -> F32Array:
    """Returns v * c + w * s. A fused product is not rounded."""
    if not fused:
        return each(each(v * c) + each(w * s))
    if fused == "sin":
        v, c, w, s = w, s, v, c
    # In f64 a product of two f32 numbers is exact.
    fused_sum: F32Array = (v.astype(np.float64) * c + w * s).astype(np.float32)
    return fused_sum


# The rotations, simple ones first. {} stands for the type n.
_TURNS = (
    Turn(),
    Turn(MISTAKE, "no element is rotated", times=0, of="halves"),
    Turn(MISTAKE, "the angle has the other sign: sin is negated", lambda c, s, _: (c, -s)),
    Turn(MISTAKE, "cos and sin are swapped", lambda c, s, _: (s, c)),
    Turn(MISTAKE, "sin takes the place of cos", lambda c, s, _: (s, s)),
    Turn(MISTAKE, "cos takes the place of sin", lambda c, s, _: (c, c)),
    Turn(MISTAKE, "each token has the tables of the next one", position="next "),
    Turn(MISTAKE, "each token has the tables of the one before", position="previous "),
    Turn(MISTAKE, "all tokens have the tables of the first one", position="first "),
    Turn(MISTAKE, "the tables are read from their end", position="last "),
    Turn(MISTAKE, "the rotation is applied twice", times=2),
    Turn(VARIANT, "x is rotated before its norm", place="before the norm"),
    Turn(VARIANT, "written as halves", pairs="neighbours as halves", of="neighbours"),
    Turn(MISTAKE, "the tables are repeated as for the other pairs", is_mixed=True),
    Turn(MISTAKE, "the weight multiplies after the rotation", place="before the weight"),
    Turn(MISTAKE, "pairs are d / 2 apart, not R / 2", pairs="halves of d", of="halves"),
    *(
        turn._replace(words=turn.words.format(NAMES[n]), n=n)
        for n in NARROW
        for turn in (
            Turn(VARIANT, "the tables are rounded to {} first", lambda c, s, n: (to(n, c), to(n, s))),
            Turn(MISTAKE, "cos alone is rounded to {} first", lambda c, s, n: (to(n, c), s)),
            Turn(MISTAKE, "sin alone is rounded to {} first", lambda c, s, n: (c, to(n, s))),
            Turn(MISTAKE, "every operation of the rotation rounds to {}", is_inner=True),
        )
    ),
    Turn(VARIANT, "the products of sin take the rounded norm (torch.compile)", is_split=True),
    *(
        Turn(VARIANT, f"fma adds the product of {a} in a and of {b} in b of a pair", fused=(a, b))
        for a, b in product(("cos", "sin"), repeat=2)
    ),
)


def _turns(call: Call) -> list[tuple[dict[str, Any], Turn]]:
    """Returns the rotations that differ for a call, with the rotary options, simple ones first."""
    cos, sin = call.operands["cos"], call.operands["sin"]
    d, rotated, y_dtype = call.d, 2 * cos.values.shape[-1], call.y_dtype
    held = [n for n in NARROW if cos.holds(n) and sin.holds(n)]
    roundings = ("each",) if y_dtype == F32 else WORDS["rotary_rounding"]
    # With these, products round to f32, and a contraction shows.
    inexact = roundings if y_dtype == F32 else roundings[1:] if cos.dtype == F32 else ("none",)
    parts = WORDS["rotary_part"] if rotated < d else ("start",)
    all_pairs = WORDS["rotary_pairs"] if rotated > 2 else ("halves",)

    def differs(turn: Turn, rounding: str, part: str, pairs: str) -> bool:
        """Whether a rotation is another one than those before it."""
        conditions = (
            rounding == "each" or (turn.times and not turn.is_inner),
            rounding != "each" or turn.n != y_dtype,
            rounding == "none" or not turn.is_split,
            rounding in inexact or not any(turn.fused),
            turn.of in ("", pairs),
            turn.n not in held or turn.is_inner,
            part == "start" or (turn.times and turn.pairs != "halves of d"),
            rotated // 2 < d // 2 or turn.pairs != "halves of d",
            rotated > 2 or not turn.is_mixed,
            "weight" in call or turn.place != "before the weight",
            not turn.position or turn.position + "cos" in call,
        )
        return all(conditions)

    return [
        ({"rotary_rounding": rounding, "rotary_part": part, "rotary_pairs": pairs}, turn)
        for turn in _TURNS
        for rounding, part, pairs in product(roundings, parts, all_pairs)
        if differs(turn, rounding, part, pairs)
    ]


def _with_tables(tensors: Mapping[str, Tensor], first: int) -> Call:
    """Reads tensors as rows, each with its rows of the tables and those of tokens around it in the
    same call of the implementation. The first call, if there are two, had `first` tokens."""
    for name in ("cos", "sin"):
        if name not in tensors:
            raise ValueError(f"{name} is required")
    call = observe(tensors)
    shape = tensors["x"].bits.shape
    tables = {name: (tensors[name].values(), tensors[name].dtype) for name in ("cos", "sin")}
    # A row for each token: the last dimension of which a table has more than one.
    of_tokens = [
        axis - len(shape)
        for values, _ in tables.values()
        for axis, length in enumerate(values.shape[:-1], len(shape) - values.ndim)
        if length > 1
    ]
    axis = max(of_tokens, default=-1)
    own = np.arange(shape[axis] if of_tokens else 1)
    is_first = own < (first or len(own))
    begin, end = np.where(is_first, 0, first), np.where(is_first, first or len(own), len(own))
    positions = {"": own}
    if len(own) > 1:
        positions |= {"next ": own + 1, "previous ": own - 1}
        positions |= {"first ": begin, "last ": begin + end - 1 - own}
    for position, tokens in positions.items():
        for name, (values, dtype) in tables.items():
            rows = np.broadcast_to(values, (*shape[:-1], values.shape[-1]))
            if position:
                rows = np.take(rows, tokens % len(own), axis)
                is_outside = (tokens < begin) | (tokens >= end)
                np.moveaxis(rows, axis, 0)[is_outside] = np.nan
            call.operands[position + name] = Array(rows.reshape(-1, rows.shape[-1]), dtype)
    heads = _heads(tensors)
    if heads > 1:
        sums = sums_of(call.x.values.reshape(-1, heads * shape[-1]))
        call.operands["sums"] = Array(np.repeat(sums, heads, axis=0), F32)
    return Call(call.operands, call.y_dtype)


def _heads(tensors: Mapping[str, Tensor]) -> int:
    """Returns the number of rows of x that may be normalised as one: those of the weight."""
    x, weight = (tensors[name].bits.shape if name in tensors else () for name in ("x", "weight"))
    return x[-2] if len(x) > 1 and weight[-2:-1] == x[-2:-1] else 1


def _norms_without_angle(seen: Call, eps: Sequence[float]) -> list[Candidate]:
    """Returns the norms that fit the rows whose tokens, and those beside them, have the angle 0."""
    plain = np.ones(len(seen.x.values), bool)
    for position in ("", "next ", "previous "):
        for name, value in (("cos", 1), ("sin", 0)):
            if position + name in seen:
                plain &= (seen.operands[position + name].values == value).all(axis=1)
    if plain.sum() < 8:
        return []
    names = ("x", "weight", "y")
    operands = {name: seen.operands[name] for name in names if name in seen}
    answer = find_in(Call(operands, seen.y_dtype).rows(plain), list(eps))
    return answer.good if answer.fit != "none" else []


def _usual_norms(seen: Call, eps: Sequence[float], heads: int) -> list[Candidate]:
    """Returns the norms of models, and rows that are not normalised."""
    usual = [1e-6, *eps, *USUAL_EPS]
    options = [
        Options(eps=float(np.float32(each)), rounding=rounding, weight_offset=offset)
        for offset in ((0.0, 1.0) if "weight" in seen else (0.0,))
        for rounding in (WORDS["rounding"] if seen.x.dtype != F32 else ("after_weight",))
        for each in dict.fromkeys(usual)
    ]
    step = Step(OPTION)
    norms = [(step, each) for each in options]
    if heads > 1:
        words = "the sum of squares is that of all heads"
        step = Step(OPTION, words, sums=lambda t: t.operands["sums"].values)
        norms += [(step, each._replace(divisor=float(heads * seen.d))) for each in options]
    table = steps(seen, Numbers())
    norms += [(step, Options(eps=0)) for step in table if "x is not normalised" in step.words]
    return [Candidate(i, step, each, each) for i, (step, each) in enumerate(norms)]


def _joined(
    norms: Sequence[Candidate], turns: Sequence[tuple[dict[str, Any], Turn]]
) -> Iterable[Candidate]:
    """Returns every norm with every rotation. Orders say which they are."""
    for number, (options, turn) in enumerate(turns):
        steps: dict[int, Step] = {}
        for index, norm in enumerate(norms):
            step = norm.step
            if step.sums and turn.place == "before the norm":
                continue  # of other rows
            kind, words = max(step.kind, turn.kind), filter(None, (turn.words, step.words))
            rotated = turn.rotated if turn.times else None
            new = replace(step, kind=kind, words=", ".join(words), turn=rotated, place=turn.place)
            joined = steps.setdefault(id(step), new)
            used = norm.options._replace(**options)
            yield Candidate(number * len(norms) + index, joined, used, used)


def _nearest(seen: Call, norms: list[Candidate], few: Call) -> list[Candidate]:
    """Returns the nearest norms with a rotation, in order."""
    turns = _turns(seen)
    if len(norms) > 4:
        # With one eps and rounding the rotation shows, and with the nearest rotations the norm.
        alike: dict[Any, Candidate] = {}
        for norm in norms:
            alike.setdefault((id(norm.step), norm.options.weight_offset), norm)
        first = list(alike.values())
        near = compared(few, _joined(first, turns))
        some = list(dict.fromkeys(each.order // len(first) for each in near[:64]))[:8]
        near = compared(few, _joined(norms, [turns[number] for number in some]))
        nearest = dict.fromkeys(each.order % len(norms) for each in near)
        norms = [norms[index] for index in list(nearest)[:4]]
    near = compared(few, _joined(norms, turns))
    found = compared(seen, near[: max(8, min(64, 2**27 // seen.y.values.size))])
    # Which products are contracted shows only where nothing else differs.
    usual = [each for each in found if "fma" not in each.step.words]
    return found if found[0].distance.is_exact and not usual[0].distance.is_exact else usual


def find_rotary(tensors: Mapping[str, Tensor], eps: Iterable[float], first: int = 0) -> Answer:
    """Finds the norm and the rotation that give y from x, cos, sin and, if given, the weight. `eps`
    are numbers to try beside the usual ones, and `first` the tokens of the first of two calls.
    Raises ValueError if the tensors do not go together, and if there is no row to compare."""
    with np.errstate(all="ignore"):
        whole, known = _with_tables(tensors, first), list(eps)
        seen = ordinary_rows(whole)
        norms = _norms_without_angle(seen, known)
        usual = _usual_norms(seen, known, _heads(tensors))
        nearest = _nearest(seen, norms or usual, seen.spread(32))
        answer = answer_to(whole, nearest)
        if answer.fit == "none" and norms:
            answer.notes.append(
                "Where cos is 1 and sin is 0, it is a norm that is known: its rotation is not."
            )
        return answer
