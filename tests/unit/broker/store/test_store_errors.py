"""The advice in the store's errors."""

from __future__ import annotations

import errno
import os

import pytest

from triomq.broker.store.core.errors import io_error


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EIO, "check the disk"), (errno.ENOMEM, "vm.max_map_count")]
)
def test_the_advice_fits_the_error(number: int, advice: str) -> None:
    text = str(io_error("commitlog/0", OSError(number, os.strerror(number))))
    assert advice in text
    assert ("check the disk" in text) == (number == errno.EIO)
