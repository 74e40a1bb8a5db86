"""What is on a phone: drawn from a closed vocabulary, and, if it is asked for, texts that try to deceive."""
