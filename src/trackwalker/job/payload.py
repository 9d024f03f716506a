"""What of a log line is data that it quotes: a sample of the data set, a prompt, a model's answer. Data states nothing.

Standard library only and Python 3.9 syntax: the node agent carries this file.
"""

from __future__ import annotations

import re
from typing import Optional

# A key that names data, followed by that data: what stands behind it was written by people or models, not by a program.
_KEYS = (
    r"(?:text|prompts?|samples?|examples?|completions?|generations?|generated(?: text)?|responses?|decoded(?: text)?"
    r"|documents?|content|input_text|output_text|inputs?_decoded|instructions?|answers?|questions?|messages|targets?_plaintext"
    r"|(?:eval|test|val|bench|probe|turn|item|row|doc)\[[^\]]{1,40}\]|predictions?|summary_text|article|dialogue|batch\[\d+\]|user|assistant|model output|dataset (?:row|item|example|text))"
)
_PAYLOAD = re.compile(
    rf"""(?ix) (?:^|[\s{{,\[(<|"'])["']?{_KEYS}["']?\s*(?:\#?\d+\s*)?(?:[:=]|=>|->)\s*["'`\[{{<|“«]
    | \b(?:prompt|sample|completion|generated\ text|generation|decoded(?:\ text)?|model\ (?:output|says)|assistant|user
        |dataset\ (?:row|item|example|text)|input\ text|output\ text|training\ example|document)\s*(?:\#?\d+)?\s*(?:[:>]|=>)"""
)
# One of these stands in every text that the expression finds something in: it takes fifty times as long to say no.
_STEMS = (
    "text", "prompt", "sample", "example", "completion", "generat", "response", "decoded", "document", "content", "input",
    "output", "instruction", "answer", "question", "messages", "val[", "test[", "bench[", "probe[", "turn[", "item[", "row[",
    "doc[", "batch[", "prediction", "article", "dialogue", "user", "assistant", "model ", "dataset",
)  # fmt: skip


def payload_start(text: str) -> Optional[int]:
    """Where the data begins that a line quotes; None where it quotes none."""
    lower = text.lower()
    if text.isascii() and not any(stem in lower for stem in _STEMS):
        return None
    payload = _PAYLOAD.search(text)
    return payload.end() if payload else None


def without_payload(text: str) -> str:
    """What a program wrote of a line: the part before any data that it quotes."""
    at = payload_start(text)
    return text if at is None else text[:at]
