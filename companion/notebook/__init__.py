"""Parameters of notebooks: checks of given values, and choices where none is given."""
