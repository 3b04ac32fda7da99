"""The setup of a chat template, and its compiled source, which renders variables to text."""

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
    """The text of a template, what it sees in addition to the messages, and where it came from.

    It is enough to make the template again in another process, or to name it in a manifest.

    Attributes:
        text: The Jinja source.
        tool_use: The source that is used instead if there are tools, like Hugging Face's template of that name.
        special_tokens: ``bos_token``, ``eos_token``, ... as the template sees them.
        now: The time that ``strftime_now`` prints, or None if neither source uses it.
        name: The name of the template: ``default``, or its name in its folder or in our suite.
        source: The file, or ``suite:NAME``, or ``text``.
        end_of_turn: The text that ends an assistant's turn, if it is known: for templates of our suite.
        max_steps: The most steps of loops and macros in one rendering.
        max_chars: The most characters of a rendered text.
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
        """The hash of everything that decides the rendered text: sources, special tokens, and the time if it is used.

        Where the template came from is not included.
        """
        now = self.now.isoformat() if self.now is not None and self.asks_for_time else None
        decides = [self.text, self.tool_use, sorted(self.special_tokens.items()), now]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(decides))


class CompiledTemplate:
    """One compiled source with the budget of a rendering; it renders one conversation at a time.

    Attributes:
        except_roles: The roles that a conversation must not have for `Rendered.message_begins` to be known; None if the
            template may look ahead, so that it is never known.

    Raises:
        ConfigError: If the source is not a template, or the place of a generation block in the text cannot be known.
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
        one_by_one = environment.one_by_one
        self.except_roles: tuple[str, ...] | None = None if one_by_one is None else one_by_one.except_roles
        self._known = {**self._template.globals, **setup.special_tokens}
        self._context: Context | None = None

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
        """Return an empty context. The last one is emptied and used again, since making one costs as much as a message.

        A context in which a rendering failed is not used again.
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
