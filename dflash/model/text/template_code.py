"""Code generator that compiles chat templates to Python code with budget checks."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, optimizeconst

_CALL = 50
"""Steps of a macro call in addition to those of its nodes."""

_ORDINARY = (nodes.Const, nodes.TemplateData)

_Body = nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block


class CountingCodeGenerator(CodeGenerator):
    """Jinja's code generator with calls to the environment where work could grow without bound.

    Each body of a loop or macro counts its nodes when it is entered. Values that are printed, joined, compared, sliced or
    looked up pass through `dflash.model.text.jinja_sandbox.BoundedEnvironment`, which measures them.
    """

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        """Insert the counting nodes before code is generated."""
        for loop in list(node.find_all(nodes.For)):
            if loop.test is not None:
                loop.test = nodes.And(_count(loop.test, self), loop.test).set_lineno(loop.lineno)
            _count_body(loop, self)
        bodies: list[_Body] = list(node.find_all((nodes.Macro, nodes.CallBlock, nodes.Block)))
        for body in bodies:
            _count_body(body, self, more=_CALL)
        super().visit_Template(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """Generate plain calls for counting nodes, and sandboxed calls otherwise."""
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.write(f"environment.{node.node.name}({node.args[0].as_const()})")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    @optimizeconst
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """Measure operands and result of ``~``."""
        self.write("environment.glued(")
        if frame.eval_ctx.volatile:
            self.write("(markup_join if context.eval_ctx.volatile else str_join)")
        else:
            self.write("markup_join" if frame.eval_ctx.autoescape else "str_join")
        self.write(", (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    @optimizeconst
    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        """Measure the operands of a comparison unless one is a constant, which bounds its cost."""
        searches = any(operand.op in ("in", "notin") for operand in node.ops)
        constant = any(isinstance(side, _ORDINARY) for side in (node.expr, *(operand.expr for operand in node.ops)))
        self.write("(")
        self._side(node.expr, frame, measured=not constant)
        for operand in node.ops:
            self.write(f" {_OPERATORS[operand.op]} ")
            self._side(operand.expr, frame, measured=searches or not constant)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        """Measure slices and computed keys."""
        if isinstance(node.arg, nodes.Slice):
            self.write("environment.made(")
            super().visit_Getitem(node, frame)
            self.write(")")
        elif isinstance(node.arg, _ORDINARY):
            super().visit_Getitem(node, frame)
        else:
            self.write("environment.getitem(")
            self.visit(node.node, frame)
            self.write(", ")
            self._side(node.arg, frame, measured=True)
            self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        """Measure computed keys, which are hashed."""
        self.write("{")
        for pair in node.items:
            self._side(pair.key, frame, measured=True)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")

    def _side(self, node: nodes.Expr, frame: Frame, *, measured: bool) -> None:
        measured = measured and not isinstance(node, _ORDINARY)
        self.write("environment.examined(" if measured else "")
        self.visit(node, frame)
        self.write(")" if measured else "")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
            self.write("environment.examined(")
        else:
            self.write("environment.shown(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            self.write(")")
        super()._output_child_post(node, frame, finalize)


_OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}


def _count(node: nodes.Node, generator: CodeGenerator, more: int = 1) -> nodes.Call:
    n_nodes = more + sum(1 for _ in node.find_all(nodes.Node))
    count = nodes.Call(nodes.EnvironmentAttribute("step"), [nodes.Const(n_nodes)], [], None, None)
    count.set_lineno(node.lineno, override=True).set_environment(generator.environment)
    return count


def _count_body(node: _Body, generator: CodeGenerator, more: int = 1) -> None:
    count = nodes.ExprStmt(_count(node, generator, more)).set_lineno(node.lineno).set_environment(generator.environment)
    node.body = [count, *node.body]
