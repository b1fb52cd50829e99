"""Exercises of notebook 12."""
