"""What this book needs on top of `coupling_lib`: figures, tables of many models, trainings, notebooks."""
