"""The script ``outbound-transfer``: before 3.2, Airflow does not add a provider's commands to its own."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence

from airflow.cli.cli_config import ActionCommand, GroupCommand

from outbound_transfer.cli.definition import get_commands


def main(words: Sequence[str] | None = None) -> None:
    """Run a command of :func:`outbound_transfer.cli.definition.get_commands`.

    :param words: the command line; that of the process if None.
    """
    (command,) = get_commands()
    parser = ArgumentParser(prog=command.name, description=command.help)
    _add_commands(parser, command.subcommands)
    arguments = parser.parse_args(words)
    arguments.func(arguments)


def _add_commands(parser: ArgumentParser, commands: Iterable[ActionCommand | GroupCommand]) -> None:
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        subparser = subparsers.add_parser(
            command.name, help=command.help, description=command.description or command.help
        )
        if isinstance(command, GroupCommand):
            _add_commands(subparser, command.subcommands)
        else:
            for argument in command.args:
                argument.add_to_parser(subparser)
            subparser.set_defaults(func=command.func)
