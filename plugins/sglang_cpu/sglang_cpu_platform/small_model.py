"""`python -m sglang_cpu_platform.small_model OUT --tokenizer DIR`: a two-layer Llama of random weights, to be served.

Equal on every machine: the weights follow from a seed. The surprise: some tokens are made impossible. A random network
would often choose special tokens and broken pieces of UTF-8, whose text is empty, and SGLang's load client takes a
request without text for one that had no first token.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from sglang_cpu_platform.plugin import declare_torchvision_operators

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
CONTEXT = 4096
SCALE = 0.1
"""Standard deviation of the weights: at the usual 0.02 attention is too weak for an answer to depend on its prompt."""


def make(out: Path, tokenizer: Path, *, seed: int = 0) -> None:
    """Writes a checkpoint in Hugging Face's form, 7 MB in fp32."""
    declare_torchvision_operators()
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - only behind the operators

    words = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=SCALE,
        bos_token_id=words.token_to_id("<|startoftext|>"),
        eos_token_id=words.token_to_id("<|role_end|>"),
        pad_token_id=words.token_to_id("<|endoftext|>"),
        tie_word_embeddings=False,
    )
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        model.lm_head.weight[mute(words)] = 0.0
    model.save_pretrained(out)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, out / name)


def mute(words: Tokenizer) -> list[int]:
    """Ids without whole text of their own."""
    texts = (words.decode([token]) for token in range(words.get_vocab_size()))
    return [token for token, text in enumerate(texts) if not text or "\N{REPLACEMENT CHARACTER}" in text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[2].partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory of a tokenizer.json")
    arguments = parser.parse_args()
    make(arguments.out, arguments.tokenizer)


if __name__ == "__main__":
    main()
