"""What fixes a measurement: equal things give equal keys, and everything that changes a number changes the key."""

import functools
import os
import time
import timeit
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from refusals import refused

import coupling_lib as cl
from coupling_lib import store
from coupling_lib.blocks import placing
from coupling_lib.errors import ParameterError
from coupling_lib.store import key as identity

TEXT = "It was the best of times"


@pytest.fixture(scope="module")
def model():
    return cl.load_model("nano-neox")


@pytest.fixture
def key(model):
    """The key of a measure with its settings."""
    return lambda measure, **settings: identity.measurement_key(measure, model, settings)


def measure_sum(model, prompts, ks=(1, 2), token=-1): ...


def written(text: str):
    """A measure that is typed into a notebook."""
    space: dict = {"__name__": "a notebook"}
    exec(f"def measure_it(model, prompts):\n    return {text}\n", space)
    return space["measure_it"]


def test_key_of_a_measurement_holds_plain_values(key, model):
    found = key(measure_sum, ks=(np.int64(3),))
    assert found == found | {
        **{"settings": {"ks": [3], "token": -1}, "measure": "sum", "version": 1, "untrained": 0, "seed": None},
        **{"model": "nano-neox", "source": "embedded:nano-neox", "revision": "step10000", "precision": "float32"},
    }
    ways = [{}, {"ks": [1, 2]}, {"ks": np.array([1, 2])}, {"ks": range(1, 3), "token": np.int32(-1)}]
    assert len({store.digest(key(measure_sum, **way)) for way in ways}) == 1
    partial = functools.partial(measure_sum, ks=(3,))
    assert [key(partial, **more)["settings"]["ks"] for more in ({}, {"ks": (4,)})] == [[3], [4]]
    refused(ParameterError, "the setting 'token' is a Tensor", key, measure_sum, token=torch.tensor(1))
    assert key(cl.measure_trajectories)["weights"] == identity.fingerprint(model)


OFFSET = 1.0


class Bound:
    def __init__(self, block):
        self.block = block

    def __call__(self, model, prompts): ...

    def measure_it(self, model, prompts): ...


def closed_over(block):
    def measure_it(model, prompts):
        return [block + OFFSET for _ in prompts]

    return measure_it


def test_key_follows_code_only_of_unversioned_measures(key, monkeypatch):
    one, same, other = (key(written(text)) for text in ("1 + 1.5", "1 + 1.5", "7"))
    assert one == same and one["code"] and one["code"] != other["code"]
    one, other = (key(cl.measurement(version=3)(written(text))) for text in ("1 + 1.5", "7"))
    assert one == other and one["version"] == 3 and one["code"] == ""
    for version in (0, True, "1", 1.0):
        refused(ParameterError, "version is .*whole number from 1", cl.measurement, version=version)

    def codes():
        ways = (closed_over, Bound, lambda block: Bound(block).measure_it)
        return [key(way(block))["code"] for way in ways for block in (2, 11)]

    found = codes()
    assert codes() == found and len(set(found)) == 6
    monkeypatch.setattr(f"{__name__}.OFFSET", 2.0)
    assert not {*codes()[:2]} & {*found} and codes()[2:] == found[2:]

    @functools.wraps(cl.measure_trajectories)
    def halved(model, prompts, **more): ...

    wrapped, plain = key(halved), key(cl.measure_trajectories)
    assert wrapped["measure"] == plain["measure"] and wrapped["code"] and not plain["code"]


def test_prompt_keys_follow_content_and_are_fast(model):
    key = functools.partial(identity.prompt_key, model)
    ids, image = torch.tensor([[1, 2, 3]]), torch.zeros(1, 3, 4, 4)
    assert key(ids) == key(ids.int()) == key(torch.tensor([[1, 9, 2, 9, 3]])[:, ::2])
    others = ["a b", "a  b", ids, ids[:, :2], ids.T, image, image.bfloat16(), image.reshape(1, 3, 2, 8), image + 1]
    assert len(set(map(key, others))) == len(others)
    text = cl.load_prompts(n=1)[0].text
    assert sorted(timeit.repeat(lambda: key(text), timer=time.process_time, number=1, repeat=40))[20] < 5e-3


def test_fingerprint_follows_the_weights_in_every_precision(tmp_path):
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        tiny.save_llama(tmp_path / name, seed)
    for precision in ("float32", "nf4", "int8"):
        one, *others = (cl.load_model(tmp_path / name, precision=precision) for name in "abc")
        same, different = map(identity.fingerprint, others)
        assert identity.fingerprint(one) == same != different
        cl.trace(one, TEXT).jacobian(block=1).dense()
        assert identity.fingerprint(one) == same


