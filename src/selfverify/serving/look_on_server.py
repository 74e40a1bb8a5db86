"""`selfverify solve --look` with a server: several conversations in which its model looks again."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from selfverify.clients.openai_client import ServerConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.selection.calibration import Calibration
from selfverify.selection.strategies import choose
from selfverify.serving.asking import only_model
from selfverify.serving.look_talk import AT_ONCE, Looked, look_once
from selfverify.serving.selecting import Selection, use_of, with_probability
from selfverify.serving.solve import OnCandidate, Solution
from selfverify.serving.solve_settings import SolveConfig
from selfverify.tasks.base import Task
from selfverify.visual.task import VisualToolTask


def look_on_server(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Hold conversations with a server's model, and choose one of their answers.

    Args:
        settings: The server, how it looks, how the answer is chosen. Each conversation has a seed of its own,
            which some servers ignore.
        task: Reads the answers and says which are the same.
        problem: The question.
        on_candidate: Called with each candidate, in order.

    Raises:
        ConfigError: The server has several models and none is named, or a tool is not available here.
        DataError: An image cannot be looked at.
        ServerError: The server cannot be reached or refuses.
    """
    begun = time.perf_counter()
    answerer, choosing = settings.answerer, settings.choosing
    if answerer.server is None:
        raise ConfigError("there is no server to ask")
    server = ServerConfig(answerer.server, timeout_s=answerer.timeout)
    fields = {
        "model": answerer.model or only_model(server),
        "temperature": settings.drawing.temperature,
        "top_p": settings.drawing.top_p,
        "max_tokens": settings.drawing.max_new_tokens,
    }
    looking = VisualToolTask(task, settings.looking.settings())
    asked = looking.asked(problem)

    lock = Lock()

    def one(number: int) -> Looked:
        return look_once(looking, asked, server, fields | {"seed": settings.drawing.seed + number}, lock)

    found: list[Looked] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for looked in pool.map(one, range(choosing.n)):
            found.append(looked)
            if on_candidate:
                on_candidate(looked.reply)
    replies = [looked.reply for looked in found]
    choice = choose(replies, choosing.strategy, choosing.options)
    calibration = Calibration.load(choosing.calibration) if choosing.calibration else None
    if calibration is not None and calibration.misfit(use_of(choosing, "inline")):
        calibration = None
    selected = with_probability(choice, replies[choice.index], calibration)
    selection = Selection([selected], list(replies), "samples", 0, "inline", calibration is not None)
    correct = found[choice.index].judged.correct if task.judges else None
    tokens = sum(reply.tokens for reply in replies)
    return Solution.of(selection, tokens, begun, correct, [looked.steps for looked in found])
