"""Labelled arrays in, matplotlib figures out: one file per subject, one style, a light and a dark theme.

`draw_NAME` draws the selection of `take_NAME` from a measurement, with intervals or quartiles over prompts, for one
network, or for several side by side. `show` puts it on a page with its table and its provenance:

    ds = cl.measure_depth(model, prompts)
    array = depth.take_map(ds, null=cl.null_of(ds, "normalized_miscoupling"))
    depth.draw_map(array)

    show(depth.draw_map, depth.take_map(side_by_side(untrained=a, trained=b), k=10), name="depth-map", caption="...")

Open choices have defaults (`take`). Selections count blocks, ranks, orders, directions and positions from 1,
arguments count from 0; level l is the state after block l, 0 the embedding. *Coupling* is 1 minus a normalised
mismatch, its means over pairs of different blocks or tokens: for a block with itself A is diagonal by construction
and has no meaning.
"""

from coupling_lib.errors import require

for _package in ("matplotlib", "IPython"):
    require(_package, "notebooks", "drawing figures")