def test_fingerprint_follows_modules_settings_and_buffers():
    hf = tiny.llama()
    model = cl.wrap_model(hf, name="mine")
    found = [identity.fingerprint(model)]
    cl.trace(model, torch.tensor([[1, 2, 3]]))
    assert identity.fingerprint(model) == identity.fingerprint(cl.wrap_model(tiny.llama(), name="mine")) == found[0]
    hf.model.layers[1].mlp.act_fn = torch.nn.Tanh().eval()
    message = "module, setting or function of mine was changed: wrap it again"
    refused(ParameterError, message, identity.fingerprint, model)
    found.append(identity.fingerprint(model := cl.wrap_model(hf, name="mine")))
    hf.model.layers[1].self_attn.scaling = 0.05  # a trace finds it, and checks the block again
    found.append(identity.fingerprint(model))
    hf.model.rotary_emb.inv_freq.mul_(0.5)
    found.append(identity.fingerprint(model))
    assert len(set(found)) == 4


FACTOR, CONF, TABLE = 1.0, {"scale": [1.0]}, torch.ones(8)


def act(x):
    return act(x[0]) if isinstance(x, tuple) else torch.tanh(x) * CONF["scale"][0] * TABLE


class Base(torch.nn.Linear):
    def mix(self, x):
        return act(x) * tiny.STACK["num_hidden_layers"]


class Own(Base):
    """A block of one's own, which keeps what is neither weight nor setting."""

    of_all = 1.0

    def __init__(self, table=1.0, scale=1.0, slope=1.0, power=1.0, shift=1.0):
        super().__init__(8, 8)
        self.table, self.config = torch.full((8,), table), SimpleNamespace(scale=scale)
        self.act, self.pow = lambda x: torch.tanh(slope * x), functools.partial(torch.pow, exponent=power)
        self.shifts = [{"shift": shift}]

    def forward(self, x):
        x = x + self.mix(x) + self.table * self.act(self.pow(super().forward(x)) * self.config.scale * FACTOR)
        return x + self.of_all * self.shifts[0]["shift"]


def test_fingerprint_follows_everything_a_custom_module_keeps(monkeypatch):
    def found(**kept):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Sequential(Own(**kept), Own(**kept)))
        return identity.fingerprint(cl.wrap_model(net, blocks="1"))

    keys = [found(), *(found(**{name: 3.0}) for name in ("table", "scale", "slope", "power", "shift"))]
    assert found() == keys[0]
    values = {"FACTOR": 2.0, "Own.of_all": 2.0, "CONF": {"scale": [2.0]}, "TABLE": 2 * TABLE, "act": lambda x: x}
    values |= {"Base.mix": lambda self, x: x, "tiny.STACK": {"num_hidden_layers": 5}}
    values |= {"identity._source": lambda function: "another text of its file"}
    for place, value in values.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.{place}", value)
            keys.append(found())
    assert len(set(keys)) == len(keys) == 14


def test_changed_buffer_of_a_loaded_model_is_refused():
    model = cl.load_model("nano-neox")
    before, inside = identity.fingerprint(model), model.hf.gpt_neox
    cl.trace(model, TEXT)
    assert identity.fingerprint(model) == before
    message = "a setting or buffer of nano-neox was changed: wrap it again"
    for place, name, value in [(inside.rotary_emb, "inv_freq", torch.ones(12)), (inside.final_layer_norm, "eps", 1.0)]:
        kept = getattr(place, name)
        setattr(place, name, value)
        refused(ParameterError, message, identity.fingerprint, model)
        setattr(place, name, kept)
        assert identity.fingerprint(model) == before


def test_fingerprint_of_offloaded_weights_follows_their_files(tmp_path):
    least = placing.plan(tiny.save_llama(tmp_path / "m")).bytes(torch.float32)
    model = cl.load_model(tmp_path / "m", memory=least)
    before = identity.fingerprint(model)
    assert model.offloaded and identity.fingerprint(cl.load_model(tmp_path / "m", memory=least)) == before
    os.utime(tmp_path / "m" / "model.safetensors", (1, 1))
    assert identity.fingerprint(model) != before
    (tmp_path / "m").rename(tmp_path / "elsewhere")
    refused(ParameterError, "cannot be found any more", identity.fingerprint, model)
