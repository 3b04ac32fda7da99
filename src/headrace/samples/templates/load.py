"""Load a `TemplateSetup` from a tokeniser's folder, a file, or our suite, with its special tokens."""

from __future__ import annotations

from os import PathLike
from typing import Any

import msgspec

from headrace.config import nearest
from headrace.errors import ConfigError, InputError
from headrace.io import AnyPath, path_at, read_small
from headrace.samples.templates.messages import TemplateSetup
from headrace.samples.templates.suite import find, suite_names


def read_json(path: AnyPath) -> dict[str, Any]:
    """Return the JSON object in ``path``, or an empty one if the file does not exist.

    Raises:
        InputError: If the file cannot be read, or is not a JSON object.
    """
    try:
        content = read_small(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: it is not a JSON object: {error}") from error


def read_text(path: AnyPath) -> str:
    """Return the UTF-8 text in ``path`` with line ends ``\\n``.

    Raises:
        InputError: If the file cannot be read, or is not UTF-8.
    """
    try:
        return read_small(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; templates must be UTF-8 text") from error


CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
_MAP = "special_tokens_map.json"


def special_tokens(folder: AnyPath) -> dict[str, str]:
    """Return names and texts of the special tokens in ``folder``; empty if its files name none.

    They are every ``*_token`` of ``tokenizer_config.json``, and its ``extra_special_tokens``. A file without
    ``added_tokens_decoder`` is an old one, and then ``special_tokens_map.json`` wins, as in transformers 5. The object
    ``special_tokens`` is AstrAI's and is used for names that are not found otherwise.

    Tokens that a tokeniser's class in Python would add by default (such as ``<s>``) are not known here. Such folders
    are rare, since saving a tokeniser writes all tokens.
    """
    config = read_json(folder / CONFIG)
    values = dict(config)
    if "added_tokens_decoder" not in config:
        values |= read_json(folder / _MAP)
    extra = values.get("extra_special_tokens")
    found = _texts(config.get("special_tokens"))
    found |= {name: text for name, text in _texts(values).items() if name.endswith("_token")}
    return found | _texts(extra)


def _texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        return {}
    # A token is its text, or a dict that also says how it is matched.
    contents = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}


_FILE = "chat_template.jinja"
_MORE = "additional_chat_templates"
_OLD = "chat_template.json"


def load_setup(path: str | PathLike[str], *, name: str | None, tokenizer: str | PathLike[str] | None) -> TemplateSetup:
    """Return the setup that :meth:`ChatTemplate.load` compiles; same arguments and errors."""
    place = path_at(path)
    tokens = None if tokenizer is None else special_tokens(_folder(tokenizer))
    if place.is_dir():
        return _from_folder(place, name, special_tokens(place) if tokens is None else tokens)
    if place.is_file():
        return _from_file(place, name, special_tokens(place.parent) if tokens is None else tokens)
    ours = find(str(path))
    if ours is None:
        names = suite_names()
        raise ConfigError(
            f"{str(path)!r} is not a folder, a file or the name of a template of ours{nearest(str(path), names)}; "
            f"`suite_names()` lists all {len(names)} names"
        )
    if name is not None:
        raise ConfigError(f"{str(path)!r} is a single template and has no {name!r}: leave the name out")
    # With a folder that names no tokens, the BOS of the family would be left out silently.
    tokens = tokens or ours.special_tokens
    return TemplateSetup(
        text=ours.text,
        special_tokens=tokens,
        name=ours.name,
        source=f"suite:{ours.name}",
        end_of_turn=ours.ends_turn(tokens),
    )


def _folder(tokenizer: str | PathLike[str]) -> AnyPath:
    folder = path_at(tokenizer)
    folder = folder.parent if folder.is_file() else folder
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; pass a tokeniser's folder or its tokenizer.json")
    return folder


def _from_file(path: AnyPath, name: str | None, tokens: dict[str, str]) -> TemplateSetup:
    if path.suffix == ".json":
        raise ConfigError(f"{path}: pass the folder that holds this file, or a .jinja file")
    if name is not None:
        raise ConfigError(f"{path}: a file is a single template and has no {name!r}: leave the name out")
    return TemplateSetup(text=read_text(path), special_tokens=tokens, source=str(path))


def _from_folder(folder: AnyPath, name: str | None, tokens: dict[str, str]) -> TemplateSetup:
    found = _files(folder) or _of_json(folder / CONFIG) or _of_json(folder / _OLD)
    if not found:
        raise ConfigError(
            f"{folder}: no chat template; looked for {_FILE}, {_MORE}/*.jinja, and chat_template in {CONFIG} and "
            f"{_OLD}. A base model has none: pass a .jinja file, or the name of one of ours"
        )
    wanted = "default" if name is None else name
    if wanted not in found:
        names = ", ".join(map(repr, sorted(found)))
        if name is None:
            raise ConfigError(f"{folder}: it has the templates {names}, and none is the default: choose one by `name`")
        raise ConfigError(f"{folder}: no chat template {name!r}; it has {names}")
    source, text = found[wanted]
    tool_use = found.get("tool_use") if name is None else None
    return TemplateSetup(
        text=text,
        tool_use=None if tool_use is None else tool_use[1],
        special_tokens=tokens,
        name=wanted,
        source=source,
    )


def _files(folder: AnyPath) -> dict[str, tuple[str, str]]:
    """Return file and text of the templates in files of their own, by name. They hide those of the configuration."""
    more = folder / _MORE
    # A web server cannot list, so there it is no folder.
    listed: list[AnyPath] = [*more.glob("*.jinja")] if more.is_dir() else []
    paths = {path.name.removesuffix(".jinja"): path for path in sorted(listed, key=lambda path: path.name)}
    if (folder / _FILE).is_file():
        # A file `default.jinja` among the others would win over this one, as it does in transformers.
        paths = {"default": folder / _FILE} | paths
    return {name: (str(path), read_text(path)) for name, path in paths.items()}


def _of_json(path: AnyPath) -> dict[str, tuple[str, str]]:
    """Return the templates of a file: a string, a list of ``{"name", "template"}``, or a dict."""
    value = read_json(path).get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": (str(path), value)}
    if isinstance(value, list) and all(
        isinstance(entry, dict) and entry.keys() >= {"name", "template"} for entry in value
    ):
        value = {entry["name"]: entry["template"] for entry in value}
    if isinstance(value, dict) and all(isinstance(text, str) for text in [*value, *value.values()]):
        return {name: (str(path), text) for name, text in value.items()}
    raise InputError(
        f"{path}: chat_template is a {type(value).__name__}, {value!r:.80}; allowed are a string, and a list of "
        "objects with name and template"
    )
