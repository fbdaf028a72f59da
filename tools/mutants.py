"""Mutants of a Python file: copies with one mistake each, as text, so that decorators that read the source see them.

What no conformance kit can or should find is left alone: messages, docstrings, annotations, logging, scores, names of
specs, and the sizes of tiles and numbers of warps, which change speed alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.MatMult: "*",
    ast.Pow: "*",
}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
REVERSED: dict[type[ast.cmpop], str] = {ast.Lt: ">", ast.LtE: ">=", ast.Gt: "<", ast.GtE: "<="}
UNTOUCHED_KEYWORDS = re.compile(
    r"score|hint|summary|help|description|strict|maxsize|frozen|slots|kw_only|repr|reason|message|id|name|rank|tier"
    r"|implementation|prepare|describe|examples|num_warps|num_stages|[A-Z]*(BLOCK|TILE|WARP|STAGE)[A-Z_]*|default_factory"
    r"|num_threads|threads|label|key_bias"
)
"""Keywords whose values are messages, names, scores or sizes of tiles."""
UNTOUCHED_NAMES = re.compile(r"__\w+__|\w*(BLOCK_|TILE|WARP|STAGES|SCORE)\w*|_?\w*(logger|LOG)\w*|summary|hint|message")
UNTOUCHED_CALLS = re.compile(
    r"(.*\.)?(no|yes|warn|warning|debug|info|exception|getLogger|TypeVar|cast|Reason|NewType|ParamSpec|constexpr_range"
    r"|PluginError|\w*Error|import_module)"
)
"""Calls of which the arguments are messages or types."""
SYMMETRIC = re.compile(
    r"(.*\.)?(markers|max|min|maximum|minimum|gcd|isinstance|issubclass|print|cdiv|add|mul|logical_\w+)"
)
UNTOUCHED_FUNCTIONS = ("__repr__", "__str__")
SENTENCE = re.compile(r"[A-Za-z',]{2,}(\s+[A-Za-z0-9',]+){2,}")
CHANGING = re.compile(r"Tensor|Sequence|Mapping|list|dict|Ticket|Batch|Rows|Request|Query|Context|Step|Metadata|Any")
"""Annotations of arguments that are more than their shapes and lengths."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake in a file: the bytes ``start`` to ``end`` become ``after``. ``operator`` is its class."""

    operator: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """The file with the mistake."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def compiles(self, source: bytes) -> bool:
        """Whether the file with the mistake is Python."""
        try:
            compile(self.apply(source), "mutant", "exec")
        except (SyntaxError, ValueError):
            return False
        return True

    def __str__(self) -> str:
        before, after = (" ".join(text.split())[:70] for text in (self.before, self.after))
        return f"line {self.line}, {self.operator}: {before!r} becomes {after!r}"


def mutants(source: bytes) -> list[Mutant]:
    """Every mutant of a file, each once, in order of place. A few don't compile."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    found: dict[tuple[int, int, str], Mutant] = {}
    for mutant in finder.found:
        if mutant.before != mutant.after:
            found.setdefault((mutant.start, mutant.end, mutant.after), mutant)
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.after))


