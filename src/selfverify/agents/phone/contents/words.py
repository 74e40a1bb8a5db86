"""The words of which the phone's contents are drawn: a closed vocabulary, for small tokenizers."""

from __future__ import annotations

FIRST = (
    "Ada", "Anna", "Ben", "Bob", "Carla", "Dan", "Emma", "Finn", "Grace", "Hugo", "Ida", "Jack", "Kim",
    "Leo", "Mia", "Nina", "Omar", "Paul", "Rosa", "Sam", "Tara", "Tom", "Vera", "Zoe",
)  # fmt: skip
LAST = (
    "Baker", "Bell", "Cole", "Diaz", "Ford", "Gray", "Hill", "Khan", "Lee", "Long", "Moore", "Park", "Reed",
    "Ross", "Stone", "Wood",
)  # fmt: skip
COMPANIES = ("Acme", "Apex", "Delta", "Nova", "Orion", "Pixel", "Solar", "Terra", "Vista", "Zenith")
NOTES = ("call back", "met in school", "new job", "likes tea", "old friend", "owes lunch", "plays chess")
LABELS = ("Bread", "Gym", "Medicine", "Run", "School", "Shift", "Swim", "Train", "Walk", "Work", "Yoga")
NETWORKS = ("Airport", "Garden", "Guest", "Hotel", "Lab", "Office", "Tower", "Villa")
DEVICES = ("Buds", "Car", "Keyboard", "Mouse", "Printer", "Speaker", "Tablet", "Watch")
PHONES = ("Comet", "Falcon", "Lotus", "Panda", "Robin", "Tiger")
MODELS = ("Pine", "Maple", "Cedar", "Birch")
