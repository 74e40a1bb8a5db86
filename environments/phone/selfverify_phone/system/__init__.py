"""What every app stands on: widgets, where they are placed, the phone itself, forms and dialogs."""
