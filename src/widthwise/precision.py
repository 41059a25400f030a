"""Settings of jax: widthwise computes in float64, so it switches jax to 64 bits and says so once; programs are kept."""

import logging

import jax

from widthwise.program_cache import keep_programs

logger = logging.getLogger("widthwise")

# asked for once, with one log line if that changes the process-wide setting
if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", True)
    logger.warning("widthwise: switched jax to 64-bit precision (jax_enable_x64) for this process")

keep_programs()
