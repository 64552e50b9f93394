"""Leading singular triplets of dense matrices, stacks of them and operators, each with its residual."""
