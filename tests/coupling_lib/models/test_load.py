import json
import shutil

import pytest
import tiny
import torch
import transformers

from coupling_lib import paths
from coupling_lib.blocks import attention, placing
from coupling_lib.blocks import weight_memory as memory
from coupling_lib.errors import ModelUnavailableError, ParameterError, UnsupportedModelError
from coupling_lib.models.load import load_model, wrap_model
from coupling_lib.store.key import fingerprint


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": (root / "llama", tiny.save_llama(root / "llama")),
        "bert": (root / "bert", tiny.save_bert(root / "bert")),
        "vit": (root / "vit", tiny.save_vit(root / "vit")),
    }


def one_line(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message and message
    return message


# What is loaded


@pytest.mark.parametrize("kind", ["llama", "bert", "vit"])
def test_a_local_folder_gives_the_saved_weights_frozen_and_in_evaluation_mode(folders, kind):
    folder, saved = folders[kind]
    model = load_model(folder, device="cpu")
    assert type(model.hf) is type(saved) and tiny.same_weights(model.hf, saved)
    assert not model.hf.training and not any(p.requires_grad for p in model.hf.parameters())
    assert (model.n_blocks, model.d_model, model.device.type) == (tiny.BLOCKS, tiny.WIDTH, "cpu")
    assert model.hf.config._attn_implementation == attention.NAME
    assert (model.name, model.source) == (str(folder), str(folder))
    assert (model.revision, model.seed, model.untrained, model.precision) == (None, None, False, "float32")


def test_a_folder_is_taken_as_text_too_and_its_tokenizer_read(folders):
    model = load_model(str(folders["llama"][0]))
    text = tiny.TEXT[0]
    assert model.tokenizer.decode(model.tokenizer(text).input_ids) == text


def test_a_vision_model_and_a_folder_without_tokenizer_have_none(folders, tmp_path):
    tiny.save_llama(tmp_path, with_tokenizer=False)
    assert load_model(folders["vit"][0]).tokenizer is None
    assert load_model(tmp_path).tokenizer is None


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [(["BertModel"], "BertModel"), (None, "BertModel"), (["BertForMaskedLM"], "BertForMaskedLM")],
)
def test_an_encoder_is_never_taken_for_a_decoder(tmp_path, architectures, expected):
    config = transformers.BertConfig(**tiny.STACK, vocab_size=50, architectures=architectures)
    config.save_pretrained(tmp_path)
    assert type(load_model(tmp_path, untrained=True).hf).__name__ == expected


