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
_CLOSE = sympy.Rational(1, 10**6)


def compare(gold: str, answer: str) -> dict[str, Any]:
    """Compare two LaTeX expressions, and return their values where they are real numbers.

    The target comes first: math-verify is not symmetric. The result has ``read`` (both could be read),
    ``equal``, ``close`` (both are real and differ by at most a millionth of the target; None where one has
    no value), ``gold`` and ``answer`` (floats, None without a value that a float holds) and ``value`` (the
    answer's, in decimal digits).
    """
    # math-verify's alarms do not work in a thread; without them it warns at every call.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    left, right = _read(gold), _read(answer)
    if left is None or right is None:
        return {"read": False, "equal": False, "close": None, "gold": None, "answer": None, "value": None}
    equal = bool(verify(left, right, timeout_seconds=None))
    x, y = _number(left), _number(right)
    # sympy's floats do not vanish, as e^-1000 does in Python's.
    close = None if x is None or y is None else bool(abs(x - y) <= _CLOSE * abs(x))
    return {"read": True, "equal": equal, "close": close, "gold": _float(x), "answer": _float(y),
            "value": None if y is None else str(y)}  # fmt: skip


def _read(text: str) -> Any:
    """Return the sympy object that the whole of ``text`` is, or None."""
    found = parse(f"\\boxed{{{text}}}", _CONFIG, fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def _number(value: Any) -> Any:
    """Return a real number to 15 digits as a sympy Float; None for anything else."""
    if not isinstance(value, sympy.Expr) or value.free_symbols:
        return None
    try:
        number = value.doit().evalf(15)
        real, imaginary = number.as_real_imag()
    except (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError):
        return None
    return real if imaginary == 0 and isinstance(real, sympy.Number) and real.is_finite else None


def _float(value: Any) -> float | None:
    found = None if value is None else float(value)
    return None if found is None or not math.isfinite(found) or (found == 0 and value != 0) else found
