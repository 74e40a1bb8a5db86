"""What models are asked for: the format of an answer, and a rating of one."""

SCORE_INSTRUCTION = (
    "Reason in <think></think>, answer in <answer></answer>, "
    "then rate in <score></score> from 0 to 1 how sure you are."
)
"""ADPO Table 1's request in our words."""

ANSWER_INSTRUCTION = "Reason in <think></think>, answer in <answer></answer>."
"""The same without a score."""

RATE = "Is the answer above right? Rate it in <score></score>: 1 is surely right, 0 is surely wrong."
"""The request to a judge that has to write a score at once."""

CHECK = (
    "Check the answer above against the question in <think></think>, then rate it in <score></score>: "
    "1 is surely right, 0 is surely wrong."
)
"""The request to a judge that may think before it writes a score."""
