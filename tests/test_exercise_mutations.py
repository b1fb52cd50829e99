"""Every solution with one thing broken is rejected: a barrier, a start value, a bound, a guard, a NaN in an output.

Mutants of kernels come from a few text rules, those of Python functions from the syntax tree; each is judged as a
learner's answer would be.  `EQUIVALENT` and `PYTHON_EQUIVALENT` say which behave like the solution, and why.
"""

import ast
import copy
import inspect
import re
import textwrap
from dataclasses import dataclass

import numpy as np
import pytest

from helpers import exercises
from helpers.exercises import all_exercises, verdict
from helpers.snippets import load, text

KERNELS = {id: ex.solution for id, ex in all_exercises().items() if ex.untouched}
NAN = "__int_as_float(0x7fc00000)"
LOOP = r"for \(int (\w+) = ([^;]+); ([^;]+);"


@dataclass(frozen=True)
class Mutant:
    """`source` is the solution with `line` changed by `rule` to `now`."""

    id: str
    rule: str
    line: str
    now: str
    source: str

    def __str__(self):
        return f"{self.id} {self.rule}: {self.line} -> {self.now}"


def edits(code: str):
    """(rule, start, end, replacement) of every edit that the rules find in the code of one line or kernel."""
    def each(rule, pattern, replacement, group=0):
        for m in re.finditer(pattern, code):
            for now in replacement(m) if callable(replacement) else [replacement]:
                yield rule, *m.span(group), now

    yield from each("barrier removed", r"__sync(?:threads|warp)\(\);", ";")
    yield from each("start value", r"[\w\]] = (NEG_INF)(?=[,;])", "0", 1)
    yield from each("start value", r"(?<!int )\b(?!i\b|c\b)\w+(?:\[\w+\]){0,2} = (0)(?=[,;])", "1", 1)
    yield from each("start value", r"(?:\{|, )(NEG_INF)(?=[,}])", "0", 1)
    yield from each("start value", r"\{(0)(?=,)", "1", 1)
    yield from each("start value", r", (0)(?=\})", "1", 1)
    yield from each("start value", r"int at = (N);", "0", 1)
    yield from each("fill value", r" : (NEG_INF)(?=;)", "0", 1)
    yield from each("fill value", r" : (0)(?=;)", "1", 1)
    yield from each("loop begins later", LOOP, lambda m: [f"{m[2]} / 2" if "/= 2" in code[m.end():m.end() + 12] else f"{m[2]} + 1"], 2)
    for m in re.finditer(LOOP, code):
        for bound in re.finditer(r"(\w+(?: \+ \w+)?) ([<>]) ([^&;]+?)(?= &&|$)", m[3]):
            at = m.start(3)
            yield "loop ends earlier", at + bound.start(3), at + bound.end(3), f"{bound[3]} - 1" if bound[2] == "<" else f"{bound[3]} + 1"
        if " && " in m[3]:
            yield "loop without its second bound", m.start(3) + m[3].index(" && "), m.end(3), ""
    yield from each("no minimum", r"\bmin\(((?:[^(),]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))+), ([^()]+)\)",
                    lambda m: [f"({m[1]})", f"({m[2]})"])
    yield from each("guard removed", r"\bif \(((?:[^()]|\([^()]*\))+)\)", lambda m: ["true"], 1)
    yield from each("never", r"\bif \(((?:[^()]|\([^()]*\))+)\)", lambda m: ["false"], 1)
    yield from each("guard removed", r"= ([^=;?]+) \? ", "true", 1)
    yield from each("NaN dropped", r"\bnan_max\(", "fmaxf(")
    yield from each("not rescaled", r" \* (?:expf\([^()]*\)|factor\b)", "")
    yield from each("sum forgotten", r" \+= (?!threads|QUERIES|THREADS|KEYS|32|\(long)", " = ")


def nan_edits(code: str, outputs):
    """Edits that write a NaN (-1 where the output is an integer) into an output: everywhere, or in the last block."""
    for name, is_int in outputs.items():
        for m in re.finditer(rf"(?<![\w.]){name}\[([^=;]+)\] = ([^;]+);", code):
            bad = "-1" if is_int else NAN
            if m[2].startswith("make_float4"):
                yield "NaN written", *m.span(2), f"make_float4({bad}, {bad}, {bad}, {bad})"
                yield "NaN written", *m.span(2), re.sub(r"[^,]+\)$", f" {bad})", m[2])
            else:
                bad = f"__float2half({bad})" if "__float2half(" in m[2] else bad
                yield "NaN written", *m.span(2), bad
                yield "NaN in the last block", *m.span(2), f"blockIdx.x == gridDim.x - 1 ? {bad} : {m[2]}"


