"""What SmartSnap's authors report on AndroidLab (arXiv:2512.22322, Tables 1 to 3), to stand beside ours.

Their success rates are a language model's judgement of whole trajectories (§4.2: GLM-4, as AndroidLab has
it), not a ground truth.
"""

from __future__ import annotations

from typing import NamedTuple

CITED = "arXiv:2512.22322"
APPS = ("Calendar", "Zoom", "Bluecoins", "PiMusic", "Maps.me", "Contacts", "Cantook", "Clock", "Setting")
TRAINING = (92, 0, 81, 58, 86, 55, 84, 43, 227)
"""Table 1: training tasks of each of `APPS`."""
VALIDATION = (14, 5, 15, 12, 15, 15, 12, 27, 23)
"""Table 1: validation tasks of each of `APPS`."""


class Published(NamedTuple):
    """A row of Tables 2 and 3.

    Args:
        type: ``PT`` (prompted), ``FT vanilla`` (fine-tuned on Android Instruct, which proves nothing), ``FT``
            (fine-tuned on trajectories with evidence) or ``RL``.
        model: The model.
        figures: SR, Sub-SR, RRR and ROR in percent; None where the paper gives none.
        apps: Success rates in percent, by `APPS`; empty where the paper gives none.
    """

    type: str
    model: str
    figures: tuple[float | None, float | None, float | None, float | None]
    apps: tuple[float, ...] = ()


_LLAMA, _QWEN25 = "LLaMA3.1-8B-Instruct", "Qwen2.5-7B-Instruct"
_QWEN3, _QWEN32 = "Qwen3-8B-Instruct", "Qwen3-32B-Instruct"

ROWS = (
    Published("PT", "GPT-4o", (25.36, 30.56, 107.45, 86.56)),
    Published("PT", "GPT-4-1106-Preview", (31.16, 38.21, 66.34, 86.24)),
    Published("PT", "Gemini-1.5-Pro", (18.84, 22.40, 57.72, 83.99)),
    Published("PT", "Gemini-1.00", (8.70, 10.75, 51.80, 71.08)),
    Published("PT", "GLM4-Plus", (27.54, 32.08, 92.35, 83.41)),
    Published("PT", "DeepSeek-V3.1", (36.23, 40.95, 81.01, 94.63)),
    Published("PT", "Qwen3-235B-A22B", (34.78, 38.76, 83.35, 89.48)),
    Published("PT, cited", _LLAMA, (2.17, 3.62, None, 52.77)),
    Published("FT vanilla, cited", _LLAMA, (23.91, 30.31, 75.58, 92.46)),
    Published("PT", _LLAMA, (5.07, 6.28, 52.77, 51.82), (0, 0, 0, 0, 0, 13.33, 28.57, 15.38, 8.33)),
    Published(
        "FT vanilla", _LLAMA, (20.28, 26.13, 69.44, 90.43),
        (7.14, 40.00, 40.00, 0.00, 7.14, 33.33, 41.66, 15.38, 18.18),
    ),
    Published(
        "FT", _LLAMA, (23.91, 30.36, 37.96, 83.23),
        (7.14, 20.00, 26.66, 8.33, 0.00, 60.00, 33.33, 14.81, 39.13),
    ),
    Published(
        "RL", _LLAMA, (31.15, 38.03, 81.28, 95.80),
        (7.14, 60.00, 20.00, 8.33, 0.00, 53.33, 50.00, 37.03, 47.82),
    ),
    Published(
        "PT", _QWEN25, (12.32, 14.98, 67.56, 78.52),
        (0.00, 40.00, 10.00, 10.00, 0.00, 20.00, 16.66, 18.51, 14.28),
    ),
    Published(
        "FT vanilla", _QWEN25, (20.28, 27.05, 35.52, 62.46),
        (14.28, 40.00, 13.33, 8.33, 0.00, 46.66, 33.33, 18.51, 21.73),
    ),
    Published(
        "FT", _QWEN25, (30.15, 36.59, 49.19, 73.28),
        (21.42, 40.00, 40.00, 8.33, 0.00, 46.66, 41.66, 33.33, 43.47),
    ),
    Published(
        "RL", _QWEN25, (30.43, 35.20, 102.30, 96.36),
        (14.28, 20.00, 33.33, 8.33, 0.00, 60.00, 50.00, 37.03, 34.78),
    ),
    Published(
        "PT", _QWEN3, (10.14, 12.38, 66.21, 67.15),
        (7.14, 66.66, 0.00, 8.33, 0.00, 15.38, 11.11, 4.00, 15.00),
    ),
    Published(
        "FT vanilla", _QWEN3, (19.56, 25.60, 38.69, 65.18),
        (7.14, 40.00, 6.66, 8.33, 0.00, 33.33, 50.00, 18.51, 26.08),
    ),
    Published(
        "FT", _QWEN3, (26.81, 31.09, 72.16, 69.85),
        (21.42, 60.00, 53.33, 8.33, 0.00, 16.66, 45.45, 40.74, 41.66),
    ),
    Published(
        "RL", _QWEN3, (36.23, 41.96, 88.04, 94.49),
        (14.28, 60.00, 33.33, 33.33, 13.33, 53.33, 50.00, 40.74, 39.13),
    ),
    Published(
        "PT", _QWEN32, (18.12, 21.80, 91.99, 87.57),
        (0.00, 80.00, 13.33, 0.00, 0.00, 33.33, 33.33, 22.22, 17.39),
    ),
    Published(
        "FT vanilla", _QWEN32, (22.46, 28.20, 39.28, 65.50),
        (14.28, 60.00, 26.66, 0.00, 0.00, 40.00, 50.00, 25.92, 13.04),
    ),
    Published(
        "FT", _QWEN32, (28.98, 35.92, 97.79, 97.33),
        (7.14, 40.00, 13.33, 8.33, 0.00, 53.33, 50.00, 40.74, 39.13),
    ),
    Published(
        "RL", _QWEN32, (34.78, 40.26, 89.47, 93.67),
        (7.14, 80.00, 40.00, 25.00, 0.00, 60.00, 50.00, 38.46, 39.13),
    ),
)  # fmt: skip
"""Tables 2 and 3. Figures that the authors take from AndroidLab's paper are marked *cited*."""
