"""Render templates in a helper process, whose time and memory are bounded whatever the template does.

    this process                        the helper, one for all templates of this process
    LimitedTemplate -- marshal ------>  CompiledTemplate, RLIMIT_AS, a timer of CPU time for each rendering
                    <-- MessagePack --  Rendered, or the message of the error

An exchange with the helper costs more than a short conversation takes to render. So the conversations of a block of
records go there together (`LimitedTemplate.render_ahead`), each with bounds of its own.

The sandbox counts steps and characters. These bounds come first and end a template in the same way on every machine.
But the sandbox cannot count what one expression does: a string doubled forty times, a filter over an endless slice,
constants that are folded when the template is compiled. The kernel's bounds hold for these too. They depend on the
machine, so exceeding one is a `RenderLimitError`, which ends a run however it treats bad records: no result differs
silently.

A helper that was ended is started again for the next rendering. It ends with the process that it serves.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import xxhash

from headrace.errors import ConfigError, InputError, RenderLimitError
from headrace.samples.templates.messages import Rendered, TemplateSetup
from headrace.samples.templates.sandbox import CompiledTemplate

MAX_SECONDS = 30.0
"""The most CPU time of one rendering, or of compiling: a thousand times what the longest conversation takes."""
MAX_MEMORY_BYTES = 1 << 30
"""The most memory of the helper, in addition to what it uses when it starts."""
_KEPT_TEMPLATES = 64
_MAX_AHEAD_BYTES = 16 << 20
"""The most bytes of variables, and of texts, that are rendered ahead together."""
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from headrace.samples.templates.limited import serve; serve(*map(int, sys.argv[1:3]))"
)


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    """What became of a template, or of some values in it."""

    kind: str
    """``text``; ``input`` or ``config`` for an error; ``memory``; or ``unknown`` for a template that the helper does
    not have.
    """
    text: bytes = b""
    """UTF-8, with unpaired surrogates as they are; for an error, its message."""
    spans: tuple[tuple[int, int], ...] = ()
    begins: tuple[int, ...] = ()
    has_generation: bool = False
    except_roles: tuple[str, ...] | None = None
    arguments: tuple[tuple[str, Any], ...] = ()
    """For a compiled template; see `CompiledTemplate`."""


class LimitedTemplate:
    """A template like `CompiledTemplate` that the helper process renders.

    Raises:
        ConfigError: If the source is not a template, or cannot be compiled within the bounds.
    """

    def __init__(self, setup: TemplateSetup, text: str, name: str) -> None:
        self.text = text
        self._label = f"chat template {name!r} of {setup.source}"
        self._parts = (msgspec.json.encode(setup), text, name)
        self._key = xxhash.xxh3_128_hexdigest(marshal.dumps(self._parts))
        self._ahead: dict[bytes, _Reply] = {}
        compiled = self._raised(self._asked(None))
        self.has_generation = compiled.has_generation
        self.except_roles = compiled.except_roles
        self.arguments = compiled.arguments

    def render(self, variables: dict[str, Any]) -> Rendered:
        """Return the text for these variables; see `CompiledTemplate.render`.

        Raises:
            RenderLimitError: If rendering takes more time or memory than allowed.
        """
        try:
            values = _dumped(variables)
        except ValueError as error:
            raise InputError(f"the conversation cannot be passed to its template: {error}") from None
        reply = self._raised(self._ahead.get(values) or self._asked(values))
        return Rendered(
            text=reply.text.decode("utf-8", "surrogatepass"),
            generation_spans=reply.spans,
            has_generation=reply.has_generation,
            message_begins=reply.begins,
        )

    def render_ahead(self, variables: Iterable[dict[str, Any]]) -> None:
        """Render together what `render` will be asked for next. Whatever exceeds the bounds is left to `render`."""
        values: dict[bytes, None] = {}
        room = _MAX_AHEAD_BYTES
        for one in variables:
            with contextlib.suppress(ValueError):
                dumped = _dumped(one)
                values[dumped] = None
                room -= len(dumped)
            if room < 0:
                break
        self._ahead = {}
        if values:
            with contextlib.suppress(_EndedError):
                replies = zip(values, self._ask(values), strict=False)
                self._ahead = {one: reply for one, reply in replies if reply.kind in ("text", "input")}

    def _asked(self, values: bytes | None) -> _Reply:
        """Return the reply for some values; None compiles the template."""
        asked = () if values is None else (values,)
        try:
            return self._ask(asked)[0]
        except _EndedError as ended:
            if ended.is_out_of_time:
                raise self._over(f"{MAX_SECONDS:g} seconds of CPU time") from None
        try:  # something else may have ended the helper, so try once more
            return self._ask(asked)[0]
        except _EndedError as ended:
            raise RenderLimitError(
                f"{self._label}: the process that renders it ended {ended}, for the second time. It may have exceeded "
                f"its bound of {MAX_MEMORY_BYTES:,} bytes of memory. {_ADVICE}"
            ) from None

    def _ask(self, values: Collection[bytes]) -> list[_Reply]:
        """Return a reply for each of the values, up to one that ended the helper; without any, compile the template."""
        compiling = marshal.dumps((self._key, MAX_SECONDS, self._parts, ()))
        if not values:
            return _HELPER.ask(compiling)
        request = marshal.dumps((self._key, MAX_SECONDS, None, tuple(values)))
        replies = _HELPER.ask(request)
        if replies[0].kind == "unknown":
            _HELPER.ask(compiling)
            replies = _HELPER.ask(request)
        return replies

    def _raised(self, reply: _Reply) -> _Reply:
        if reply.kind == "text":
            return reply
        message = reply.text.decode("utf-8", "surrogatepass")
        if reply.kind == "input":
            raise InputError(message)
        if reply.kind == "config":
            raise ConfigError(message)
        raise self._over(f"{MAX_MEMORY_BYTES:,} bytes of memory")

    def _over(self, bound: str) -> RenderLimitError:
        return RenderLimitError(f"{self._label}: rendering takes more than {bound}, the most allowed. {_ADVICE}")


def _dumped(variables: dict[str, Any]) -> bytes:
    """Return the variables of a rendering as bytes, which are the same for equal ones.

    The bytes come from this process and go to a helper of the same Python, so nothing from elsewhere is trusted. Unlike
    MessagePack, marshal keeps tuples, long integers and unpaired surrogates; later versions than 2 write references.
    """
    return marshal.dumps(variables, 2)


_ADVICE = (
    "A filter, a slice or a repeated string makes too much of this conversation: correct the template, or remove the "
    "conversation. This bound depends on the machine, so the run ends here even if it skips bad records"
)


class _EndedError(Exception):
    """The helper ended before it replied."""

    def __init__(self, status: int, last_line: str) -> None:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        super().__init__(f"{how}{f' ({last_line})' if last_line else ''}")
        self.is_out_of_time = -status in (signal.SIGPROF, signal.SIGXCPU)


class _Helper:
    """The helper process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def ask(self, request: bytes) -> list[_Reply]:
        """Return the replies to a request.

        Raises:
            _EndedError: If the helper ended before it had sent its reply. The next request starts another helper.
        """
        with self._lock:
            process, connection = self._process, self._connection
            if process is None or connection is None or process.poll() is not None:
                self._end()
                process, connection = self._process, self._connection = self._started()
            try:
                connection.send_bytes(request)
                replies = _DECODER.decode(connection.recv_bytes())
            except (OSError, EOFError):
                ended = _status(process)
                self._end()
                raise ended from None
            except BaseException:
                self._end()
                raise
            if replies[-1].kind == "memory":
                self._end()
            return replies

    def end(self) -> None:
        """End the process, if it is running."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Forget the helper after a fork: it belongs to the parent process."""
        process, self._process, self._lock = self._process, None, Lock()
        if process is not None:
            process.returncode = 0
            self._close(process)

    @staticmethod
    def _started() -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        with theirs:
            # In a new session, so that Ctrl-C reaches only us.
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, str(theirs.fileno()), str(MAX_MEMORY_BYTES), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return process, ours

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._close(process)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        for one in (process.stderr, self._connection):
            if one is not None:
                one.close()


