"""The call with which a model ends looking by itself."""

from __future__ import annotations

from pydantic import Field

from selfverify.looking.tools.pictures import Gallery
from selfverify.looking.tools.visual_tool import Arguments, Found, VisualTool


class TerminateArguments(Arguments):
    """Arguments of `Terminate`."""

    final_response: str = Field(max_length=20_000)
    """The answer to the question."""


class Terminate(VisualTool[TerminateArguments]):
    """Ends looking and answers the question."""

    name = "terminate"
    also = ("terminate_action", "TerminateAction")
    arguments = TerminateArguments
    at_once = True

    def run(self, asked: TerminateArguments, gallery: Gallery) -> Found:
        """See `VisualTool`. The episode takes the answer itself; elsewhere the call finds nothing."""
        return Found()
