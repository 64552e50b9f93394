"""Sweeps that cannot be: their prompts, settings, shards and stores."""

from typing import Any

from bad_inputs import CODE, TEXT, Bad, Rig

import coupling_lib as cl


def swept(what: str, message: str, prompts: Any = (TEXT,), **settings: Any) -> Bad:
    def call(rig: Rig) -> Any:
        return cl.sweep(cl.measure_depth, rig.model, prompts, **({"ks": (3,), "store": rig.store} | settings))

    return Bad(f"sweep of {what}", call, message)


WHOLE_K = r"k is {}; nano-neox has width 96, so it must be a whole number from 1 to 96"

SWEEPS = [
    *(swept(f"k {k!r}", WHOLE_K.format(k), ks=(k,)) for k in (0, 97, 2.0, True, None)),
    swept("k as a number", "ks is 5; it must be whole numbers from 1 to 96", ks=5),
    swept("k as a text", "ks is '10'; it must be whole numbers", ks="10"),
    swept("no k", r"ks is \(\); it must be whole numbers", ks=()),
    swept("no prompt", "prompts is empty; give at least one", []),
    swept("a number as prompt", r"prompt 2 of 2 is 3 \(int\); give texts", [TEXT, 3]),
    swept("nothing as prompts", "prompts is None; give a list of texts", None),
    swept("a mapping of prompts", "prompts is .*; give a list of texts", {"prompt": TEXT}),
    swept("control characters", r"prompt 2 of 2 holds the control character '\\x07'", [TEXT, "a\x07"]),
    swept("a token too far", r"token is -99; this input has \d tokens", token=-99),
    swept("half a token", "token is 0.5; this input has", token=0.5),
    swept("an unknown boundary", "boundary is 'end'; it must be", boundary="end"),
    swept("variables as a text", "variables is 'mismatch'; expected a list of names", variables="mismatch"),
    swept("an empty store", "store is ''; it must be a folder", store=""),
    swept("a store of bytes", "store is b'x'; it must be a folder", store=b"x"),
    swept("shard 0", "shard is '0/2'; it must be a text i/n with i from 1 to n", shard="0/2"),
    swept("shard of code", 'shard is "__import__.*touch ran.*; it must be a text i/n', shard=CODE),
    Bad(
        "a store that is a file",
        lambda rig: cl.sweep(cl.measure_depth, rig.model, [TEXT], ks=(3,), store=rig.file("taken", "")),
        "store is the file .*taken'; give a folder",
    ),
]
