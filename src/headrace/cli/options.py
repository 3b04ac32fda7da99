"""Options of commands, made of what functions and structs say: name, type, default and help stand there, once.

    a parameter                       -> an argument; a keyword becomes an option. Its help stands under ``Args``.
    a parameter that is a struct      -> an option for each of its fields. The help is the docstring below the field.
    ``**options: Unpack[TypedDict]``  -> an option for each key. The function gets those that were given.
    ``**options: Annotated[Any, f]``  -> an option for each keyword of the function f, likewise.
    a field in `KNOWN` with ``bare``  -> one option for a whole struct: ``--pack 512,strategy=greedy``.

A text in ``Annotated`` is the metavar. Of structs only what was given is set, so that the library has the defaults.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import click

from headrace.errors import ConfigError

Positive = Annotated[int, "N", 1]
"""A number of which the least is 1."""

MOST_NUMBERS = 1_000_000
"""The most numbers that ranges may name."""

ALL = "*"
"""Stands for the key of a value without one, in a map of values by key."""

NONE = "none"
"""Stands for None, where that is not the default: no limit."""


class Known(NamedTuple):
    """How a parameter or field is called on the command line."""

    flags: str = ""
    """By default the name with hyphens."""

    metavar: str = ""
    bare: str = ""
    """The field of a struct that a value without ``NAME=`` is for; the whole struct is one option."""


KNOWN = {
    "as_json": Known("--json"),
    "quiet": Known("--quiet -q"),
    "long": Known("--long -l"),
    "output": Known("--output -o", "DIR"),
    "executor": Known(metavar="local|ray|slurm[,NAME=VALUE]..."),
    "fields": Known("--field", "NAME"),
    "ShardSource.parts": Known("--part", "NAME=FROM"),
    "SplitChoice.parts": Known("--split-part", "NAME:REGEX"),
    "SplitChoice.ratio": Known("--split-ratio", "A,B,C"),
    "SplitChoice.shuffle": Known("--shuffle-tars"),
    "DatasetChoice.name": Known("--dataset-config"),
    "DatasetChoice.skip": Known("--skip-dataset-yaml"),
    "PreviewOptions.samples": Known("--documents", "N,N-M"),
    "index_only": Known("--tar-index-only"),
    "media": Known("--media-metadata", "extension|header|PATTERN,..."),
    "shard_bytes": Known("--shard-size", "BYTES"),
    "shards": Known("--shard-tokens", "N|single|source"),
    "errors": Known("--on-error", "stop|skip[,max_errors=N|SHARE]", "on_error"),
    "filters": Known("--filter", "MODULE:FUNCTION|NAME=N,...", "function"),
    "packing": Known("--pack", "N[,NAME=VALUE]...", "seq_len"),
    "data_of": Known("--split-part"),
    "packs": Known("--pack", "N"),
    "reading_plan.limit": Known(metavar="BYTES"),
    "reading_plan.steps": Known(metavar="A:B"),
    "block": Known(metavar="BYTES"),
    "topology": Known("--ranks", "R,micro_batch_size=M", "ranks"),
    "key_field": Known("--id-field"),
    "read_all": Known("--long -l"),
    "input_path": Known("--input", "FILE"),
    "arguments": Known("--set", "NAME=VALUE"),
    "encoder": Known(metavar="MODULE:CLASS"),
    "reports": Known("--faults"),
    "keys": Known("--key"),
    "OpenOptions.dtype": Known("--bin-dtype"),
    "CheckOptions.dtype": Known("--bin-dtype"),
    "dtype": Known("--dtype", "[KEY=]NAME", ALL),
    "sort_by": Known("--order"),
    "allow_different_tokenizers": Known("--any-tokenizer"),
    "split_ratio": Known(metavar="A,B,C"),
    "part_filter": Known(metavar="PART,..."),
    "field_map": Known(metavar="NAME=PART"),
    "shuffle": Known(metavar="SEED"),
    "tokenizer": Known(metavar="PATH"),
    "root": Known(metavar="DIR"),
    "captions": Known(metavar="FILE"),
}
"""Names that differ from those in Python, by name or by struct and name."""

HIDDEN = {
    *("dataset_order", "task_bytes", "with_figures", "pictures", "plan_folder", "on_progress"),
    "most_samples",
}
"""Fields and parameters that are for Python alone."""


def shared() -> None:
    """Options that several commands have; this docstring has their help.

    Args:
        as_json: print one JSON object on standard output.
        quiet: show no progress, notes or summary.
        output: folder or URL for the result; it must be new or empty.
        workers: number of worker processes; by default one for each usable core.
        executor: where the work is done: on this host, or on those of Ray or Slurm. NAME is address of Ray; partition,
            time, array_parallel, tasks_per_job, cpus_per_job and setup of Slurm.
        dry_run: report what would be written, and write nothing.
        html: write a self-contained page.
        split_part: part of an Energon dataset, or split of a metadataset.
        split_config: split file in ``.nv-meta`` of an Energon dataset; by default ``split.yaml``.
        dataset_config: dataset file in ``.nv-meta``; by default ``dataset.yaml``.
        tokenizer: a ``tokenizer.json``, or a folder that holds one.
        now: the time that the template of a recipe sees, as 2026-03-01T23:59; by default when the run begins.
    """


def args_of(doc: str | None) -> dict[str, str]:
    """Return what a docstring says of each parameter or field, under ``Args`` or ``Attributes``."""
    _, _, section = inspect.cleandoc(doc or "").partition("Args:\n")
    section = section or inspect.cleandoc(doc or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", re.split(r"\n(?=\S)", section)[0]):
        names, _, text = entry.partition(": ")
        found |= dict.fromkeys((name.strip() for name in names.split(",")), " ".join(text.split()))
    return found


@cache
def fields_of(kind: type) -> dict[str, str]:
    """Return what the source of a class says of its fields: in docstrings below them, or under ``Attributes``."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("headrace."):
            node = _classes(base.__module__)[base.__name__]
            for parent in map(ast.unparse, node.bases):  # a TypedDict does not know its own
                above = getattr(sys.modules[base.__module__], parent, None)
                found |= fields_of(above) if isinstance(above, type) and above not in kind.__mro__ else {}
            found |= {**args_of(ast.get_docstring(node)), **_below(node)}
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    source = ast.parse(Path(str(sys.modules[module].__file__)).read_text("utf-8"))
    return {node.name: node for node in source.body if isinstance(node, ast.ClassDef)}