class _Finder(ast.NodeVisitor):
    """Collects the mutants below the nodes that it visits."""

    def __init__(self, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._assigned: set[str] = set()

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _add(self, operator: str, node: ast.expr | ast.stmt, after: str) -> None:
        start, end = self._span(node)
        self.found.append(Mutant(operator, node.lineno, start, end, self._text(node), after))

    def _between(self, operator: str, left: ast.expr, right: ast.expr, after: str) -> None:
        """What stands between two operands becomes ``after``; parentheses between them stay."""
        start, end = self._span(left)[1], self._span(right)[0]
        text = self._source[start:end].decode()
        sign = re.search(r"[^\s()\\#]+(\s+(in|not)\b)?", text)
        if sign and "#" not in text:
            begin, stop = start + len(text[: sign.start()].encode()), start + len(text[: sign.end()].encode())
            self.found.append(Mutant(operator, left.lineno, begin, stop, sign.group(), after))

    # Statements

    def visit_Module(self, node: ast.Module) -> None:
        self._body(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._body(node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in UNTOUCHED_FUNCTIONS or any("overload" in ast.unparse(one) for one in node.decorator_list):
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._stale(node)
        outer, self._assigned = self._assigned, {arg.arg for arg in node.args.args}
        self._body(node.body)
        self._assigned = outer

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            guarded = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)
            if not (docstring or guarded or isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert)):
                self._drop(statement)
                self.visit(statement)

    def _drop(self, node: ast.stmt) -> None:
        """The line is forgotten."""
        match node:
            case ast.Expr(value=ast.Call(func=func)) if not UNTOUCHED_CALLS.fullmatch(ast.unparse(func)):
                self._add("dropped line", node, "pass")
            case ast.AugAssign() | ast.Delete() | ast.Raise():
                self._add("dropped line", node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                self._add("dropped line", node, "pass")
            case ast.Assign(targets=[ast.Name(id=name)]):
                if name in self._assigned:
                    self._add("dropped line", node, "pass")
                self._assigned.add(name)
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
                self._add("dropped line", node, "return None")
            case ast.Continue():
                self._add("control flow", node, "break")
            case ast.Break():
                self._add("control flow", node, "continue")

    def _stale(self, node: ast.FunctionDef) -> None:
        """Answers are kept, and found again by the shapes and lengths of the arguments alone."""
        arguments = [arg for arg in (*node.args.args, *node.args.kwonlyargs) if arg.arg not in ("self", "cls")]
        changing = any(arg.annotation and CHANGING.search(ast.unparse(arg.annotation)) for arg in arguments)
        yields = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))
        decorated = [ast.unparse(one) for one in node.decorator_list]
        answers = any(isinstance(inner, ast.Return) and inner.value is not None for inner in ast.walk(node))
        special = ("jit", "property", "abstract", "hookimpl", "cache")
        plain = not any(what in one for one in decorated for what in special)
        if changing and answers and plain and not yields and not node.name.startswith("__"):
            start = self._at(node.lineno, node.col_offset)
            after = "@__import__('builtins').stale_mutant\n" + " " * node.col_offset
            self.found.append(Mutant("stale cache", node.lineno, start, start, "", after))

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._body(node.body)
        self._body(node.orelse)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
        self._body(node.body)

    def visit_Try(self, node: ast.Try) -> None:
        for body in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
            self._body(body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            if case.guard:
                self._condition(case.guard)
            self._body(case.body)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Its exception is a message."""

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [ast.unparse(target) for target in node.targets]
        if not any(UNTOUCHED_NAMES.fullmatch(name) for name in names) and not _is_type(node.value):
            for target in node.targets:
                self.visit(target)
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        alias = "TypeAlias" in ast.unparse(node.annotation)
        if node.value and not alias and not UNTOUCHED_NAMES.fullmatch(ast.unparse(node.target)):
            self.visit(node.value)

    # Expressions

    def _condition(self, test: ast.expr) -> None:
        self._add("condition", test, f"not ({self._text(test)})")
        self.visit(test)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for test in node.ifs:
            self._add("condition", test, "True")
            self.visit(test)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = [side for side in (node.left, node.right) if _is_text(side)]
        if type(node.op) in BINARY and not texts and not _is_type(node):
            self._between("operator", node.left, node.right, BINARY[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in BINARY and not _is_text(node.value):
            self._between("operator", node.target, node.value, BINARY[type(node.op)] + "=")
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, sign, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._between("comparison", left, right, COMPARE[type(sign)])
            if type(sign) in REVERSED:
                self._between("comparison", left, right, REVERSED[type(sign)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between("operator", left, right, other)
        self._add("operator", node, f"({self._text(node.values[0])})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._add("operator", node, f"({self._text(node.operand)})")
        self.visit(node.operand)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if UNTOUCHED_CALLS.fullmatch(name):
            return
        self.visit(node.func)
        if not SYMMETRIC.fullmatch(name):
            self._swap(node)
        for argument in node.args[:1] if name == "isinstance" else node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg and not UNTOUCHED_KEYWORDS.fullmatch(keyword.arg):
                self.visit(keyword.value)

    def _swap(self, node: ast.Call) -> None:
        for one, other in zip(node.args, node.args[1:], strict=False):
            if not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
                start, end = self._span(one)[0], self._span(other)[1]
                between = self._source[self._span(one)[1] : self._span(other)[0]].decode()
                before, after = self._source[start:end].decode(), self._text(other) + between + self._text(one)
                self.found.append(Mutant("swapped arguments", one.lineno, start, end, before, after))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if _is_type(node):
            return
        if isinstance(node.slice, ast.Slice):
            for bound in (node.slice.lower, node.slice.upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    self._add("off by one", bound, f"({self._text(bound)}) + 1")
                    self._add("off by one", bound, f"({self._text(bound)}) - 1")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Messages; and Python 3.11 does not know where their parts are."""

    def visit_Constant(self, node: ast.Constant) -> None:
        for after in _others(node.value):
            self._add("constant", node, after)


def _others(value: object) -> Iterator[str]:
    match value:
        case bool():
            yield repr(not value)
        case int():
            yield repr(value + 1)
            if value > 0:
                yield repr(value - 1)
        case float() if value == value and abs(value) != float("inf"):
            yield repr(value * 2 if value else 1.0)
        case str() if not SENTENCE.search(value) and not re.fullmatch(r"[\w.]+:\w+", value):
            yield repr(value + "X")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_type(node: ast.expr) -> bool:
    """Whether an expression is a type, such as an alias."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return all(
            re.fullmatch(r"[A-Z]\w*|None|str|int|float|bool|tuple\[.*|list\[.*", ast.unparse(side)) or _is_type(side)
            for side in (node.left, node.right)
        )
    heads = r"(Callable|Sequence|Mapping|Iterator|Iterable|Literal|Union|Optional|ClassVar|dict|list|tuple|type|set)"
    return isinstance(node, ast.Subscript) and bool(re.fullmatch(heads, ast.unparse(node.value)))
