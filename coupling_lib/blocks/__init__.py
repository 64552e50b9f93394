"""Finding, recording and replaying a model's blocks in any precision: the basis of every Jacobian."""
