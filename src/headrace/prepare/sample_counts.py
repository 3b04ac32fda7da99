"""What a run of a recipe counts besides documents and tokens: tokens key by key, what is trained, what was odd."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.stores import SampleLedger, TokenLedger


class KeySums(msgspec.Struct, kw_only=True):
    """Tokens of one key of ids: ``made == kept + truncated + sum(dropped.values())``."""

    made: int = 0
    kept: int = 0
    truncated: int = 0
    dropped: dict[str, int] = {}


class SampleCounts(msgspec.Struct, kw_only=True):
    """Sums over records; those of bad ones are not among them."""

    records: int = 0
    """Records that were read whole: kept, or dropped by a reason."""

    keys: dict[str, KeySums] = {}
    """By key of ids, as the store calls it."""

    supervised: int = 0
    """Trained tokens that were kept."""

    notes: dict[str, int] = {}
    """``straddling_tokens``, ``split_records``, ``truncated_records`` and the like."""

    def add(self, more: SampleCounts) -> None:
        """Add the sums of other records."""
        self.records += more.records
        self.supervised += more.supervised
        for note, number in more.notes.items():
            self.notes[note] = self.notes.get(note, 0) + number
        for key, theirs in more.keys.items():
            ours = self.keys.setdefault(key, KeySums())
            ours.made += theirs.made
            ours.kept += theirs.kept
            ours.truncated += theirs.truncated
            for reason, number in theirs.dropped.items():
                ours.dropped[reason] = ours.dropped.get(reason, 0) + number

    def drop(self, reason: str, tokens: Mapping[str, int], supervised: int) -> None:
        """Documents that were kept so far, with so many tokens by key, are dropped after all."""
        self.supervised -= supervised
        for key, number in tokens.items():
            sums = self.keys[key]
            sums.kept -= number
            sums.dropped[reason] = sums.dropped.get(reason, 0) + number

    def ledger(self) -> SampleLedger:
        """As the manifest keeps them."""
        return SampleLedger(
            records=self.records,
            keys={
                key: TokenLedger(
                    made=sums.made,
                    kept=sums.kept,
                    dropped={reason: number for reason, number in sorted(sums.dropped.items()) if number},
                    truncated={LENGTH: sums.truncated} if sums.truncated else {},
                )
                for key, sums in self.keys.items()
            },
            supervised=self.supervised,
            notes={note: number for note, number in sorted(self.notes.items()) if number},
        )


LENGTH = "length"
"""The reason for which tokens are cut off documents."""
