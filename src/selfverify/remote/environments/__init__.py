"""Environments that run elsewhere: other people's for us, ours for other people, and pools of them."""
