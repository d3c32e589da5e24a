"""The group of verbs, and how errors leave it: one line on the error stream, and a code.

0 all went well; 1 something failed under way; 2 a wrong value; 130 stopped by Ctrl-C, and 143 by SIGTERM.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import click

import pluribus
from pluribus.core.errors import PluribusError

FAILED, WRONG, STOPPED, TERMINATED = 1, 2, 130, 143
VERBS = ("federate", "laws", "catalog", "doctor")


class _Verbs(click.Group):
    """Verbs whose modules are imported when they are asked for; each module has a command of its own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"pluribus.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(pluribus.__version__, prog_name="pluribus")
@click.pass_context
def app(context: click.Context) -> None:
    """Many contributions become one result, with weights that are given, measured, learned or defended."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(WRONG)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends the command as Ctrl-C does."""


class StoppedError(click.ClickException):
    """Ctrl-C, with a hint how to go on."""

    exit_code = STOPPED


class TerminatedError(StoppedError):
    """The same after SIGTERM."""

    exit_code = TERMINATED


def stopped(message: str, stop: BaseException | None) -> StoppedError:
    """How the command ends after a `KeyboardInterrupt`."""
    return (TerminatedError if isinstance(stop, Terminated) else StoppedError)(message)


class FailedError(click.ClickException):
    """Something failed under way, and it was not a wrong value."""

    exit_code = FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and give its exit code."""
    for stream in (sys.stdout, sys.stderr):  # where a terminal has no "±", a "?" is better than no table
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        given = list(arguments) if arguments is not None else None
        with _terminable():
            code = app.main(args=given, prog_name="pluribus", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _told(_message(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        end = stopped("stopped", error.__cause__ if isinstance(error, click.Abort) else error)
        return _told(end.message, end.exit_code)
    except PluribusError as error:
        return _told(str(error), WRONG)
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this Python would complain again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except MemoryError as error:
        return _told(f"out of memory: {error}", FAILED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _told(f"{where}{error.strerror or error}", FAILED)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is raised as `Terminated`, where nobody else has a use for it."""

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _message(error: click.ClickException) -> str:
    text = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        return f"{text[:1].lower() + text[1:]}; see {context.command_path} --help"
    return text


def _told(message: str, code: int) -> int:
    # One line, whatever an error holds.
    click.echo(f"pluribus: {' '.join(message.split())}", err=True)
    return code
