"""Labelled results: xarray Datasets on top of plain arrays, saved and loaded."""
