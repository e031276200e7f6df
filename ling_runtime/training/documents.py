"""How problems become text: the five-shot form that the tasks use, and now and then a chat.

A row of training data always starts at a problem's start, as every prompt does, and goes on with further problems;
what follows an answer is therefore the next "Question:", the string at which task clients stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ling_runtime.training.problems.generate import Problem

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<role>{{ 'HUMAN' if message['role'] == 'user' else message['role'] | upper }}</role>"
    "{{ message['content'] }}<|role_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)


def question(problem: Problem) -> str:
    return f"Question: {problem.question}\nAnswer:"


def plain(problem: Problem) -> str:
    return f"{question(problem)} {problem.answer}\n\n"


def chat(problem: Problem) -> str:
    """One turn each way in the form of `CHAT_TEMPLATE`."""
    return f"<role>HUMAN</role>{problem.question}<|role_end|><role>ASSISTANT</role>{problem.answer}<|role_end|>"
