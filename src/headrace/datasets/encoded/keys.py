"""Restore keys of encoded samples: ``("Encoded", address, ...)``, then the key of the sample within."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import ConfigError

RESTORE: Final = "Encoded"


def restore_key_of(sample: Any) -> Any:
    """What a sample or a dict has as its restore key, or None."""
    return sample.get("__restore_key__") if isinstance(sample, Mapping) else getattr(sample, "__restore_key__", None)


def address_of(restore_key: Any) -> int | None:
    """The address in a restore key of `EncodedDataset`, None where it is another."""
    if isinstance(restore_key, tuple) and len(restore_key) > 1 and restore_key[0] == RESTORE:
        return restore_key[1] if isinstance(restore_key[1], int) else None
    return None


def marked(sample: Any, address: int, encoder: str) -> Any:
    """The sample with its restore key, the one that it had within. Raises ConfigError: it has no place for one."""
    return keyed(sample, (RESTORE, address, *(restore_key_of(sample) or ())), encoder)


def keyed(sample: Any, key: tuple[Any, ...], encoder: str) -> Any:
    """The sample with a restore key.

    Raises:
        ConfigError: it has no place for one.
    """
    if isinstance(sample, dict):
        sample["__restore_key__"] = key
        return sample
    if isinstance(sample, tuple) and "__restore_key__" in getattr(sample, "_fields", ()):
        return sample._replace(__restore_key__=key)  # type: ignore[attr-defined]
    try:
        sample.__restore_key__ = key
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{encoder} gave a {type(sample).__name__} without __restore_key__; derive its type from Sample, and make"
            " it by derive_from(sample, ...), or give a dict"
        ) from None
    return sample
