"""Measurements: a model and prompts in, an `xarray.Dataset` with named dimensions out. One file per subject."""
