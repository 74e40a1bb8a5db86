"""What VTS-V's authors report (Bai et al. 2025, Tables 1 to 3), to stand beside ours. All in percent.

Our copy of Table 1 lacks LLaMA-3.2's Visual Correspondence with VTS-V. With Table 3's 38.60 in that cell the
row's average is the printed one, so it stands there.
"""

from __future__ import annotations

from typing import NamedTuple

CITED = "Bai et al. 2025"
BLINK = {
    "Relative_Depth": "Depth", "Spatial_Relation": "Spatial", "Jigsaw": "Jigsaw",
    "Visual_Correspondence": "VisCorr", "Semantic_Correspondence": "SemCorr", "Art_Style": "ArtStyle",
    "Counting": "Count", "Functional_Correspondence": "FunCorr", "Object_Localization": "Local",
    "Multi-view_Reasoning": "MultiV", "Relative_Reflectance": "Refl", "Forensic_Detection": "Fore",
    "Visual_Similarity": "Sim",
}  # fmt: skip
"""BLINK's tasks in the order and by the names of Table 1."""
GENERAL = {"vstar": "V*Bench", "mmstar": "MMStar", "mathvista": "MathVista"}
"""The benchmarks of Table 2."""


class PublishedLooks(NamedTuple):
    """A row of Table 1 or 2.

    Args:
        model: The model, and how it answers.
        values: By the table's columns; None where the paper gives none.
        mean: Table 1's average.
    """

    model: str
    values: tuple[float | None, ...]
    mean: float | None = None


TABLE_1 = (
    PublishedLooks(
        "Qwen2.5VL-7B",
        (65.32, 83.22, 56.67, 40.12, 24.46, 58.97, 65.00, 19.23, 41.80, 43.61, 25.37, 34.85, 79.26), 49.07,
    ),
    PublishedLooks(
        "Qwen2.5VL-7B + VTS-V",
        (66.13, 37.76, 53.33, 58.72, 36.69, 58.97, 41.18, 23.85, 45.08, 42.86, 26.12, 38.64, 64.44), 45.67,
    ),
    PublishedLooks(
        "Qwen2.5VL-7B, fine-tuned + VTS-V",
        (70.97, 86.01, 68.67, 54.44, 33.81, 67.52, 65.83, 30.00, 49.18, 55.64, 38.06, 36.36, 80.00), 56.65,
    ),
    PublishedLooks(
        "Qwen2VL-7B",
        (57.26, 79.72, 54.00, 33.72, 31.65, 51.28, 73.33, 18.46, 54.10, 45.11, 33.58, 38.64, 53.33), 48.01,
    ),
    PublishedLooks(
        "Qwen2VL-7B + VTS-V",
        (49.19, 67.83, 57.05, 15.72, 17.56, 42.74, 43.33, 12.90, 49.59, 30.83, 32.84, 29.55, 51.85), 38.54,
    ),
    PublishedLooks(
        "Qwen2VL-7B, fine-tuned + VTS-V",
        (60.48, 60.48, 58.00, 37.21, 40.58, 76.92, 63.33, 28.35, 51.64, 47.37, 35.82, 34.09, 84.21), 52.19,
    ),
    PublishedLooks(
        "LLaMA3.2-11B",
        (63.71, 67.13, 53.33, 50.58, 39.57, 47.86, 55.00, 32.31, 62.30, 48.12, 31.34, 25.76, 46.67), 47.98,
    ),
    PublishedLooks(
        "LLaMA3.2-11B, fine-tuned + VTS-V",
        (68.55, 69.23, 57.33, 38.60, 47.48, 55.56, 56.67, 35.43, 58.20, 52.63, 33.58, 23.48, 57.46), 50.32,
    ),
    PublishedLooks(
        "GPT-4o",
        (74.19, 69.23, 55.33, 75.00, 53.96, 82.91, 49.17, 40.77, 59.84, 59.40, 37.31, 79.55, 72.59), 62.25,
    ),
    PublishedLooks(
        "GPT-4o + Sketchpad",
        (83.90, 81.10, 70.70, 80.80, 58.30, 77.19, 66.70, 42.10, 65.40, 45.60, 33.10, 79.00, 84.20), 66.78,
    ),
    PublishedLooks(
        "GPT-4o + CoT",
        (73.39, 82.52, 62.00, 82.56, 57.55, 82.05, 65.00, 57.69, 60.66, 53.38, 41.04, 62.88, 63.70), 64.96,
    ),
    PublishedLooks(
        "GPT-4o + SoM",
        (68.55, 76.22, 49.33, 83.72, 52.52, None, 43.33, 47.69, 59.84, 56.40, None, None, 63.70), 60.13,
    ),
    PublishedLooks(
        "GPT-4o + MMFactory",
        (80.30, 81.80, 75.30, 85.50, 58.30, 83.00, 61.70, 55.40, 59.00, 60.20, 35.10, 84.80, 75.30), 68.90,
    ),
    PublishedLooks(
        "GPT-4o + VTS-V",
        (79.84, 85.31, 75.33, 82.56, 56.83, 80.34, 67.50, 53.08, 68.85, 52.63, 40.30, 71.21, 85.19), 69.15,
    ),
)  # fmt: skip
TABLE_2 = (
    PublishedLooks("Qwen2.5VL-7B", (73.30, 55.00, 22.60)),
    PublishedLooks("Qwen2.5VL-7B + VTS-V", (67.54, 55.93, 7.80)),
    PublishedLooks("Qwen2.5VL-7B, fine-tuned + VTS-V", (75.13, 57.93, 23.52)),
    PublishedLooks("Qwen2VL-7B", (66.49, 53.93, 22.42)),
    PublishedLooks("Qwen2VL-7B + VTS-V", (50.80, 44.29, 20.24)),
    PublishedLooks("Qwen2VL-7B, fine-tuned + VTS-V", (66.67, 55.26, 23.80)),
    PublishedLooks("LLaMA-3.2-11B", (54.45, 50.57, 30.10)),
    PublishedLooks("LLaMA-3.2-11B, fine-tuned + VTS-V", (60.21, 50.71, 18.81)),
)
TABLE_3 = {
    "Qwen2.5VL": (54.44, 47.09), "Qwen2VL": (37.21, 33.14), "Llama3.2vision": (38.60, 36.63),
}  # fmt: skip
"""By model with and without the verifier; it seems to be Visual Correspondence alone."""
