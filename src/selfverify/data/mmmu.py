"""MMMU's six disciplines (Yue et al. 2024, arXiv:2311.16502, Table 1), which its file names nowhere.

A question's id begins with the part of the data and its subject: ``validation_Art_Theory_7``.
"""

from __future__ import annotations

import re

DISCIPLINES = {
    "Art & Design": ("Art", "Art_Theory", "Design", "Music"),
    "Business": ("Accounting", "Economics", "Finance", "Manage", "Marketing"),
    "Science": ("Biology", "Chemistry", "Geography", "Math", "Physics"),
    "Health & Medicine": (
        *("Basic_Medical_Science", "Clinical_Medicine", "Diagnostics_and_Laboratory_Medicine"),
        *("Pharmacy", "Public_Health"),
    ),
    "Humanities & Social Science": ("History", "Literature", "Psychology", "Sociology"),
    "Tech & Engineering": (
        *("Agriculture", "Architecture_and_Engineering", "Computer_Science", "Electronics"),
        *("Energy_and_Power", "Materials", "Mechanical_Engineering"),
    ),
}
"""The subjects of each discipline."""
_BY_SUBJECT = {subject: discipline for discipline, subjects in DISCIPLINES.items() for subject in subjects}
_ID = re.compile(r"(?:dev|validation|test)_(?P<subject>[A-Za-z_]+)_[0-9]+")


def discipline(id: str | None) -> str | None:
    """Return the discipline of a question with this id; None if it is no id of MMMU."""
    match = _ID.fullmatch(id or "")
    return _BY_SUBJECT.get(match["subject"]) if match else None