def test_weights_in_several_files_are_read(tmp_path):
    saved = tiny.save_llama(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert tiny.same_weights(load_model(tmp_path).hf, saved)


def test_a_mixture_of_experts_runs_one_expert_at_a_time(tmp_path):
    config = transformers.MixtralConfig(**tiny.STACK, vocab_size=50, num_key_value_heads=2, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.hf.config._experts_implementation == "eager"
    assert model.hf.double()(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float64


# Precision


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("untrained", [False, True])
def test_weights_are_stored_in_the_precision_asked_for(folders, precision, untrained):
    model = load_model(folders["llama"][0], precision=precision, untrained=untrained)
    assert {p.dtype for p in model.hf.parameters()} == {getattr(torch, precision)}
    assert model.precision == precision


@pytest.mark.parametrize(
    ("precision", "layer"), [("nf4", "Linear4bit"), ("fp4", "Linear4bit"), ("int8", "Linear8bitLt")]
)
@pytest.mark.parametrize("untrained", [False, True])
def test_linear_layers_of_the_blocks_are_quantised(folders, precision, layer, untrained):
    model = load_model(folders["llama"][0], precision=precision, untrained=untrained)
    projections = [b.self_attn.q_proj for b in model.blocks.modules]
    assert [type(p).__name__ for p in projections] == [layer] * tiny.BLOCKS
    if layer == "Linear4bit":
        assert all(p.weight.quant_type == precision for p in projections)
    assert wrap_model(model.hf).precision == precision


def test_an_unknown_precision_is_refused_with_the_known_ones(folders):
    with pytest.raises(ParameterError, match="'nf5'.*nf4") as error:
        load_model(folders["llama"][0], precision="nf5")
    one_line(error)


# Untrained


def test_untrained_weights_come_from_the_seed_alone(folders):
    folder, saved = folders["llama"]
    first = load_model(folder, untrained=True, seed=3)
    torch.rand(5)
    again, other = load_model(folder, untrained=True, seed=3), load_model(folder, untrained=True, seed=4)
    assert tiny.same_weights(first.hf, again.hf) and tiny.same_weights(first.hf, tiny.llama(3))
    assert not tiny.same_weights(first.hf, other.hf) and not tiny.same_weights(first.hf, saved)
    assert (first.seed, first.untrained, other.seed) == (3, True, 4)


def test_untrained_needs_no_weights_and_leaves_the_callers_random_state(folders, tmp_path):
    shutil.copy(folders["llama"][0] / "config.json", tmp_path)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_model(tmp_path, untrained=True)
    assert torch.equal(torch.rand(3), expected)


def test_untrained_half_precision_is_the_rounded_float32_model(folders):
    full = load_model(folders["llama"][0], untrained=True, seed=1).hf
    half = load_model(folders["llama"][0], untrained=True, seed=1, precision="bfloat16").hf
    assert tiny.same_weights(half, full.to(torch.bfloat16))


# Embedded checkpoints


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    root = tmp_path / "nano-neox"
    last = tiny.save_llama(root, seed=10)
    early = tiny.save_llama(root / "step10", seed=11, with_tokenizer=False)
    (root / "training.json").write_text(
        json.dumps({"name": "nano-neox", "seed": 5, "steps": 100, "checkpoints": [10, 100]})
    )
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path)
    return {"step100": last, "step10": early, "step0": tiny.llama(5)}


def test_an_embedded_model_is_loaded_at_its_last_step(checkpoints):
    model = load_model("nano-neox")
    assert tiny.same_weights(model.hf, checkpoints["step100"])
    assert (model.revision, model.source, model.seed) == ("step100", "embedded:nano-neox", None)


@pytest.mark.parametrize("step", ["step0", "step10", "step100"])
def test_an_embedded_model_is_loaded_at_any_step_with_the_one_tokenizer(checkpoints, step):
    model = load_model("nano-neox", revision=step)
    assert tiny.same_weights(model.hf, checkpoints[step])
    assert model.tokenizer is not None and not model.untrained
    assert (model.revision, model.seed) == (step, 5 if step == "step0" else None)


def test_an_unknown_step_is_refused_with_those_that_exist(checkpoints):
    with pytest.raises(ModelUnavailableError, match="'step7'; choose one of step0, step10, step100$") as error:
        load_model("nano-neox", revision="step7")
    one_line(error)


def test_an_embedded_model_that_is_not_installed_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path)
    with pytest.raises(ModelUnavailableError, match="'nano-llama'.*install"):
        load_model("nano-llama")


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"untrained": "false"}, "untrained is 'false'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": True}, "seed is True"),
        ({"revision": ""}, "revision is ''"),
        ({"revision": "step3"}, "'step3'.*leave revision out"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"device": "cuda:99"}, "device is 'cuda:99'"),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(folders, arguments, message):
    with pytest.raises(ParameterError, match=message) as error:
        load_model(folders["llama"][0], **arguments)
    one_line(error)


@pytest.mark.parametrize("name", ["", "  ", 3, None])
def test_a_name_that_is_no_name_is_refused(name):
    with pytest.raises(ParameterError, match="model is"):
        load_model(name)


def test_a_misspelt_alias_suggests_the_nearest():
    with pytest.raises(ModelUnavailableError, match="'lama3-8b'; did you mean 'llama3-8b'"):
        load_model("lama3-8b")
    with pytest.raises(ModelUnavailableError, match="data/models.csv"):
        load_model("zzzzzzzz")


def test_a_path_that_does_not_exist_is_refused_without_asking_the_hub(tmp_path):
    with pytest.raises(ModelUnavailableError, match="does not exist"):
        load_model(tmp_path / "nothing")


def test_pickled_weights_are_refused(tmp_path):
    model = tiny.save_llama(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailableError, match=r"only pickled weights \(pytorch_model.bin\)") as error:
        load_model(tmp_path)
    one_line(error)


def test_a_pickle_named_by_the_index_is_refused(tmp_path):
    tiny.save_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "pytorch_model.bin"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailableError, match="'pytorch_model.bin', which is no safetensors file"):
        load_model(tmp_path)


def test_missing_weights_are_refused(tmp_path):
    tiny.save_llama(tmp_path, max_shard_size="20KB")
    next(tmp_path.glob("model-*.safetensors")).unlink()
    with pytest.raises(ModelUnavailableError, match="lacks model-"):
        load_model(tmp_path)
    for file in (*tmp_path.glob("model-*"), tmp_path / "model.safetensors.index.json"):
        file.unlink()
    with pytest.raises(ModelUnavailableError, match=r"has no model\.safetensors"):
        load_model(tmp_path)


