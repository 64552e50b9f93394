"""How blocks are found, called again and replayed, in any precision: what every Jacobian stands on."""
