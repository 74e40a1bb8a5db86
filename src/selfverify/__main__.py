"""`python -m selfverify`, and what `accelerate launch -m selfverify` starts."""

from selfverify.cli.main import main

main()
