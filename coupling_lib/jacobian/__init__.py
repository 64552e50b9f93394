"""From a trace to the Jacobian of a block: dense, as an operator, or of many prompts at once."""
