"""The command ``selfverify serve``."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from selfverify.errors import ConfigError

KEYS_VARIABLE = "SELFVERIFY_API_KEYS"
"""Environment variable with the keys of clients, separated by commas."""


def serve(
    model: Annotated[
        str | None, typer.Option(help="Run this model here: `builtin:NAME`, a folder, or a hub id.")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Stand in front of this OpenAI-compatible server instead.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    n: Annotated[
        int, typer.Option("-n", min=1, max=256, help="Candidates where a request says nothing.")
    ] = 8,
    strategy: Annotated[str, typer.Option(help="The same for `best_of.strategy`.")] = "weighted",
    verifier: Annotated[str | None, typer.Option(help="The same for `best_of.verifier`.")] = None,
    stop: Annotated[str, typer.Option(help="The same for `best_of.stop`.")] = "never",
    answers: Annotated[str, typer.Option(help="The same for `best_of.answers`.")] = "text",
    calibration: Annotated[
        Path | None, typer.Option(help="A file of `selfverify calibrate`; used where it fits.")
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="With --model: offer this verifier too, `judge:MODEL` or `ask:MODEL`; repeatable."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="With --model: length of a candidate where a request gives none.")
    ] = 256,
    max_batch: Annotated[int, typer.Option(min=1, help="With --model: candidates sampled together.")] = 64,
    separate: Annotated[
        bool, typer.Option("--separate", help="With --upstream: one request per candidate, never its `n`.")
    ] = False,
    tries: Annotated[int, typer.Option(min=1, help="With --upstream: tries of a request.")] = 3,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a request, at most.")] = 120.0,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds for requests in flight at the end.")] = 30.0,
    api_keys: Annotated[
        Path | None, typer.Option(help=f"A file with the keys of clients, one a line; or ${KEYS_VARIABLE}.")
    ] = None,
    rate_limit: Annotated[
        float | None, typer.Option(min=0.1, help="Requests a minute of one key (without keys: address).")
    ] = None,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Size of a request.")] = 64.0,
    max_image_mb: Annotated[float, typer.Option(min=0.001, help="Size of an image.")] = 20.0,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Pixels of a request's images.")] = 50.0,
    max_n: Annotated[int, typer.Option(min=1, max=256, help="Candidates that a request may ask for.")] = 64,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Requests at once; others have to wait.")] = 1024,
    remote_images: Annotated[
        bool, typer.Option("--remote-images", help="Fetch images by address, from public addresses only.")
    ] = False,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write questions and answers into the log.")
    ] = False,
) -> None:
    """Serve best-of-N over OpenAI's protocol: with a model run here, or in front of another server.

    The key for the other server is taken from `SELFVERIFY_SERVER_API_KEY` or `OPENAI_API_KEY`.

    Examples:

    - `selfverify serve --model builtin:digits`

    - `selfverify serve --upstream http://127.0.0.1:8000/v1 -n 4 --strategy majority`
    """
    if (model is None) == (upstream is None):
        raise ConfigError("give either --model (run one here) or --upstream (an address of a server)")
    if upstream is not None and judge:
        raise ConfigError("--judge needs --model; in front of a server say --verifier judge:MODEL")
    if model is not None and separate:
        raise ConfigError("--separate needs --upstream")
    from selfverify.remote.client import ServerSettings, server_url
    from selfverify.selection.calibration import Calibration
    from selfverify.serving.app import Settings
    from selfverify.serving.errors import ApiError
    from selfverify.serving.images import ImageLimits
    from selfverify.serving.protocol import BestOf, validated
    from selfverify.serving.security import Keys, read_keys
    from selfverify.serving.selecting import Ask
    from selfverify.serving.server import local_gateway, run, run_gateway, upstream_gateway

    wanted = {"n": n, "strategy": strategy, "verifier": verifier, "stop": stop, "answers": answers}
    try:
        defaults: BestOf = validated(wanted)
    except ApiError as error:
        raise ConfigError(str(error).replace("best_of.", "--")) from None
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    settings = Settings(
        defaults=defaults,
        timeout_s=timeout,
        keys=Keys(keys + (read_keys(api_keys) if api_keys else [])),
        per_minute=rate_limit,
        most_bytes=int(max_body_mb * 2**20),
        most_in_flight=max_in_flight,
        most_samples=max(max_n, n),
        images=ImageLimits(int(max_image_mb * 2**20), int(max_megapixels * 1e6)),
        remote_images=remote_images,
        calibration=Calibration.load(calibration) if calibration else None,
        log_prompts=log_prompts,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if upstream is not None:
        server_url(upstream)
        server = ServerSettings(upstream, timeout_s=timeout, tries=tries)
        gateway = upstream_gateway(server, settings, separate)
    else:
        assert model is not None
        gateway = local_gateway(model, settings, judge or [], max_tokens, max_batch)

    try:
        gateway.backend.check(Ask(getattr(gateway.backend, "model", ""), {}, [], defaults, 0.0))
    except ApiError as error:
        raise ConfigError(str(error).replace("best_of.", "--")) from None

    def say(found: int) -> None:
        typer.echo(f"http://{host}:{found}/v1 serves {model or upstream}; Ctrl-C stops it", err=True)

    run(lambda: run_gateway(gateway, host, port, grace, say))