def mutants(id: str):
    """All mutants of the solution of exercise `id`."""
    source = load(KERNELS[id])
    start = source.index('extern "C"')
    head, body = source[:start], source[start:]
    signature = body[:body.index("{")]
    outputs = {name: kind == "int" for const, kind, name in re.findall(r"(const )?(\w+)\* __restrict__ (\w+)", signature) if not const}
    outputs |= {name: False for base in list(outputs) for name in re.findall(rf"(\w+) = \(float4\*\)\(?{base}\b", body)}
    code = re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), body)
    for rule, begin, end, new in [*edits(code), *nan_edits(code, outputs)]:
        changed = code[:begin] + new + code[end:]
        first, last = code.rindex("\n", 0, begin) + 1, code.index("\n", end)
        now = changed[first:last + len(new) - (end - begin)]
        yield Mutant(id, rule, " ".join(code[first:last].split()), " ".join(now.split()), head + changed)


_TILED = "13-repair 13-two 13-causal"
EQUIVALENT = [  # exercises, what the changed line holds, why nobody can tell it from the solution
    (f"07-merge 10-argmax {_TILED}", r"\bd(\[2\])? = (1|\{1, 0\}|\{0, 1\});",
     "m starts at -inf, so the first element multiplies d by exp(-inf) = 0"),
    (_TILED, r"\bO(\[r\])?\[c\] = 1;", "the same factor"),
    (_TILED, r"float (s|dot\[2\]) = (1|\{1, 0\}|\{0, 1\});", "the same number more in every score of a query changes no softmax"),
    (_TILED, r"Q(\[r\])?\[c\] = .* : 1;", "of a thread without a query, which stores nothing"),
    (f"07-one-pass 09-state {_TILED}", r"fmaxf\((m(_new\[r\])?|largest), ", "a NaN that m drops still makes d NaN"),
    ("05-race", r"fmaxf\(", "the NaN that one of the two trees drops is in the other"),
    ("10-argmax", r"int at = 0;", "a lane without columns has m = -inf and never wins"),
]


def reason(mutant: Mutant) -> str:
    """Why the mutant cannot be told from the solution, or nothing."""
    return next((why for ids, pattern, why in EQUIVALENT if mutant.id in ids.split() and re.search(pattern, mutant.now)), "")


MUTANTS = [m for id in KERNELS for m in mutants(id)]


def judge(mutant: Mutant) -> None:
    state, hint = verdict(mutant.id, mutant.source)
    if why := reason(mutant):
        assert state == "solved", f"not equivalent after all ({why}): {hint}"
    else:
        assert state == "wrong" and "does not compile" not in hint, (state, hint)


class TestEverySecondMutant:  # two classes, so that two processes share them (--dist loadscope)
    @pytest.mark.parametrize("mutant", MUTANTS[::2], ids=str)
    def test_is_rejected(self, mutant):
        judge(mutant)


class TestTheOtherMutants:
    @pytest.mark.parametrize("mutant", MUTANTS[1::2], ids=str)
    def test_is_rejected(self, mutant):
        judge(mutant)


def test_there_are_mutants_of_every_kind():
    """The rules still find something in every solution, and every excuse is needed."""
    assert len(MUTANTS) > 250 and len(PYTHON_MUTANTS) > 200 and {m.id for m in MUTANTS} == set(KERNELS)
    assert {m.id for m in MUTANTS if m.rule == "NaN written"} == set(KERNELS)
    barriers = sum(len(re.findall(r"__sync(?:threads|warp)\(\);", re.sub("//.*", "", text(file)))) for file in KERNELS.values())
    assert sum(m.rule == "barrier removed" for m in MUTANTS) == barriers > 10
    for ids, pattern, why in EQUIVALENT:
        for id in ids.split():
            assert any(m.id == id and re.search(pattern, m.now) for m in MUTANTS), f"no mutant of {id} needs: {why}"


# --- Python functions -------------------------------------------------------------------------------------------------

FUNCTIONS = {id: ex.solution for id, ex in all_exercises().items() if callable(ex.solution)}
del FUNCTIONS["12-prove"]  # is itself a test: with other numbers in it, it is another test that does as well
OTHER_SIDE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}


