"""The words of the phone: those that its contents are drawn from, and those of the apps themselves.

It is a closed vocabulary, so that a small tokenizer of words can know all that a screen says.
"""

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
    "Beach", "Cafe", "Clinic", "Club", "Hall", "Harbor", "Library", "Museum", "Park", "Station", "Studio",
)  # fmt: skip
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
SCREENS = (
    "a", "about", "above", "account", "accounts", "add", "added", "again", "airplane", "alarm", "alarms",
    "all", "already", "always", "amount", "and", "app", "apps", "artist", "as", "author", "backup",
    "balance", "bank", "battery", "below", "berlin", "bike", "bird", "bluetooth", "book", "books",
    "brightness", "budget", "budgets", "by", "cairo", "calendar", "came", "cancel", "card", "cash",
    "category", "chime", "cities", "clock", "closes", "company", "connect", "connected", "contact",
    "contacts", "counted", "crime", "daily", "danish", "dark", "data", "day", "days", "delete", "deleted",
    "delhi", "device", "devices", "died", "disconnect", "display", "do", "done", "dust", "dutch", "earned",
    "edit", "english", "entries", "entry", "event", "events", "every", "expense", "family", "find", "finger",
    "font", "food", "foot", "forget", "found", "french", "friday", "friends", "fun", "gb", "german", "gift",
    "go", "goto", "group", "had", "he", "health", "high", "history", "home", "hotspot", "hours", "income",
    "is", "it", "joined", "keyboard", "km", "label", "language", "large", "late", "later", "letter", "level",
    "like", "lima", "limit", "list", "lists", "location", "lock", "london", "low", "make", "man", "maps",
    "mark", "marks", "may", "mb", "media", "medium", "menu", "miles", "min", "minutes", "missing", "model",
    "money", "more", "morning", "moscow", "music", "name", "narrow", "network", "networks", "never", "no",
    "nobody", "none", "normal", "not", "note", "nothing", "notify", "of", "off", "once", "one", "options",
    "oslo", "overview", "page", "pages", "paris", "pause", "paused", "percent", "phone", "piano", "pin",
    "place", "places", "play", "player", "playing", "poems", "put", "query", "rain", "rate", "rating",
    "read", "reader", "remind", "remove", "rent", "repeat", "ring", "rome", "rotate", "route", "running",
    "salary", "saturday", "save", "saved", "saver", "science", "search", "security", "seen", "seoul",
    "settings", "she", "shelf", "shuffle", "silent", "since", "size", "small", "song", "songs", "sound",
    "spacing", "spanish", "spent", "star", "start", "stones", "stop", "stopped", "storage", "such", "sunday",
    "swipe", "sydney", "system", "table", "then", "there", "they", "this", "thursday", "time", "timer",
    "title", "to", "tokyo", "tone", "traffic", "tuesday", "type", "units", "version", "vibrate", "waited",
    "was", "wave", "way", "wednesday", "weekdays", "weekend", "when", "white", "wide", "wifi", "with", "you",
    "zone",
)  # fmt: skip
"""The words of the apps, in small letters."""
