"""Globals that the user's code names, and whether they have the same values in a worker, so that samples are the same.

A worker that is not a fork imports the modules of the user's code anew. It lacks what the program set in them while it
ran, such as the options behind a ``get_args()`` or the groups of a model. Code that has a default for that case would
silently make other samples.

    functions, methods    in what is sent to workers: hooks, cookers, loaders of samples
      -> what they name   functions, classes and modules, which are followed in turn
        -> globals        with a plain value, or None, in the program: compared in each worker before its first sample

Only globals that the code names are compared. Those that the code assigns itself, such as counters and caches, are not.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import dis
import enum
import functools
import gc
import importlib
import inspect
import os
import sys
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist

_NOT_FOLLOWED: Final = {*sys.stdlib_module_names, "headrace", "torch", "numpy", "msgspec", "yaml", "xxhash"}
"""Packages whose globals are not set to change samples. Of torch, those that matter are compared by name."""

_MAX_OBJECTS: Final = 100_000
_MAX_FUNCTIONS: Final = 2_000
_MAX_CALLS: Final = 8
_MAX_ENTRIES: Final = 1_000
_MAX_DEPTH: Final = 4
_MAX_SHOWN: Final = 200

_DECODERS: Final = "headrace.samples.media"

_PLAIN: Final = (bool, int, float, complex, bytes, type(None), PurePath, np.generic, torch.dtype)
_NO_CODE: Final = (*_PLAIN, str, types.ModuleType, np.ndarray, torch.Tensor)
_NAMESPACES: Final = (argparse.Namespace, types.SimpleNamespace)
_MAKE: Final = ("__init__", "__new__", "__post_init__")
"""Methods that make an object; what they set is not changed by that."""

_ASK_RANKS: Final = {"get_rank", "get_world_size", "is_initialized"}
_CHANGES: Final = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"),
    *("setdefault", "update"),
}
"""Methods by which code changes a dict, list or set that it keeps."""


class GlobalName(NamedTuple):
    """The place of a global: its module, and the names that lead to it there, such as a class and its attribute."""

    module: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.module, *self.names))


_OF_DECODERS: Final = (
    GlobalName("PIL.Image", ("MAX_IMAGE_PIXELS",)),
    GlobalName("PIL.ImageFile", ("LOAD_TRUNCATED_IMAGES",)),
    GlobalName("PIL.PngImagePlugin", ("MAX_TEXT_CHUNK",)),
    GlobalName("PIL.GifImagePlugin", ("LOADING_STRATEGY",)),
)
"""What programs set in Pillow so that more images can be decoded. It is Headrace's own decoder that goes by it."""


