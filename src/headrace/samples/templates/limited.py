"""Render templates in a helper process, whose time and memory are bounded whatever the template does.

    this process                                    the helper, one for all templates of this process
    LimitedTemplate -- marshal, length first -->    CompiledTemplate, RLIMIT_AS, a timer of CPU time for each rendering
                    <-- MessagePack, length first --  Rendered, or the message of the error

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
import fcntl
import marshal
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import msgspec
import xxhash

from headrace.errors import ConfigError, HeadraceError, InputError, RenderLimitError
from headrace.samples.templates.messages import Rendered, TemplateSetup
from headrace.samples.templates.sandbox import CompiledTemplate

MAX_SECONDS = 30.0
"""The most CPU time of one rendering, or of compiling: a thousand times what the longest conversation takes."""
MAX_MEMORY_BYTES = 1 << 30
"""The most memory of the helper, in addition to what it uses when it starts."""
_BATCH_BYTES = 1 << 19
"""The size of conversations that are sent together: some hundred, or one large one."""
_KEPT_TEMPLATES = 64
_PIPE_BYTES = 1 << 20
_LENGTH_BYTES = 8
_MARSHAL = 2
"""The last version of marshal that writes equal values as equal bytes."""
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from headrace.samples.templates.limited import serve; serve(int(sys.argv[1]))"
)


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    """The result of one request."""

    kind: str
    """``text``; ``input`` or ``config`` for an error; ``memory``; or ``unknown`` for a template that the helper does
    not have.
    """
    text: bytes = b""
    """UTF-8, with unpaired surrogates as they are; for an error, its message."""
    spans: list[tuple[int, int]] = []
    begins: list[int] = []
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
        parts = (msgspec.json.encode(setup), text, name)
        self._key = xxhash.xxh3_128_hexdigest(marshal.dumps(parts))
        self._compiling = marshal.dumps(("compile", self._key, MAX_SECONDS, parts))
        self._ahead: dict[bytes, _Reply] = {}
        compiled = self._raised(self._compile())
        self.has_generation = compiled.has_generation
        self.except_roles = compiled.except_roles
        self.arguments = compiled.arguments

    def render(self, variables: dict[str, Any]) -> Rendered:
        """Return the text for these variables; see `CompiledTemplate.render`.

        Raises:
            RenderLimitError: If rendering takes more time or memory than allowed.
        """
        values = _written(variables)
        reply = self._ahead.pop(values, None)
        if reply is None:
            [reply] = self._asked([values])
        return self._rendered(reply)

    def ahead(self, many: Sequence[dict[str, Any]]) -> None:
        """Render what will be requested next, many conversations with one request; forget what was not requested."""
        self._ahead.clear()
        batch: list[bytes] = []
        size = 0
        for variables in many:
            try:
                batch.append(_written(variables))
            except InputError:
                continue
            size += len(batch[-1])
            if size > _BATCH_BYTES:
                self._render_ahead(batch)
                batch, size = [], 0
        if batch:
            self._render_ahead(batch)

    def _render_ahead(self, batch: list[bytes]) -> None:
        # The error of a conversation that ends the helper is raised when that conversation is rendered.
        with contextlib.suppress(_EndedError):
            self._ahead.update(zip(batch, self._ask(batch), strict=True))

    def _asked(self, values: list[bytes]) -> list[_Reply]:
        try:
            return self._ask(values)
        except _EndedError as ended:
            if ended.is_out_of_time:
                raise self._out_of_time() from None
        try:  # something else may have ended the helper, so try once more
            return self._ask(values)
        except _EndedError as ended:
            raise self._ended(ended) from None

    def _ask(self, values: list[bytes]) -> list[_Reply]:
        request = marshal.dumps(("render", self._key, MAX_SECONDS, values))
        replies = _HELPER.ask(request, len(values))
        if replies[0].kind == "unknown":
            _HELPER.ask(self._compiling, 1)
            replies = _HELPER.ask(request, len(values))
        return replies

    def _compile(self) -> _Reply:
        try:
            return _HELPER.ask(self._compiling, 1)[0]
        except _EndedError as ended:
            raise (self._out_of_time() if ended.is_out_of_time else self._ended(ended)) from None

    def _rendered(self, reply: _Reply) -> Rendered:
        self._raised(reply)
        return Rendered(
            text=reply.text.decode("utf-8", "surrogatepass"),
            generation_spans=tuple(reply.spans),
            has_generation=self.has_generation,
            message_begins=tuple(reply.begins),
        )

    def _raised(self, reply: _Reply) -> _Reply:
        if reply.kind == "text":
            return reply
        message = reply.text.decode("utf-8", "surrogatepass")
        if reply.kind == "input":
            raise InputError(message)
        if reply.kind == "config":
            raise ConfigError(message)
        raise RenderLimitError(
            f"{self._label}: rendering takes more than {MAX_MEMORY_BYTES:,} bytes of memory, the most allowed. "
            f"{_ADVICE}"
        )

    def _out_of_time(self) -> RenderLimitError:
        return RenderLimitError(
            f"{self._label}: rendering takes more than {MAX_SECONDS:g} seconds of CPU time, the most allowed. {_ADVICE}"
        )

    def _ended(self, ended: _EndedError) -> RenderLimitError:
        return RenderLimitError(
            f"{self._label}: the process that renders it ended {ended}, for the second time. It may have exceeded its "
            f"bound of {MAX_MEMORY_BYTES:,} bytes of memory. {_ADVICE}"
        )


_ADVICE = (
    "A filter, a slice or a repeated string makes too much of this conversation: correct the template, or remove the "
    "conversation. This bound depends on the machine, so the run ends here even if it skips bad records"
)


def _written(variables: dict[str, Any]) -> bytes:
    """Return plain values as bytes.

    They come from this process and go to a helper of the same Python, so nothing from elsewhere is trusted. Unlike
    MessagePack, marshal keeps tuples, long integers and unpaired surrogates.
    """
    try:
        return marshal.dumps(variables, _MARSHAL)
    except ValueError as error:
        raise InputError(f"the conversation cannot be passed to its template: {error}") from None


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

    def ask(self, request: bytes, num_replies: int) -> list[_Reply]:
        """Return the replies to one request, in order.

        Raises:
            _EndedError: If the helper ended before it had sent all replies. The next request starts another helper.
        """
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                self._end()
                process = self._process = self._started()
            try:
                replies = self._exchange(process, request, num_replies)
            except BaseException:
                self._end()
                raise
            if any(reply.kind == "memory" for reply in replies):
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
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    @staticmethod
    def _started() -> subprocess.Popen[bytes]:
        # Unbuffered, so that a fork never holds half a request; in a new session, so that Ctrl-C reaches only us.
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, str(MAX_MEMORY_BYTES), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        for pipe in (process.stdin, process.stdout):
            # So that a batch is sent in one piece; if the system does not allow it, it takes several.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[arg-type]
        return process

    @staticmethod
    def _exchange(process: subprocess.Popen[bytes], request: bytes, num_replies: int) -> list[_Reply]:
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise HeadraceError("the pipes of the rendering process are missing. This is a defect: please report it.")
        try:
            left = memoryview(len(request).to_bytes(_LENGTH_BYTES, "little") + request)
            while left:
                left = left[stdin.write(left) :]
        except BrokenPipeError:
            raise _status(process) from None
        replies: list[_Reply] = []
        buffer = bytearray()
        while len(replies) < num_replies:
            piece = os.read(stdout.fileno(), _PIPE_BYTES)
            if not piece:
                raise _status(process)
            buffer += piece
            place = 0
            while len(buffer) >= place + _LENGTH_BYTES:
                begin = place + _LENGTH_BYTES
                end = begin + int.from_bytes(buffer[place:begin], "little")
                if len(buffer) < end:
                    break
                replies.append(_DECODER.decode(memoryview(buffer)[begin:end]))
                place = end
            del buffer[:place]
        return replies

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _status(process: subprocess.Popen[bytes]) -> _EndedError:
    output = process.stderr.read() if process.stderr is not None else b""
    lines = output.decode("utf-8", "replace").split("\n") if output else []
    return _EndedError(process.wait(), next((line.strip() for line in reversed(lines) if line.strip()), ""))


_DECODER = msgspec.msgpack.Decoder(_Reply)
_HELPER = _Helper()
atexit.register(_HELPER.end)
os.register_at_fork(after_in_child=_HELPER.forget)


def serve(max_memory_bytes: int) -> None:
    """Render requests until there are no more; this is the helper's program."""
    stdin, stdout = open(0, "rb", _PIPE_BYTES), open(1, "wb", _PIPE_BYTES)  # noqa: SIM115 - until the process ends
    most = _address_space_bytes() + max_memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    templates: dict[str, CompiledTemplate] = {}
    while (request := _read(stdin)) is not None:
        action, key, seconds, values = marshal.loads(request)
        del request
        if action == "compile":
            replies = [_compiled(templates, key, seconds, *values)]
            while len(templates) > _KEPT_TEMPLATES:
                del templates[next(iter(templates))]
            _write(stdout, replies.pop())
        else:
            for variables in values:
                _write(stdout, _reply(templates.get(key), seconds, variables))
        stdout.flush()


