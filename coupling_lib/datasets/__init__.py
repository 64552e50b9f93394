"""Summaries of labelled datasets, and selection of their parts: only numpy and xarray, so figures load no torch."""
