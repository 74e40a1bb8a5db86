"""Our methods inside other libraries' trainers."""
