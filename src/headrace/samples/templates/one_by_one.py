"""Templates that write one message after another, as their source shows: what they make of a message depends on it and
on those before it, never on what follows.

Of such a template the text of the first ``i`` messages is how the whole text begins, up to the place where message
``i`` begins, and the generation prompt is the same behind every one of them. So one rendering shows where every message
begins and what a model sees before it writes it. What is looked for in the source:

* one loop over the messages (or all but the first), at the top level, that runs to its end;
* before it and in it nothing that looks ahead: no ``loop.last``, no ``messages[-1]``, no second loop over them, no
  ``add_generation_prompt``;
* behind it nothing that depends on the conversation.

A part that looks ahead and stands in the branch of a role, as ``messages[loop.index0 + 1]`` does for answers of tools,
only rules out conversations with that role. Whatever is not understood here is left to comparisons of renderings.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from jinja2 import nodes

_MESSAGES = "messages"
_OF_CONVERSATION = frozenset((_MESSAGES, "tools", "documents"))
_LOOKS_BACK = frozenset(("first", "index", "index0", "previtem"))
"""Attributes of ``loop`` that do not depend on what follows."""
_FOREIGN = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.Block,
    nodes.EvalContextModifier,
    nodes.ContextReference,
    nodes.DerivedContextReference,
)


class OneByOne(NamedTuple):
    """The loop that writes the messages, and the roles that no conversation may have for all this to hold."""

    loop: nodes.For
    except_roles: tuple[str, ...]


class _AheadError(Exception):
    """The template may look ahead."""


def one_by_one(tree: nodes.Template) -> OneByOne | None:
    """What the source shows; None where it does not show that the template writes one message after another."""
    names = _aliases(tree)
    loops = [node for node in tree.body if isinstance(node, nodes.For) and _is_list(node.iter, names)]
    if len(loops) != 1 or any(node for kind in _FOREIGN for node in tree.find_all(kind)):
        return None
    loop = loops[0]
    place = tree.body.index(loop)
    reader = _Reader(loop, names, _assigned(tree))
    try:
        for node in tree.body[:place]:
            reader.read(node, frozenset(), loop=None)
        reader.read_loop()
        for node in tree.body[place + 1 :]:
            reader.read_behind(node)
    except _AheadError:
        return None
    return OneByOne(loop, tuple(sorted(reader.except_roles)))


class _Reader:
    def __init__(self, loop: nodes.For, names: frozenset[str], assigned: frozenset[str]) -> None:
        self.except_roles: set[str] = set()
        self._loop = loop
        self._names = names
        self._assigned = assigned
        target = loop.target
        # A message that is given another name, or the name to something else, says nothing about roles.
        stores = Counter(name.name for name in loop.find_all(nodes.Name) if name.ctx != "load")
        is_plain = isinstance(target, nodes.Name) and stores[target.name] == 1
        self._message = target.name if is_plain and isinstance(target, nodes.Name) else None

    def read_loop(self) -> None:
        loop = self._loop
        if loop.test is not None or loop.else_ or loop.recursive:
            raise _AheadError
        for node in loop.body:
            self.read(node, frozenset(), loop="messages")

    def read(self, node: nodes.Node, roles: frozenset[str], *, loop: str | None) -> None:
        """Read a part in front of the loop or in it; ``loop``: what that name stands for: the one over the
        ``messages``, ``another`` in it, or None.

        ``roles``: the part is only for messages of one of these; empty: for all.
        """
        if isinstance(node, nodes.Name):
            if node.name == "add_generation_prompt":
                raise _AheadError
            if node.name in self._names or (node.name == "loop" and loop != "another"):
                self._ahead(roles)
            return
        if isinstance(node, nodes.Break) and loop == "messages":
            raise _AheadError
        if _is_first_message(node) or (loop == "messages" and _looks_back(node)):
            return
        if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name) and _is_list(node.node, self._names):
            return
        if isinstance(node, nodes.If):
            self.read(node.test, roles, loop=loop)
            own = self._roles(node.test) if loop is not None else None
            for child in node.body:
                self.read(child, roles or own or frozenset(), loop=loop)
            for child in [*node.elif_, *node.else_]:
                self.read(child, roles, loop=loop)
            return
        if isinstance(node, nodes.For):
            for child in [node.iter, *node.else_]:
                self.read(child, roles, loop=loop)
            for child in [node.target, *node.body]:
                self.read(child, roles, loop="another")
            if node.test is not None:
                self.read(node.test, roles, loop=None)
            return
        for child in node.iter_child_nodes():
            self.read(child, roles, loop=None if isinstance(node, nodes.Macro) else loop)

    def read_behind(self, node: nodes.Node) -> None:
        """Read a part behind the loop: the same whatever the conversation is."""
        known = self._assigned | _OF_CONVERSATION | {"loop"}
        if any(name.name in known for name in [node, *node.find_all(nodes.Name)] if isinstance(name, nodes.Name)):
            raise _AheadError

    def _ahead(self, roles: frozenset[str]) -> None:
        if not roles:
            raise _AheadError
        self.except_roles |= roles

    def _roles(self, test: nodes.Node) -> frozenset[str] | None:
        """The roles that a message has where the test holds; None where it does not say."""
        if isinstance(test, nodes.And):
            return self._roles(test.left) or self._roles(test.right)
        if isinstance(test, nodes.Or):
            left, right = self._roles(test.left), self._roles(test.right)
            return left | right if left and right else None
        if not isinstance(test, nodes.Compare) or len(test.ops) != 1 or not self._is_role(test.expr):
            return None
        [operand] = test.ops
        if operand.op == "eq" and isinstance(operand.expr, nodes.Const) and isinstance(operand.expr.value, str):
            return frozenset((operand.expr.value,))
        return None

    def _is_role(self, node: nodes.Expr) -> bool:
        if isinstance(node, nodes.Getattr):
            is_role = node.attr == "role"
        elif isinstance(node, nodes.Getitem):
            is_role = isinstance(node.arg, nodes.Const) and node.arg.value == "role"
        else:
            return False
        return is_role and isinstance(node.node, nodes.Name) and node.node.name == self._message


def _aliases(tree: nodes.Template) -> frozenset[str]:
    """``messages`` and the names that are only ever given to them, or to all but the first; none, if they change."""
    names = frozenset((_MESSAGES,))
    given: dict[str, list[nodes.Node]] = {}
    for node in tree.find_all(nodes.Assign):
        if isinstance(node.target, nodes.Name):
            given.setdefault(node.target.name, []).append(node.node)
    stores = Counter(name.name for name in tree.find_all(nodes.Name) if name.ctx != "load")
    for _ in given:
        names |= {
            name
            for name, values in given.items()
            if len(values) == stores[name] and all(_is_list(value, names | {name}) for value in values)
        }
    return names if not stores[_MESSAGES] else frozenset()


def _is_list(node: nodes.Node | None, names: frozenset[str]) -> bool:
    """Whether it is all messages, or all but the first."""
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        cut = node.arg
        is_rest = isinstance(cut.start, nodes.Const) and cut.start.value == 1 and cut.stop is None and cut.step is None
        return is_rest and _is_list(node.node, names)
    return isinstance(node, nodes.Name) and node.name in names


def _is_first_message(node: nodes.Node) -> bool:
    """``messages[0]``, which every beginning has."""
    return (
        isinstance(node, nodes.Getitem)
        and isinstance(node.node, nodes.Name)
        and node.node.name == _MESSAGES
        and isinstance(node.arg, nodes.Const)
        and node.arg.value == 0
        and type(node.arg.value) is int
    )


def _looks_back(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Getattr)
        and isinstance(node.node, nodes.Name)
        and node.node.name == "loop"
        and node.attr in _LOOKS_BACK
    )


def _assigned(tree: nodes.Template) -> frozenset[str]:
    """Every name that the template gives a value, macros included."""
    names = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    names |= {macro.name for macro in tree.find_all(nodes.Macro)}
    return frozenset(names | {reference.name for reference in tree.find_all(nodes.NSRef)})