class Globals:
    """The globals that some code names, with their values in this process. It is pickled, and compared in another one.

    Args:
        code: any object that holds functions, such as what is sent to workers.
        may_differ: names of globals that may differ in a worker, as ``module.NAME``, with all below them.
    """

    def __init__(self, code: Any, may_differ: Iterable[str] = ()) -> None:
        walk = _Walk()
        walk.follow(code)
        self._decodes = walk.decodes
        self._places = (*walk.places(), *(_OF_DECODERS if walk.decodes else ()))
        self._attributes = frozenset(walk.attributes)
        self._own = frozenset(walk.own)
        self._variables = tuple(sorted(walk.variables))
        self._asks_torch = walk.asks_torch
        self._asks_ranks = walk.asks_ranks
        self._may_differ = tuple(may_differ)
        self._values = self._now()

    @property
    def are_current(self) -> bool:
        """Whether this process still has the values that it had when this object was made."""
        return self._now() == self._values

    def differences(self, first: str = "in the program", second: str = "in the worker") -> list[str]:
        """Return a line for each global that differs in this process, with both values.

        Args:
            first: words for where, or when, the values were those of this object.
            second: the same for here and now.
        """
        here, there = self._now(), self._values
        found: list[str] = []
        lines = []
        for label in sorted({*here, *there}):
            one, other = there.get(label), here.get(label)
            if not _differ(one, other) or any(label.startswith((f"{above}.", f"{above}[")) for above in found):
                continue
            found.append(label)
            lines.append(f"{label} is {_shown(one)} {first}, {_shown(other)} {second}")
        return lines

    def _now(self) -> dict[str, str]:
        values: dict[str, str] = {}
        for place in self._places:
            for value in _values_at(place):
                self._put(values, str(place), value, 0, with_collections=not _is_installed(place.module))
        if self._decodes:
            values["PIL.Image.OPEN"] = repr(_plug_ins())
        for name in self._variables:
            values[f"os.environ[{name!r}]"] = repr(os.environ.get(name))
        if self._asks_torch:
            values["torch.get_default_dtype()"] = repr(torch.get_default_dtype())
        if self._asks_ranks:
            is_set_up = dist.is_available() and dist.is_initialized()
            values["torch.distributed.is_initialized()"] = repr(is_set_up)
            if is_set_up:
                values["torch.distributed.get_rank()"] = repr(dist.get_rank())
                values["torch.distributed.get_world_size()"] = repr(dist.get_world_size())
        return {label: value for label, value in values.items() if not self._is_let_off(label)}

    def _is_let_off(self, label: str) -> bool:
        return any(label == one or label.startswith((f"{one}.", f"{one}[")) for one in self._may_differ)

    def _put(self, values: dict[str, str], label: str, value: Any, depth: int, *, with_collections: bool) -> None:
        """Add a value: as it is if it is plain; otherwise its type, and the plain values in it.

        Collections of an installed package are left out, since they are its registries, which grow with imports.
        """
        is_left_out = isinstance(value, (dict, list, set)) and not with_collections
        text = None if is_left_out else _text(value)
        values[label] = f"<{type(value).__qualname__}>" if text is None else text
        if text is None and not is_left_out and depth < _MAX_DEPTH:
            for place, entry, with_inner in self._inside(value):
                self._put(values, label + place, entry, depth + 1, with_collections=with_inner)

    def _inside(self, value: Any) -> Iterator[tuple[str, Any, bool]]:
        """Yield what an object holds: its place as code writes it, its value, and whether collections in it count."""
        if isinstance(value, dict):
            for key, entry in list(value.items()) if len(value) <= _MAX_ENTRIES else ():
                if (name := _text(key)) is not None:
                    yield f"[{name}]", entry, True
            return
        kind = type(value)
        with_collections = isinstance(value, _NAMESPACES) or not _is_installed(kind.__module__)
        for name, entry in _attributes(value).items():
            if name in self._attributes and (_full_name(kind), name) not in self._own:
                yield f".{name}", entry, with_collections


def _plug_ins() -> list[str]:
    """Return the formats for which a package other than Pillow has registered itself in Pillow."""
    openers = getattr(sys.modules.get("PIL.Image"), "OPEN", {})
    return sorted(name for name, (factory, _) in openers.items() if not factory.__module__.startswith("PIL."))


def _differ(there: str | None, here: str | None) -> bool:
    if there == here:
        return False
    # Two objects cannot be compared, but whether there is one matters, as with a process group. Where the program has
    # nothing, an object in the worker was made by worker_init. A missing name is an error when it is used.
    if _is_object(there):
        return here is not None and not _is_object(here)
    return not (there in (None, "None") and _is_object(here))


def _is_object(text: str | None) -> bool:
    return text is not None and text.startswith("<") and text.endswith(">")


def _shown(text: str | None) -> str:
    if text is None:
        return "not set"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _text(value: Any, depth: int = 0) -> str | None:
    """Return a text for a plain value, or a small collection of them, equal if the values are; None for all else."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (tuple, list, set, frozenset)):
        if len(value) > _MAX_ENTRIES or depth >= _MAX_DEPTH:
            return None
        entries = [_text(one, depth + 1) for one in value]
        if any(one is None for one in entries):
            return None
        shown = [one for one in entries if one is not None]
        return f"{type(value).__name__}({', '.join(sorted(shown) if isinstance(value, (set, frozenset)) else shown)})"
    return None


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that may hold options: a namespace, dataclass, struct, or user's object."""
    if isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return {}
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name, None) for name in value.__struct_fields__}
    if isinstance(value, _NAMESPACES) or _is_followed(type(value).__module__):
        return dict(getattr(value, "__dict__", {}))
    return {}