def _status(process: subprocess.Popen[bytes]) -> _EndedError:
    output = process.stderr.read() if process.stderr is not None else b""
    lines = output.decode("utf-8", "replace").split("\n") if output else []
    return _EndedError(process.wait(), next((line.strip() for line in reversed(lines) if line.strip()), ""))


_DECODER = msgspec.msgpack.Decoder(list[_Reply])
_HELPER = _Helper()
atexit.register(_HELPER.end)
os.register_at_fork(after_in_child=_HELPER.forget)


def serve(descriptor: int, max_memory_bytes: int) -> None:
    """Reply to requests until there are no more; this is the helper's program."""
    most = _address_space_bytes() + max_memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    templates: dict[str, CompiledTemplate] = {}
    with Connection(descriptor) as connection, contextlib.suppress(EOFError):
        while True:
            connection.send_bytes(_replied(templates, *marshal.loads(connection.recv_bytes())))


def _replied(
    templates: dict[str, CompiledTemplate],
    key: str,
    seconds: float,
    parts: tuple[bytes, str, str] | None,
    values: tuple[bytes, ...],
) -> bytes:
    """Compile the ``parts`` of a template, or render one with each of the ``values``, up to one that takes too much."""
    if parts is None and key not in templates:
        return msgspec.msgpack.encode([_Reply("unknown")])
    replies: list[_Reply] = []
    room = _MAX_AHEAD_BYTES
    for one in values if parts is None else (b"",):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            replies.append(_rendered(templates[key], one) if parts is None else _compiled(templates, key, *parts))
        except (InputError, ConfigError, MemoryError) as error:
            # While a template is rendered, an error of configuration says that there is not enough memory.
            is_config = parts is not None and isinstance(error, ConfigError)
            kind = "input" if isinstance(error, InputError) else "config" if is_config else "memory"
            replies.append(_Reply(kind, str(error).encode("utf-8", "surrogatepass")))
            if kind == "memory":
                break
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        room -= len(replies[-1].text)
        if room < 0:
            break
    try:
        return msgspec.msgpack.encode(replies)
    except MemoryError as error:
        return msgspec.msgpack.encode([_Reply("memory", str(error).encode())])


def _compiled(templates: dict[str, CompiledTemplate], key: str, setup: bytes, text: str, name: str) -> _Reply:
    templates[key] = made = CompiledTemplate(msgspec.json.decode(setup, type=TemplateSetup), text, name)
    if len(templates) > _KEPT_TEMPLATES:
        del templates[next(iter(templates))]
    return _Reply("text", b"", (), (), made.has_generation, made.except_roles, made.arguments)


def _rendered(template: CompiledTemplate, values: bytes) -> _Reply:
    found = template.render(marshal.loads(values))
    content = found.text.encode("utf-8", "surrogatepass")
    return _Reply("text", content, found.generation_spans, found.message_begins, found.has_generation)


def _address_space_bytes() -> int:
    try:
        with Path("/proc/self/statm").open("rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        return 0
