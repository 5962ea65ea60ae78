# SPDX-License-Identifier: Apache-2.0
"""What is said about a norm that was found."""

from pathlib import Path
from typing import Any

import numpy as np

from ._hypotheses import NAMES, OPTION, VARIANT, Distance, Options, decimal
from ._library import F32
from ._options import WORDS
from ._search import USUAL_EPS, Answer, Candidate, gate_in_words, options_text, value_text

__all__ = ["as_arguments", "sentence", "systems", "systems_like", "text_of"]

# The beginning of the names of an option's words in C, where it is not the option's first word.
_IN_C = {"rounding": "ROUND", "rotary_rounding": "ROTARY_ROUND"}


def as_arguments(options: Options) -> dict[str, Any]:
    """Returns options as arguments of rms_norm()."""
    return {
        name: value if name in WORDS else float(decimal(value))
        for name, value in options.given().items()
    }


def _in_c(options: Options, is_cpp: bool) -> str:
    text = (
        "rmsnorm::Options options;"
        if is_cpp
        else "rmsnorm_options options = rmsnorm_default_options();"
    )
    for name, value in options.given().items():
        shown = value_text(value)
        if name not in WORDS:
            shown += "f" if set(shown) & set(".e") else ".0f"
        elif is_cpp:
            shown = f"rmsnorm::{name.title().replace('_', '')}::{shown}"
        else:
            shown = f"RMSNORM_{_IN_C.get(name, name.split('_')[0])}_{shown}".upper()
        text += f" options.{name} = {shown};"
    return text


def _in_python(answer: Answer) -> str:
    words = ["x", "weight" if "weight" in answer.call else "None"]
    for name in ("bias", "post_norm_weight", "residual", "gate", "cos", "sin"):
        if name in answer.call:
            words.append(f"{name}={name}")
    words += ["sums=sums"] if answer.best.step.sums else []
    for name, value in answer.best.used.given().items():
        words.append(f'{name}="{value}"' if name in WORDS else f"{name}={value_text(value)}")
    return f"rmsnorm.rms_norm({', '.join(words)})"


def _inner_type(answer: Answer) -> int:
    """Returns the type that n is rounded to before the weight."""
    residual = answer.call.operands.get("residual")
    is_sum = residual is not None and answer.best.used.residual_rounding == "rounded"
    return residual.dtype if is_sum and residual else answer.call.x.dtype


def _clauses(answer: Answer) -> str:
    """Returns what the options that matter for these operands do, and the step."""
    options, call, step = answer.best.used, answer.call, answer.best.step
    inner, is_after = _inner_type(answer), options.gate_placement == "after"
    roundings = {
        # With a rotation, which rounds later.
        "after_weight": "" if "cos" in call else "rounded once, after the weight",
        "before_weight": f"rounded to {NAMES[inner]} before the weight",
        "inverse": f"1 / RMS and the norm rounded to {NAMES[inner]} before the weight",
    }
    total = "the sum"
    if "residual" in call and call.operands["residual"].dtype != F32:
        is_rounded = options.residual_rounding == "rounded"
        total = "the rounded sum" if is_rounded else "the sum before it is rounded"
    before = "before the residual" if "residual" in call else "before the norm"
    clauses = {
        f"{decimal(options.weight_offset)} added to the weight": options.weight_offset,
        _eps(options, call.d): True,
        "the sum of squares not divided": options.divisor == 1,
        roundings[options.rounding]: inner != F32,
        f"of {total}": "residual" in call,
        f"{decimal(options.factor)} x added to the residual": options.factor != 1,
        f"the sum multiplied by {decimal(options.residual_factor)}": options.residual_factor != 1,
        f"{gate_in_words(options)} {'after the norm' if is_after else before}": "gate" in call,
        "the norm rounded before the gate" if is_after else "the product with it rounded": (
            options.gate_rounding == "rounded"
        ),
    }
    words = [clause for clause, is_said in clauses.items() if is_said]
    words += _rotation(answer) if step.turn else []
    return ", ".join(filter(None, [*words, step.words, answer.held, answer.residual_out]))


def _eps(options: Options, d: int) -> str:
    if options.eps == 0:
        return "no eps"
    words, value = f"eps {decimal(options.eps)}", np.float32(options.eps)
    of_sums = [decimal(each) for each in USUAL_EPS if np.float32(each / d) == value]
    if of_sums and value not in np.array(USUAL_EPS, np.float32):
        words += f" ({of_sums[0]} / {d})"  # it is added to the sum of squares before the division
    places = {"inside": "inside the root", "outside": "added to the RMS"}
    return f"{words} {places.get(options.eps_placement, 'as the least RMS')}"


def _rotation(answer: Answer) -> list[str]:
    """Returns which elements are rotated, and what is rounded."""
    options, call = answer.best.used, answer.call
    rotated, name = 2 * call.operands["cos"].values.shape[-1], NAMES[call.y_dtype]
    place = {"start": "first", "end": "last"}[options.rotary_part]
    part = f" of the {place} {rotated} elements" if rotated < call.d else ""
    roundings = {
        "each": f"the norm, the tables, every product and sum rounded to {name}",
        "norm": f"the norm rounded to {name} before the rotation",
        "none": "rounded once, after the rotation",
    }
    rounding = "" if call.y_dtype == F32 else roundings[options.rotary_rounding]
    return [f"pairs of {options.rotary_pairs}{part} rotated", rounding]


def _percent(share: float) -> str:
    """Returns the share without rounding up to 100 %."""
    return f"{min(100 * share, 99.999 if share < 1 else 100):.3f}"


