"""Programs that take longer to compile than to run, compiled with less effort.

Networks are drawn, observed and trained by programs of thousands of operations. On a processor they compile in half the
time, and run as fast, without the passes that XLA spends most on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import jax

from widthwise.devices import Arguments, Result, on_accelerator

_LESS_EFFORT = {
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 8,  # idle cores share the work, which takes as much of the processor
}


@cache
def _accepted(backend: str) -> dict[str, Any] | None:
    """Those of the options that this XLA knows: names come and go with its versions."""
    if _is_known(_LESS_EFFORT):
        return _LESS_EFFORT
    return {name: value for name, value in _LESS_EFFORT.items() if _is_known({name: value})} or None


def _is_known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except Exception:  # whatever XLA says about an option, it is left out
        return False
    return True


def quickly_compiled(
    *, static_argnums: tuple[int, ...] = (), static_argnames: tuple[str, ...] = ()
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """`jax.jit` with less effort, for functions that are not called within other compiled ones.

    >>> @quickly_compiled(static_argnums=(1,))
    ... def power(x, exponent):
    ...     return x**exponent
    >>> float(power(3.0, 2))
    9.0
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @cache
        def program(options: bool) -> Any:
            chosen = _accepted(jax.default_backend()) if options else None
            return jax.jit(
                function, static_argnums=static_argnums, static_argnames=static_argnames, compiler_options=chosen
            )

        @wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return program(not on_accelerator())(*args, **kwargs)

        return call

    return decorate
