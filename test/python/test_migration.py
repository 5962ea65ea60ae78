# SPDX-License-Identifier: Apache-2.0
"""The tables of doc/migration.md: with the options of a row, the library gives the results of the
system of that row; with other options, it does not."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from test_bits import ROOT, arguments_of, check_vectors

import rmsnorm
from rmsnorm._options import DEFAULTS, WORDS
from rmsnorm._texts import systems

CASES = check_vectors.read_cases(ROOT / "test" / "data" / "migration" / "vectors.safetensors")
ROWS = {row["name"]: row for row in systems()}
NAMES = [case.name for case in CASES]


def test_each_row_has_its_cases():
    wanted = []
    for (name, row), d in itertools.product(ROWS.items(), ("64", "100")):
        for x_type in row.get("x", "f32, f16, bf16").split(", "):
            types = {"x": "as x", "weight": row.get("weight", "as x"), "y": row.get("y", "as x")}
            if row["residual_rounding"]:
                types |= {"residual": "as x", "residual_out": "as x"}
            types |= {"post_norm_weight": "as x"} if row.get("post_norm") else {}
            types |= {"gate": "as x"} if row.get("activation") else {}
            types = {operand: kind.replace("as x", x_type) for operand, kind in types.items()}
            words = {option: row[option] for option in DEFAULTS if row.get(option)}
            if words.get("residual_rounding") == "two phases":
                words["residual_rounding"] = "unrounded"
            words |= {operand: kind for operand, kind in types.items() if kind != "none"}
            wanted.append((name, words | {"rows": "6", "d": d}))
    found = [(case.group, case.words) for case in CASES]
    order = lambda each: (each[0], sorted(each[1].items()))
    assert sorted(found, key=order) == sorted(wanted, key=order)


def test_each_rotation_has_its_cases():
    """The tests of recorded bits show that the library gives their results."""
    rows = {row["rotation"]: row for row in systems("rotation")}
    cases = check_vectors.read_cases(ROOT / "test" / "data" / "rotary.safetensors")
    assert rows.keys() == {case.group for case in cases}
    assert {(case.group, case.words["y"]) for case in cases} == set(
        itertools.product(rows, ("f32", "bf16", "f16"))
    )
    for case in cases:
        row, heads, d = rows[case.group], *case.inputs["x"].shape[-2:]
        divisor = heads * d if row["divisor"] == "all heads" else d
        options = {
            option: type(default)(row.get(option) or default)
            for option, default in check_vectors.OPTIONS.items()
            if option != "divisor"
        }
        assert case.options == options | {"divisor": divisor}
        assert ("sums" in case.inputs) == (divisor != d)
        assert case.words.get("weight", "none") == row["weight"].replace("as x", case.words["x"])
        for table in ("cos", "sin"):
            assert case.words[table] == row["tables"].replace("as x", case.words["x"])
            assert (2 * case.inputs[table].shape[-1] < d) == bool(row["rotary_part"])


def is_in_two_phases(case):
    """Whether the sums of residual + x scale residual_out, which no line of a case says."""
    return ROWS[case.group]["residual_rounding"] == "two phases"


def results_of(case, in_two_phases, **changes):
    """Returns what the library gives with other arguments than those of a case."""
    given = arguments_of(case) | changes
    given = {name: value for name, value in given.items() if value is not None}
    if in_two_phases:
        weight, y = given.pop("weight"), given.pop("y")
        sums = np.empty(len(y))
        rmsnorm.forward(sums_out=sums, **given)
        options = {name: value for name, value in given.items() if name in DEFAULTS}
        del options["residual_rounding"]
        rmsnorm.forward(x=given["residual_out"], weight=weight, y=y, sums=sums, **options)
        given["y"] = y
    else:
        rmsnorm.forward(**given)
    return {name: given[name] for name in case.wanted}


def bound_of(d):
    """The relative difference that two computations of a row in f32 may have: this library's bound
    on the inverse RMS (definition 16; the rows are short), plus the system's. The system adds d
    squares in any order: d roundings, halved by the root, and four for mean, eps, root and
    reciprocal. Both have three more: two products and offset + weight."""
    return ((math.ceil(d / 128) + 7) / 2 + 7 + d / 2 + 7) * 2**-24


def bound_of_call(case):
    """A gate adds this library's 2 units in the last place, 4 of the system (exp, sum, quotient and
    product), and its product. Before the norm, it adds them in the element and in the RMS. The
    error of a post-norm enters the RMS of the sum."""
    bound = bound_of(case.inputs["x"].shape[-1])
    if "gate" in case.inputs and case.options["activation"] != "none":
        bound += (28 if case.options["gate_placement"] == "before" else 14) * 2**-24
    return bound * (2 if "post_norm_weight" in case.inputs else 1)


def fits(case, results):
    """Whether results are the system's: the same bits, if a rounding to 16 bits hides the order of
    a sum of squares. Otherwise y is within the relative bound. So is the addend of a sum after a
    post-norm, and an element of y moves as far as its element of the sum."""
    same, system, ours = {}, {}, {}
    for name, array in (case.inputs | case.wanted).items():
        array = array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array
        system[name] = array.astype(np.float64)
        if name in results:
            same[name] = array.tobytes() == results[name].tobytes()
            ours[name] = results[name].astype(np.float64)
    is_narrow = {name: case.words.get(name) != "f32" for name in ("x", "y")}
    if is_narrow["y"] or (is_narrow["x"] and case.options["rounding"] != "after_weight"):
        return all(same.values())
    bound = bound_of_call(case)
    if "post_norm_weight" in system and not is_narrow["x"]:
        total, factor = system["residual_out"], case.options["residual_factor"]
        of_addend = bound_of(total.shape[-1]) * np.abs(total - factor * system["residual"])
        of_total = of_addend + 2**-23 * np.abs(total)
        if (np.abs(ours["residual_out"] - total) > of_total).any():
            return False
        bound = bound + of_total / np.abs(total)
    elif not same.get("residual_out", True):
        return False
    return (np.abs(ours["y"] - system["y"]) <= bound * np.abs(system["y"])).all()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_options_of_a_row_give_the_results_of_its_system(case):
    assert fits(case, results_of(case, is_in_two_phases(case)))


def other_calls(case):
    """Yields the arguments of calls with another option or without an operand, and whether the
    results show it: not if it is a rounding of what has 16 bits to f32."""
    given, options, is_narrow = case.inputs, case.options, case.words["x"] != "f32"
    in_two_phases = is_in_two_phases(case)
    has_effect = {
        "rounding": "weight" in given or options["rounding"] == "inverse",
        "residual_rounding": "residual" in given and not in_two_phases,
        "weight_offset": "weight" in given,
        "factor": "factor" in case.words,
        "residual_factor": "residual_factor" in case.words,
        "activation": "gate" in given,
        "gate_placement": "gate" in given,
        "gate_rounding": "gate" in given,
        "group": False,  # of integers, which no system here makes
        **{name: "cos" in given for name in options if name.startswith("rotary_")},
    }
    for name, value in options.items():
        if not has_effect.get(name, True):
            continue
        if name in WORDS:
            other = WORDS[name][value == WORDS[name][0]]
        else:
            other = 2 * value or 0.5
        changes = {name: other}
        yield in_two_phases, changes, is_narrow or not name.endswith("rounding")
    if "post_norm_weight" in given:
        yield False, {"post_norm_weight": None}, True
    if in_two_phases:
        for word in WORDS["residual_rounding"]:
            yield False, {"residual_rounding": word}, is_narrow


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_other_options_are_seen(case):
    for in_two_phases, changes, is_seen in other_calls(case):
        results = results_of(case, in_two_phases, **changes)
        assert fits(case, results) != is_seen, changes
