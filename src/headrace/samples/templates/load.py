"""Where a chat template and its special tokens come from: a tokeniser's folder, a file, or our suite.

The few files that templates come from, read with errors that name them.

The special tokens that a tokeniser's folder gives its chat template: ``bos_token``, ``eos_token``, ...
"""

from __future__ import annotations

from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.samples.templates.compiled import TemplateSetup
from headrace.samples.templates.suite import find, suite_names


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, or an empty one where there is no such file.

    Raises :class:`InputError` where it cannot be read, or is no object.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: it is no JSON object: {error}") from error


def read_text(path: Path) -> str:
    """The text in ``path``, UTF-8, every line ended by ``\\n``. Raises :class:`InputError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8; templates are UTF-8 text") from error


CONFIG = "tokenizer_config.json"
_MAP = "special_tokens_map.json"


def special_tokens(folder: Path) -> dict[str, str]:
    """Names and texts of the special tokens in ``folder``; empty where its files name none.

    Every ``*_token`` of ``tokenizer_config.json`` and of its ``extra_special_tokens``. Where the file has no
    ``added_tokens_decoder`` it is an old one, and ``special_tokens_map.json`` wins, as in transformers 5. The object
    ``special_tokens`` is AstrAI's and stands in for names that are not found otherwise.

    What a tokeniser's class in Python would add on its own (a default ``<s>``) is not known here; such folders are
    rare, since saving a tokeniser writes all of them out.
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
    # A token is its text, or a dict that says how it is matched besides.
    contents = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}


_FILE = "chat_template.jinja"
_MORE = "additional_chat_templates"
_OLD = "chat_template.json"


def load_setup(path: str | PathLike[str], *, name: str | None, tokenizer: str | PathLike[str] | None) -> TemplateSetup:
    """What :meth:`ChatTemplate.load` compiles; the same arguments and errors."""
    place = Path(path)
    tokens = None if tokenizer is None else special_tokens(_folder(tokenizer))
    if place.is_dir():
        return _from_folder(place, name, special_tokens(place) if tokens is None else tokens)
    if place.is_file():
        return _from_file(place, name, special_tokens(place.parent) if tokens is None else tokens)
    ours = find(str(path))
    if ours is None:
        close = get_close_matches(str(path), suite_names(), 3)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(
            f"{str(path)!r} is no folder, no file and no template of ours. {hint}"
            f"`suite_names()` lists {len(suite_names())}"
        )
    if name is not None:
        raise ConfigError(f"{str(path)!r} is one template and has no {name!r}: leave the name out")
    # A folder that names none would leave out the BOS that the family writes, without a word.
    tokens = tokens or ours.special_tokens
    return TemplateSetup(
        text=ours.text,
        special_tokens=tokens,
        name=ours.name,
        source=f"suite:{ours.name}",
        end_of_turn=ours.ends_turn(tokens),
    )


def _folder(tokenizer: str | PathLike[str]) -> Path:
    folder = Path(tokenizer)
    folder = folder.parent if folder.is_file() else folder
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; a tokeniser's folder or its tokenizer.json is needed")
    return folder


def _from_file(path: Path, name: str | None, tokens: dict[str, str]) -> TemplateSetup:
    if path.suffix == ".json":
        raise ConfigError(f"{path}: give the folder that this file lies in, or a .jinja file")
    if name is not None:
        raise ConfigError(f"{path}: a file is one template and has no {name!r}: leave the name out")
    return TemplateSetup(text=read_text(path), special_tokens=tokens, source=str(path))


def _from_folder(folder: Path, name: str | None, tokens: dict[str, str]) -> TemplateSetup:
    found = _files(folder) or _of_config(folder) or _of_old_file(folder)
    if not found:
        raise ConfigError(
            f"{folder}: no chat template; looked for {_FILE}, {_MORE}/*.jinja, and chat_template in {CONFIG} and "
            f"{_OLD}. A base model has none: give a .jinja file, or one of ours by its name"
        )
    wanted = "default" if name is None else name
    if wanted not in found:
        names = ", ".join(map(repr, sorted(found)))
        if name is None:
            raise ConfigError(f"{folder}: it has the templates {names} and none is the default: choose one by its name")
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


def _files(folder: Path) -> dict[str, tuple[str, str]]:
    """Name -> (file, text) of the templates in files of their own. They hide what the configuration holds."""
    paths = {path.name.removesuffix(".jinja"): path for path in sorted((folder / _MORE).glob("*.jinja"))}
    if (folder / _FILE).is_file():
        # A file `default.jinja` among the others would win over this one, as it does in transformers.
        paths = {"default": folder / _FILE} | paths
    return {name: (str(path), read_text(path)) for name, path in paths.items()}


def _of_config(folder: Path) -> dict[str, tuple[str, str]]:
    return _named(read_json(folder / CONFIG).get("chat_template"), folder / CONFIG)


def _of_old_file(folder: Path) -> dict[str, tuple[str, str]]:
    return _named(read_json(folder / _OLD).get("chat_template"), folder / _OLD)


def _named(value: Any, path: Path) -> dict[str, tuple[str, str]]:
    """A template, or a list of ``{"name", "template"}``, or a dict of them."""
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
        f"{path}: chat_template is a {type(value).__name__}, {value!r:.80}; a string, or a list of objects with "
        "name and template, is needed"
    )
