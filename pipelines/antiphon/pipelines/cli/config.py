"""The command `antiphon config`: changes the user's defaults of options, which are kept in a file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from platformdirs import user_config_dir

from antiphon.pipelines.cli import console

SETTINGS = {"model": ("ask", "chat", "serve", "mcp", "doctor"), "embedder": ("index",)}
"""For each setting of the file, the commands for which it sets the default of the option with this name."""


def config(
    name: Annotated[str | None, typer.Argument(help=f"Setting: {' or '.join(SETTINGS)}.")] = None,
    value: Annotated[str | None, typer.Argument(help="Its new value.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Remove the setting.")] = False,
) -> None:
    """Show or change the defaults of --model and --embedder. ANTIPHON_MODEL and options override them."""
    if name is not None and name not in SETTINGS:
        raise ValueError(f"There is no setting {name!r}; there are {' and '.join(SETTINGS)}.")
    settings = read_settings()
    if name is not None and (unset or value is not None):
        settings = {key: text for key, text in settings.items() if key != name} | ({} if unset else {name: value})
        file = settings_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{key} = {json.dumps(text)}\n" for key, text in settings.items()), encoding="utf-8")
    for key, text in settings.items():
        if name in (None, key):
            console.out.print(f"{key} = {text}", markup=False)
    console.err.print(f"{settings_file()}", style="dim", markup=False)


def settings_file() -> Path:
    """Return the path of the settings file, which may not exist.

    Raises:
        FileNotFoundError: the user has no home folder.
    """
    try:
        return Path(user_config_dir("antiphon")) / "config.toml"
    except RuntimeError as error:
        raise FileNotFoundError("There is no home folder for the settings; set HOME or XDG_CONFIG_HOME.") from error


def read_settings() -> dict[str, Any]:
    """Return the settings of the file; none if there is no file.

    Raises:
        ValueError: the file is not valid, or has an unknown setting.
    """
    try:
        file = settings_file()
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # also if HOME is not the user's own home folder
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid TOML ({error}); correct it, or remove it.") from error
    for name, value in found.items():
        if name not in SETTINGS or not isinstance(value, str):
            raise ValueError(f"{file} has {name} = {value!r}; it may have {' and '.join(SETTINGS)}, as texts.")
    return found


def default_options() -> dict[str, dict[str, Any]]:
    """Return the defaults of each command's options, as click's ``default_map`` takes them."""
    defaults: dict[str, dict[str, Any]] = {}
    for name, value in read_settings().items():
        for command in SETTINGS[name]:
            defaults.setdefault(command, {})[name] = value
    return defaults
