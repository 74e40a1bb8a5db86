"""A session of an agent in the terminal: each turn as it comes, and what was made of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from selfverify.cli.printing import harmless

if TYPE_CHECKING:
    from selfverify.agents.episode import AgentRecord
    from selfverify.core.problem import Problem
    from selfverify.experiments.agent_session import AgentRun

MOST_LINES = 6
"""Lines of a screen that are shown."""
WIDEST = 300
"""Characters of a line that are shown."""


def watch_begin(problem: Problem) -> None:
    """Say what is asked."""
    _print(Text("asked: ", "bold"), problem.meta["question"])


def watch_turn(turn: int, worked: AgentRecord, said: str, reply: str) -> None:
    """Show a turn: what was called and why, and the beginning of the screen after it."""
    record = worked.turns.get(turn, {})
    call = record.get("call")
    number = f"round {record['round']}" if "round" in record else f"turn {turn + 1}"
    words = said.partition("<tool_call>")[0].strip()
    if call is not None and words.startswith("{"):
        words = ""
    if words:
        _print(Text(f"{number:>9}  ", "bold cyan"), words)
    if call is not None:
        arguments = ", ".join(f"{name}={value!r}" for name, value in call["arguments"].items())
        _print(Text(f"{'' if words else number:>9}  ", "bold cyan"), f"{call['name']}({arguments})", "green")
    if record.get("error"):
        _print(Text(" " * 11), f"refused: {record['error']}", "red")
    lines = [line for line in reply.splitlines() if line.strip() and not line.startswith("## Round")]
    for line in lines[:MOST_LINES]:
        _print(Text(" " * 11), line, "dim")
    if len(lines) > MOST_LINES:
        _print(Text(" " * 11), f"... {len(lines) - MOST_LINES} more lines", "dim")


def told(session: AgentRun) -> None:
    """Say what was handed in, what the judges made of it, and where the page is."""
    worked, judgement = session.worked, session.worked.judgement
    if worked.message:
        rounds = ", ".join(str(exhibit.seen.round) for exhibit in worked.chosen)
        _print(Text("handed in: ", "bold"), f"{worked.message} (evidence: rounds {rounds or 'none'})")
    for ballot in judgement.ballots if judgement is not None else ():
        vote = ballot.vote
        if vote is None:
            _print(Text(f"vote {ballot.number + 1} is missing: ", "bold yellow"), ballot.missing)
        else:
            style, verdict = ("bold green", "success") if vote.success else ("bold red", "failure")
            _print(Text(f"vote {ballot.number + 1}: {verdict}: ", style), vote.words)
    if worked.truth is not None:
        done = worked.truth.complete
        _print(Text("ground truth: ", "bold"), "done" if done else "not done", "green" if done else "red")
    if session.ending is not None and session.ending.parsed is not None:
        judged = session.ending.parsed
        what = f"none ({judged.unjudged})" if judged.unjudged else f"{judged.reward:.2f}"
        _print(Text("reward: ", "bold"), what)
    if session.page is not None:
        _print(Text("page: ", "bold"), str(session.page))


def _print(head: Text, words: str, style: str = "") -> None:
    clean = harmless(words)
    shown = clean if len(clean) <= WIDEST else f"{clean[:WIDEST]} ..."
    Console(highlight=False).print(head.append(shown, style), soft_wrap=True)
