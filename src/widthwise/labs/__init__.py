"""Labs: one file a phenomenon, each with a statement, an experiment that could refute it, and a verdict."""

from widthwise.labs.base import Lab, Outcome
from widthwise.labs.catalogue import get_lab, names, statement_of, title_of
from widthwise.labs.claims import Claim
from widthwise.labs.runner import LabResult, run_lab

__all__ = ["Claim", "Lab", "LabResult", "Outcome", "get_lab", "names", "run_lab", "statement_of", "title_of"]
