"""What ends looking, made from settings: a rule, and the verifier that it asks."""

from __future__ import annotations

from pathlib import Path

from selfverify.core.episode import RolloutHook
from selfverify.core.errors import ConfigError
from selfverify.looking.look_settings import VisualConfig
from selfverify.looking.step_verifier import StepVerifier
from selfverify.looking.stop_calibration import STOPPING_FILE, StopCalibration
from selfverify.looking.stop_rules import StopRule, Verified, make_stop_rule
from selfverify.policy.policy import Policy


class StoppingVerifier:
    """The rule that ends looking, and the verifier that measures each step for it.

    A verifier is asked wherever one is named: with another rule its Δr is measured and stops nothing.

    Args:
        settings: The rule and the verifier.

    Raises:
        ConfigError: There is no such rule; or the verifier is to stop and is not named, or has no ε.
        DataError: The calibration beside the verifier cannot be read.
    """

    def __init__(self, settings: VisualConfig) -> None:
        self.settings = settings
        served = [name for name in (settings.verifier, settings.verifier_base) if name and is_address(name)]
        if served and (len(served) != 2 or any("#" not in name for name in served)):
            raise ConfigError(
                f"{served[0]}: a verifier behind a server needs its base behind one, too, both as URL#MODEL "
                "(verifier and verifier_base)"
            )
        self.rule = _rule(settings)
        self._models: dict[tuple[str, str | None], tuple[Policy, Policy | None]] = {}
        """By the names of verifier and base what was loaded."""

    def changed(self, settings: VisualConfig) -> StoppingVerifier:
        """What ends looking with other settings; models that were loaded for these are not loaded again.

        Raises:
            ConfigError: See the class.
            DataError: See the class.
        """
        made = StoppingVerifier(settings)
        made._models = self._models
        return made

    def listener(self, reasoner: Policy | None) -> RolloutHook | None:
        """The verifier for the conversations of one rollout; None where there is none.

        Its models are loaded when it is first asked for. A verifier that is the reasoner itself is not loaded
        again.

        Raises:
            ConfigError: It cannot be loaded, or has no base.
        """
        path, base = self.settings.verifier, self.settings.verifier_base
        if path is None:
            return None
        if is_address(path):
            assert base is not None
            from selfverify.looking.served_verifier import ServedModel, ServedVerifier  # it needs aiohttp

            return ServedVerifier(ServedModel.of(path), ServedModel.of(base))
        if (path, base) not in self._models:
            own = reasoner if reasoner is not None and reasoner.config.path == path else None
            policy = own or (
                Policy.load(path) if reasoner is None else Policy.load(reasoner.config.for_model(path))
            )
            below = None if base is None else Policy.load(policy.config.for_model(base))
            self._models[path, base] = policy, below
        return StepVerifier(*self._models[path, base], reasoner=reasoner)


def is_address(name: str) -> bool:
    """Whether a verifier's name is that of a server."""
    return name.startswith(("http://", "https://"))


def _rule(settings: VisualConfig) -> StopRule:
    if settings.stop != "verifier":
        return make_stop_rule(settings.stop)
    if settings.verifier is None:
        raise ConfigError("stop: verifier needs the verifier's folder (verifier)")
    rule, epsilon = settings.rule, settings.epsilon
    if rule is None or epsilon is None:
        if epsilon is None and is_address(settings.verifier):
            raise ConfigError("epsilon: a verifier behind a server has no calibration beside it; set epsilon")
        folder = Path(settings.verifier)
        if epsilon is not None and not (folder / STOPPING_FILE).exists():
            return Verified("absolute", _checked("absolute", epsilon))
        found = StopCalibration.load(folder)
        if rule is not None and rule != found.rule:
            raise ConfigError(
                f"{folder / STOPPING_FILE} holds ε for the rule {found.rule}, and the rule is {rule}; set "
                "epsilon"
            )
        rule, epsilon = found.rule, found.epsilon if epsilon is None else epsilon
    return Verified(rule, _checked(rule, epsilon))


def _checked(rule: str, epsilon: float) -> float:
    if rule == "absolute" and epsilon < 0:
        raise ConfigError(f"epsilon: |Δr| is never below {epsilon}; ε has to be above 0")
    return epsilon