def _worst(distance: Distance) -> str:
    return "far" if distance.worst > 9999 else str(distance.worst)


def _line(candidate: Candidate) -> str:
    distance, step = candidate.distance, candidate.step
    text = f"  {_percent(distance.share):>8}  {_worst(distance):>6}  {options_text(candidate.used)}"
    return text + (f"; {step.words}" if step.words else "")


def sentence(answer: Answer) -> str:
    norm = "the RMSNorm of x" + ("" if "weight" in answer.call else " without a weight")
    norm += f": {_clauses(answer)}."
    distance = answer.best.distance
    if answer.fit == "exact":
        return f"y is {norm} Every element is equal."
    if answer.fit == "close":
        return (
            f"y is {norm} {_percent(distance.share)} % of the elements are equal, the others at most "
            f"{_worst(distance)} ulp off, as sums in another order are."
        )
    near = f"The nearest one is {norm}" if answer.is_near else "None is near."
    return f"y is no norm that is known here. {near}"


def text_of(answer: Answer) -> str:
    """Returns the whole answer, for people."""
    best = answer.best
    parts = [sentence(answer)]
    lines = [_line(candidate) for candidate in answer.others]
    if answer.is_near:
        count = best.distance.elements
        lines[:0] = [f"  equal, %   worst  hypothesis ({count} elements)", _line(best)]
    parts += ["\n".join(lines)] if lines else []
    parts += ["\n".join(answer.notes)] if answer.notes else []
    if answer.open:
        lines = [f"  {each.name}: {each.values}; {each.cure} could" for each in answer.open]
        parts.append("\n".join(["These data cannot tell apart:", *lines]))
    if answer.fit != "none" and not answer.mistake:
        has_step = best.step.kind == VARIANT or answer.held
        before = "Beside this step, the options are:\n" if has_step else ""
        parts.append(
            f"{before}C++     {_in_c(best.used, True)}\nC       {_in_c(best.used, False)}\n"
            f"Python  {_in_python(answer)}"
        )
        alike = systems_like(answer)
        if alike:
            parts.append("\n  ".join(["Systems that compute so:", *alike]))
    return "\n\n".join(parts)


# ----------------------------------------------------------------------------------------- systems


def systems(key: str = "name") -> list[dict[str, str]]:
    """Returns the rows of the tables of doc/migration.md that have a column `key`, by columns."""
    rows: list[dict[str, str]] = []
    columns: list[str] = []
    page = Path(__file__).with_name("migration.md")
    if not page.exists():  # in a package that is editable
        page = Path(__file__).parents[2] / "doc" / "migration.md"
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            columns = []
        elif not columns:
            columns = [cell.strip("`") for cell in cells]
        elif key in columns and not cells[0].startswith("-"):
            row = dict(zip(columns, cells, strict=True))
            rows.append(row | {key: row[key].strip("`")})
    return rows


def _matches(row: dict[str, str], options: Options, name: str) -> bool:
    """Whether a cell of the tables, which may be empty, holds an option."""
    cell, value = row.get(name, ""), getattr(options, name)
    if not cell:
        return bool(value == Options._field_defaults[name])
    return bool(cell == value if name in WORDS else np.float32(cell) == np.float32(value))


def _is_like(row: dict[str, str], answer: Answer) -> bool:
    call, options = answer.call, answer.best.used
    x_type, weight, cos = call.x.dtype, call.operands.get("weight"), call.operands.get("cos")

    def type_of(column: str) -> int:
        return F32 if row.get(column) == "f32" else x_type

    # Where roundings change nothing.
    is_wide = _inner_type(answer) == F32 and (cos is None or call.y_dtype == F32)
    names = [name for name in Options._fields[1:] if not (is_wide and name.endswith("rounding"))]
    names = [name for name in names if row.get(name) != "all heads"]
    conditions = [
        not row.get("x") or NAMES[x_type] in row["x"].split(", "),
        (row.get("weight") == "none") == (weight is None),
        weight is None or weight.dtype == type_of("weight"),
        # Or a model in f32, whose results are rounded.
        call.y_dtype == type_of("y") or (cos is not None and options.rotary_rounding == "none"),
        bool(row.get("activation")) == ("gate" in call),
        bool(row.get("residual_rounding")) == ("residual" in call),
        (row.get("post_norm") == "yes") == ("post_norm_weight" in call),
        *(_matches(row, options, name) for name in names),
    ]
    if cos is not None:
        is_part, is_of_heads = 2 * cos.values.shape[-1] < call.d, answer.best.step.sums is not None
        conditions += [
            cos.dtype == type_of("tables"),
            bool(row["rotary_part"]) == is_part,
            (row["divisor"] == "all heads") == is_of_heads,
        ]
    return all(conditions)


def systems_like(answer: Answer) -> list[str]:
    """Returns the systems that compute the same, those with the same eps first."""
    if answer.fit == "none" or answer.best.step.kind != OPTION or answer.mistake or answer.held:
        return []
    same_eps, other_eps = [], []
    before = ""  # the system of the last row without "the same"
    for row in systems("rotation" if "cos" in answer.call else "name"):
        name = row["what you have"]
        before = before if name.startswith("the same") else name
        full = before + name.removeprefix("the same") if name != before else name
        if _is_like(row, answer):
            if _matches(row, answer.best.used, "eps"):
                same_eps.append(full)
            else:
                other_eps.append(f"{full} (eps {row['eps']})")
    return same_eps + other_eps
