"""The gauge of memory shows what is taken, also where the allocator has room left by arrays already freed."""

import numpy as np
from peak_memory import growth


def test_growth_is_what_is_taken():
    assert 95 < growth(lambda: np.ones((50_000, 257))) < 105  # 98 MiB
    assert growth(lambda: None) < 5


def test_room_left_by_freed_arrays_does_not_hide_it():
    np.empty(31 * 2**20, np.uint8)  # freed at once; from now on the allocator keeps what is below 31 MiB
    small = [np.ones(100_000, np.uint8) for _ in range(2000)]
    last = np.ones(90_000, np.uint8)  # the room below it cannot shrink from its end
    del small
    assert growth(lambda: np.ones((50_000, 257))) > 90
    assert last.all()
