"""Modules of the package with one additive term left out: what a test of the rest should notice."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

#: Calls whose further arguments are indices: a sum there joins letters.
OF_LETTERS = {"entries", "on"}


@dataclass(frozen=True)
class LeftOutTerm:
    """A term of a method: which part of which node, in the order in which its tree is walked."""

    module: ModuleType
    method: str
    node: int
    part: str | int
    text: str

    def __str__(self) -> str:
        return f"{self.module.__name__.rpartition('.')[2]}.{self.method}: {self.text}"

    def module_without(self) -> ModuleType:
        """The module anew, without the term; the one in use is left alone."""
        tree = ast.parse(_source(self.module))
        method = next(one for one in _methods(tree) if one.name == self.method)
        _Remover(list(ast.walk(method))[self.node], self.part).visit(method)
        module = ModuleType(self.module.__name__)
        module.__dict__[_nothing.__name__] = _nothing
        exec(compile(ast.fix_missing_locations(tree), str(self), "exec"), module.__dict__)
        return module


def left_out_terms(module: ModuleType) -> list[LeftOutTerm]:
    """Every operand of + and −, of `+=` and of a sum begun by an assignment, in the methods of a module's classes."""
    return [
        LeftOutTerm(module, method.name, node, part, ast.unparse(term))
        for method in _methods(ast.parse(_source(module)))
        for node, part, term in _terms(method)
    ]


@cache
def _source(module: ModuleType) -> str:
    return inspect.getsource(module)


def _methods(tree: ast.Module) -> list[ast.FunctionDef]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return [node for one in classes for node in one.body if isinstance(node, ast.FunctionDef)]


def _is_sum(node: Any) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def _first_operand(node: Any) -> Any:
    return _first_operand(node.left) if _is_sum(node) else node


def _is_name(node: Any, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_of_indices(node: Any) -> bool:
    """A letter, a position or a piece of a tuple, whose sums are no terms."""
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str | int)
    return constant or (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id != "t")


def _terms(method: ast.FunctionDef) -> Iterator[tuple[int, str | int, ast.AST]]:
    nodes = list(ast.walk(method))
    words = {argument.arg for argument in method.args.args if getattr(argument.annotation, "id", "") == "str"}
    letters = {
        id(inner)
        for call in nodes
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in OF_LETTERS
        for argument in call.args[1:]
        for inner in ast.walk(argument)
    }
    # x = x + term, or x += term: what x is at first is a term, what it is by then is none of its own
    added_to = {
        node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    so_far = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_sum(node.value):
            first = _first_operand(node.value)
            if _is_name(first, node.targets[0].id):
                added_to.add(node.targets[0].id)
                so_far.add(id(first))
    for number, node in enumerate(nodes):
        if isinstance(node, ast.AugAssign):
            yield number, "statement", node.value
        elif isinstance(node, ast.Assign):
            for name, value in _assigned(node):
                begins = not _is_sum(value) and not isinstance(value, ast.Constant | ast.List)
                if name in added_to and begins:
                    yield nodes.index(value), "beginning", value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_made":
            if len(node.args) > 1:
                yield from ((number, place, term) for place, term in enumerate(node.args))
        elif _is_sum(node) and id(node) not in letters:
            assert isinstance(node, ast.BinOp)
            if any(_is_of_indices(one) or (isinstance(one, ast.Name) and one.id in words) for one in _operands(node)):
                continue
            yield number, "right", node.right
            if not _is_sum(node.left) and id(node.left) not in so_far:
                yield number, "left", node.left


def _operands(node: Any) -> list[Any]:
    return [*_operands(node.left), *_operands(node.right)] if _is_sum(node) else [node]


def _assigned(node: ast.Assign) -> list[tuple[str, ast.expr]]:
    """Names and values, of a, b = x, y too."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(target.elts, node.value.elts, strict=True))
    else:
        pairs = [(target, node.value)]
    return [(one.id, value) for one, value in pairs if isinstance(one, ast.Name)]


class _Remover(ast.NodeTransformer):
    """Takes one term out of a tree."""

    def __init__(self, target: ast.AST, part: str | int):
        self.target, self.part = target, part

    def visit(self, node: Any) -> Any:
        if node is not self.target:
            return self.generic_visit(node)
        if self.part == "statement":
            return ast.Pass()
        if self.part == "beginning":
            return ast.Call(ast.Name(_nothing.__name__, ast.Load()), [node], [])
        if self.part == "right":
            return node.left
        if self.part == "left":
            return node.right if isinstance(node.op, ast.Add) else ast.UnaryOp(ast.USub(), node.right)
        del node.args[self.part]
        return node


def _nothing(term: Any) -> Any:
    """Zero in place of a term: an array, or a function of a neuron."""
    return term.times(0.0) if hasattr(term, "times") else 0.0
