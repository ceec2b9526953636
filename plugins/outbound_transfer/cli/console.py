"""The script ``outbound-transfer``: before 3.2, Airflow does not add a provider's commands to its own."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from airflow.cli.cli_config import ActionCommand, GroupCommand

from outbound_transfer.cli.definition import get_commands


def main(words: Sequence[str] | None = None) -> None:
    """Run a command of :func:`outbound_transfer.cli.definition.get_commands`.

    :param words: the command line; that of the process if None.
    """
    (command,) = get_commands()
    parser = ArgumentParser(prog=command.name, description=command.help)
    _add_commands(parser, command)
    arguments = parser.parse_args(words)
    arguments.func(arguments)


def _add_commands(parser: ArgumentParser, command: ActionCommand | GroupCommand) -> None:
    if isinstance(command, GroupCommand):
        subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
        for each in command.subcommands:
            text = each.description or each.help
            _add_commands(subparsers.add_parser(each.name, help=each.help, description=text), each)
    else:
        for argument in command.args:
            argument.add_to_parser(parser)
        parser.set_defaults(func=command.func)