def _full_name(thing: Any) -> str:
    # A script has another module name in a process that was started anew.
    module = "__main__" if thing.__module__ == "__mp_main__" else thing.__module__
    return f"{module}.{thing.__qualname__}"


def _is_followed(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] not in _NOT_FOLLOWED


@functools.cache
def _is_installed(module: str) -> bool:
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(PurePath(file).parts)


def _values_at(place: GlobalName) -> Iterator[Any]:
    """Yield the value of a global, or nothing if there is none. A module that was not imported yet is imported."""
    module = sys.modules.get(place.module)
    if module is None:
        try:
            module = importlib.import_module(place.module)
        except Exception:  # the code that names it raises the same when it runs
            return
    found: Any = module
    for name in place.names:
        # Not getattr, which may import modules or make objects.
        inside = getattr(found, "__dict__", {})
        if name not in inside:
            return
        found = inside[name]
    yield found


class _Walk:
    """Follows code from function to function, nearest first, and collects what it names."""

    def __init__(self) -> None:
        self._globals: dict[GlobalName, Any] = {}
        self._written: set[GlobalName] = set()
        self._functions: dict[types.CodeType, types.FunctionType] = {}
        self._classes: dict[type, bool] = {}
        self._queue: deque[tuple[Any, int]] = deque()
        self.held: list[Any] = []
        """What functions hold in closures and defaults."""
        self.attributes: set[str] = set()
        self.own: set[tuple[str, str]] = set()
        self.variables: set[str] = set()
        self.asks_torch = False
        self.asks_ranks = False
        self.decodes = False

    def places(self) -> list[GlobalName]:
        """Return the globals that hold something to compare and that the code does not assign itself."""
        return [
            place
            for place, value in self._globals.items()
            if place not in self._written and not isinstance(value, types.ModuleType)
        ]

    def named(self) -> list[Any]:
        """Return the values of the globals and attributes that the code names."""
        return list(self._globals.values())

    def follow(self, root: Any) -> None:
        """Visit all functions within an object, and what they name."""
        for one in _objects_in(root):
            self.decodes |= type(one).__module__.startswith(_DECODERS)
            self._queue.extend((code, 0) for code in _code_of(one))
        while self._queue:
            one, calls = self._queue.popleft()
            if calls <= _MAX_CALLS and len(self._functions) < _MAX_FUNCTIONS:
                self._visit(one, calls)
            if not self._queue:
                # Methods are found by their names alone, since the code does not say of which class an object is.
                self._queue.extend((method, 1) for method in self._named_methods())
        self._find_own()

    def _visit(self, one: Any, calls: int) -> None:
        if isinstance(one, partial):
            self._queue.extend((part, calls) for part in (one.func, *one.args, *one.keywords.values()))
        elif isinstance(one, types.MethodType):
            owner = one.__self__
            self._queue.extend(((one.__func__, calls), (owner if isinstance(owner, type) else type(owner), calls)))
        elif isinstance(one, (staticmethod, classmethod)):
            self._queue.append((one.__func__, calls))
        elif isinstance(one, property):
            self._queue.append((one.fget, calls))
        elif isinstance(one, type):
            for kind in one.__mro__:
                if _is_followed(kind.__module__):
                    self._classes.setdefault(kind, False)
        elif isinstance(one, types.FunctionType):
            self._visit_function(one, calls)
        elif isinstance(one, functools._lru_cache_wrapper):
            self._queue.append((one.__wrapped__, calls))

    def _visit_function(self, function: types.FunctionType, calls: int) -> None:
        if function.__code__ in self._functions or not _is_followed(function.__module__):
            return
        self._functions[function.__code__] = function
        for cell in function.__closure__ or ():
            try:
                self.held.append(cell.cell_contents)
            except ValueError:  # it is empty
                continue
            self._queue.append((self.held[-1], calls))
        self.held += function.__defaults__ or ()
        if (wrapped := getattr(function, "__wrapped__", None)) is not None:
            self._queue.append((wrapped, calls))
        for code in _codes(function.__code__):
            self._read(code, function.__globals__, calls)

    def _read(self, code: types.CodeType, names: dict[str, Any], calls: int) -> None:
        """Collect what a piece of code names: globals, and attributes of any objects."""
        mentioned = set(code.co_names)
        self.attributes |= mentioned
        module = str(names.get("__name__"))
        begin = []
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in names:
                begin.append((GlobalName(module, (step.argval,)), names[step.argval]))
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self._written.add(GlobalName(module, (step.argval,)))
            elif step.opname == "IMPORT_NAME":
                found = _imported(step.argval, names)
                begin += [] if found is None else [(GlobalName(found.__name__, ()), found)]
        for place, value in begin:
            self._name(place, value, mentioned, calls)
        if mentioned & {"environ", "getenv"}:
            self.variables |= {one for one in code.co_consts if isinstance(one, str) and one.isidentifier()}

    def _name(self, place: GlobalName, value: Any, mentioned: set[str], calls: int) -> None:
        if isinstance(value, types.ModuleType):
            self._name_module(value, mentioned, calls)
            return
        if isinstance(value, types.FunctionType) and value.__module__.startswith("torch.distributed"):
            self.asks_ranks |= value.__name__ in _ASK_RANKS
        if place.names:
            self._globals[place] = value
        if isinstance(value, type):
            if _is_followed(value.__module__):
                for kind in value.__mro__:
                    if _is_followed(kind.__module__):
                        self._classes[kind] = True
        elif callable(value) or isinstance(value, partial):
            self._queue.append((value, calls + 1))
        if not isinstance(value, type) and _is_followed(type(value).__module__):
            self._queue.append((type(value), calls + 1))

    def _name_module(self, module: types.ModuleType, mentioned: set[str], calls: int) -> None:
        if module.__name__.partition(".")[0] == "torch":
            self.asks_torch = True
            self.asks_ranks |= "distributed" in {*mentioned, *module.__name__.split(".")} and bool(
                mentioned & _ASK_RANKS
            )
        if not _is_followed(module.__name__):
            return
        inside = vars(module)
        for name in sorted(mentioned & inside.keys()):
            value = inside[name]
            if isinstance(value, types.ModuleType):
                if value is not module and value.__name__.startswith(f"{module.__name__}."):
                    self._name_module(value, mentioned, calls)
            else:
                self._name(GlobalName(module.__name__, (name,)), value, mentioned, calls)

    def _named_methods(self) -> Iterator[Any]:
        """Yield methods of the classes found: those that the code names, and constructors if it makes objects."""
        for kind, is_made in list(self._classes.items()):
            for name, value in list(vars(kind).items()):
                special = name.startswith("__") and name.endswith("__")
                wanted = name in self.attributes if not special else is_made or name not in ("__init__", "__new__")
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                function = inspect.unwrap(function) if callable(function) else function
                if isinstance(function, types.FunctionType):
                    is_new = function.__code__ not in self._functions and _is_followed(function.__module__)
                    if wanted and is_new and len(self._functions) < _MAX_FUNCTIONS:
                        yield function
                elif name in self.attributes and not callable(value):
                    self._globals[_attribute_of(kind, name)] = value

    def _find_own(self) -> None:
        """Find the globals and attributes that the code changes itself: caches, counters, objects made on first use."""
        changeable = {
            place
            for place, value in self._globals.items()
            if isinstance(value, (dict, list, set)) or (_text(value) is None and _attributes(value))
        }
        owners = {place.names[-1] for place in changeable} | {
            place.names[-2] for place in self._globals if len(place.names) > 1
        }
        methods = self._methods()
        for code, function in self._functions.items():
            if code in methods or owners & {name for one in _codes(code) for name in one.co_names}:
                self._note_changes(function, methods.get(code), changeable)

    def _methods(self) -> dict[types.CodeType, type]:
        """Return the class of each method, by its code."""
        return {
            function.__code__: kind
            for kind in self._classes
            for function in (inspect.unwrap(one) for one in vars(kind).values() if callable(one))
            if isinstance(function, types.FunctionType)
        }

    def _note_changes(self, function: types.FunctionType, kind: type | None, changeable: set[GlobalName]) -> None:
        """Note what a function, or a method of a class, changes."""
        written, own = _changed_by(function)
        names = function.__globals__
        self._written |= {place for place in changeable if place.names[-1] in written & names.keys()}
        for first, name in own:
            if first in ("self", "cls") and kind is not None and function.__name__ not in _MAKE:
                self.own.add((_full_name(kind), name))
                self._written.add(_attribute_of(kind, name))
            owner = names.get(first)
            if isinstance(owner, (type, types.ModuleType)):
                self._written.add(_attribute_of(owner, name))
            elif owner is not None:
                self.own.add((_full_name(type(owner)), name))


