"""Labelled arrays in, matplotlib figures out: one file per subject, one style, a light and a dark theme.

Nothing here computes with a model. `take_...` selects labelled arrays from what a measure made or a store kept, with
intervals or quartiles over prompts; `draw_...` draws what was selected, and `show` puts it on a page with its table:

    pairs = depth.take_pairs(both, "normalized_miscoupling", k=10)
    show(depth.draw_map, pairs, null=0.95, name="depth-mismatch", caption="...")

`both` is `side_by_side(untrained=..., trained=...)` of what the subject's measure made. What is taken counts blocks,
ranks, orders, directions and positions from 1, arguments count from 0; level l is the state after block l, 0 the
embedding. *Coupling* is 1 minus a normalised mismatch, its means over pairs of different blocks or tokens: where a
block meets itself A is diagonal by construction and says nothing.
"""

from coupling_lib.errors import needed

for _package in ("matplotlib", "IPython"):
    needed(_package, "notebooks", "drawing figures")
