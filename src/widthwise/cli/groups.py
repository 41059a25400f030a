"""Options that several commands share: written once as a dataclass, spread into a command's own parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose parameters of a dataclass type are replaced by the fields of that dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        inner = get_type_hints(groups[name], include_extras=True)
        for item in fields(groups[name]):  # pyright: ignore[reportArgumentType]
            default = inspect.Parameter.empty if item.default is MISSING else item.default
            parameters.append(
                inspect.Parameter(item.name, parameter.kind, default=default, annotation=inner[item.name])
            )

    @wraps(command)
    def run(**values: Any) -> Any:
        packed = {
            name: group(**{item.name: values.pop(item.name) for item in fields(group)})  # pyright: ignore
            for name, group in groups.items()
        }
        return command(**values, **packed)

    # a parameter without a default may not follow one with a default
    parameters.sort(key=lambda p: p.default is not inspect.Parameter.empty)
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    del run.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    return run
