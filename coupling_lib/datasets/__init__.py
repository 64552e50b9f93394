"""Labelled data sets condensed, and their parts selected: numpy and xarray alone, so that figures need no torch."""