def spoiled(value, member: int):
    """What a function returned, with a NaN (or an impossible number) in its first element, or in that of one member of a tuple or list."""
    if isinstance(value, (tuple, list)):
        parts = [spoiled(part, 0) if i == member % len(value) else part for i, part in enumerate(value)]
        return type(value)(parts) if value else value
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind == "f":
        value = value.copy()
        value.flat[0] = np.nan
        return value
    return -7 if isinstance(value, (int, np.integer)) else np.nan


def rewrites(node: ast.AST):
    """(rule, new node) for one node of a function."""
    if isinstance(node, ast.If):
        yield "guard removed", [*node.orelse] or [ast.Pass()]
    if isinstance(node, ast.IfExp):
        yield "guard removed", node.orelse
        yield "always", node.body
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and ast.unparse(node.operand) in ("np.inf", "math.inf"):
        yield "start value", ast.Constant(0.0)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "start value", ast.Constant(node.value + 1)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER_SIDE:
        yield "bound moved", ast.Compare(node.left, [OTHER_SIDE[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in OPPOSITE:
            yield "maximum and minimum", ast.Call(ast.parse(re.sub(rf"{name}$", OPPOSITE[name], ast.unparse(node.func))).body[0].value,
                                                  node.args, node.keywords)
        if name == "where" and len(node.args) == 3:
            yield "guard removed", node.args[2]
    if isinstance(node, ast.BinOp) and type(node.op) in (ast.Add, ast.Sub):
        yield "sign turned", ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
    if isinstance(node, ast.Return):
        for member in range(len(node.value.elts) if isinstance(node.value, ast.Tuple) else 1):
            yield "NaN written", ast.Return(ast.parse(f"spoiled({ast.unparse(node.value)}, {member})").body[0].value)


def python_mutants(id: str):
    """(rule, what was there -> what is there now, function) of the solution of exercise `id`."""
    function = FUNCTIONS[id]
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    places = [(parent, field, i) for parent in ast.walk(tree)
              for field, value in ast.iter_fields(parent) if field not in ("args", "returns")
              for i, child in (enumerate(value) if isinstance(value, list) else [(None, value)]) if isinstance(child, ast.AST)]
    paths = list(ast.walk(tree))
    for parent, field, i in places:
        old = getattr(parent, field) if i is None else getattr(parent, field)[i]
        for rule, new in rewrites(old):
            changed = copy.deepcopy(tree)
            target = list(ast.walk(changed))[paths.index(parent)]
            if i is None:
                setattr(target, field, new)
            else:
                getattr(target, field)[i:i + 1] = new if isinstance(new, list) else [new]
            after = ";".join(map(ast.unparse, new)) if isinstance(new, list) else ast.unparse(new)
            scope = dict(function.__globals__, spoiled=spoiled)
            exec(compile(ast.fix_missing_locations(changed), function.__name__, "exec"), scope)
            yield rule, f"{' '.join(ast.unparse(old).split())} -> {' '.join(after.split())}", scope[function.__name__]


PYTHON_EQUIVALENT = {  # exercise -> {pattern of what changed: why nobody can tell it from the solution}
    "04-butterfly": {r"16 -> 17|8 -> 9|4 -> 5|2 -> 3": "five such offsets still lead from every lane to every other"},
    "07-limit": {r"65536 -> 65537|30 -> 31": "the same after rounding down to whole vectors of four"},
    "fast-flight": {r"65536 -> 65537|2048 -> 2049": "the same after rounding down to whole blocks"},
    "many-zigzag": {r"rank -> source <= rank": "a rank never meets itself"},
}


def excuse(id: str, change: str) -> str:
    return next((why for pattern, why in PYTHON_EQUIVALENT.get(id, {}).items() if re.search(pattern, change)), "")


PYTHON_MUTANTS = [(id, rule, change, function) for id in FUNCTIONS for rule, change, function in python_mutants(id)]


@pytest.mark.parametrize("id, rule, change, function", PYTHON_MUTANTS, ids=[f"{m[0]} {m[1]}: {m[2]}" for m in PYTHON_MUTANTS])
def test_python_mutant_is_rejected(id, rule, change, function, monkeypatch):
    monkeypatch.setattr(exercises, "SECONDS", 1.0)
    state, hint = verdict(id, function)
    if why := excuse(id, change):
        assert state == "solved", f"not equivalent after all ({why}): {hint}"
    else:
        assert state == "wrong", hint
