"""Controls of the page: a number with a slider and a box to type in, or a list of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from widthwise.explorer.settings import CONTROLS, Number, Settings

#: Controls that get no slider: their range is too large for one.
_TYPED_ONLY = ("networks", "seed", "trained")


class Fields:
    """Widgets for some controls. `change(name, value)` is called with what the visitor typed, chose or moved."""

    def __init__(self, names: tuple[str, ...], settings: Settings, change: Callable[[str, Any], None]):
        self.change, self._quiet = change, False
        self.sliders: dict[str, Any] = {}
        self.boxes: dict[str, Any] = {}
        self.rows = [self._field(name, getattr(settings, name)) for name in names]

    def show(self, settings: Settings) -> None:
        """Set every widget to the page's state, without calling `change`."""
        self._quiet = True
        try:
            for name, box in self.boxes.items():
                value = getattr(settings, name)
                box.value = f"{value:.10g}" if isinstance(CONTROLS[name], Number) else value
                if name in self.sliders:
                    self.sliders[name].value = value
        finally:
            self._quiet = False

    def _field(self, name: str, value: Any) -> Any:
        control = CONTROLS[name]
        if not isinstance(control, Number):
            box = pn.widgets.Select(
                label=control.label, options=list(control.options), value=value, sizing_mode="stretch_width"
            )
            self._watch(name, box, "value")
            return box
        box = pn.widgets.TextInput(label=control.label, value=f"{value:.10g}", sizing_mode="stretch_width")
        self._watch(name, box, "value")
        if name in _TYPED_ONLY:
            return box
        kind = pn.widgets.IntSlider if control.whole else pn.widgets.FloatSlider
        start, end, step = ((int(x) if control.whole else x) for x in (control.low, control.high, control.step))
        slider = kind(
            start=start, end=end, step=step, value=value, show_value=False, sizing_mode="stretch_width",
            margin=(0, 10, 4, 10), css_classes=[f"slider-{name}"],
        )  # fmt: skip
        self.sliders[name] = slider
        slider.param.watch(lambda event: self._moved(name, event.new), "value")
        return pn.Column(box, slider, sizing_mode="stretch_width", margin=0)

    def _watch(self, name: str, box: Any, parameter: str) -> None:
        self.boxes[name] = box
        box.param.watch(lambda event: self._moved(name, event.new), parameter)

    def _moved(self, name: str, value: Any) -> None:
        if not self._quiet:
            self.change(name, value)
