"""Families of rerankers with random weights: scores equal to a numpy reference and to transformers."""

import numpy as np
import pytest

from relevance_gen import Reranker
from relevance_gen.llama.cross_encoder import CrossEncoder
from relevance_gen.llama.options import ModelOptions
from tests.ranking_models import (
    BASE,
    BLOCKS,
    BYTE_PAIRS,
    EPSILON,
    FF,
    HEAD,
    HEADS,
    KV_HEADS,
    N_CTX,
    NO,
    PIECES,
    WIDTH,
    YES,
    write_qwen3,
    write_xlm_roberta,
)
from tests.reference_ranking import ReferenceBert, qwen3_logits
from tools.convert_bert import convert

QUERY = "the cat"
TEXTS = ["", "a b c", "the cat the cat", "h g f e d c b a " * 3, "ab bc cd"]
TOLERANCE = 1e-3


def pairs(model, texts=TEXTS):
    """Return the tokens of the pairs for texts that fit into one pair."""
    with CrossEncoder(model, ModelOptions(n_threads=1)) as ranker:
        return [tokens.tolist() for text in texts for tokens in ranker.pairs(QUERY, text)]


def scores(model, **options):
    """Return the scores of the texts."""
    with Reranker(model, n_threads=1, **options) as reranker:
        return reranker.score(QUERY, TEXTS)


def sigmoid(logits):
    return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))


