"""Builds the miniature's tokenizer: byte-level BPE with 1,024 ids, learned from generated problems alone.

Every digit and the space before a number are tokens of their own, and a run of newlines is one token whatever follows,
so a prompt that ends in "Answer:" is tokenized exactly as it would be inside the longer text. All 256 bytes are in the
vocabulary, hence any text round-trips. Special ids sit at the end, in the order of the real model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ling_runtime.training.documents import CHAT_TEMPLATE, plain
from ling_runtime.training.problems.generate import generate

if TYPE_CHECKING:
    from collections.abc import Iterable

VOCAB_SIZE = 1024
SPECIALS = ("<|startoftext|>", "<|endoftext|>", "<role>", "</role>", "<|role_end|>")
BOS_ID, PAD_ID, EOS_ID = VOCAB_SIZE - 5, VOCAB_SIZE - 4, VOCAB_SIZE - 1

# Words and signs take one space in front; digits and line breaks never do.
_PIECES = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+")


def train(texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=VOCAB_SIZE - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE - len(SPECIALS), "the text is too small for the vocabulary"
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json and the tokenizer_config.json that lets AutoTokenizer load it without knowing the model."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "pad_token": SPECIALS[1],
        "eos_token": SPECIALS[-1],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 16384,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num", type=int, default=20000)
    args = parser.parse_args()
    save(train(plain(problem) for problem in generate(args.seed, args.num)), args.out)


if __name__ == "__main__":
    main()
