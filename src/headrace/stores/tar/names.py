"""Which sample a member of a tar belongs to, and as which part: the rule that Energon and webdataset share."""

from __future__ import annotations

import re
from typing import Final

_SPLIT: Final = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
"""Key and part of a name, as the peers split it; `sample_part` gives the same, quicker."""

_META: Final = re.compile(r"__[^/]*__($|/)")
"""What the peers leave out, when a name begins so."""


def sample_part(name: str, *, hidden: bool = True) -> tuple[str, str] | None:
    """Key and part of a regular member, or None if it belongs to no sample.

    The name is split at the first dot behind its last slash; folders belong to the key, and nothing is normalised:

        ``a0.jpg``           key ``a0``, part ``jpg``         ``a0.seg.PNG``    key ``a0``, part ``seg.PNG``
        ``v1.2/a0.txt``      key ``v1.2/a0``, part ``txt``    ``./a0.txt``      key ``./a0``, part ``txt``
        ``a0.``              key ``a0``, part ``""``          ``a0``, ``.git``  None: no key or no part
        ``__meta__/a0.txt``  None: ``__...__`` at the begin   ``d/__a__/b.x``   key ``d/__a__/b``, part ``x``

    Args:
        name: the full name of the member, as ``tarfile`` decodes it.
        hidden: take ``dir/.hid`` as key ``dir/`` and part ``hid``, as the peers do; False leaves it out.
    """
    if name.startswith("__") and _META.match(name):
        return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    if dot == slash + 1:
        # The peers' pattern then takes the last folder for the name of the file, if there is one and it has no dot.
        if not hidden or slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]:
            return None
    elif "\n" not in name:
        return name[:dot], name[dot + 1 :]
    if "\n" in name:
        # Their pattern stops at the end of a line in some places and not in others: nothing to be said more clearly.
        found = _SPLIT.match(name)
        return None if found is None else (found[1], found[2])
    return name[:dot], name[dot + 1 :]
