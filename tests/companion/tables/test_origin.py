"""The line under a figure, and the command in it."""

from types import SimpleNamespace

from companion.tables import origin
from coupling_lib import provenance

MODEL = dict(name="nano-neox", source="embedded:nano-neox", revision=None, precision="nf4", n_blocks=12, d_model=96)


def test_papermill_commands_quote_what_a_shell_would_split():
    command = origin.papermill_command("depth", {"model": "my models/a", "revision": "", "k": 5})
    assert command == "papermill notebooks/depth.ipynb out.ipynb -p model 'my models/a' -p k 5"
    alone = {"model": "gpt2", "others": "", "revision": ""}
    assert origin.papermill_command("depth", alone).endswith("-p model gpt2 -p others ''")
    assert origin.papermill_command("prompts", alone).endswith("-p model gpt2")


def test_the_line_says_once_what_data_sets_share():
    untrained, trained = (
        provenance.provenance(SimpleNamespace(**MODEL, untrained=seed is not None, seed=seed), ["one"], token=-1)
        for seed in (3, None)
    )
    assert origin.line(untrained, trained, command="make book").split(" · ") == [
        "model nano-neox (embedded:nano-neox)", "untrained (seed 3) and trained", "nf4",
        f"1 prompt (sha256 {provenance.prompts_hash(['one'])})", "token -1", provenance.versions(), "make book",
    ]  # fmt: skip
    two = provenance.provenance(SimpleNamespace(**MODEL, untrained=False, seed=None), ["one", "two"], token=-1)
    assert " · trained · nf4 · 2 prompts (sha256 " in origin.line(two)


def test_only_post_norm_blocks_get_a_caution():
    warning = "post-norm blocks: block minus identity couples trivially, trained or not; see Gotchas"
    pre, post = {"model": "a"}, {"model": "a", "norm_position": "post"}
    assert origin.line(post, post).split(" · ")[-1] == origin.line(pre, post).split(" · ")[-1] == warning
    assert "before its norms; see Gotchas" in origin.line(post | {"boundary": "branch"})
    assert "post-norm" not in origin.line(pre)
    assert origin.line(post | {"norm_position": "mixed"}).endswith(f"some {warning}")
