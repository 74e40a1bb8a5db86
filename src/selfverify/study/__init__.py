"""A study: one recipe in several variants, on several tasks and seeds, compared in tables and figures."""

from selfverify.study.file import Study, Variant, load_study
from selfverify.study.runner import Outcome, run_study

__all__ = ["Outcome", "Study", "Variant", "load_study", "run_study"]
