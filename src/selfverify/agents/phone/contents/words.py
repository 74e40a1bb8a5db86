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
TITLES = (
    "Class", "Concert", "Dentist", "Dinner", "Exam", "Haircut", "Lesson", "Lunch", "Match", "Meeting",
    "Party", "Picnic", "Review", "Visit", "Wedding", "Workshop",
)  # fmt: skip
PLACES = (
    "Beach",
    "Cafe",
    "Clinic",
    "Club",
    "Hall",
    "Harbor",
    "Library",
    "Museum",
    "Park",
    "Station",
    "Studio",
)
ENTRIES = (
    "birthday cake", "bus pass", "cinema", "coffee beans", "concert", "dentist", "flowers", "hotel", "museum",
    "new shoes", "pizza", "summer camp", "taxi", "tea", "train", "vitamins",
)  # fmt: skip
SONGS = (
    "Amber", "Blue Sky", "Candle", "Dancer", "Echo", "Firefly", "Golden Hour", "Harvest", "Island", "Jungle",
    "Lantern", "Midnight", "New Moon", "Ocean", "Paper Boat", "River", "Silver Road", "Thunder", "Velvet",
    "Winter",
)  # fmt: skip
ARTISTS = ("Aurora", "Bronze", "Cobalt", "Ember", "Falcons", "Indigo", "Mirage", "Saffron")
LISTS = ("Calm", "Drive", "Focus", "Party", "Sleep", "Sport", "Summer", "Travel")
SPOTS = {
    "Cafe": ("Corner Cafe", "Lemon Cafe", "Old Mill Cafe"),
    "Museum": ("City Museum", "Sea Museum", "Toy Museum"),
    "Park": ("Oak Park", "River Park", "Rose Park"),
    "Hotel": ("Grand Hotel", "Hill Hotel", "Lake Hotel"),
    "Market": ("Fish Market", "Green Market", "Night Market"),
}
"""Names of places by kind."""
STREETS = ("Bridge Street", "Castle Street", "Church Street", "Garden Street", "King Street", "Mill Street",
           "Station Street")  # fmt: skip
REMARKS = ("nice view", "closed on Monday", "good soup", "meet here", "ask for Tom", "take the stairs")
BOOKS = (
    "Cold Harbor", "Empty Rooms", "First Light", "Glass House", "Iron Garden", "Lost Letters", "Open Water",
    "Quiet Stars", "Red Winter", "Salt Road", "Stone Bridge", "The Key", "Third Door", "Wild Geese",
)  # fmt: skip
AUTHORS = ("Baker", "Diaz", "Hill", "Khan", "Moore", "Reed", "Stone", "Wood")
