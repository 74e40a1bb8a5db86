"""math-verify for a worker process: no alarms, no search for an answer, no `parse_expr`."""

from __future__ import annotations

import logging
import math
from typing import Any

import sympy
from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig, NormalizationConfig

_CONFIG = [
    LatexExtractionConfig(
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(
            # math-verify's list of units contains "c", "t", "ab" and "bc", so that 2ab would be 2.
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all"
        ),
    )
]  # fmt: skip


def compare(gold: str, answer: str) -> dict[str, Any]:
    """Compare two LaTeX expressions, and return their values where they are real numbers.

    ``{"read": both could be read, "equal": bool, "gold": float | None, "answer": float | None}``. The target
    comes first: math-verify is not symmetric.
    """
    # math-verify's alarms do not work in a thread; without them it warns at every call.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    left, right = _read(gold), _read(answer)
    if left is None or right is None:
        return {"read": False, "equal": False, "gold": None, "answer": None}
    equal = bool(verify(left, right, timeout_seconds=None))
    return {"read": True, "equal": equal, "gold": _number(left), "answer": _number(right)}


def _read(text: str) -> Any:
    """Return the sympy object that the whole of ``text`` is, or None."""
    found = parse(f"\\boxed{{{text}}}", _CONFIG, fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def _number(value: Any) -> float | None:
    if not isinstance(value, sympy.Expr) or value.free_symbols:
        return None
    try:
        number = complex(value.doit().evalf(15))
    except (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError):
        return None
    return number.real if number.imag == 0 and math.isfinite(number.real) else None
