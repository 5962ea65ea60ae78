# SPDX-License-Identifier: Apache-2.0
"""Rows on which norms differ, to be given to an implementation that shall be identified."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._hypotheses import to
from ._library import F16
from ._tensors import Tensor, rounded

__all__ = ["ORDINARY_ROWS", "ORDINARY_TOKENS", "ROWS", "probe"]


class Row(NamedTuple):
    """How a row differs from normal random numbers.

    scale: their RMS. mean: added to each element, in multiples of the scale. massive: if not 0, every
    97th element, in multiples of the scale. last: if not 0, the last element. is_tied: the elements
    are those of _tied() instead.
    """

    scale: float
    mean: float = 0
    massive: float = 0
    last: float = 0
    is_tied: bool = False


_ORDINARY = [Row(scale) for scale in (1, 0.5, 2, 8, 0.05, 1, 3, 0.2)]
# The RMS near the root of each usual eps, and near eps itself for eps outside the root.
for _exponent in range(-12, -1):
    _root = math.pow(10, _exponent / 2)
    _ORDINARY += [Row(_root), Row(3 * _root)] if _exponent % 2 == 0 else [Row(_root)]
_ORDINARY += [Row(eps) for eps in (1e-8, 1e-10, 1e-12, 1e-14)]
# The mean, the largest element, and the last one matter.
_ORDINARY += [Row(1, 2), Row(0.3, -1), Row(1, 0, 300), Row(0.1, 0, 5000), Row(1, 0, 0, 40)]
_ORDINARY += [Row(0.01, 0, 0, 3), Row(1, is_tied=True)]
_ORDINARY += [Row(500), Row(1e6)]  # squares and elements beyond f16
# Squares beyond f32, and squares that vanish, in types that hold them.
_SPECIAL = [Row(3e19), Row(1e-25), Row(0), Row(1, last=math.nan), Row(1, last=math.inf)]

ROWS = _ORDINARY + _SPECIAL
ORDINARY_ROWS = len(_ORDINARY)
# The tokens of a rotation's probe with ordinary rows and tables.
ORDINARY_TOKENS = ORDINARY_ROWS + len(ROWS)


def _tied(d: int) -> npt.NDArray[np.float64]:
    """Returns a row whose RMS is 128, to more bits than the sum of squares and any usual eps.

    Every eighth element is 2.5 times the RMS. Many of its products with a weight of 8 or 11 bits lie
    halfway between two numbers of that type. Eight elements add up to 0, so that no sum rounds.
    """
    j = np.arange(d)
    eighth = np.select((j % 8 == 0, j % 8 == 1), (320.0, 64.0), -64.0)
    row = np.where(j // 8 % 2 == 0, 1, -1) * eighth
    return np.where(j >= d // 8 * 8, np.where(j % 2 == 0, 128.0, -128.0), row)


@lru_cache(maxsize=4)
def probe(d: int, dtype: int, rotated: int | None = None) -> dict[str, Tensor]:
    """Returns x, residual and gate, [rows, d], and weight, [d], or for a rotation x, [tokens, d],
    weight, cos and sin, [tokens, rotated / 2]. The same arguments give the same numbers."""
    if rotated is not None:
        return _of_tokens(probe(d, dtype), rotated, dtype)
    draws = np.random.RandomState(1)  # the same numbers by every version of NumPy

    def normal(rows: int) -> npt.NDArray[np.float64]:
        """Twelve uniform numbers have a variance of 1."""
        bits = np.frombuffer(draws.bytes(48 * rows * d), "<u4").reshape(d, rows, 12)
        numbers: npt.NDArray[np.float64] = bits.sum(axis=-1, dtype=np.uint64).T * 2.0**-32 - 6
        return numbers

    # Weights of both signs, around 1; some are small, so that the sum with an offset of 1 rounds.
    j = np.arange(d)
    weight = (1 + 0.4 * normal(1)[0]) * np.where(j % 11 == 6, 0.01, 1)
    found = {"x": [], "residual": [], "gate": [], "weight": [np.where(j % 7 == 3, -weight, weight)]}
    for row in ROWS:
        # Rows that f16 does not hold are tried as far as it goes, with a residual of twice the scale.
        scale = min(row.scale, 5e3) if dtype == F16 else row.scale
        values, *residual, gate = normal(2 if row.is_tied else 3)
        x = values + row.mean
        if row.massive:
            x[j % 97 == 5] = row.massive
        x = _tied(d) if row.is_tied else x * scale
        if row.last:
            x[-1] = row.last
        found["x"].append(x)
        found["residual"].append(2 * residual[0] * scale if residual else np.zeros(d))
        found["gate"].append(3 * gate)
    arrays = {name: to(dtype, np.array(rows).astype(np.float32)) for name, rows in found.items()}
    return {
        name: rounded(array[0] if name == "weight" else array, dtype)
        for name, array in arrays.items()
    }


def _of_tokens(found: dict[str, Tensor], rotated: int, dtype: int) -> dict[str, Tensor]:
    x, others = found["x"].bits, found["gate"].bits  # which are ordinary
    ordinary, special = x[:ORDINARY_ROWS], x[ORDINARY_ROWS:]
    tokens = np.concatenate((others[:1], ordinary, others[1:], special, others[:2]))
    # Each number is drawn, so that cos and sin are no functions of each other or of a position.
    draws = np.random.RandomState(2).bytes(4 * len(tokens) * rotated)
    numbers = np.frombuffer(draws, "<u4").reshape(2, len(tokens), rotated // 2) >> 7
    tables = (numbers * 2.0**-24 - 1).astype(np.float32)
    # The rows of probe() have the angle 0 and show the norm alone.
    tables[:, 1 : 1 + ORDINARY_ROWS] = [[[1]], [[0]]]
    tables[:, -2], tables[:, -1] = math.nan, math.inf
    cos, sin = (rounded(to(dtype, table), dtype) for table in tables)
    return {"x": Tensor(tokens, dtype), "weight": found["weight"], "cos": cos, "sin": sin}
