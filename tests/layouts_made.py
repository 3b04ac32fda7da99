"""Records of every layout for `tests/e2e`, and in words what a training type must make of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from talks import assistant as assistant, user as user

Words = dict[str, Any]


class Example(NamedTuple):
    """A record, and by training type the sequences that it becomes: their text, and what of it is trained."""

    record: dict[str, Any]
    becomes: dict[str, Words]


def question(number: int) -> str:
    return f"Question {number}" + "?" * (number % 4 + 1)


def answer(number: int) -> str:
    return f"Änswer {number}" + ", yes" * (number * 3 % 5)


def refusal(number: int) -> str:
    return f"No {number}" + " no" * (number % 3)


def turn(role: str, text: str) -> str:
    """As the template of `recipes_made` writes a message."""
    return f"<|start|>{role}\n{text}<|end|>\n"


def asked(text: str) -> str:
    """A prompt up to where the assistant begins."""
    return turn("user", text) + "<|start|>assistant\n"


def conversation(record: dict[str, Any], *exchanges: tuple[str, str], system: str = "") -> Example:
    """Exchanges of a question and an answer."""
    whole = turn("system", system) if system else ""
    whole += "".join(turn("user", ask) + turn("assistant", tell) for ask, tell in exchanges)
    trained = "".join(f"{tell}<|end|>" for _, tell in exchanges)
    return Example(record, {"seq": {"tokens": (whole, whole)}, "sft": {"tokens": (whole, trained)}})


def messages(number: int) -> Example:
    exchanges = [(question(number + n), answer(number + n)) for n in range(1 + number % 3)]
    said = [message for ask, tell in exchanges for message in (user(ask), assistant(tell))]
    return conversation({"messages": said}, *exchanges)


def conversations(number: int) -> Example:
    turns = [{"from": "human", "value": question(number)}, {"from": "gpt", "value": answer(number)}]
    record = {"conversations": turns, "system": "Be kind"}
    return conversation(record, (question(number), answer(number)), system="Be kind")


def alpaca(number: int) -> Example:
    task, more = question(number), "" if number % 2 else f"given {number}"
    record = {"instruction": task, "input": more, "output": answer(number)}
    return conversation(record, (f"{task}\n{more}" if more else task, answer(number)))


def text(number: int) -> Example:
    whole = answer(number) * 2
    ended = f"{whole}<eos>"
    return Example({"text": whole}, {"seq": {"tokens": (whole, whole)}, "sft": {"tokens": (ended, ended)}})


def completion(number: int, field: str = "completion", **more: Any) -> Example:
    ask, tell = question(number), f" {answer(number)}"
    becomes = {
        "seq": {"tokens": (ask + tell, ask + tell)},
        "sft": {"tokens": (f"{ask}{tell}<eos>", f"{tell}<eos>")},
    }
    return Example({"prompt": ask, field: tell, **more}, becomes)


def response(number: int) -> Example:
    return completion(number, "response")


def kto(number: int) -> Example:
    return completion(number, label=number % 2 == 0)


def pair(record: dict[str, Any], number: int, ask: str) -> Example:
    """A question and two answers, rendered as turns."""
    sides = (("chosen", answer(number)), ("rejected", refusal(number)))
    words = {side: (turn("user", ask) + turn("assistant", tell), f"{tell}<|end|>") for side, tell in sides}
    return Example(record, {"dpo": words})


def preference(number: int) -> Example:
    ask, yes, no = question(number), answer(number), refusal(number)
    if number % 2:  # strings stay text
        words = {"chosen": (f"{ask}{yes}<eos>", f"{yes}<eos>"), "rejected": (f"{ask}{no}<eos>", f"{no}<eos>")}
        return Example({"prompt": ask, "chosen": yes, "rejected": no}, {"dpo": words})
    both = {"chosen": [user(ask), assistant(yes)], "rejected": [user(ask), assistant(no)]}
    return pair(both, number, ask)  # the prompt is what both begin with


def intel(number: int) -> Example:
    record = {"question": question(number), "chosen": answer(number), "rejected": refusal(number)}
    return pair(record, number, question(number))


def argilla(number: int) -> Example:
    record = {
        "instruction": question(number),
        "chosen_response": answer(number),
        "rejected_response": refusal(number),
    }
    return pair(record, number, question(number))


def ranked_alpaca(number: int) -> Example:
    record = {"instruction": question(number), "input": "so", "chosen": answer(number), "rejected": refusal(number)}
    return pair(record, number, f"{question(number)}\nso")


def ranked(number: int) -> Example:
    record = {
        "conversations": [{"from": "human", "value": question(number)}],
        "chosen": {"from": "gpt", "value": answer(number)},
        "rejected": {"from": "gpt", "value": refusal(number)},
    }
    return pair(record, number, question(number))


def ranked_messages(number: int) -> Example:
    record = {
        "messages": [user(question(number))],
        "chosen": assistant(answer(number)),
        "rejected": assistant(refusal(number)),
    }
    return pair(record, number, question(number))


def prompt(number: int) -> Example:
    columns = {"data_source": "made", "reward_model": {"style": "rule", "ground_truth": str(number)}}
    words = {"prompts": asked(question(number)), "columns": columns}
    return Example({"prompt": [user(question(number))], **columns}, {"prompt": words})


def group(number: int) -> Example:
    answers = [answer(number + n) for n in range(2 + number % 3)]
    rewards = [n / 4 - 0.5 for n in range(len(answers))]
    words = {
        "prompts": asked(question(number)),
        "responses": [f"{tell}<|end|>" for tell in answers],
        "rewards": rewards,
    }
    record = {"prompt": [user(question(number))], "responses": answers, "rewards": rewards}
    return Example(record, {"grpo": words})


_ALL = (
    *(messages, conversations, alpaca, text, completion, response, kto),
    *(preference, intel, argilla, ranked_alpaca, ranked, ranked_messages, prompt, group),
)
MADE: dict[str, Callable[[int], Example]] = {made.__name__: made for made in _ALL}
"""By the name of the layout."""


def lines(layout: str, count: int) -> str:
    """JSON Lines."""
    records = (MADE[layout](number).record for number in range(count))
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
