"""One HTML page about a network and data: theory, advice, measurement and how each number was obtained."""

from widthwise.report.findings import Findings, find, learning_curves
from widthwise.report.page import page, study_of, write_report

__all__ = ["Findings", "find", "learning_curves", "page", "study_of", "write_report"]
