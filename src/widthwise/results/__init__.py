"""Labelled results: xarray Datasets on top of plain arrays, saved and loaded."""

from widthwise.results.labelled import theory
from widthwise.results.labels import label, network_of
from widthwise.results.store import load, save

__all__ = ["label", "load", "network_of", "save", "theory"]
