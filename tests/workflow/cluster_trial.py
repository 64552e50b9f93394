"""A sweep through a real SLURM of one node, with a job and the node's daemon killed in the middle: `make test-cluster`.

Two models in two precisions, in shards. It passes where the sweep completes, every prompt was measured once, the
numbers are those of an undisturbed run to the last bit, and running it again does nothing.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml
from slurm import Cluster, until

from workflow.records import lines
from workflow.settings import ROOT

CONFIG = {
    "name": "trial",
    "models": ["nano-neox", "nano-vit"],
    "precisions": ["float32", "bfloat16"],
    "prompts": 8,
    "shards": 2,
    # One prompt at a time, in models so small that depth takes all at once.
    "measures": {"tokens": {"block": 3, "k": 4}},
}
PROMPTS, SHARD, SHARDS, JOBS = 8, 4, 2, 4
# There is no accounting to ask, and nobody waits for a file system.
MORE = "--slurm-no-account --slurm-status-command squeue --slurm-init-seconds-before-status-checks 2 "
MORE += "--latency-wait 10 --jobs 4"
_LONGEST = 900

# The undisturbed run: one process, the whole set, a store of its own; then both are compared bit for bit.
_COMPARED = """
import sys
import coupling_lib as cl
disturbed, own = sys.argv[1:3]
for name in sys.argv[3:]:
    model = cl.load_model(name)
    inputs = cl.inputs_for(model, cl.load_prompts(n=PROMPTS))
    one = cl.sweep(cl.measure_tokens, model, inputs, store=own, block=3, k=4)
    many = cl.sweep(cl.measure_tokens, model, inputs, store=disturbed, block=3, k=4)
    assert bytes(one.to_netcdf(engine="scipy")) == bytes(many.to_netcdf(engine="scipy")), f"{name} differs"
"""


class Trial:
    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster, self.start = folder, cluster, time.monotonic()
        self.results = folder / "results"
        self.root = self.results / "sweeps" / "trial"
        self.config = folder / "trial.yaml"
        self.config.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
        own = {"COUPLING_RESULTS": str(self.results), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.environment = os.environ | cluster.environment | own

    def run(self) -> None:
        self.dry_run()
        with (self.folder / "sweep.out").open("wb") as out:
            command = [sys.executable, "-m", "workflow.sweep", str(self.config), "--profile", "slurm", f"--more={MORE}"]
            sweep = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=out, stderr=subprocess.STDOUT)
            try:
                self.disturb(sweep)
                sweep.wait(timeout=_LONGEST)
            except BaseException:
                sweep.kill()
                raise
        assert sweep.returncode == 0, f"{self.log_tail()}\n{self.cluster.logs()}"
        self.log("the sweep is complete")
        self.once()
        before = self.journals()
        output = self.output_of(*command)
        assert "Nothing to be done" in output and self.journals() == before, output
        self.log("running it again did nothing")
        code = _COMPARED.replace("PROMPTS", str(PROMPTS))
        self.output_of(sys.executable, "-c", code, str(self.results), str(self.folder / "own"), *CONFIG["models"])
        self.log("the numbers of each model are those of an undisturbed run, bit for bit")

    def dry_run(self) -> None:
        """Ask Snakemake what there is to do, of which nothing is done."""
        output = self.output_of(sys.executable, "-m", "workflow.sweep", str(self.config), "--more=-n")
        counts = dict(re.findall(r"^(fetch|measure|merge|figure|book) +(\d+)$", output, re.MULTILINE))
        expected = {"fetch": str(len(CONFIG["models"])), "measure": str(JOBS * SHARDS), "merge": str(JOBS)}
        assert counts == expected and not self.journals(), output
        self.log(f"a dry run plans {', '.join(f'{count} x {rule}' for rule, count in expected.items())}")

    def disturb(self, sweep: subprocess.Popen) -> None:
        """Kill a job that has begun, then the node's daemon while another has."""
        passed: set[Path] = set()
        while True:
            first = self.begun(sweep, besides=passed)
            line = next(lines(first))
            try:
                os.kill(line["pid"], signal.SIGKILL)
                break
            except ProcessLookupError:  # it was done in the meantime
                passed.add(first)
        self.log(f"killed SLURM job {line['slurm']} when {self.journals()[first]} of {SHARD} prompts were done")
        second = self.begun(sweep, besides={first})
        self.cluster.kill("slurmd")
        self.log(f"killed the node's daemon when {self.journals()[second]} of {SHARD} prompts of another were done")
        time.sleep(3)
        self.cluster.start("slurmd")
        self.cluster.wait_idle()
        self.log("the node's daemon is back")

    def begun(self, sweep: subprocess.Popen, besides: set[Path]) -> Path:
        """Wait for a shard that has measured something and not all, other than those that were seen before."""
        seen = besides | set(self.journals())

        def found() -> Path | None:
            assert sweep.poll() is None, self.log_tail()
            fresh = {path: count for path, count in self.journals().items() if path not in seen}
            begun = [path for path, count in fresh.items() if 0 < count < SHARD]
            receipts = self.root / "measured"
            return next((p for p in begun if not (receipts / p.parent.name / f"{p.stem}.json").exists()), None)

        return until(found, lambda: f"nothing was measured within {_LONGEST} s", _LONGEST)

    def journals(self) -> dict[Path, int]:
        return {path: len(list(lines(path))) for path in (self.root / "journals").glob("*/*.jsonl")}

    def once(self) -> None:
        """Count what was measured, by the journals and by the files."""
        noted = [line for journal in self.journals() for line in lines(journal)]
        names, wanted = {line["file"] for line in noted}, JOBS * PROMPTS
        files = {path.name for path in self.results.glob("*/measurements/*.safetensors")}
        merged = [json.loads(path.read_text()) for path in (self.root / "measured").glob("*.json")]
        complete = [record["job"] for record in merged if record["prompts"] == record["of"] == PROMPTS]
        # A process that is killed between a file and its line leaves the file, which nobody measures again.
        assert (len(noted), len(files), len(complete)) == (len(names), wanted, JOBS) and names <= files
        self.log(f"{len(files)} prompts were measured, none of them twice")

    def output_of(self, *command: str) -> str:
        run = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout + run.stderr

    def log_tail(self) -> str:
        return "\n".join((self.folder / "sweep.out").read_text(errors="replace").splitlines()[-40:])

    def log(self, text: str) -> None:
        print(f"{time.monotonic() - self.start:5.0f} s  {text}", flush=True)


def test_sweep_survives_losing_a_job_and_a_node(tmp_path):
    # Whoever ends the trial ends its cluster.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Cluster(tmp_path / "slurm") as cluster:
            Trial(tmp_path, cluster).run()
    finally:
        signal.signal(signal.SIGTERM, before)
