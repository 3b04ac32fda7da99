"""Functions and methods that are called around a fork, as Energon's ``fork_hook`` has them.

Whoever holds a connection or an open file closes it before a fork, or opens it again in the child. Functions and
methods are held weakly, so an object that is gone is not called. Workers that are started without a fork call none.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any


class WeakCallbacks:
    """Functions and methods that `run` calls, in the order in which they were added, each once, until they are gone."""

    def __init__(self) -> None:
        self._hooks: dict[tuple[int, int], Callable[[], Callable[..., Any] | None]] = {}

    def add_hook(self, function: Callable[..., Any], make_persistent: bool = False) -> None:
        """Add a function or a method; with ``make_persistent`` it is kept alive."""
        method = function if isinstance(function, MethodType) else None
        key = (id(function), 0) if method is None else (id(method.__self__), id(method.__func__))
        hooks = self._hooks

        def forget(_: Any) -> None:
            hooks.pop(key, None)

        if make_persistent:
            hooks[key] = lambda: function
        elif method is not None:
            hooks[key] = weakref.WeakMethod(method, forget)
        else:
            hooks[key] = weakref.ref(function, forget)

    def run(self, *args: Any, **options: Any) -> None:
        """Call them all."""
        for found in [hook() for hook in self._hooks.values()]:
            if found is not None:
                found(*args, **options)


_BEFORE = WeakCallbacks()
_IN_PARENT = WeakCallbacks()
_IN_CHILD = WeakCallbacks()

before_fork_hook = _BEFORE.add_hook
"""Have a function or method called before each fork."""

after_in_parent_fork_hook = _IN_PARENT.add_hook
"""Have a function or method called in the parent after each fork."""

after_in_child_fork_hook = _IN_CHILD.add_hook
"""Have a function or method called in the child after each fork."""

os.register_at_fork(before=_BEFORE.run, after_in_parent=_IN_PARENT.run, after_in_child=_IN_CHILD.run)


class DataclassForkMixin:
    """The base of a dataclass that wants to know of forks. A ``__post_init__`` of its own calls that of this class."""

    def __post_init__(self) -> None:
        """Have the methods called."""
        before_fork_hook(self.__before_fork__)
        after_in_parent_fork_hook(self.__after_in_parent_fork__)
        after_in_child_fork_hook(self.__after_in_child_fork__)

    def __before_fork__(self) -> None:
        """Called before a fork."""

    def __after_in_parent_fork__(self) -> None:
        """Called in the parent after a fork."""

    def __after_in_child_fork__(self) -> None:
        """Called in the child after a fork."""


class ForkMixin(DataclassForkMixin):
    """The base of a class that wants to know of forks. Its ``__init__`` calls that of this class."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.__post_init__()
