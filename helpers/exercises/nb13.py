"""Exercises of notebook 13."""