def _compiled(
    templates: dict[str, CompiledTemplate], key: str, seconds: float, setup: bytes, text: str, name: str
) -> bytes:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        template = CompiledTemplate(msgspec.json.decode(setup, type=TemplateSetup), text, name)
        reply = _Reply(
            "text",
            has_generation=template.has_generation,
            except_roles=template.except_roles,
            arguments=template.arguments,
        )
        templates[key] = template
    except ConfigError as error:
        reply = _Reply("config", _encoded(str(error)))
    except MemoryError:
        reply = _Reply("memory")
    signal.setitimer(signal.ITIMER_PROF, 0)
    return msgspec.msgpack.encode(reply)


def _reply(template: CompiledTemplate | None, seconds: float, values: bytes) -> bytes:
    if template is None:
        return msgspec.msgpack.encode(_Reply("unknown"))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        found = template.render(marshal.loads(values))
        text = _encoded(found.text)
        return msgspec.msgpack.encode(_Reply("text", text, list(found.generation_spans), list(found.message_begins)))
    except InputError as error:
        return msgspec.msgpack.encode(_Reply("input", _encoded(str(error))))
    except (ConfigError, MemoryError):  # MemoryError may come from encoding the text
        return msgspec.msgpack.encode(_Reply("memory"))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _address_space_bytes() -> int:
    try:
        with Path("/proc/self/statm").open("rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        return 0


def _read(stdin: BinaryIO) -> bytes | None:
    length = stdin.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    body = stdin.read(int.from_bytes(length, "little"))
    return body or None


def _write(stdout: BinaryIO, reply: bytes) -> None:
    stdout.write(len(reply).to_bytes(_LENGTH_BYTES, "little"))
    stdout.write(reply)
