"""Labs: one file a phenomenon, each with a statement, an experiment that could refute it, and a verdict."""

from widthwise.labs.base import Claim, Lab, Outcome
from widthwise.labs.runner import LabResult, get_lab, names, run_lab, title_of

__all__ = ["Claim", "Lab", "LabResult", "Outcome", "get_lab", "names", "run_lab", "title_of"]
