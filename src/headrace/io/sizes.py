"""Numbers of bytes as people write them: ``500MB``, ``1GiB``."""

from __future__ import annotations

from typing import Final

from headrace.errors import ConfigError

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "pib": 1 << 50,
}


def parse_size(value: str | int, what: str) -> int:
    """Return a number of bytes, given as a number or as a text such as ``1000000``, ``500MB`` or ``1GiB``.

    Raises:
        ConfigError: this is not a size of at least 1 byte; the message begins with ``what``.

    Example:
        >>> headrace.io.parse_size("1.5GiB", "limit") == 3 << 29
        True
    """
    found = 0
    if isinstance(value, int):
        found = value
    else:
        digits = value.rstrip("BGKMTPIbgkmtpi ")
        unit = _UNITS.get(value[len(digits) :].strip().lower())
        try:
            found = round(float(digits) * unit) if unit is not None else 0
        except (ValueError, OverflowError):
            found = 0
    if found < 1:
        raise ConfigError(f"{what} {value}: write a number of bytes, or a size such as 500MB or 1GiB")
    return found
