"""Insert checks of the budget into a chat template before Jinja compiles the template to Python."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer

_CALL = 50
"""Steps of a macro call in addition to those of its nodes."""

_CONSTANTS = (nodes.Const, nodes.TemplateData)


class CountingCodeGenerator(CodeGenerator):
    """Jinja's code generator for templates with checks."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        """Insert the checks before code is generated."""
        super().visit_Template(Checks().visit(node), frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """Generate plain calls for checks, and sandboxed calls otherwise."""
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.write(f"environment.{node.node.name}(")
            self.visit(node.args[0], frame)
            self.write(")")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)


class Checks(NodeTransformer):
    """Inserts calls of `dflash.model.text.jinja_sandbox.BoundedEnvironment` where work could grow without bound.

    Each body of a loop or macro counts its nodes when it is entered, and each test of an item. Values that are printed,
    joined, compared, sliced or used as computed keys are measured.
    """

    def generic_visit(self, node: nodes.Node) -> nodes.Node:
        """Add the checks of one node, whose children have theirs."""
        counts: list[nodes.Node] = []
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
            more = 1 if isinstance(node, nodes.For) else _CALL
            counts = [nodes.ExprStmt(_steps(node, more), lineno=node.lineno)]
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(_steps(node.test), node.test, lineno=node.lineno)
        super().generic_visit(node)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
            node.body[:0] = counts
        elif isinstance(node, nodes.Output | nodes.Concat):  # the operands of ``~`` are also the size of its result
            check = "printed" if isinstance(node, nodes.Output) else "joined"
            node.nodes = [_checked(check, each) for each in node.nodes]
        elif isinstance(node, nodes.Compare):  # a constant bounds the cost, but that of a search
            constant = any(isinstance(side, _CONSTANTS) for side in (node.expr, *(operand.expr for operand in node.ops)))
            node.expr = node.expr if constant else _checked("examined", node.expr)
            for operand in node.ops:
                if not constant or operand.op in ("in", "notin"):
                    operand.expr = _checked("examined", operand.expr)
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return _checked("made", node)
        elif isinstance(node, nodes.Getitem):  # keys are hashed
            node.arg = _checked("examined", node.arg)
        elif isinstance(node, nodes.Pair):
            node.key = _checked("examined", node.key)
        return node


def _checked(check: str, node: nodes.Expr) -> nodes.Expr:
    """Return a call of a method of the environment with the node's value; constants have a bounded size."""
    return node if isinstance(node, _CONSTANTS) else nodes.Call(nodes.EnvironmentAttribute(check), [node], [], None, None)


def _steps(node: nodes.Node, more: int = 1) -> nodes.Expr:
    n_nodes = more + sum(1 for _ in node.find_all(nodes.Node))
    return nodes.Call(nodes.EnvironmentAttribute("step"), [nodes.Const(n_nodes)], [], None, None)
