"""What a run is about: a network, data, training and measurement, from a file, a name or flags."""

from widthwise.study.data import Data, dataset, load_data
from widthwise.study.spec import Study, default_study

__all__ = ["Data", "Study", "dataset", "default_study", "load_data"]
