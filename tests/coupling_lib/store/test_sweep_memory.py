"""A limit on memory that one prompt fits under is enough for any number of prompts."""

import os
import subprocess
import sys
import textwrap

import pytest
import tiny

from coupling_lib.paths import ROOT

# What two hundred long prompts leave behind on the way is several times as much.
SPARE = 12 * 2**20

PROGRAM = """
    import gc, resource, sys
    import torch
    import coupling_lib as cl
    from coupling_lib.store.sweep import stream

    folder, root, spare = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = cl.load_model(folder)

    def prompts(number, n_tokens):
        generator = torch.Generator().manual_seed(n_tokens)
        return list(torch.randint(0, 280, (number, 1, n_tokens), generator=generator))

    def address_space():
        return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

    # One long prompt: whatever a prompt needs, and the libraries' own buffers.
    for measure, settings in ((cl.measure_depth, {"ks": (4,)}), (cl.measure_trajectories, {})):
        cl.sweep(measure, model, prompts(1, 256), store=root + "/first", **settings)
    gc.collect()
    limit = address_space() + spare
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    for number, n_tokens in ((3, 16), (40, 16), (40, 256)):
        ds = cl.sweep(cl.measure_depth, model, prompts(number, n_tokens), store=root, ks=(4,))
        assert ds.sizes["prompt"] == number and bool((ds.residual < 1e-3).all())
    assert sum(1 for _ in stream(cl.measure_trajectories, model, prompts(60, 256), store=root)) == 60

    # The limit is one: keeping what was computed on the way breaks it.
    kept = []
    try:
        for prompt in prompts(200, 256):
            kept.append(cl.trace(model, prompt))
            kept.append([kept[-1].jacobian(block).dense() for block in range(model.n_blocks)])
    except (MemoryError, RuntimeError) as error:
        print("kept", len(kept) // 2, "of 200 before:", " ".join(str(error).split())[:60])
    else:
        raise AssertionError("the limit does not limit anything")
"""


@pytest.mark.thorough
def test_sweep_memory_is_independent_of_prompt_count(tmp_path):
    tiny.llama(hidden_size=128, num_hidden_layers=4, max_position_embeddings=512).save_pretrained(tmp_path / "m")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    folders = str(tmp_path / "m"), str(tmp_path / "results")
    # A Python of its own: a fork has the threads of what it came from, and a limit on address space counts theirs.
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *folders, str(SPARE)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].startswith("kept ")
