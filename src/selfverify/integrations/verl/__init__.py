"""The methods on verl's V1 trainer (verl >= 0.9.1, < 0.10), by verl's own hooks and no fork.

verl loads this package in each of its processes, where ``VERL_USE_EXTERNAL_MODULES`` names
`selfverify.integrations.verl.trainer`.
"""
