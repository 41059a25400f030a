"""`python -m widthwise`: the program."""

from widthwise.cli.main import run

run()
