"""Models with two stacks of blocks: the whole is refused, and one stack alone is measured exactly."""

import pytest
import torch
import transformers
from reference import brute_force_jacobian, relative_error
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import UnsupportedModelError

ENCODER_DECODER = dict(
    vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["Bart", "T5"])
def test_encoder_decoder_is_refused_and_encoder_exact(kind, tmp_path):
    """What the line advises, compared with brute force."""
    t5 = dict(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    config = getattr(transformers, f"{kind}Config")(**(t5 if kind == "T5" else ENCODER_DECODER))
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    refused(UnsupportedModelError, r"is an encoder-decoder \(\w+\).*\.get_encoder", cl.load_model, tmp_path)
    with pytest.raises(UnsupportedModelError, match="is an encoder-decoder"):
        cl.wrap_model(transformers.AutoModel.from_pretrained(tmp_path))
    encoder = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager").get_encoder()
    model, ids = cl.wrap_model(encoder), torch.arange(3, 12)[None]
    wanted = brute_force_jacobian(encoder, model.blocks.modules[1], {"input_ids": ids}, 8, 8)
    assert relative_error(cl.trace(model, ids).jacobian(1).dense(), wanted) < 1e-6


def test_folder_with_encoder_alone_is_loaded(tmp_path):
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    transformers.T5EncoderModel(config).save_pretrained(tmp_path)
    assert cl.load_model(tmp_path).n_blocks == 2