def test_weights_that_lack_a_tensor_are_refused_rather_than_drawn_at_random(tmp_path):
    model = tiny.save_llama(tmp_path)
    state = {name: value for name, value in model.state_dict().items() if "layers.1.mlp.up_proj" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelUnavailableError, match=r"lack 1 of the model's tensors \(model.layers.1.mlp.up_proj"):
        load_model(tmp_path)


def test_truncated_weights_are_refused(tmp_path):
    tiny.save_llama(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelUnavailableError, match="damaged or truncated") as error:
        load_model(tmp_path)
    one_line(error)


def test_weights_of_another_width_are_refused(tmp_path):
    tiny.save_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    with pytest.raises(UnsupportedModelError, match="belong together") as error:
        load_model(tmp_path)
    one_line(error)


def write_config(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_remote_code_is_never_run(tmp_path):
    write_config(
        tmp_path, model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    )
    marker = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(UnsupportedModelError, match="needs remote code, which is never run") as error:
        load_model(tmp_path, untrained=True)
    one_line(error)
    assert not marker.exists()


def test_remote_code_behind_a_known_model_type_is_refused(folders, tmp_path):
    config = json.loads((folders["llama"][0] / "config.json").read_text())
    config |= {"architectures": ["MyLlama"], "auto_map": {"AutoModelForCausalLM": "mine.MyLlama"}}
    with pytest.raises(UnsupportedModelError, match="'MyLlama': it needs remote code"):
        load_model(write_config(tmp_path, **config), untrained=True)


def test_a_repository_with_remote_code_that_transformers_has_too_is_taken(folders, tmp_path):
    config = json.loads((folders["llama"][0] / "config.json").read_text())
    config |= {"architectures": ["LLaMAForCausalLM"], "auto_map": {"AutoModelForCausalLM": "mine.LLaMAForCausalLM"}}
    model = load_model(write_config(tmp_path, **config), untrained=True)
    assert type(model.hf) is transformers.LlamaForCausalLM


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"model_type": "mine"}, UnsupportedModelError, "the model type 'mine'.*no such model"),
        ({"hidden_size": 3}, UnsupportedModelError, "the model type None"),
        ({"model_type": "t5"}, UnsupportedModelError, "encoder-decoder"),
        (
            {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}},
            UnsupportedModelError,
            "already.*gptq",
        ),
    ],
)
def test_a_configuration_that_cannot_be_measured_is_refused(tmp_path, values, error, message):
    with pytest.raises(error, match=message) as raised:
        load_model(write_config(tmp_path, **values), untrained=True)
    one_line(raised)


def test_a_folder_without_a_readable_configuration_is_refused(tmp_path):
    with pytest.raises(ModelUnavailableError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelUnavailableError, match="damaged"):
        load_model(tmp_path)


# Memory


def test_memory_needed_counts_every_weight(folders):
    _, saved = folders["llama"]
    need = memory.needed(type(saved), saved.config)
    total = sum(p.numel() for p in saved.parameters())
    linear = sum(p.numel() for name, p in saved.named_parameters() if "_proj" in name)
    assert (need["float32"], need["bfloat16"], need["float16"]) == (4 * total, 2 * total, 2 * total)
    assert need["int8"] == linear + 4 * (total - linear)
    assert need["nf4"] == need["fp4"] == int(linear * 0.5625) + 4 * (total - linear)


def sizes(folders) -> tuple[dict[str, int], placing.Plan]:
    saved = folders["llama"][1]
    return memory.needed(type(saved), saved.config), placing.plan(type(saved), saved.config)


def test_a_model_that_fits_neither_way_is_refused_with_a_precision_that_does(folders, monkeypatch):
    need, division = sizes(folders)
    free = need["bfloat16"] + 1000
    assert free < division.bytes(torch.float32)
    monkeypatch.setattr(memory, "available", lambda device: free)
    with pytest.raises(
        ModelUnavailableError, match=r"needs 0\.2 MB in float32, and 0\.1 MB are free.*precision='bfloat16'"
    ) as error:
        load_model(folders["llama"][0])
    one_line(error)
    model = load_model(folders["llama"][0], precision="bfloat16")
    assert model.precision == "bfloat16"


def test_a_model_that_fits_in_no_precision_is_refused(folders, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 10)
    for untrained in (False, True):
        with pytest.raises(ModelUnavailableError, match="even precision='nf4' needs"):
            load_model(folders["llama"][0], precision="bfloat16", untrained=untrained)


def test_weights_that_cannot_be_drawn_even_by_blocks_are_refused(folders, monkeypatch):
    _, division = sizes(folders)
    least = 4 * (division.outside + 2 * division.largest)
    monkeypatch.setattr(memory, "available", lambda device: least - 1)
    with pytest.raises(ModelUnavailableError, match="while its untrained weights are drawn, one block at a time") as e:
        load_model(folders["llama"][0], untrained=True)
    one_line(e)


