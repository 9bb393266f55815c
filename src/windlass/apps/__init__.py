"""Whole programs on top of Windlass: what the demo and the examples train."""
