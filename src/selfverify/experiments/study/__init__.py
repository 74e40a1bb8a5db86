"""A study: one recipe in several variants, on several tasks and seeds, compared in tables and figures."""
