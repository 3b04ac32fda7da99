"""Templates compiled for the environment in which they run, and the analysis of their source.

The environment is that of transformers 5: jinja2's immutable sandbox, `trim_blocks`, `lstrip_blocks`, `break` and
`continue`, the globals `raise_exception`, `strftime_now`, `dict` and `namespace` (both without a way to Python's
internals), the filter `tojson` without HTML escapes, and the block `{% generation %}`.

It differs in four ways, each for a reason:

* the time is passed in, so that a store that is made again has the same bytes;
* `lipsum` and the filter `random` are refused, since their text differs in every run;
* loops, macros, `*`, `**` and the length of the text have a budget, so that no template runs for ever;
* the place of a generation block is counted exactly, and a place that cannot be known is an error.

This cannot stop one expression that takes much time or memory (a string doubled forty times, `ljust` to 10^9).
Templates that are not of our suite therefore run in a process with bounds of its own (`limited`).

The analysis (`one_by_one`) finds templates whose source shows that they write one message after another: what they
write for a message depends on it and on those before it, never on what follows. Then the text of the first ``i``
messages is the beginning of the whole text, up to where message ``i`` begins, and the generation prompt is the same
after every message. So one rendering shows where every message begins and what a model sees before it writes it. The
source must have

* one loop over the messages (or all but the first), at the top level, that runs to its end;
* before and in the loop nothing that looks ahead: no ``loop.last``, no ``messages[-1]``, no second loop over the
  messages, no ``add_generation_prompt``;
* after the loop nothing that depends on the conversation.

A part that looks ahead in the branch of a role, as ``messages[loop.index0 + 1]`` does for answers of tools, only rules
out conversations with that role. Whatever the analysis does not understand is left to comparisons of renderings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from headrace.errors import ConfigError, HeadraceError, InputError
from headrace.samples.templates.messages import Rendered, TemplateSetup

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


def arguments_of(tree: nodes.Template) -> tuple[tuple[str, Any], ...]:
    """Return the names on which a text may depend beside the conversation, each with values that may change the text.

    They are the texts with which the source compares the name, or else false and true. Variables that the template sets
    itself are among them, and have no effect.
    """
    values: dict[str, dict[Any, None]] = {}
    for name in tree.find_all(nodes.Name):
        if name.ctx == "load" and name.name != "loop":
            values.setdefault(name.name, {})
    for compared in tree.find_all(nodes.Compare):
        if isinstance(compared.expr, nodes.Name) and compared.expr.name in values:
            for operand in compared.ops:
                constants = operand.expr.items if isinstance(operand.expr, nodes.List | nodes.Tuple) else [operand.expr]
                texts = [one.value for one in constants if isinstance(one, nodes.Const) and isinstance(one.value, str)]
                values[compared.expr.name] |= dict.fromkeys(texts)
    return tuple((name, value) for name, known in values.items() for value in known or (False, True))


class OneByOne(NamedTuple):
    """The loop that writes the messages, and the roles that a conversation must not have for the analysis to hold."""

    loop: nodes.For
    except_roles: tuple[str, ...]


class _AheadError(Exception):
    """The template may look ahead."""


def one_by_one(tree: nodes.Template) -> OneByOne | None:
    """Return what the source shows, or None if it does not show that the template writes one message after another."""
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
    """Reads the parts of a template before its loop over the messages and in it.

    ``roles``: a part is only used for messages of one of these roles; empty means for all. ``loop`` says what that name
    stands for: the loop over the ``messages``, ``another`` loop in it, or None.
    """

    def __init__(self, loop: nodes.For, names: frozenset[str], assigned: frozenset[str]) -> None:
        self.except_roles: set[str] = set()
        self._loop = loop
        self._names = names
        self._assigned = assigned
        target = loop.target
        # If the loop variable is reassigned, or is not a plain name, tests of its role show nothing.
        stores = Counter(name.name for name in loop.find_all(nodes.Name) if name.ctx != "load")
        is_plain = isinstance(target, nodes.Name) and stores[target.name] == 1
        self._message = target.name if is_plain and isinstance(target, nodes.Name) else None

    def read_loop(self) -> None:
        loop = self._loop
        if loop.test is not None or loop.else_ or loop.recursive:
            raise _AheadError
        self._read_all(loop.body, frozenset(), loop="messages")

    def read(self, node: nodes.Node, roles: frozenset[str], *, loop: str | None) -> None:
        """Read a part before the loop or in it."""
        if _is_first_message(node) or (loop == "messages" and _looks_back(node)):
            return
        match node:
            case nodes.Name():
                self._read_name(node, roles, loop=loop)
            case nodes.Break() if loop == "messages":
                raise _AheadError
            case nodes.Assign(target=nodes.Name(), node=value) if _is_list(value, self._names):
                pass  # another name for the messages
            case nodes.If():
                self._read_if(node, roles, loop=loop)
            case nodes.For():
                self._read_all([node.iter, *node.else_], roles, loop=loop)
                self._read_all([node.target, *node.body], roles, loop="another")
                self._read_all([node.test] if node.test is not None else [], roles, loop=None)
            case nodes.Macro():
                self._read_all(node.iter_child_nodes(), roles, loop=None)
            case _:
                self._read_all(node.iter_child_nodes(), roles, loop=loop)

    def _read_all(self, parts: Iterable[nodes.Node], roles: frozenset[str], *, loop: str | None) -> None:
        for part in parts:
            self.read(part, roles, loop=loop)

    def _read_name(self, node: nodes.Name, roles: frozenset[str], *, loop: str | None) -> None:
        looks_ahead = node.name in self._names or (node.name == "loop" and loop != "another")
        if node.name == "add_generation_prompt" or (looks_ahead and not roles):
            raise _AheadError
        if looks_ahead:
            self.except_roles |= roles

    def _read_if(self, node: nodes.If, roles: frozenset[str], *, loop: str | None) -> None:
        self.read(node.test, roles, loop=loop)
        own = self._roles(node.test) if loop is not None else None
        self._read_all(node.body, roles or own or frozenset(), loop=loop)
        self._read_all([*node.elif_, *node.else_], roles, loop=loop)

    def read_behind(self, node: nodes.Node) -> None:
        """Read a part after the loop, which must be the same for all conversations."""
        known = self._assigned | _OF_CONVERSATION | {"loop"}
        if any(name.name in known for name in [node, *node.find_all(nodes.Name)] if isinstance(name, nodes.Name)):
            raise _AheadError

    def _roles(self, test: nodes.Node) -> frozenset[str] | None:
        """Return the roles that a message has if the test is true; None if the test does not say."""
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
    """Return ``messages`` and the names that stand only for them, or for all but the first; no names if they change."""
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
    """Return whether a node is all messages, or all but the first."""
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        cut = node.arg
        is_rest = isinstance(cut.start, nodes.Const) and cut.start.value == 1 and cut.stop is None and cut.step is None
        return is_rest and _is_list(node.node, names)
    return isinstance(node, nodes.Name) and node.name in names


def _is_first_message(node: nodes.Node) -> bool:
    """Return whether a node is ``messages[0]``, which every beginning of the conversation has."""
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
    """Return every name to which the template assigns a value, including macros."""
    names = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    names |= {macro.name for macro in tree.find_all(nodes.Macro)}
    return frozenset(names | {reference.name for reference in tree.find_all(nodes.NSRef)})


_MAX_BITS = 1 << 16
_STEP = "headrace step"
_WITHIN = "headrace within"
_EDGE = "headrace edge"
_BEGIN = "headrace begin"
"""Filters that the compiled template calls; a template cannot write their names."""
_MISPLACED = (
    "this generation block stands in a macro, a call, a filter, a set, a recursive loop or another generation block, "
    "so its place in the text is not known. Move it into the body"
)
_LEFT = "a break or continue leaves the generation block that it stands in. Close the block first"
_DICT_ATTRIBUTES = frozenset(dir(dict))


class RefusedError(TemplateRuntimeError):
    """The message that a template raises with `raise_exception`."""


class Budget:
    """The state of one rendering: steps that are left, characters written, and edges of generation blocks.

    For a template that writes one message after another, also where each message begins.
    """

    __slots__ = ("begins", "edges", "max_chars", "max_steps", "steps", "written")

    def __init__(self, max_steps: int, max_chars: int) -> None:
        self.max_steps = max_steps
        self.max_chars = max_chars
        self.start()

    def start(self) -> None:
        """Reset the state for a new rendering."""
        self.steps = self.max_steps
        self.written = 0
        self.edges: list[int] = []
        self.begins: list[int] = []

    def spend(self, steps: int) -> None:
        """Subtract ``steps`` from those that are left."""
        self.steps -= steps
        if self.steps < 0:
            raise TemplateRuntimeError(
                f"the template takes more than {self.max_steps:,} steps of loops and macros; it may run for ever"
            )


class GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}``: what the model writes. The text stays the same, its place is kept.

    Hugging Face renders the block into a string first. Here the two ends are marked. When a mark is reached, all text
    before it has been yielded and counted, since jinja2 yields in order outside of buffers. Variables that are set
    inside the block stay inside, as in Hugging Face.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse the block as a mark, a scope with its body, and a mark."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [_mark(_EDGE, line), nodes.Scope(body).set_lineno(line), _mark(_EDGE, line)]


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with a budget. ``fault`` says which generation block is wrong, and how."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self, *, now: datetime, budget: Budget) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        self.budget = budget
        self.fault: tuple[int, str] | None = None
        self.has_generation = False
        self.one_by_one: OneByOne | None = None
        self.arguments: tuple[tuple[str, Any], ...] = ()
        self.filters["tojson"] = _to_json
        self.filters["random"] = _random
        self.filters[_STEP] = self._step
        self.filters[_WITHIN] = self._within
        self.filters[_EDGE] = self._edge
        self.filters[_BEGIN] = self._begin
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = now.strftime
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace
        self.globals["lipsum"] = _random

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up an attribute as jinja2 does, but without an exception for each field of a message."""
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``*`` and ``**`` if the result is of an allowed size."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise TemplateRuntimeError(
                    f"the result of {operator} has more than {_MAX_BITS:,} bits, the most allowed"
                )
        elif operator == "*":
            times, repeated = (left, right) if isinstance(left, int) else (right, left)
            length = len(repeated) if isinstance(repeated, str | list | tuple) else 0
            if length and times * length > self.budget.max_chars:
                raise TemplateRuntimeError(
                    f"a value of length {length:,} repeated {times:,} times is longer than "
                    f"{self.budget.max_chars:,}, the most allowed"
                )
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self.one_by_one = one_by_one(tree)
        self.arguments = arguments_of(tree)
        if self.one_by_one is not None:
            loop = self.one_by_one.loop
            loop.body.insert(0, _mark(_BEGIN, loop.lineno))
        self._watch(tree, buffered=False, block=False)
        return tree

    def _watch(self, node: nodes.Node, *, buffered: bool, block: bool) -> None:
        """Make loops and macros spend steps, and find generation blocks whose edges cannot be counted.

        ``buffered``: jinja2 collects the text here instead of yielding it. ``block``: `break` would leave a generation
        block.
        """
        for child in node.iter_child_nodes():
            collects, leaves = buffered, block
            if isinstance(child, nodes.For):
                collects, leaves = buffered or child.recursive, False
                if child.recursive:
                    child.body.insert(0, _mark(_STEP, child.lineno))
                child.iter = nodes.Filter(child.iter, _WITHIN, [], [], None, None).set_lineno(child.lineno)
            elif isinstance(child, nodes.Macro):
                collects = True
                child.body.insert(0, _mark(_STEP, child.lineno))
            elif isinstance(child, nodes.Scope):  # only generation blocks make these
                self.has_generation = True
                if buffered:
                    self.fault = self.fault or (child.lineno, _MISPLACED)
                collects = leaves = True
            elif isinstance(child, nodes.CallBlock | nodes.FilterBlock | nodes.AssignBlock):
                collects = True
            elif isinstance(child, nodes.Break | nodes.Continue) and block:
                self.fault = self.fault or (child.lineno, _LEFT)
            self._watch(child, buffered=collects, block=leaves)

    @pass_context
    def _step(self, _: Context, value: None) -> None:
        self.budget.spend(1)

    @pass_context
    def _edge(self, _: Context, value: None) -> None:
        self.budget.edges.append(self.budget.written)

    @pass_context
    def _begin(self, _: Context, value: None) -> None:
        self.budget.begins.append(self.budget.written)

    @pass_context
    def _within(self, _: Context, items: Any) -> Any:
        try:
            self.budget.spend(len(items))
        except TypeError:
            return self._counted(items)
        return items

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.spend(1)
            yield item


