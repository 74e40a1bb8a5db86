"""The command ``selfverify serve``."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from selfverify.cli.options import settings_as_options
from selfverify.cli.settings_file import file_text
from selfverify.serving.schemas import ServeConfig


@settings_as_options
def serve(
    settings: ServeConfig,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the settings in force, as a --config file, and stop.")
    ] = False,
) -> None:
    """Serve best-of-N over OpenAI's protocol: with a model run here, or in front of another server.

    For every request the gateway samples several candidates, chooses an answer, and says how sure it is.

    `-n`, `--strategy` and the other fields of a request's `best_of` hold for requests that do not set them.
    All settings may come from a file (`--config`). The key for the other server is taken from
    `SELFVERIFY_SERVER_API_KEY` or `OPENAI_API_KEY`.

    Examples:

    - `selfverify serve --model builtin:digits`

    - `selfverify serve --upstream http://127.0.0.1:8000/v1 -n 4 --strategy majority`

    - `selfverify serve --config gateway.yaml --port 9000`
    """
    if show_config:
        typer.echo(file_text(settings), nl=False)
        return
    import selfverify.clients.openai_client  # noqa: F401  (says which extra is missing)
    from selfverify.connectors.server import address_of
    from selfverify.serving.server import open_gateway, run, run_gateway

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    gateway = open_gateway(settings)

    def say(port: int) -> None:
        name = settings.backend.model or settings.backend.upstream
        address = address_of(settings.listening.host, port)
        typer.echo(f"{address}/v1 serves {name}; Ctrl-C stops it", err=True)

    run(lambda: run_gateway(gateway, settings.listening, say))