def test_a_model_that_does_not_fit_stays_on_disk_by_itself_and_says_so_in_one_line(folders, monkeypatch, capsys):
    folder, _ = folders["llama"]
    need, division = sizes(folders)
    room = 4 * (tiny.BLOCKS * tiny.WIDTH**2 + division.largest)
    monkeypatch.setattr(memory, "available", lambda device: need["float32"] + room)
    assert not load_model(folder).offloaded and capsys.readouterr().out == ""
    monkeypatch.setattr(memory, "available", lambda device: need["float32"] + room - 1)
    model = load_model(folder)
    assert model.offloaded and tiny.llama(0).config.vocab_size == model.hf.config.vocab_size
    assert capsys.readouterr().out == (
        f"{folder}: measuring it in float32 needs 0.2 MB, and 0.2 MB are free on cpu; its blocks stay on disk and are "
        "read one at a time, the rest takes 0.1 MB\n"
    )
    bounded = load_model(folder, memory=division.bytes(torch.float32))
    assert fingerprint(model) == fingerprint(bounded) and capsys.readouterr().out == ""
    # Where it does not fit either way with room for a measurement, it is tried as before.
    monkeypatch.setattr(memory, "available", lambda device: need["nf4"])
    assert not load_model(folder, precision="nf4").offloaded


def test_quantised_weights_that_do_not_fit_are_told_of_blocks_on_disk(folders, monkeypatch):
    place, need = torch.device("cpu"), dict.fromkeys(sizes(folders)[0], 10**9)
    monkeypatch.setattr(memory, "available", lambda device: 10**7)
    with pytest.raises(ModelUnavailableError, match=r"pass precision='bfloat16', which leaves .* on disk \(9\.0 MB\)"):
        memory.check(need, "nf4", place, "large", 9 * 10**6)
    with pytest.raises(ModelUnavailableError, match="even precision='nf4' needs 1.0 GB: choose"):
        memory.check(need, "nf4", place, "large", 10**7 + 1)
    memory.check(need | {"nf4": 10**7}, "nf4", place, "large", 10**8)


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("500MB", 500 * 10**6),
        (" 1.5 TB ", 1500 * 10**9),
        ("12KiB", 12 * 1024),
        ("7B", 7),
        (2048, 2048),
        (None, None),
    ],
)
def test_an_amount_of_memory_is_read(budget, size):
    assert memory.parse(budget) == size


@pytest.mark.parametrize("budget", ["8", "8 gigs", "GiB", "-1GB", "0GB", "1e3MB", "", 0, -5, True, 2.5, ["1GB"]])
def test_what_is_no_amount_of_memory_is_refused_in_one_line(folders, budget):
    with pytest.raises(ParameterError, match="memory is .*; it must be a text such as '8GiB' or '500MB'") as error:
        load_model(folders["llama"][0], memory=budget)
    one_line(error)


def test_weights_lie_where_matrix_products_do_not_depend_on_the_file(folders):
    for folder, _ in folders.values():
        assert all(p.data_ptr() % 64 == 0 for p in load_model(folder).hf.parameters())


def test_free_memory_is_bounded_by_the_control_group(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    unbounded = memory.available(torch.device("cpu"))
    for name, value in {
        "memory.max": "5000",
        "memory.current": "3000",
        "memory.stat": "anon 1\ninactive_file 700",
    }.items():
        (tmp_path / name).write_text(value)
    assert unbounded > 10**6 and memory.available(torch.device("cpu")) == 2700


@pytest.mark.parametrize("raised", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_memory_that_runs_out_while_loading_ends_in_one_line(folders, monkeypatch, raised):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fail)
    with pytest.raises(ModelUnavailableError, match="memory ran out while .* in float32; pass precision='nf4'"):
        load_model(folders["llama"][0])


# Models that exist already


def test_wrap_model_freezes_the_model_it_is_given():
    hf = tiny.llama().train()
    model = wrap_model(hf, tiny.tokenizer(), name="mine")
    assert model.hf is hf and not hf.training and not any(p.requires_grad for p in hf.parameters())
    assert (model.name, model.source, model.precision, model.n_blocks) == ("mine", "memory", "float32", tiny.BLOCKS)
    assert hf.config._attn_implementation == attention.NAME


def test_wrap_model_refuses_what_it_cannot_measure():
    with pytest.raises(ParameterError, match="Linear"):
        wrap_model(torch.nn.Linear(2, 2))
    config = transformers.T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4, vocab_size=9)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        wrap_model(transformers.T5ForConditionalGeneration(config))
