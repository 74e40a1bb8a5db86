"""The phone as servers make it for tests: screens of a few words, of which the first one is given."""

from selfverify_phone.environment import PhoneConfig, PhoneEnvironment

OPTIONS = PhoneConfig(text="terse", first_screen="given")


def phone() -> PhoneEnvironment:
    """One session."""
    return PhoneEnvironment(OPTIONS)
