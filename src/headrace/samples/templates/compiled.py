"""What a chat template is made of, and its Jinja source, compiled: variables -> text, and errors that name the line.

What a chat template is made of: enough to make it again in another process, or to name it in a manifest.
"""

from __future__ import annotations

from datetime import datetime
from threading import Lock
from types import TracebackType
from typing import Any

import jinja2
import msgspec
import xxhash
from jinja2.runtime import Context

from headrace.errors import ConfigError, HeadraceError, InputError
from headrace.samples.templates.messages import Rendered
from headrace.samples.templates.sandbox import MAX_CHARS, MAX_STEPS, Budget, RefusedError, compiled


class TemplateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a template, what it sees besides the messages, and where it came from.

    ``text``             the Jinja source
    ``tool_use``         the source used instead where there are tools, as Hugging Face's template of that name
    ``special_tokens``   ``bos_token``, ``eos_token``, ... as the template sees them
    ``now``              the time that ``strftime_now`` gives, or None where neither source asks for it
    ``name``             of the template: ``default``, or as its folder or our suite calls it
    ``source``           the file, or ``suite:NAME``, or ``text``
    ``end_of_turn``      what ends an assistant's turn, where it is known: for templates of our suite
    """

    text: str
    tool_use: str | None = None
    special_tokens: dict[str, str] = {}
    now: datetime | None = None
    name: str = "default"
    source: str = "text"
    end_of_turn: str | None = None
    max_steps: int = MAX_STEPS
    max_chars: int = MAX_CHARS

    @property
    def asks_for_time(self) -> bool:
        """Whether the text depends on ``now``."""
        return "strftime_now" in self.text or "strftime_now" in (self.tool_use or "")

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides the rendered text: sources, special tokens, the time where it is asked for.

        Where the template came from is no part of it.
        """
        now = self.now.isoformat() if self.now is not None and self.asks_for_time else None
        decides = [self.text, self.tool_use, sorted(self.special_tokens.items()), now]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(decides))


class CompiledTemplate:
    """One source with the budget of a rendering; one rendering at a time.

    ``except_roles``: None where the template may look ahead; else the roles that no conversation may have for
    `Rendered.message_begins` to be known.

    Raises :class:`ConfigError` where the source is no template, or a generation block stands where its place cannot be
    known.
    """

    def __init__(self, setup: TemplateSetup, text: str, name: str) -> None:
        self.text = text
        self._label = f"chat template {name!r} of {setup.source}"
        self._budget = Budget(setup.max_steps, setup.max_chars)
        self._lock = Lock()
        try:
            self._template, environment = compiled(text, now=setup.now or datetime.min, budget=self._budget)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{self._label}, line {error.lineno}: it is no Jinja template: {error.message}"
            ) from error
        except RecursionError as error:
            raise ConfigError(f"{self._label}: it is nested too deeply to be compiled") from error
        except Exception as error:  # what Python's compiler makes of it, such as loops in loops in loops
            raise ConfigError(f"{self._label}: it cannot be compiled: {type(error).__name__}: {error}") from error
        if environment.fault is not None:
            line, reason = environment.fault
            raise ConfigError(
                f"{self._label}, line {line}: {reason}, or take the blocks out: masks come from differences of "
                "prefixes then"
            )
        self.has_generation = environment.has_generation
        one_by_one = environment.one_by_one
        self.except_roles: tuple[str, ...] | None = None if one_by_one is None else one_by_one.except_roles
        self._known = {**self._template.globals, **setup.special_tokens}
        self._context: Context | None = None

    def render(self, variables: dict[str, Any]) -> Rendered:
        """The text for these variables, which win over special tokens.

        Raises :class:`InputError`, with the line, where the template fails on them.
        """
        budget = self._budget
        max_chars = budget.max_chars
        pieces: list[str] = []
        with self._lock:
            budget.start()
            context = self._fresh_context(self._known | variables)
            written = 0
            try:
                for piece in self._template.root_render_func(context):
                    pieces.append(piece)
                    written += len(piece)
                    budget.written = written
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
                raise InputError(self._explained(error)) from error
            edges, begins = budget.edges, budget.begins
            self._context = context
        return Rendered(
            text="".join(pieces),
            generation_spans=tuple(zip(edges[::2], edges[1::2], strict=True)),
            has_generation=self.has_generation,
            message_begins=self._begins(begins, variables["messages"]),
        )

    def _fresh_context(self, variables: dict[str, Any]) -> Context:
        """A context that nothing was set in: the last one, emptied, since making one costs as much as a message.

        One in which a rendering failed is not used again.
        """
        context, self._context = self._context, None
        if context is None:
            return self._template.new_context(variables, shared=True)
        context.parent = variables
        context.vars = {}
        context.exported_vars = set()
        return context

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
            return f"{where}: its macros or loops call each other without end"
        if isinstance(error, jinja2.TemplateError):
            return f"{where}: {error}"
        return f"{where}: {type(error).__name__}: {error}"

    def _line(self, traceback: TracebackType | None) -> int | None:
        """The line of the template where it failed: that of its innermost frame."""
        line = None
        while traceback is not None:
            if traceback.tb_frame.f_globals.get("__jinja_template__") is self._template:
                line = self._template.get_corresponding_lineno(traceback.tb_lineno)
            traceback = traceback.tb_next
        return line
