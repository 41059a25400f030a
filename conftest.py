"""Between test files compiled programs are forgotten when there are many."""

from widthwise.memory import forget_programs


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        forget_programs()
