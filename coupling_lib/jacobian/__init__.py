"""From a trace to a block's Jacobian: dense, as an operator, or batched over pairs of tokens."""