def _below(node: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip


def is_struct(kind: Any) -> bool:
    """Whether a type is a struct of options."""
    return isinstance(kind, type) and hasattr(kind, "__struct_fields__")


def members(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have: the members of a union, without what `typing.Annotated` adds."""
    if get_origin(hint) is Annotated:
        return members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(one for part in get_args(hint) for one in members(part))
    return (hint,)


def _least(hint: Any) -> int | None:
    """Return the smallest number that is allowed: of `Positive`, or of ``msgspec.Meta(ge=1)``."""
    extras = [one for part in (hint, *get_args(hint)) if get_origin(part) is Annotated for one in get_args(part)[1:]]
    return next((getattr(one, "ge", one) for one in extras if isinstance(getattr(one, "ge", one), int)), None)


def read(text: str, hint: Any, name: str) -> Any:
    """Read a value of a type.

    Args:
        text: what the user wrote.
        hint: the type.
        name: the parameter or field.

    Raises:
        ValueError: it is no such value; the message says what is allowed.
    """
    kinds = members(hint)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if text in words or (text == NONE and NoneType in kinds and str not in kinds):
        return None if text == NONE and NONE not in words else text
    for kind in kinds:
        if hasattr(kind, "parse"):
            return kind.parse(text)
        if get_origin(kind) is tuple:
            return _read_tuple(text, get_args(kind), name)
        if get_origin(kind) is Sequence:
            return ranges(text)
    if int in kinds and name.endswith("_bytes"):
        from headrace.io import parse_size

        return parse_size(text, name)
    if int in kinds and re.fullmatch(r"-?\d+", text, re.ASCII):
        if (least := _least(hint)) is not None and int(text) < least:
            raise ValueError(f"write a number, at least {least}")
        return int(text)
    if float in kinds and re.fullmatch(r"\d+(\.\d*)?(e-?\d+)?%?", text, re.ASCII):
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if bool in kinds and text in ("true", "false"):
        return text == "true"
    if str in kinds:
        return text
    more = {int: "a whole number", float: "a share such as 0.001 or 0.1%", bool: "true or false", NoneType: NONE}
    from headrace.config import nearest

    raise ValueError(
        f"write {' or '.join([more[kind] for kind in kinds if kind in more] + words)}{nearest(text, words)}"
    )


def _read_tuple(text: str, kinds: tuple[Any, ...], name: str) -> Any:
    if kinds == (str, str):
        first, colon, rest = text.partition(":")
        if not colon:
            raise ValueError("write NAME:REGEX, as 'train:shards/train-.*'")
        return first, rest
    if kinds == (int, int):
        begin, _, end = text.partition(":")
        if not (begin.isdecimal() and end.isdecimal()):
            raise ValueError("write A:B, the first step and the one behind the last, as 1200:1250")
        return int(begin), int(end)
    try:
        return tuple(kinds[0](part.strip()) for part in text.split(","))
    except ValueError:
        raise ValueError(f"write {'shares' if name.endswith('ratio') else 'numbers'} with commas, as 8,1,1") from None


def ranges(text: str) -> list[int]:
    """Read numbers and ranges: ``0,5,10-12`` becomes 0, 5, 10, 11, 12.

    Raises:
        ValueError: the text has another form, or names too many.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise ValueError(f"{part!r} is neither a number nor a range; write them as 0,5,10-12")
        begin, end = int(first), int(last or first) + 1
        if begin >= end:
            raise ValueError(f"the range {part!r} is empty; write the smaller number first")
        if len(found) + end - begin > MOST_NUMBERS:
            raise ValueError(f"at most {MOST_NUMBERS:,} numbers can be named")
        found += range(begin, end)
    return found


def pairs_of(text: str, bare: str) -> Iterator[tuple[str, str]]:
    """Read ``512,strategy=greedy``; the value without a name is that of ``bare``. A JSON object is read as well.

    If there is no ``bare``, the text is one pair, whose value may hold commas.

    Raises:
        ValueError: there is a value without a name, and none is expected.
    """
    if text.startswith("{"):
        from headrace.config import without_repeats

        found = json.loads(text, object_pairs_hook=without_repeats)
        if not all(isinstance(value, str) for value in found.values()):
            raise ValueError('write an object whose values are texts, as {"image": "jpg", "caption": "txt"}')
        yield from found.items()
        return
    for part in re.split(r",(?=\w+=)", text) if bare else [text]:
        name, equals, value = part.partition("=")
        if equals and name.isidentifier():
            yield name, value
        elif not bare:
            raise ValueError("write NAME=VALUE")
        else:
            yield bare, part


def once(pairs: Iterable[tuple[str, str]], flag: str) -> dict[str, str]:
    """Return pairs as a dict; raise ConfigError if a name comes twice."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(f"{flag}: {name} is set twice: set it once")
        found[name] = value
    return found


class Value(click.ParamType[Any]):
    """Reads the value of a parameter or field by its type."""

    name = "value"

    def __init__(self, hint: Any, field: str, bare: str) -> None:
        self.hint, self.field, self.bare = hint, field, bare

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a text; a fault is an error that names the option."""
        if not isinstance(value, str):
            return value
        try:
            if self.is_pairs:
                return list(pairs_of(value, self.bare))
            return read(value, self.hint, self.field)
        except ValueError as error:
            flag = param.opts[0] if isinstance(param, click.Option) else str(param and param.metavar)
            said = str(error) if str(error).startswith(f"{flag} ") else f"{flag} {value}: {error}"
            raise click.UsageError(said, ctx) from error

    @property
    def is_pairs(self) -> bool:
        """Whether the value is a struct or a map."""
        return any(is_struct(kind) or get_origin(kind) in (dict, Mapping) for kind in members(self.hint)) and not any(
            hasattr(kind, "parse") for kind in members(self.hint)
        )

    @property
    def names(self) -> list[str]:
        """The fields of the struct, without that of a value without a name."""
        kinds = [kind for kind in members(self.hint) if is_struct(kind)]
        return [name for kind in kinds for name in kind.__struct_fields__ if name != self.bare]

    def gathered(self, given: Any, flag: str) -> Any:
        """Return the struct or map of all pairs that were given.

        Raises:
            ConfigError: a name is unknown or occurs twice, or a value is not allowed.
        """
        found: dict[str, Any] = once((pair for one in given for pair in one), flag)
        kind = next(one for one in members(self.hint) if is_struct(one) or get_origin(one) in (dict, Mapping))
        if found.keys() == {ALL}:
            return found[ALL]
        if ALL in found:
            raise ConfigError(f"{flag} {found[ALL]}: give either one value for all keys, or KEY=NAME for each")
        if not is_struct(kind):
            return {name: _plain(value) for name, value in found.items()} if Any in get_args(kind) else found
        return struct_of(kind, found, flag)


def struct_of(kind: Any, given: Mapping[str, str], flag: str) -> Any:
    """Return a struct of texts.

    Raises:
        ConfigError: a field is unknown or missing, or a value is not allowed.
    """
    import msgspec

    from headrace.config import check_keys

    check_keys(given, kind.__struct_fields__, f"{flag} ")
    hints, values = get_type_hints(kind, include_extras=True), {}
    for name, text in given.items():
        try:
            values[name] = read(text, hints[name], name)
        except ValueError as error:
            raise ConfigError(f"{flag} {name}={text}: {error}") from error
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in values:
            raise ConfigError(f"{flag}: {field.name} is missing")
    return kind(**values)


def _plain(text: str) -> Any:
    """Return what a text is as JSON, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Place(NamedTuple):
    """Where the value of a parameter of the command line goes."""

    path: tuple[str, ...]
    """The parameter of the function, and the fields of structs below it."""

    default: Any
    tell: Callable[[], str]
    """Returns what the source says about it."""

    heading: str = "Options"
    optional: bool = False
    """Whether it is passed only if it is given."""


class Flag(click.Option):
    """An option, and where its value goes. The help is looked up when it is shown."""

    place: Place

    @property
    def text(self) -> str:
        """What the source says about it, and the default."""
        default, text = self.place.default, self.place.tell().rstrip(".")
        text = re.sub(r"\bNone\b", "the default" if default is None else NONE, text).replace(". the", ". The")
        text = re.sub(r"``(\w+)``", lambda name: (name[1] in KNOWN and KNOWN[name[1]].flags) or name[0], text)
        if isinstance(self.type, Value) and self.type.bare and (names := self.type.names):
            text += f"; NAME is {', '.join(names)}"
        is_told = type(default) not in (str, int, tuple) or default in ("", ()) or "default" in text
        shown = ", ".join(map(str, default)) if isinstance(default, tuple) else default
        shown = f"{shown:,}" if isinstance(shown, int) else shown
        return f"{text[:1].upper()}{text[1:]}" + ("." if is_told else f" (default: {shown}).")

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line of the help: the first sentence."""
        first, *more = re.split(r"(?<=[^.]\.)\s", self.text.replace("`", ""))
        default = re.search(r" \(default: [^)]*\)\.$", more[-1]) if more else None
        self.help = first.removesuffix(".") + default[0] if default else first
        return super().get_help_record(ctx)


def parameters(function: Callable[..., Any]) -> list[click.Parameter]:
    """Return the parameters of the command line for those of a function."""
    helps = args_of(function.__doc__)
    found: list[click.Parameter] = []
    own = list(_signature(function))
    for name, hint, default, kind in own:
        if kind is inspect.Parameter.VAR_KEYWORD:
            some = _keywords(get_args(hint)[-1], helps)
            found += [option for option in some if option.place.path[0] not in {one[0] for one in own}]
        elif is_struct(hint) and not hasattr(hint, "parse"):
            found += _fields(hint, (name,), "Options")
        elif kind is inspect.Parameter.KEYWORD_ONLY:
            found.append(_option(name, hint, Place((name,), default, partial(_help, name, helps))))
        else:
            found.append(_argument(name, hint, default))
    return found


def json_option() -> Flag:
    """Return ``--json``, which all commands have. Its value goes to no parameter."""
    return _option("as_json", bool, Place((), False, partial(_help, "as_json", {}), optional=True))


def _signature(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield name, type, default and kind of each parameter. The type of the result need not be known."""
    found = inspect.signature(function).parameters
    asked = SimpleNamespace(__annotations__={name: one.annotation for name, one in found.items() if name not in HIDDEN})
    hints = get_type_hints(asked, globalns=getattr(function, "__globals__", {}), include_extras=True)
    for name, hint in hints.items():
        yield name, hint, found[name].default, found[name].kind


def _keywords(source: Any, helps: Mapping[str, str]) -> Iterator[Flag]:
    """Yield options for the keys of a TypedDict or struct, or for the keywords of a function."""
    source = resolve_name(source) if isinstance(source, str) else source
    if isinstance(source, type):
        told, defaults = fields_of(source), _defaults(source)
        some = [(name, hint, defaults.get(name)) for name, hint in get_type_hints(source).items()]
    else:
        told, some = args_of(source.__doc__), []
        for name, hint, default, kind in _signature(source):
            if kind is inspect.Parameter.KEYWORD_ONLY:
                some.append((name, hint, default))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                yield from _keywords(get_args(hint)[-1], {**told, **helps})
    for name, hint, default in some:
        if name not in HIDDEN:
            tell = partial(_help, name, {**told, **helps})
            yield _option(name, hint, Place((name,), default, tell, optional=True), source.__name__)


def _defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults of the fields of a struct, as `inspect` has them; of another type none are known."""
    import msgspec

    fields = msgspec.structs.fields(kind) if is_struct(kind) else ()
    return {field.name: inspect.Parameter.empty if field.required else field.default for field in fields}


def _fields(kind: Any, path: tuple[str, ...], heading: str) -> Iterator[Flag]:
    """Yield options for the fields of a struct, and of the structs in it."""
    hints, defaults = get_type_hints(kind, include_extras=True), _defaults(kind)
    for name in kind.__struct_fields__:
        known = KNOWN.get(name, Known())
        if is_struct(hints[name]) and not known.bare:
            yield from _fields(hints[name], (*path, name), name.capitalize())
        elif name not in HIDDEN:
            place = Place((*path, name), defaults[name], partial(_told, kind, name), heading, optional=True)
            yield _option(name, hints[name], place, kind.__name__)


def _help(name: str, helps: Mapping[str, str]) -> str:
    return helps.get(name) or args_of(shared.__doc__).get(name, "")


def _told(kind: Any, name: str) -> str:
    """Return what the source says of a field; of one for a struct without a docstring, what that says of itself."""
    if text := _help(name, fields_of(kind)):
        return text
    [inner, *_] = [*filter(is_struct, members(get_type_hints(kind)[name])), None]
    return "" if inner is None else (inspect.getdoc(inner) or "").partition("\n\n")[0]


def _argument(name: str, hint: Any, default: Any) -> click.Argument:
    kind, metavar = members(hint)[0], get_args(hint)[1]
    many, required = get_args(kind)[1:] == (...,), default is inspect.Parameter.empty
    value = Value(get_args(kind)[0] if many else kind, name, "")
    more = {} if many or required else {"default": default}
    return click.Argument([name], metavar=metavar, type=value, nargs=-1 if many else 1, required=required, **more)


def _option(name: str, hint: Any, place: Place, owner: str = "") -> Flag:
    """Return the option for a parameter or field."""
    known = KNOWN.get(f"{owner}.{name}") or KNOWN.get(name) or Known()
    kinds, extras = members(hint), get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    value: click.ParamType[Any] = Value(hint, name, known.bare)
    repeats = isinstance(value, Value) and value.is_pairs
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    lists = [get_args(kind)[0] for kind in kinds if get_args(kind)[1:] == (...,) or get_origin(kind) is Sequence]
    if words and not {int, str} & {*kinds}:
        value = click.Choice(words)
    elif lists and lists[0] is not float and "," not in known.metavar:
        repeats, value = True, value if lists[0] is int else Value(lists[0], name, "")
    required = place.default is inspect.Parameter.empty
    option = Flag(
        [*(known.flags or f"--{name.replace('_', '-')}").split(), "__".join(place.path) or name],
        metavar=None
        if words and not known.metavar
        else [*extras, known.metavar or ("N" if int in kinds and str not in kinds else "NAME")][0],
        type=None if bool in kinds else value,
        is_flag=bool in kinds or None,
        multiple=repeats,
        required=required,
        **({} if place.optional or repeats or required else {"default": place.default}),
    )
    option.place = place
    return option


def is_given(param: click.Parameter, ctx: click.Context) -> bool:
    """Whether the user gave a parameter on the command line."""
    return ctx.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE


def arguments(function: Callable[..., Any], params: Sequence[click.Parameter], ctx: click.Context) -> dict[str, Any]:
    """Return the arguments of a function, by what was given. Its structs have the defaults of the library for the rest.

    Raises:
        ConfigError: a value is not allowed.
    """
    found: dict[str, Any] = {}
    structs = {name: hint for name, hint, *_ in _signature(function) if is_struct(hint) and not hasattr(hint, "parse")}
    for param in params:
        value = ctx.params.get(str(param.name))
        if not isinstance(param, Flag):
            found[str(param.name)] = value
            continue
        if not param.place.path:
            continue
        *path, name = param.place.path
        inner = found
        for field in path:
            inner = inner.setdefault(field, {})
        if isinstance(param.type, Value) and param.type.is_pairs:
            value = param.type.gathered(value, param.opts[0]) if is_given(param, ctx) else param.place.default
        elif isinstance(value, tuple) and value and isinstance(value[0], list):
            value = tuple(number for one in value for number in one)
        if is_given(param, ctx) or not param.place.optional:
            inner[name] = value
    return {**found, **{name: _built(kind, found.get(name, {})) for name, kind in structs.items()}}


def _built(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return a struct of the values that were given for its fields, and for those of the structs in it."""
    hints = get_type_hints(kind)
    inner = {name for name in values if is_struct(hints[name]) and isinstance(values[name], dict)}
    return kind(**{name: _built(hints[name], one) if name in inner else one for name, one in values.items()})
