"""Criticality, universality classes, learning rates, depth against width, and advice (theory §7)."""
