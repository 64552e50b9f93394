"""Additions of this book to `coupling_lib`: figures, tables of many models, trainings, notebooks."""
