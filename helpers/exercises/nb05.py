"""Exercises of notebook 05."""