class _Dict:
    """The global ``dict``, which can only be called: the type itself would lead to Python's internals."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """The global ``namespace``; a name with a leading underscore would be a way to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `namespace(self=...)` is allowed, so the instance comes from the positional arguments, as in jinja2.
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace allows no names with a leading underscore, found {name!r}: rename it")


def _mark(filter_name: str, line: int) -> nodes.Node:
    """Return a statement that calls one of our filters and writes nothing."""
    return nodes.ExprStmt(nodes.Filter(nodes.Const(None), filter_name, [], [], None, None)).set_lineno(line)


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_context
def _random(_: Context, *args: Any, **kwargs: Any) -> str:
    raise SecurityError("random text would differ in every run: remove `random` and `lipsum` from the template")


class CompiledTemplate:
    """One compiled source with the budget of a rendering; it renders one conversation at a time.

    Attributes:
        except_roles: The roles that a conversation must not have for `Rendered.message_begins` to be known; None if the
            template may look ahead, so that it is never known.
        arguments: See `arguments_of`.

    Raises:
        ConfigError: If the source is not a template, or the place of a generation block in the text cannot be known.
    """

    def __init__(self, setup: TemplateSetup, text: str, name: str) -> None:
        self.text = text
        self._label = f"chat template {name!r} of {setup.source}"
        self._budget = Budget(setup.max_steps, setup.max_chars)
        self._lock = Lock()
        try:
            environment = ChatEnvironment(now=setup.now or datetime.min, budget=self._budget)
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{self._label}, line {error.lineno}: it is not a Jinja template: {error.message}"
            ) from error
        except RecursionError as error:
            raise ConfigError(f"{self._label}: it is nested too deeply to be compiled") from error
        except Exception as error:  # errors of Python's compiler, such as too many nested loops
            raise ConfigError(f"{self._label}: it cannot be compiled: {type(error).__name__}: {error}") from error
        if environment.fault is not None:
            line, reason = environment.fault
            raise ConfigError(
                f"{self._label}, line {line}: {reason}, or remove the blocks: masks are then found by comparing "
                "prefixes"
            )
        self.has_generation = environment.has_generation
        self.arguments = environment.arguments
        one_by_one = environment.one_by_one
        self.except_roles: tuple[str, ...] | None = None if one_by_one is None else one_by_one.except_roles
        self._known = {**self._template.globals, **setup.special_tokens}
        self._context = self._template.new_context(shared=True)
        """Used for each rendering with other variables, as making one would take as long as many a rendering."""
        self._begun = self._context.eval_ctx.save()
        """What a tag such as ``autoescape`` changes, and leaves changed if the template fails within it."""

    def render(self, variables: dict[str, Any]) -> Rendered:
        """Return the text for these variables, which win over special tokens.

        Raises:
            InputError: If the template fails on them; names the line.
            ConfigError: If there is not enough memory for the text.
        """
        budget = self._budget
        max_chars = budget.max_chars
        pieces: list[str] = []
        with self._lock:
            budget.start()
            context, written = self._context, 0
            context.parent, context.vars, context.exported_vars = self._known | variables, {}, set()
            context.eval_ctx.revert(self._begun)
            try:
                for piece in self._template.root_render_func(context):
                    pieces.append(piece)
                    budget.written = written = written + len(piece)
                    if written > max_chars:
                        raise InputError(
                            f"{self._label}: the text is longer than {max_chars:,} characters, the most allowed"
                        )
            except HeadraceError:
                raise
            except MemoryError:
                raise ConfigError(
                    f"{self._label}: there is not enough memory for the text of this conversation"
                ) from None
            except Exception as error:
                advice = ""
                if isinstance(error, TypeError) and any(
                    isinstance(message.get("content"), list | tuple) for message in variables["messages"]
                ):
                    advice = "; a content is a list of parts, which it may not read: `parts: join` makes it one text"
                raise InputError(self._explained(error) + advice) from error
            edges, begins = budget.edges, budget.begins
        return Rendered(
            text="".join(pieces),
            generation_spans=tuple(zip(edges[::2], edges[1::2], strict=True)),
            has_generation=self.has_generation,
            message_begins=self._begins(begins, variables["messages"]),
        )

    def _begins(self, begins: list[int], messages: list[dict[str, Any]]) -> tuple[int, ...]:
        roles = self.except_roles
        if roles is None or (roles and any(one.get("role") in roles for one in messages)):
            return ()
        apart = len(messages) - len(begins)
        return (0,) * apart + tuple(begins) if 0 <= apart <= 1 else ()

    def _explained(self, error: Exception) -> str:
        line = self._line(error.__traceback__)
        where = f"{self._label}, line {line}" if line else self._label
        if isinstance(error, RefusedError):
            return f"{where}: it refuses this conversation: {error}"
        if isinstance(error, RecursionError):
            return f"{where}: its macros or recursive loops call each other without end"
        if isinstance(error, jinja2.TemplateError):
            return f"{where}: {error}"
        return f"{where}: {type(error).__name__}: {error}"

    def _line(self, traceback: TracebackType | None) -> int | None:
        """Return the line of the template at which it failed: that of its innermost frame."""
        line = None
        while traceback is not None:
            if traceback.tb_frame.f_globals.get("__jinja_template__") is self._template:
                line = self._template.get_corresponding_lineno(traceback.tb_lineno)
            traceback = traceback.tb_next
        return line
