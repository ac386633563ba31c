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

    Each body of a loop or macro counts its nodes when it is entered. Values that are printed, joined, compared, sliced or
    used as computed keys are measured.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Count each item and each test of an item."""
        if node.test is not None:
            node.test = nodes.And(_steps(node.test), node.test, lineno=node.lineno)
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:  # noqa: N802
        """Count each call."""
        return self._counted(node, more=_CALL)

    visit_CallBlock = visit_Block = visit_Macro  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        """Measure what is printed."""
        self.generic_visit(node)
        node.nodes = [_checked("printed", each) for each in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Measure the operands of ``~``, which are also the size of the result."""
        self.generic_visit(node)
        node.nodes = [_checked("joined", each) for each in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Measure the operands of a comparison unless one is a constant, which bounds its cost."""
        self.generic_visit(node)
        constant = any(isinstance(side, _CONSTANTS) for side in (node.expr, *(operand.expr for operand in node.ops)))
        if not constant:
            node.expr = _checked("examined", node.expr)
        for operand in node.ops:
            if not constant or operand.op in ("in", "notin"):
                operand.expr = _checked("examined", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """Measure slices, and computed keys, which are hashed."""
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _checked("made", node)
        node.arg = _checked("examined", node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        """Measure the computed keys of a new mapping."""
        self.generic_visit(node)
        node.key = _checked("examined", node.key)
        return node

    def _counted(self, node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block, more: int = 1) -> nodes.Node:
        count = nodes.ExprStmt(_steps(node, more), lineno=node.lineno)
        self.generic_visit(node)
        node.body.insert(0, count)
        return node


def _checked(check: str, node: nodes.Expr) -> nodes.Expr:
    """Return a call of a method of the environment with the node's value; constants have a bounded size."""
    return node if isinstance(node, _CONSTANTS) else nodes.Call(nodes.EnvironmentAttribute(check), [node], [], None, None)


def _steps(node: nodes.Node, more: int = 1) -> nodes.Expr:
    n_nodes = more + sum(1 for _ in node.find_all(nodes.Node))
    return nodes.Call(nodes.EnvironmentAttribute("step"), [nodes.Const(n_nodes)], [], None, None)