def _attribute_of(owner: type | types.ModuleType, name: str) -> GlobalName:
    """Return the place of an attribute of a class or a module."""
    if isinstance(owner, types.ModuleType):
        return GlobalName(owner.__name__, (name,))
    return GlobalName(owner.__module__, (*owner.__qualname__.split("."), name))


def objects_in(code: Any) -> Iterator[Any]:
    """Yield the objects that an object, and its functions, hold at any depth; and the globals that these name."""
    walk = _Walk()
    walk.follow(code)
    yield from _objects_in([code, *walk.held])
    yield from walk.named()


def _code_of(one: Any) -> Iterator[Any]:
    """Yield an object if it is a function or class, or the function of a method; of others the class."""
    if isinstance(one, (types.FunctionType, type)):
        yield one
    elif isinstance(one, types.MethodType):
        yield one.__func__
    elif _is_followed(type(one).__module__):
        yield type(one)


def _objects_in(root: Any) -> Iterator[Any]:
    queue: deque[Any] = deque([root])
    seen: set[int] = set()
    kept = []
    while queue and len(seen) < _MAX_OBJECTS:
        one = queue.popleft()
        if id(one) in seen or isinstance(one, _NO_CODE):
            continue
        seen.add(id(one))
        kept.append(one)  # while it is alive, no other object can have its id
        yield one
        if isinstance(one, (types.FunctionType, type)):
            continue
        if isinstance(one, (dict, list, tuple, set)):
            queue.extend(islice(one.values() if isinstance(one, dict) else one, _MAX_ENTRIES))
        else:
            queue.extend(gc.get_referents(one))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a piece of code, and the functions, comprehensions and lambdas in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _imported(name: str, names: dict[str, Any]) -> types.ModuleType | None:
    """Return the module of an import statement within a function, if it was imported already."""
    package = names.get("__package__")
    return sys.modules.get(name) or sys.modules.get(f"{package}.{name}" if name else str(package))


def _changed_by(function: Callable[..., Any]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the names of collections that a function changes, and (name, attribute) of the objects that it changes."""
    written: set[str] = set()
    own: set[tuple[str, str]] = set()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # without source, nothing is known to be changed
        return written, own
    for node in ast.walk(tree):
        changes = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        if isinstance(node, ast.Subscript) and changes:
            _add(written, own, node.value)
        elif isinstance(node, ast.Attribute) and changes and isinstance(node.value, ast.Name):
            own.add((node.value.id, node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            _add(written, own, node.func.value)
    return written, own


def _add(written: set[str], own: set[tuple[str, str]], changed: ast.expr) -> None:
    if isinstance(changed, ast.Name):
        written.add(changed.id)
    elif isinstance(changed, ast.Attribute) and isinstance(changed.value, ast.Name):
        own.add((changed.value.id, changed.attr))
