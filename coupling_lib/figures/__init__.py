"""Labelled arrays in, matplotlib figures out: one file per subject, one style, a light and a dark theme.

Nothing here computes with a model: every function reads an `xarray.Dataset` that a measure made or a store kept.
"""
