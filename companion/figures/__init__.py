"""Labelled arrays in, matplotlib figures out: one file per subject, one style, a light and a dark theme.

`draw_NAME` draws what `take_NAME` selects, with intervals or quartiles over prompts, from what a measure made: of one
network, or of several side by side. `show` puts it on a page with its table and with where it comes from:

    ds = cl.measure_depth(model, prompts)
    array = depth.take_map(ds, null=cl.null_of(ds, "normalized_miscoupling"))
    depth.draw_map(array)

    show(depth.draw_map, depth.take_map(side_by_side(untrained=a, trained=b), k=10), name="depth-map", caption="...")

What is left open has a default (`take`). What is taken counts blocks, ranks, orders, directions and positions from 1,
arguments count from 0; level l is the state after block l, 0 the embedding. *Coupling* is 1 minus a normalised
mismatch, its means over pairs of different blocks or tokens: where a block meets itself A is diagonal by construction
and says nothing.
"""

from coupling_lib.errors import needed

for _package in ("matplotlib", "IPython"):
    needed(_package, "notebooks", "drawing figures")
