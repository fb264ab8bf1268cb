"""Token ids come back as they were kept, and long sequences of them share their numbers."""

from __future__ import annotations

import pytest

from lightning_core.records.sequences import LONG, SHARED
from lightning_core.stores.packing import pack_ids, unpack_ids


@pytest.mark.parametrize("last", [0, 7, SHARED - 1, SHARED, 2**32 - 1])
@pytest.mark.parametrize("length", [1, LONG - 1, LONG, 3 * LONG])
def test_ids_come_back_as_they_were(length: int, last: int) -> None:
    ids = [*range(1000, 1000 + length - 1), last]
    assert unpack_ids(pack_ids(ids)) == ids
    assert {type(each) for each in unpack_ids(pack_ids(ids)) or ()} == {int}


def test_long_sequences_share_their_numbers() -> None:
    packed = pack_ids(range(1000, 1000 + 2 * LONG))
    first, second = unpack_ids(packed), unpack_ids(packed)
    assert first is not None
    assert second is not None
    assert first is not second
    assert all(a is b for a, b in zip(first, second, strict=True))
