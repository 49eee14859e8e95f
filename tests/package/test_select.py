"""What is projected of which model, and why; the models are those of the real libraries."""
import pytest
import torch
from torch import nn

import fired
import fired.torch


def choose(model, **arguments):
    return fired.torch.select(model, verbose=False, **arguments)


def small_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100,
                                      n_positions=16))


def test_gpt2_of_transformers():
    selection = choose(small_gpt2())
    assert selection.arch == "gpt2"
    attention = selection["transformer.h.0.attn.c_attn.weight"]
    assert attention.action == "project"
    assert attention.options["layout"] == "in_out" and attention.options["split"] == "3"
    # One weight under two names: neither an embedding nor a head is projected by default.
    assert selection["lm_head.weight"] is selection["transformer.wte.weight"]
    assert selection["lm_head.weight"].action == "skip"
    # official-gpt projects the head, and with it the embedding.
    official = choose(small_gpt2(), preset="official-gpt")
    assert official["transformer.wte.weight"].action == "project"
    assert official["transformer.wte.weight"].name == "lm_head.weight"
    assert official["transformer.wpe.weight"].reason == "embedding"


def test_llama_with_grouped_queries():
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64))
    selection = choose(model)
    assert selection.arch == "llama"
    assert "model.layers.0.self_attn.k_proj.weight" in selection.projected
    assert selection["model.embed_tokens.weight"].action == "skip"
    assert selection["lm_head.weight"].reason == "head"
    only = choose(model, only="qk").projected
    assert len(only) == 4 and all("q_proj" in name or "k_proj" in name for name in only)


def test_fused_queries_of_different_sizes():
    from transformers import Phi3Config, Phi3ForCausalLM
    model = Phi3ForCausalLM(Phi3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, pad_token_id=0, bos_token_id=0, eos_token_id=0))
    fused = choose(model)["model.layers.0.self_attn.qkv_proj.weight"]
    assert fused.options["split"] == "32,16,16"
    assert choose(model)["model.layers.0.mlp.gate_up_proj.weight"].options["split"] == "2"


def test_experts_are_stacks():
    from transformers import MixtralConfig, MixtralForCausalLM
    model = MixtralForCausalLM(MixtralConfig(
        hidden_size=32, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=64, num_local_experts=3))
    stacks = [c for c in choose(model).choices if c.tensor.ndim == 3]
    assert stacks and all(c.action == "project" and c.options["stack"] == "1" for c in stacks)


def test_vit_projects_queries_and_keys_only():
    from transformers import ViTConfig, ViTForImageClassification
    model = ViTForImageClassification(ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=16, patch_size=4))
    selection = choose(model)
    assert selection.arch == "vit"
    assert selection.projected and all(
        any(part in name for part in (".query.", ".key.", "q_proj", "k_proj"))
        for name in selection.projected)


def test_mamba_blocks_are_left_alone():
    from transformers import MambaConfig, MambaForCausalLM
    model = MambaForCausalLM(MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=64,
                                         state_size=4))
    selection = choose(model)
    assert selection.arch == "mamba"
    assert not selection.projected
    assert "Mamba" in selection["backbone.layers.0.mixer.in_proj.weight"].reason


def test_resnet_projects_convolutions_not_the_head():
    from transformers import ResNetConfig, ResNetForImageClassification
    model = ResNetForImageClassification(ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))
    selection = choose(model)
    assert selection.arch == "resnet"
    assert selection["classifier.1.weight"].reason == "head"
    assert all(selection[name].tensor.ndim == 4 for name in selection.projected)


class Plain(nn.Module):
    """Every kind of layer that a name alone does not tell."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 16)
        self.attention = nn.MultiheadAttention(16, 2)
        self.recurrent = nn.LSTM(16, 8)
        self.gated = nn.GRU(16, 8)
        self.up = nn.ConvTranspose2d(4, 4, 3)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.conv = nn.Conv2d(8, 4, 3)
        self.line = nn.Conv1d(4, 4, 3)
        self.scale = nn.LayerNorm(16)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.middle = nn.Linear(8, 8)
        self.out = nn.Linear(8, 2)


def test_modules_say_what_names_do_not():
    selection = choose(Plain())
    assert selection["table.weight"].reason == "embedding"
    assert selection["attention.in_proj_weight"].options["split"] == "3"
    assert selection["recurrent.weight_ih_l0"].options["split"] == "4"
    assert selection["gated.weight_hh_l0"].options["split"] == "3"
    assert selection["up.weight"].reason == "transposed convolution"
    assert selection["depthwise.weight"].reason == "grouped convolution"
    assert selection["conv.weight"].action == "project"
    assert "3-D" in selection["line.weight"].reason
    assert selection["scale.weight"].action == "skip"
    assert "frozen" in selection["frozen.weight"].reason
    assert choose(Plain(), frozen=True)["frozen.weight"].action == "project"
    assert selection["middle.weight"].action == "project"


def test_patterns_only_take_away():
    net = Plain()
    assert choose(net, include="mid*").projected == ["middle.weight"]
    assert "middle.weight" not in choose(net, exclude=["middle.*"]).projected
    assert choose(net, exclude="middle.*")["middle.weight"].reason == "excluded"


@pytest.mark.parametrize("include, words", [
    ("no_such*", "matches no parameter"), ("middle.bias", "1-D"), ("line.weight", "3-D")])
def test_what_cannot_be_projected_is_an_error_when_asked_for(include, words):
    with pytest.raises(fired.ParameterError, match=words):
        choose(Plain(), include=include)


def test_named_tensors_are_all_meant():
    with pytest.raises(fired.ParameterError, match="counts"):
        choose({"w": torch.ones(4, 4), "counts": torch.ones(4, 4, dtype=torch.int64)}, arch="none")
    assert choose({"w": torch.ones(4, 4)}, arch="none").projected == ["w"]


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(fired.ParameterError, match="gpt2"):
        choose(Plain(), arch="gtp2")
    with pytest.raises(fired.ParameterError, match="official-vision"):
        choose(Plain(), preset="official-vison")


def test_selecting_prints_what_and_why(capsys):
    fired.torch.select(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    said = capsys.readouterr().out
    assert "project  0.weight" in said and "head" in said