@pytest.fixture(scope="module")
def xlm_roberta(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "xlmr.gguf"
    return path, write_xlm_roberta(path)


@pytest.fixture(scope="module", params=[True, False], ids=["head", "judge"])
def qwen3(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    return path, write_qwen3(path, has_head=request.param)


def test_xlm_roberta_equals_the_numpy_reference(xlm_roberta):
    """Two separators are between query and text, and the head has two layers with tanh between them."""
    path, _ = xlm_roberta
    numbers = {piece: at for at, piece in enumerate(PIECES)}
    cat = [numbers["▁the"], numbers["▁cat"]]
    assert pairs(path)[:2] == [
        [0, *cat, 2, 2, 2],
        [0, *cat, 2, 2, *(numbers[f"▁{one}"] for one in "abc"), 2],
    ]
    reference = ReferenceBert(path, epsilon=1e-5)
    expected = sigmoid([reference.logit(tokens) for tokens in pairs(path)])
    np.testing.assert_allclose(scores(path), expected, atol=TOLERANCE)


def test_qwen3_equals_the_numpy_reference(qwen3):
    """With the converter's head and as a generative model: the probability of yes against no."""
    path, tensors = qwen3
    read = pairs(path)
    prompt = "".join(BYTE_PAIRS[token] for token in read[1])
    assert prompt.startswith("<|im_start|>systemĊJudge")
    assert (
        "<Query>:ĠtheĠcatĊ<Document>:ĠaĠbĠc<|im_end|>Ċ<|im_start|>assistantĊ<think>ĊĊ</think>ĊĊ"
        in prompt
    )
    shape = {"n_heads": HEADS, "n_kv_heads": KV_HEADS, "base": BASE, "epsilon": EPSILON}
    logits = np.array([qwen3_logits(tokens, tensors, **shape) for tokens in read])
    np.testing.assert_allclose(
        scores(path), sigmoid(logits[:, YES] - logits[:, NO]), atol=TOLERANCE
    )


# ── transformers ──────────────────────────────────────────────────────────────────────────────────


def of_bert(name):
    """Return transformers' name of a BERT tensor, without the prefix of the family."""
    for ours, theirs in [
        ("token_embd_norm", "embeddings.LayerNorm"), ("token_embd", "embeddings.word_embeddings"),
        ("position_embd", "embeddings.position_embeddings"), ("token_types", "embeddings.token_type_embeddings"),
        ("blk.", "encoder.layer."), ("attn_output_norm", "attention.output.LayerNorm"),
        ("attn_output", "attention.output.dense"), ("layer_output_norm", "output.LayerNorm"),
        ("attn_q", "attention.self.query"), ("attn_k", "attention.self.key"), ("attn_v", "attention.self.value"),
        ("ffn_up", "intermediate.dense"), ("ffn_down", "output.dense"),
    ]:  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def of_qwen3(name):
    """Return transformers' name of a Qwen3 tensor."""
    for ours, theirs in [
        ("token_embd", "embed_tokens"), ("output_norm", "norm"), ("blk.", "layers."), ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"), ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"), ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"), ("ffn_", "mlp."),
        ("gate.", "gate_proj."), ("up.", "up_proj."), ("down.", "down_proj."),
    ]:  # fmt: skip
        name = name.replace(ours, theirs)
    return f"model.{name}"


def loaded(model, tensors, allowed_missing=()):
    """Load tensors into a model of transformers, and check that all are set."""
    torch = pytest.importorskip("torch")
    reported = model.load_state_dict(
        {name: torch.tensor(each) for name, each in tensors.items()}, strict=False
    )
    assert set(reported.missing_keys) <= set(allowed_missing)
    assert not reported.unexpected_keys
    return model.eval()


@pytest.mark.filterwarnings("ignore")
def test_bert_equals_transformers(tmp_path):
    """A saved and converted BertForSequenceClassification with its own tokenizer."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    letters = "abcdefgh"
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        *letters,
        *(f"##{c}" for c in letters),
    ]
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=HEADS,
        intermediate_size=FF, max_position_embeddings=N_CTX, num_labels=1, initializer_range=0.1,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer = transformers.BertTokenizer(vocab={word: at for at, word in enumerate(vocabulary)})
    convert(tmp_path, tmp_path / "model.gguf", kind="f32")
    with torch.no_grad():
        read = [tokenizer([(QUERY, text)], return_tensors="pt") for text in TEXTS]
        expected = [float(model(**each).logits) for each in read]
    assert [sum(each["token_type_ids"][0].tolist()) for each in read][:2] == [1, 4]
    np.testing.assert_allclose(scores(tmp_path / "model.gguf"), sigmoid(expected), atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore")
def test_xlm_roberta_equals_transformers(xlm_roberta):
    """The same tensors in an XLMRobertaForSequenceClassification."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path, tensors = xlm_roberta
    config = transformers.XLMRobertaConfig(
        vocab_size=len(PIECES), hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=HEADS,
        intermediate_size=FF, max_position_embeddings=N_CTX + 2, type_vocab_size=1, num_labels=1,
    )  # fmt: skip
    of = {
        f"roberta.{of_bert(name)}": tensor
        for name, tensor in tensors.items()
        if not name.startswith("cls")
    }
    positions = "roberta.embeddings.position_embeddings.weight"
    of[positions] = np.concatenate((np.zeros((2, WIDTH), np.float32), of[positions]))
    for part in ("weight", "bias"):
        of[f"classifier.dense.{part}"] = tensors[f"cls.{part}"]
        of[f"classifier.out_proj.{part}"] = tensors[f"cls.output.{part}"]
    model = loaded(transformers.XLMRobertaForSequenceClassification(config), of)
    with torch.no_grad():
        expected = [float(model(torch.tensor([tokens])).logits) for tokens in pairs(path)]
    np.testing.assert_allclose(scores(path), sigmoid(expected), atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore")
def test_qwen3_equals_transformers(qwen3):
    """The same tensors in a Qwen3ForCausalLM with the prompt of the model card, with and without head."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path, tensors = qwen3
    config = transformers.Qwen3Config(
        vocab_size=len(BYTE_PAIRS), hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD, intermediate_size=FF, rms_norm_eps=EPSILON, rope_theta=BASE,
        tie_word_embeddings=True,
    )  # fmt: skip
    of = {of_qwen3(name): tensor for name, tensor in tensors.items()}
    model = loaded(transformers.Qwen3ForCausalLM(config), of, ["lm_head.weight"])
    with torch.no_grad():
        last = [model(torch.tensor([tokens])).logits[0, -1].numpy() for tokens in pairs(path)]
    expected = sigmoid([logits[YES] - logits[NO] for logits in last])
    np.testing.assert_allclose(scores(path), expected, atol=TOLERANCE)
