"""`python -m selfverify`, and what `accelerate launch -m selfverify` starts."""

from selfverify.cli import main

main()
